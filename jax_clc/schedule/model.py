"""Makespan of the four schedules: an exact, event-driven model of one launch.

A worker is a resident cluster. It is launched whole, on `cluster_size` free SMs of one GPC, and is never evicted.
Its life is given by the times of its tiles and by when it learns of them:

    mainloop starts   when the tile is known, the mainloop before it has ended, and an accumulator is free
    epilogue starts   when the mainloop has ended and the epilogue before it has ended
    next tile asked   when the answer before it has been read, a record stage is free, and (with `throttle`) the
                      mainloop of the tile in hand has started

so that one event per tile, the moment of the request, is enough: everything else follows from the worker's own past.
Plain Python, no JAX. Times are in microseconds.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from jax_clc.schedule.trace import SCHEDULES, SmWindow, TileEvent, TileTrace


@dataclass(frozen=True)
class Tiles:
    """Time of each cluster tile, in the order in which they are handed out."""

    mainloop_us: tuple[float, ...]
    epilogue_us: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mainloop_us) != len(self.epilogue_us):
            raise ValueError(f"{len(self.mainloop_us)} mainloop times, {len(self.epilogue_us)} epilogue times")
        if any(t < 0 or not math.isfinite(t) for t in self.mainloop_us + self.epilogue_us):
            raise ValueError("tile times must be finite and not negative")

    def __len__(self) -> int:
        return len(self.mainloop_us)

    @staticmethod
    def constant(count: int, mainloop_us: float, epilogue_us: float = 0.0) -> Tiles:
        """`count` equal tiles."""
        return Tiles((mainloop_us,) * count, (epilogue_us,) * count)

    @staticmethod
    def drawn(count: int, mainloop_us: float, spread: float, *, seed: int, epilogue_us: float = 0.0) -> Tiles:
        """Lognormal mainloop times of mean `mainloop_us` and coefficient of variation `spread`, from `seed`."""
        if not 0 <= spread < math.inf:
            raise ValueError(f"spread is {spread}; a coefficient of variation is finite and not negative")
        generator = random.Random(seed)
        sigma = math.sqrt(math.log1p(spread * spread))
        times = tuple(mainloop_us * generator.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(count))
        return Tiles(times, (epilogue_us,) * count)


@dataclass(frozen=True)
class Device:
    """SMs, which of them launch clusters together, and which of them other work takes when.

    `gpc_sizes`: SMs per GPC (None: one GPC); a cluster lies within one. `speed`: (busy SMs, relative speed) points,
    linear in between and constant outside, for a power-limited clock; empty: always 1.
    """

    sm_count: int
    cluster_size: int = 1
    gpc_sizes: tuple[int, ...] | None = None
    taken: tuple[SmWindow, ...] = ()
    speed: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        sizes = self.gpc_sizes or (self.sm_count,)
        if sum(sizes) != self.sm_count or min(sizes) < 1:
            raise ValueError(f"GPCs of {sizes} SMs do not make {self.sm_count} SMs")
        if not 1 <= self.cluster_size <= max(sizes):
            raise ValueError(f"a cluster of {self.cluster_size} CTAs does not fit a GPC of {max(sizes)} SMs")
        if any(window.sm >= self.sm_count for window in self.taken):
            raise ValueError(f"an SM that is taken lies beyond the {self.sm_count} SMs")
        if any(speed <= 0 for _, speed in self.speed) or list(self.speed) != sorted(self.speed):
            raise ValueError("speed points must be positive and in ascending order of busy SMs")

    @property
    def resident_clusters(self) -> int:
        """Clusters resident at once when no SM is taken: what a launcher plans with."""
        return sum(size // self.cluster_size for size in self.gpc_sizes or (self.sm_count,))

    def speed_at(self, busy: int) -> float:
        """Relative speed with `busy` SMs at work."""
        if not self.speed:
            return 1.0
        if busy <= self.speed[0][0]:
            return self.speed[0][1]
        for (low, slow), (high, fast) in itertools.pairwise(self.speed):
            if busy <= high:
                return slow + (fast - slow) * (busy - low) / (high - low)
        return self.speed[-1][1]


@dataclass(frozen=True)
class Costs:
    """What a schedule pays beside the tiles.

    launch_us: from free SMs to a cluster's first instruction. prologue_us: barriers, tensor memory, first loads; a
    worker pays it once, one tile per CTA pays it for each. request_us: from asking for a tile to the answer.
    reset_us: clearing the counter before a `dynamic` launch. record_stages, throttle: the record pipeline.
    accumulators: 2 lets an epilogue run under the next mainloop, 1 does not.
    clc_yields: a `clc` worker on an SM that other work wants has its request refused, leaves, and its SMs go to that
    work, as a grid of one tile per CTA would (CUDA programming guide, cluster launch control). refusals: the
    probability of any other refusal, drawn from `seed`.
    """

    launch_us: float = 0.0
    prologue_us: float = 0.0
    request_us: float = 0.0
    reset_us: float = 0.0
    record_stages: int = 3
    throttle: bool = True
    accumulators: int = 2
    clc_yields: bool = True
    refusals: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.launch_us, self.prologue_us, self.request_us, self.reset_us) < 0:
            raise ValueError("costs must not be negative")
        if self.record_stages < 1 or self.accumulators < 1 or not 0 <= self.refusals <= 1:
            raise ValueError("record_stages and accumulators are at least 1, refusals a probability")


class _Clock:
    """Virtual time, in which tiles have their nominal length, against real time, in which SMs are taken."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.virtual = self.real = 0.0
        self.speed = device.speed_at(0)
        self.points = [(0.0, 0.0, self.speed)]

    def advance(self, virtual: float) -> None:
        self.real = self.real_at(virtual)
        self.virtual = virtual

    def advance_real(self, real: float) -> None:
        self.virtual += (real - self.real) * self.speed
        self.real = real

    def real_at(self, virtual: float) -> float:
        """The real time of a virtual one that has not come yet, if nothing changes till then."""
        return self.real + (virtual - self.virtual) / self.speed

    def set_busy(self, busy: int) -> None:
        self.speed = self.device.speed_at(busy)
        self.points.append((self.virtual, self.real, self.speed))

    def to_real(self, virtuals: Sequence[float]) -> list[float]:
        """Real times of virtual ones, which must be in ascending order."""
        result, index = [], 0
        for virtual in virtuals:
            while index + 1 < len(self.points) and self.points[index + 1][0] <= virtual:
                index += 1
            start, real, speed = self.points[index]
            result.append(real + (virtual - start) / speed)
        return result


class _SmPool:
    """Which SMs are free, and where the next cluster goes: the GPC with most free SMs, lowest SMs first."""

    def __init__(self, device: Device) -> None:
        self.cluster_size = device.cluster_size
        bounds = itertools.accumulate(device.gpc_sizes or (device.sm_count,), initial=0)
        self.gpcs = [range(low, high) for low, high in itertools.pairwise(bounds)]
        self.occupied: set[int] = set()
        self.wanted: set[int] = set()

    def place(self) -> tuple[int, ...] | None:
        best: list[int] = []
        for gpc in self.gpcs:
            free = [sm for sm in gpc if sm not in self.occupied and sm not in self.wanted]
            if len(free) >= self.cluster_size and len(free) > len(best):
                best = free
        if not best:
            return None
        sms = tuple(best[: self.cluster_size])
        self.occupied.update(sms)
        return sms


@dataclass
class _Worker:
    """A resident cluster: where it is and how far its pipelines have come (virtual time)."""

    cluster: int
    sms: tuple[int, ...]
    ready: float
    main_start: list[float] = field(default_factory=list)
    main_end: list[float] = field(default_factory=list)
    epilogue_end: list[float] = field(default_factory=list)
    answer: float = 0.0

    @property
    def done(self) -> float:
        """When it leaves if no further tile comes: last tile stored, last answer read."""
        return max([self.ready, self.answer] + self.epilogue_end[-1:])

    def compute(self, mainloop: float, epilogue: float, known: float, accumulators: int) -> tuple[float, float]:
        """Adds one tile known at `known`; returns its start and end."""
        start = max(known, self.ready)
        if self.main_end:
            start = max(start, self.main_end[-1])
        if len(self.epilogue_end) >= accumulators:
            start = max(start, self.epilogue_end[-accumulators])
        end = start + mainloop
        epilogue_end = max(end, self.epilogue_end[-1] if self.epilogue_end else 0.0) + epilogue
        self.main_start.append(start)
        self.main_end.append(end)
        self.epilogue_end.append(epilogue_end)
        return start, epilogue_end

    def next_request(self, costs: Costs, records: int) -> float:
        """When the request after `records` records is made."""
        time = max(self.ready, self.answer)
        if costs.throttle and self.main_start:
            time = max(time, self.main_start[-1])
        # The stage of record r is free once its last reader, the epilogue, has come to it. A record is
        # one tile behind or level with the tile count, as the first tile has a record in `dynamic` only.
        behind = records - costs.record_stages
        if behind >= 0:
            tile = behind + len(self.main_start) - records
            time = max(time, self.epilogue_end[tile - 1] if tile else self.ready)
        return time


@dataclass(frozen=True)
class _Computed:
    """A tile and who computed it when (virtual time)."""

    tile: int
    worker: _Worker
    start: float
    end: float
    asked: float | None
    answered: float | None

    def times(self) -> tuple[float | None, ...]:
        return self.start, self.end, self.asked, self.answered


_EXIT, _REQUEST = 0, 1


class _Launch:
    """One launch under way: who is resident, what is pending, what happens next."""

    def __init__(self, schedule: str, tiles: Tiles, device: Device, costs: Costs, grid: int) -> None:
        self.schedule, self.tiles, self.device, self.costs, self.grid = schedule, tiles, device, costs, grid
        self.clock, self.pool = _Clock(device), _SmPool(device)
        self.draw = random.Random(costs.seed)
        self.next_cluster = self.next_tile = self.resident = 0
        self.heap: list[tuple[float, int, int, int, _Worker]] = []
        self.computed: list[_Computed] = []
        self.holders: Counter[int] = Counter()
        self.changes = deque(
            sorted(
                [(window.taken, window.sm, 1) for window in device.taken]
                + [(window.given_back, window.sm, -1) for window in device.taken if math.isfinite(window.given_back)]
            )
        )

    def run(self) -> None:
        """From the launch to the last worker's exit."""
        if self.schedule == "dynamic":
            self.clock.advance(self.costs.reset_us)
        self.take_and_give_back()
        self.launch_pending()
        while self.heap or self.next_cluster < self.grid:
            change_at = self.changes[0][0] if self.changes else math.inf
            event_at = self.clock.real_at(self.heap[0][0]) if self.heap else math.inf
            if math.isinf(min(change_at, event_at)):
                raise ValueError(
                    f"{self.grid - self.next_cluster} clusters of {self.device.cluster_size} CTAs can "
                    f"never be launched: {len(self.pool.wanted)} of {self.device.sm_count} SMs are taken"
                )
            kind = self.heap[0][1] if self.heap else _REQUEST
            if change_at < event_at or (change_at == event_at and kind == _REQUEST):
                self.clock.advance_real(change_at)
            else:
                self.clock.advance(self.heap[0][0])
                if kind == _REQUEST:
                    self.ask(heapq.heappop(self.heap)[-1])
                    continue
                while self.heap and self.heap[0][:2] == (self.clock.virtual, _EXIT):
                    self.pool.occupied.difference_update(heapq.heappop(self.heap)[-1].sms)
                    self.resident -= 1
            self.take_and_give_back()
            self.launch_pending()

    def take_and_give_back(self) -> None:
        while self.changes and self.changes[0][0] <= self.clock.real:
            _, sm, change = self.changes.popleft()
            self.holders[sm] += change
            (self.pool.wanted.add if self.holders[sm] else self.pool.wanted.discard)(sm)

    def launch_pending(self) -> None:
        while self.next_cluster < self.grid and (sms := self.pool.place()) is not None:
            ready = self.clock.virtual + self.costs.launch_us + self.costs.prologue_us
            worker = _Worker(self.next_cluster, sms, ready)
            self.next_cluster += 1
            self.resident += 1
            if self.schedule == "static":
                for tile in range(worker.cluster, len(self.tiles), self.grid):
                    self.compute(worker, tile, ready)
            elif self.schedule != "dynamic":
                self.compute(worker, worker.cluster, ready)
            if self.schedule in ("static", "nonpersistent"):
                self.push(worker.done, _EXIT, worker)
            else:
                self.push(worker.next_request(self.costs, 0), _REQUEST, worker)
        self.clock.set_busy(self.resident * self.device.cluster_size)

    def ask(self, worker: _Worker) -> None:
        """The request takes effect now; its answer is known `request_us` later."""
        worker.answer = self.clock.virtual + self.costs.request_us
        granted = self.counter() if self.schedule == "dynamic" else self.cancel(worker)
        if granted is None:
            self.push(worker.done, _EXIT, worker)
            return
        self.compute(worker, granted, worker.answer, asked=True)
        records = len(worker.main_start) - (self.schedule == "clc")
        self.push(worker.next_request(self.costs, records), _REQUEST, worker)

    def counter(self) -> int | None:
        tile = self.next_tile
        self.next_tile += 1
        return tile if tile < len(self.tiles) else None

    def cancel(self, worker: _Worker) -> int | None:
        """Cluster launch control: the next pending cluster is cancelled and its tile handed over, or refused."""
        if (
            self.next_cluster >= self.grid
            or (self.costs.clc_yields and not self.pool.wanted.isdisjoint(worker.sms))
            or (self.costs.refusals > 0 and self.draw.random() < self.costs.refusals)
        ):
            return None
        self.next_cluster += 1
        return self.next_cluster - 1

    def compute(self, worker: _Worker, tile: int, known: float, asked: bool = False) -> None:
        mainloop, epilogue = self.tiles.mainloop_us[tile], self.tiles.epilogue_us[tile]
        start, end = worker.compute(mainloop, epilogue, known, self.costs.accumulators)
        request = (self.clock.virtual, worker.answer) if asked else (None, None)
        self.computed.append(_Computed(tile, worker, start, end, *request))

    def push(self, time: float, kind: int, worker: _Worker) -> None:
        # Of two requests at one instant the worker with fewer tiles asks first.
        heapq.heappush(self.heap, (time, kind, len(worker.main_start), worker.cluster, worker))


def simulate(
    schedule: str, tiles: Tiles, device: Device, costs: Costs = Costs(), *, workers: int | None = None
) -> TileTrace:
    """Runs one launch and returns its tiles' trace (`source` "model"); `.makespan` is in microseconds.

    `workers`: clusters that `static` and `dynamic` launch; by default as many as are resident when no SM is taken,
    and never more than there are tiles. Events at one instant happen in this order: clusters leave, SMs are taken
    or given back, clusters are launched, tiles are asked for. Pending clusters are launched and cancelled in grid
    order. Raises ValueError when a cluster could never be launched.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    if workers is not None and workers < 1:
        raise ValueError(f"{workers} workers")
    grid = min(len(tiles), workers or device.resident_clusters) if schedule in ("static", "dynamic") else len(tiles)
    launch = _Launch(schedule, tiles, device, costs, grid)
    launch.run()
    return _trace(launch)


def _trace(launch: _Launch) -> TileTrace:
    device = launch.device
    virtual = {time for computed in launch.computed for time in computed.times() if time is not None}
    times = sorted(virtual)
    real: dict[float | None, float | None] = {None: None}
    real.update(zip(times, launch.clock.to_real(times), strict=True))
    events = []
    for computed in sorted(launch.computed, key=lambda computed: (computed.start, computed.tile)):
        start, end, asked, answered = (real[time] for time in computed.times())
        assert start is not None and end is not None
        for cta, sm in enumerate(computed.worker.sms):
            request = (asked, answered) if cta == 0 else (None, None)
            events.append(TileEvent(computed.tile, computed.worker.cluster, cta, sm, start, end, *request))
    return TileTrace(
        launch.schedule,
        "model",
        device.sm_count,
        len(launch.tiles),
        tuple(events),
        cluster_size=device.cluster_size,
        end=launch.clock.real,
        taken=device.taken,
    )
