"""The machine: SMs, launches, turns of warps, events of asynchronous work, all in an order that one seed decides."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .axioms import STRICT, Axioms
from .blas import single_threaded
from .cluster_launch_control import ClusterLaunchControl, Policy
from .cta import Cluster, Cta, Grid
from .errors import AddressOutOfRange, Deadlock, EmulatorError
from .memory import GlobalMemory, SharedMemory
from .options import Hostility
from .referee import Referee
from .tensor_memory import TensorMemory
from .translator import Program, place_of
from .warp import Warp

SM_SHARED_BYTES = 233472
SM_THREADS = 2048
SM_CTAS = 32
CTA_SHARED_BYTES = 232448  # most dynamic and static shared memory of one CTA
REGISTERS = 65536
TURN_INSTRUCTIONS = 20_000


@dataclass(slots=True)
class Sm:
    number: int
    shared: int = SM_SHARED_BYTES
    threads: int = SM_THREADS
    ctas: int = SM_CTAS
    registers: int = REGISTERS
    available: bool = True


@dataclass(slots=True)
class Launch:
    """One cluster that ran, for reports and timelines. Times in ticks; `stop` is None while it runs."""

    cluster: int
    origin: tuple[int, int, int]
    sms: tuple[int, ...]
    start: int
    stop: int | None = None
    grants: list[tuple[int, tuple[int, int, int] | None]] = field(
        default_factory=list
    )  # (tick, cluster granted or refusal)


class TraceEvent(NamedTuple):
    """A tensor load, tensor store or MMA when it was issued. `what`: coordinates of a copy; for an MMA its instruction
    (wgmma's shape, tcgen05's instruction descriptor), where the accumulator is, and whether it adds to it."""

    tick: int
    kind: str
    cta: int
    line: int
    what: tuple


class Machine:
    """A GPU. `run_grid` runs one launch to its end."""

    def __init__(self, sm_count: int, seed: int, options: Hostility, referee: Referee | None, axioms: Axioms = STRICT):
        self.sm_count, self.options, self.referee, self.axioms = sm_count, options, referee, axioms
        self.random = random.Random(seed)
        self.memory = GlobalMemory()
        self.sms = [Sm(i) for i in range(sm_count)]
        self.now = 0
        self.changes = 0  # of memory or barriers; polling that sees none for long is a deadlock
        self.polls = 0
        self.instructions = 0
        self.launches: dict[int, Launch] = {}
        self.trace: list[TraceEvent] | None = None  # set to a list to collect tensor loads, MMAs and stores
        self.tensor_waiters: list[Warp] = []
        self._runnable: list[Warp] = []
        self._asleep: set[Warp] = set()
        self._events: list = []
        self._event_number = 0
        self._cta_number = 0
        self._cluster_number = 0
        self._grid_number = 0
        self._tensor_memories: dict[int, TensorMemory] = {}
        self._shared_pool: dict[int, list[SharedMemory]] = {}
        self._next_launch = 0

    # resources

    def next_cta(self) -> int:
        self._cta_number += 1
        return self._cta_number - 1

    def take_shared(self, size: int) -> SharedMemory:
        pool = self._shared_pool.get(size)
        return pool.pop() if pool else SharedMemory(size)

    def give_shared(self, shared: SharedMemory) -> None:
        self._shared_pool.setdefault(shared.size, []).append(shared)

    def tensor_memory(self, sm: int) -> TensorMemory:
        if sm not in self._tensor_memories:
            self._tensor_memories[sm] = TensorMemory()
        return self._tensor_memories[sm]

    def wake_tensor_waiters(self) -> None:
        self.changes += 1
        sleepers, self.tensor_waiters = self.tensor_waiters, []
        for warp in sleepers:
            self.wake(warp)

    @staticmethod
    def _needs(grid: Grid) -> tuple[int, int, int]:
        threads = grid.warps * 32
        return grid.shared_bytes, threads, (grid.registers or 0) * threads

    def _place(self, grid: Grid) -> list[int] | None:
        """SMs for one cluster's CTAs, each on its own; None if they do not all fit now."""
        shared, threads, registers = self._needs(grid)
        fitting = [
            sm.number for sm in self.sms
            if sm.available and sm.shared >= shared and sm.threads >= threads and sm.ctas and sm.registers >= registers
        ]  # fmt: skip
        if len(fitting) < grid.cluster_size:
            return None
        self.random.shuffle(fitting)
        fitting.sort(key=lambda number: -self.sms[number].shared)
        chosen = fitting[: grid.cluster_size]
        for number in chosen:
            sm = self.sms[number]
            sm.shared -= shared
            sm.threads -= threads
            sm.registers -= registers
            sm.ctas -= 1
        return chosen

    def free_sm(self, cta: Cta) -> None:
        shared, threads, registers = self._needs(cta.grid)
        sm = self.sms[cta.sm]
        sm.shared += shared
        sm.threads += threads
        sm.registers += registers
        sm.ctas += 1

    def resident_clusters(self, shared_bytes: int, threads: int, registers: int, cluster_size: int) -> int:
        """How many clusters fit at once on an idle machine, from what each CTA takes: bytes of its shared window,
        threads in whole warps, registers a thread (0: no limit)."""
        each = min(SM_SHARED_BYTES // shared_bytes, SM_THREADS // threads, SM_CTAS)
        if registers:
            each = min(each, REGISTERS // (registers * threads))
        return each * (self.sm_count // cluster_size)

    # events and sleep

    def later(self, delay: tuple[int, int], function: Callable, owner, *arguments) -> None:
        """Call function(*arguments) after a delay drawn from the range. `owner` names the operation in errors."""
        self._event_number += 1
        when = self.now + self.random.randint(*delay)
        heapq.heappush(self._events, (when, self.random.random(), self._event_number, function, owner, arguments))

    def wake(self, warp: Warp) -> None:
        if warp.waiting is not None:
            warp.waiting = None
            self._asleep.discard(warp)
            self._runnable.append(warp)

    def give_up_later(self, warp: Warp) -> None:
        """A try_wait returns false after a while although nothing happened."""

        def give_up(count: int) -> None:
            if warp.waiting is not None and warp.count == count and warp.ticket == "waiting":
                warp.ticket = "gave up"
                self.wake(warp)

        self.later((1, 40), give_up, None, warp.count)

    # traces

    def note(self, kind: str, cta: Cta, line: int, what: tuple) -> None:
        """Something that a trace shows was issued."""
        if self.trace is not None:
            self.trace.append(TraceEvent(self.now, kind, cta.number, line, what))

    def granted(self, cta: Cta, control: ClusterLaunchControl, serial: int) -> None:
        self.launches[cta.cluster.number].grants.append((self.now, control._requests[serial].granted))

    def noted_record(self, warp: Warp, record: int, granted: bool) -> None:
        """A warp decoded a record."""

    def cluster_done(self, cluster: Cluster) -> None:
        self.launches[cluster.number].stop = self.now

    # running

    def run_grid(
        self, program: Program, grid: tuple[int, int, int], block: tuple[int, int, int], cluster: tuple[int, int, int],
        dynamic_smem_bytes: int, params: bytes, data_base: int = 0, registers: int | None = None,
    ) -> Grid:  # fmt: skip
        """Run one launch. Raises EmulatorError subclasses, located."""
        policy = Policy(self.options.clc_refusals, self.options.shuffle_launches > 1)
        control = ClusterLaunchControl(grid, cluster, self.random, policy)
        self._grid_number += 1
        launch = Grid(
            self._grid_number, program, grid, block, cluster, dynamic_smem_bytes, params, data_base, control, registers
        )
        self._check_launch(launch)
        if self.referee is not None:
            self.referee.grid_start(launch.number)
        self._schedule_sm_changes()
        with single_threaded(), np.errstate(all="ignore"):
            self._loop(launch)
        if self.referee is not None:
            self.referee.grid_end(launch.number)
        return launch

    def _check_launch(self, grid: Grid) -> None:
        shared = grid.shared_bytes - 1024
        if shared > CTA_SHARED_BYTES or grid.threads > 1024:
            raise AddressOutOfRange(
                f"a CTA of {grid.threads} threads with {shared} bytes of shared memory cannot be launched"
            )
        if grid.cluster_size > self.sm_count:
            raise AddressOutOfRange(f"clusters of {grid.cluster_size} CTAs on a device of {self.sm_count} SMs")

    def _schedule_sm_changes(self) -> None:
        for tick, number, available in self.options.sm_schedule:
            if tick <= self.now:  # away before the first cluster is launched
                self._set_sm(number, available)
            else:
                self.later((tick - self.now, tick - self.now), self._set_sm, None, number, available)
        tick = 0
        for _ in range(self.options.sm_changes):
            tick += self.random.randint(*self.options.sm_change_interval)
            self.later((tick, tick), self._toggle_sm, None)

    def _set_sm(self, number: int, available: bool) -> None:
        self.sms[number].available = available

    def _toggle_sm(self) -> None:
        sm = self.random.choice(self.sms)
        sm.available = not sm.available

    def _start_clusters(self, grid: Grid) -> None:
        while grid.control.pending and self.now >= self._next_launch:
            sms = self._place(grid)
            if sms is None:
                return
            origin = grid.control.launch_next()
            assert origin is not None
            number, self._cluster_number = self._cluster_number, self._cluster_number + 1
            self.launches[number] = Launch(number, origin, tuple(sms), self.now)
            cluster = Cluster(self, grid, number, origin, sms)
            grid.running += 1
            self.changes += 1
            for cta in cluster.ctas:
                self._runnable.extend(cta.warps)
            self._next_launch = self.now + self.random.randint(*self.options.launch_delay)

    def _loop(self, grid: Grid) -> None:
        runnable, events = self._runnable, self._events
        draw = self.random.random
        idle, changes = 0, self.changes
        while True:
            if grid.control.pending:
                self._start_clusters(grid)
            while events and events[0][0] <= self.now:
                self._fire()
            if runnable:
                index = int(draw() * len(runnable))
                warp = runnable[index]
                runnable[index] = runnable[-1]
                runnable.pop()
                before = warp.count
                self._turn(warp)
                self.now += 1
                executed = warp.count - before
                self.instructions += executed
                if self.changes != changes:
                    idle, changes = 0, self.changes
                else:
                    idle += executed + 1
                    if idle > self.options.idle_instructions and not events and not self._give_back(grid):
                        raise self._deadlock("warps poll for ever")
            elif events:
                self.now = max(self.now, events[0][0])
            elif grid.control.pending and self.now < self._next_launch:
                self.now = self._next_launch
            elif self._give_back(grid):
                continue
            elif grid.running:
                raise self._deadlock("no warp can run")
            elif grid.control.pending:
                raise Deadlock("pending clusters fit on no SM")
            else:
                return

    def _give_back(self, grid: Grid) -> bool:
        """Nothing else will happen: SMs that were taken come back, if clusters still wait for them. True if that
        helps.
        """
        for sm in self.sms:
            sm.available = True
        before = len(grid.control.pending)
        if before:
            self._start_clusters(grid)
        return len(grid.control.pending) < before

    def _turn(self, warp: Warp) -> None:
        warp.limit = warp.count + TURN_INSTRUCTIONS
        try:
            next(warp.generator)
        except StopIteration:
            self.changes += 1
            try:
                warp.cta.warp_done(warp)
            except EmulatorError as error:
                raise error.located(cta=warp.cta.number, warp=warp.index) from None
            return
        except EmulatorError as error:
            place = place_of(warp.cta.grid.program, error)
            raise error.located(**place, cta=warp.cta.number, warp=warp.index) from error
        except Exception as error:
            place = place_of(warp.cta.grid.program, error)
            error.add_note(f"at PTX line {place['line']}: {place['text']} ({warp})")
            raise
        if warp.waiting is None:
            self._runnable.append(warp)
        else:
            self._asleep.add(warp)

    def _fire(self) -> None:
        _, _, _, function, owner, arguments = heapq.heappop(self._events)
        try:
            function(*arguments)
        except EmulatorError as error:
            if owner is not None:
                text = owner.warp.cta.grid.program.text_lines
                line = text[owner.line - 1].strip() if 0 < owner.line <= len(text) else None
                error.located(line=owner.line, cta=owner.warp.cta.number, warp=owner.warp.index, text=line)
            raise

    def _deadlock(self, why: str) -> Deadlock:
        lines = [f"{why} after {self.now} ticks:"]
        waiting = sorted(self._asleep, key=lambda w: (w.cta.number, w.index))
        for warp in [*waiting, *self._runnable]:
            lines.append(f"  {warp} waits for {warp.waiting or polled_by(warp)} [PTX line {warp_line(warp)}]")
        return Deadlock("\n".join(lines))


def warp_line(warp: Warp) -> int | None:
    """The PTX line at which a warp's generator stands."""
    frame = getattr(warp.generator, "gi_frame", None)
    lines = warp.cta.grid.program.lines
    return lines[frame.f_lineno] if frame is not None and frame.f_lineno < len(lines) else None


def polled_by(warp: Warp) -> str:
    """What a warp that is awake looks at again and again."""
    if warp.polled is None:
        return "memory that it polls"
    cta, offset, what, parity = warp.polled
    return (
        f"mbarrier {offset:#x} of CTA {cta.number}, {'parity' if parity else 'state'} {what} "
        f"({cta.barriers.get(offset)})"
    )
