"""Vector clocks of the warps of one cluster, lane by lane, and the messages that releases pass to acquires.

Actors are indices into all vectors. A warp has 33: its lanes, then `lane 32`, which stands for all lanes at once.
Streams of asynchronous operations have one actor each; operation n of a stream is its time n.

A clock is a matrix, one row per kind of knowledge, `clock[row, actor]` being the last time known of that actor:

  H  causality order (base causality of the ISA)
  P  generic accesses made visible to the asynchronous proxy by a fence of the accessing thread
  L  the same, by any fence along the causality path (lenient)
  S  causality order if scopes were ignored
  A  tcgen05 operations that were released with before_thread_sync, received, not yet behind after_thread_sync
  U  tcgen05 operations that this thread may rely on
  B  what U was at the last before_thread_sync: what this thread releases of tcgen05 operations

Messages hold rows H P L S and, in row A, the sender's B.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

H, P, L, S, A, U, B = range(7)
ROWS = 7
MESSAGE = 5
ALL_LANES = 32
ACTORS_PER_WARP = 33
NOBODY = 0  # actor 0 never acts; every clock knows everything of it
BARRIER_MEMORY = 1  # actor 1 "wrote" memory that holds an mbarrier; nobody is ever ordered after it
FOREVER = np.iinfo(np.int32).max


@lru_cache(maxsize=4096)
def lanes_of(mask: int) -> np.ndarray:
    """Indices of the set bits."""
    lanes = np.array([lane for lane in range(32) if mask >> lane & 1], np.int64)
    lanes.setflags(write=False)
    return lanes


@dataclass(frozen=True)
class ActorName:
    """Who an actor is, for messages."""

    what: str
    cta: int
    warp: int | None = None

    def at(self, offset: int) -> str:
        if self.warp is None:
            return f"{self.what} (CTA {self.cta})"
        lane = "" if offset == ALL_LANES else f" lane {offset}"
        return f"warp {self.warp}{lane} of CTA {self.cta}"


@dataclass
class Actors:
    """The actors of one cluster. Vectors grow with `capacity`."""

    capacity: int = 512
    count: int = 2
    is_async: np.ndarray = field(default_factory=lambda: np.zeros(512, bool))
    whole_warps: set[int] = field(default_factory=set)
    """Actors that stand for all lanes of a warp."""
    waited_streams: set[int] = field(default_factory=set)
    """Streams of tcgen05.ld and .st, whose operations are known to others only after their thread has waited."""
    names: dict[int, ActorName] = field(default_factory=dict)

    def add(self, name: ActorName, count: int = 1, *, asynchronous: bool = False) -> int:
        """`count` consecutive actors; returns the first."""
        first = self.count
        self.count += count
        while self.count > self.capacity:
            self.capacity *= 2
        if self.capacity > len(self.is_async):
            self.is_async = np.concatenate([self.is_async, np.zeros(self.capacity - len(self.is_async), bool)])
        self.is_async[first : self.count] = asynchronous
        for offset in range(count):
            self.names[first + offset] = name
        return first

    def of_cta(self, actors: np.ndarray, cta: int) -> np.ndarray:
        """Which of these actors are threads of a CTA."""
        return np.array([actor in self.names and self.names[actor].cta == cta for actor in actors.tolist()], bool)

    def describe(self, actor: int) -> str:
        name = self.names[actor]
        first = actor
        while self.names.get(first - 1) is name:
            first -= 1
        return name.at(actor - first)

    def fit(self, matrix: np.ndarray) -> np.ndarray:
        """The matrix, widened to the present capacity."""
        missing = self.capacity - matrix.shape[1]
        return matrix if missing == 0 else np.pad(matrix, ((0, 0), (0, missing)))

    def new_clock(self, rows: int = ROWS) -> np.ndarray:
        clock = np.zeros((rows, self.capacity), np.int32)
        clock[:, NOBODY] = FOREVER
        return clock

    def join(self, into: np.ndarray | None, message: np.ndarray) -> np.ndarray:
        """Elementwise maximum, in place where possible. `into` None stands for nothing known."""
        if into is None:
            return self.fit(message).copy()
        into, message = self.fit(into), self.fit(message)
        np.maximum(into, message, out=into)
        return into


@dataclass
class WarpClock:
    """What the lanes of a warp know. `clock` holds for all of them; a lane that acquired alone has its own copy."""

    actors: Actors
    cta: int
    index: int
    live: int
    base: int = field(init=False)
    time: int = field(init=False, default=1)
    fenced: np.ndarray = field(init=False, default_factory=lambda: np.zeros(32, np.int32))
    clock: np.ndarray = field(init=False)
    lane_clocks: dict[int, np.ndarray] = field(init=False, default_factory=dict)
    released_by_fence: dict[bool, tuple[int, np.ndarray | None]] = field(init=False, default_factory=dict)
    received_relaxed: dict[bool, tuple[int, np.ndarray]] = field(init=False, default_factory=dict)
    """What relaxed operations received of this CTA (False), and of others (True): lanes and message."""
    init_actor: int = field(init=False, default=NOBODY)
    """Stands for the mbarrier inits of this warp, which a fence of their own can release."""
    inits: int = field(init=False, default=0)
    init_lanes: int = field(init=False, default=0)
    copies: int = field(init=False, default=NOBODY)
    """First of 32 actors that stand for the cp.async of each lane; `copies_done`: what each lane waited for."""
    copies_done: np.ndarray = field(init=False, default_factory=lambda: np.zeros(32, np.int32))

    def __post_init__(self) -> None:
        self.base = self.actors.add(ActorName("warp", self.cta, self.index), ACTORS_PER_WARP)
        self.actors.whole_warps.add(self.base + ALL_LANES)
        self.clock = self.actors.new_clock()

    # Reading

    def of_my_cta(self, actors: np.ndarray) -> np.ndarray:
        """Which of these actors are threads of this warp's CTA."""
        return self.actors.of_cta(actors, self.cta)

    def known(self, lane: int | None = None) -> np.ndarray:
        """The clock matrix of a lane, or of the warp; to be read only."""
        if lane is not None and lane in self.lane_clocks:
            self.lane_clocks[lane] = clock = self.actors.fit(self.lane_clocks[lane])
            return clock
        self.clock = self.actors.fit(self.clock)
        return self.clock

    def _clocks(self, mask: int) -> list[np.ndarray]:
        if self.lane_clocks and mask != self.live and mask & (mask - 1) == 0:
            return [self.known(mask.bit_length() - 1)]
        alone = [self.known(lane) for lane in self.lane_clocks if mask >> lane & 1]
        return [self.known(), *alone]

    def at_exit(self, mask: int) -> np.ndarray:
        """Two rows: what these lanes are ordered after, and what they have observed complete, ordered or not."""
        message = self.message(mask)
        both = message[:2].copy()
        observed = both[1]
        observed[:] = np.maximum(message[H], message[S])
        for clock in self._clocks(mask):
            np.maximum(observed, clock[A], out=observed)
            np.maximum(observed, clock[U], out=observed)
        for _, received in self.received_relaxed.values():
            relaxed = self.actors.fit(received)
            np.maximum(observed, relaxed[H], out=observed)
        return both

    def usable(self, mask: int) -> np.ndarray:
        """tcgen05 operations that an operation which these lanes issue together may rely on."""
        first, *others = self._clocks(mask)
        usable = first[U].copy()
        for clock in others:
            np.maximum(usable, clock[U], out=usable)
        return usable

    def message(self, mask: int) -> np.ndarray:
        """What these lanes know now, their own past included; a new time begins for the whole warp."""
        sources = self._clocks(mask)
        message = np.empty((MESSAGE, self.actors.capacity), np.int32)
        message[:A] = sources[0][:A]
        message[A] = sources[0][B]
        for source in sources[1:]:
            np.maximum(message[:A], source[:A], out=message[:A])
            np.maximum(message[A], source[B], out=message[A])
        first = self.base
        if mask == self.live:
            message[H, first : first + ACTORS_PER_WARP] = self.time
            message[S, first : first + ACTORS_PER_WARP] = self.time
            message[P, first : first + 32] = self.fenced
            message[P, first + ALL_LANES] = self.fenced[lanes_of(mask)].min()
        else:
            lanes = lanes_of(mask)
            message[H, first + lanes] = self.time
            message[S, first + lanes] = self.time
            message[P, first + lanes] = self.fenced[lanes]
        part = message[:, first : first + ACTORS_PER_WARP]
        np.maximum(part[L], part[P], out=part[L])
        if mask & self.init_lanes:
            message[:A, self.init_actor] = self.inits
        if self.copies:
            lanes = lanes_of(mask)
            for row in (H, S):
                known = message[row, self.copies : self.copies + 32]
                known[lanes] = np.maximum(known[lanes], self.copies_done[lanes])
        self.time += 1
        return message

    def relaxed_message(self, mask: int, wide: bool) -> np.ndarray:
        """What a relaxed arrival publishes: what a releasing fence of these lanes covered, and the tcgen05 operations
        before their last before_thread_sync, which needs no release."""
        message = self.actors.new_clock(MESSAGE)
        message[:, NOBODY] = 0
        for clock in self._clocks(mask):
            np.maximum(message[A], clock[B], out=message[A])
        published = self._published(mask, wide)
        return message if published is None else self.actors.join(message, published)

    def _published(self, mask: int, wide: bool) -> np.ndarray | None:
        """The part of the last releasing fence that concerns these lanes: not the past of lanes that fenced, too."""
        fenced, message = self.released_by_fence.get(wide, (0, None))
        if message is None or not fenced & mask:
            return None
        if fenced & ~mask:
            message = self.actors.fit(message).copy()
            own = message[:A, self.base : self.base + ACTORS_PER_WARP]
            keep = lanes_of(fenced & mask)
            fill = own[:, keep].copy()
            own[:] = self.known()[:A, self.base : self.base + ACTORS_PER_WARP]
            own[:, keep] = fill
        return message

    def init_message(self, mask: int) -> np.ndarray:
        """What fence.mbarrier_init releases: the barrier inits of these lanes, and nothing else."""
        message = self.actors.new_clock(MESSAGE)
        if mask & self.init_lanes:
            message[:A, self.init_actor] = self.inits
        return message

    def initialise_barrier(self, mask: int) -> tuple[int, int]:
        """Actor and time of one more mbarrier.init by these lanes."""
        if self.init_actor == NOBODY:
            self.init_actor = self.actors.add(ActorName(f"the barrier inits of warp {self.index}", self.cta))
        self.inits += 1
        self.init_lanes |= mask
        return self.init_actor, self.inits

    # Changing

    def acquire(self, mask: int, message: np.ndarray) -> None:
        """These lanes learn all of a message."""
        self._learn(mask, message, slice(0, MESSAGE))
        if self.lane_clocks and mask == self.live and message[H, self.base + ALL_LANES] >= self.time - 1:
            self._merge_lanes()  # the message carries all that any lane knew

    def acquire_out_of_scope(self, mask: int, message: np.ndarray) -> None:
        """These lanes would have learnt it, had scopes allowed."""
        self._learn(mask, message, slice(S, S + 1))

    def _learn(self, mask: int, message: np.ndarray, rows: slice) -> None:
        message = self.actors.fit(message)
        for clock in self._targets(mask):
            np.maximum(clock[rows], message[rows], out=clock[rows])

    def acquire_operation(
        self, mask: int, actor: int, time: int, *, usable: bool = False, committed: bool = False
    ) -> None:
        """These lanes observe that an asynchronous operation is complete; `usable`: by tcgen05.wait; `committed`: by
        tcgen05.commit, which after_thread_sync takes over."""
        rows = (H, S, U) if usable else (H, S, A) if committed else (H, S)
        for clock in self._targets(mask):
            for row in rows:
                if clock[row, actor] < time:
                    clock[row, actor] = time

    def _targets(self, mask: int) -> list[np.ndarray]:
        if mask == self.live:
            return [self.known(), *(self.known(lane) for lane in self.lane_clocks)]
        for lane in lanes_of(mask).tolist():
            if lane not in self.lane_clocks:
                self.lane_clocks[lane] = self.known().copy()
        return [self.known(lane) for lane in lanes_of(mask).tolist()]

    def synchronise_lanes(self, mask: int) -> None:
        """bar.warp.sync: the lanes learn from each other."""
        self.acquire(mask, self.message(mask))

    def _merge_lanes(self) -> None:
        clock = self.known()
        for lane in list(self.lane_clocks):
            np.maximum(clock, self.known(lane), out=clock)
        self.lane_clocks.clear()

    def fence_proxy(self, mask: int) -> None:
        """fence.proxy.async: past generic accesses of these lanes become visible to the asynchronous proxy."""
        self.fenced[lanes_of(mask)] = self.time
        self.time += 1
        for clock in self._clocks(mask):
            np.maximum(clock[L], clock[H], out=clock[L])

    def fence_tensor_before(self, mask: int) -> None:
        """tcgen05.fence::before_thread_sync."""
        for clock in self._clocks(mask):
            np.maximum(clock[B], clock[U], out=clock[B])

    def fence_tensor_after(self, mask: int) -> None:
        """tcgen05.fence::after_thread_sync."""
        for clock in self._clocks(mask):
            np.maximum(clock[U], clock[A], out=clock[U])

    def fence_release(self, mask: int, wide: bool) -> None:
        """A releasing thread fence: later relaxed operations of these lanes publish what is known now."""
        message = self.message(mask)
        self.released_by_fence[False] = (mask, message)
        if wide:
            self.released_by_fence[True] = (mask, message)

    def fence_acquire(self, mask: int, wide: bool) -> None:
        """An acquiring thread fence: what earlier relaxed operations received counts from now on, as far as its scope
        reaches."""
        for far, (lanes, message) in self.received_relaxed.items():
            if wide or not far:
                self.acquire(mask & lanes, message)
            else:
                self.acquire_out_of_scope(mask & lanes, message)

    def receive_relaxed(self, mask: int, message: np.ndarray, far: bool) -> None:
        """A relaxed read or wait: nothing is ordered unless an acquiring fence follows, but tcgen05 operations, which
        after_thread_sync takes over. `far`: the message comes from another CTA."""
        self._learn(mask, message, slice(A, A + 1))
        old = self.received_relaxed.get(far)
        if old is None or old[0] != mask:
            self.received_relaxed[far] = (mask, message.copy())
        else:
            self.received_relaxed[far] = (mask, self.actors.join(old[1], message))
