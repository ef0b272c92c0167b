"""What the referee remembers of clusters, CTAs, warps and asynchronous operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from jax_clc.emulator.barrier_clock import BarrierClock, LocationClock, Rendezvous
from jax_clc.emulator.happens_before import Actors, WarpClock
from jax_clc.emulator.shadow_memory import ShadowMemory

# Operations whose completion only a barrier tells: their actor is the barrier's, their time its phase.
ON_BARRIER = ("bulk.load", "bulk.shared", "st.async", "red.async", "try_cancel")
# Operations of one stream that complete in order; these belong to a thread, others to a warp or warpgroup.
PER_THREAD = ("bulk.store", "bulk.reduce", "cp.async", "bulk.prefetch")
GENERIC_PROXY = ("cp.async",)
ASYNC_STORES = ("st.async", "red.async")
TENSOR_PIPE = ("tcgen05.mma", "tcgen05.cp")
# Operations that read one stage in several steps, whose touches are judged together.
MERGED = ("wgmma", *TENSOR_PIPE)


class Place(TypedDict):
    """Where something happened, as errors take it."""

    line: int
    warp: int
    cta: int


@dataclass
class Touch:
    """Memory that an operation read or wrote. `ranges` and `rows` as in `async_access`."""

    kind: str
    space: str
    cta: int
    ranges: np.ndarray
    rows: np.ndarray | None
    line: int


@dataclass
class Op:
    """One asynchronous operation from issue to completion."""

    kind: str
    warp: Warp
    mask: int
    line: int
    message: np.ndarray
    actor: int  # NOBODY until a barrier tells
    time: int
    per_lane: bool = False
    pending: list[Touch] = field(default_factory=list)
    vector: np.ndarray | None = None
    usable: np.ndarray | None = None

    @property
    def stream(self) -> str:
        return stream_kind(self.kind)

    def known(self) -> np.ndarray:
        """What the issuing lanes knew at issue, as wide as vectors are now."""
        self.message = self.warp.actors.fit(self.message)
        return self.message

    def place(self, line: int) -> Place:
        return {"line": line, "warp": self.warp.index, "cta": self.warp.cta}


def stream_kind(kind: str) -> str:
    """tcgen05.mma and tcgen05.cp of one warp execute in order; every other kind is a stream of its own."""
    return "tcgen05" if kind in TENSOR_PIPE else kind


class Warp(WarpClock):
    """A warp's clock, the streams it feeds and the barriers it is at."""

    def __init__(self, actors: Actors, cta: int, index: int, live: int, cluster: Cluster):
        super().__init__(actors, cta, index, live)
        self.cluster = cluster
        self.streams: dict[tuple[str, int], tuple[int, int]] = {}
        """(kind, lane) -> (actor, operations so far)."""
        self.queues: dict[str, list[Op]] = {}
        """Operations of a merged stream that wait to be judged."""
        self.rendezvous: dict[object, Rendezvous] = {}

    def place(self, line: int) -> Place:
        return {"line": line, "warp": self.index, "cta": self.cta}


@dataclass
class Cta:
    number: int
    rank: int
    cluster: Cluster
    shadow: ShadowMemory
    tensor: ShadowMemory | None = None
    warps: dict[int, Warp] = field(default_factory=dict)
    barriers: dict[int, BarrierClock] = field(default_factory=dict)
    exit_clock: np.ndarray | None = None
    exited: bool = False
    needed: np.ndarray = field(init=False)
    """Per actor, the last time at which it touched this CTA from outside: to be known by the CTA when it exits."""
    arrivals: dict[tuple[int, int], tuple[int, int]] = field(init=False, default_factory=dict)
    """Per barrier and actor, its last arrival from outside, if no wait of this CTA has seen it: number and time. One
    that was seen is done, though what came before it need not be."""

    def __post_init__(self) -> None:
        self.needed = np.zeros(self.cluster.actors.capacity, np.int32)

    def must_precede_exit(self, actors: int | np.ndarray, time: int) -> None:
        missing = self.cluster.actors.capacity - len(self.needed)
        if missing:
            self.needed = np.pad(self.needed, (0, missing))
        self.needed[actors] = np.maximum(self.needed[actors], time)

    def arrived_from_outside(self, barrier: int, actor: int, number: int, time: int) -> None:
        self.arrivals[barrier, actor] = number, time

    def arrivals_seen(self, barrier: int, seen: dict[int, int]) -> None:
        """A wait of this CTA has succeeded after these arrivals: actor and number."""
        for actor, number in seen.items():
            if (barrier, actor) in self.arrivals and self.arrivals[barrier, actor][0] <= number:
                del self.arrivals[barrier, actor]

    def late_actors(self) -> list[int]:
        """Actors whose last touch the CTA does not know of when it exits."""
        if self.exit_clock is None:
            return []
        actors = self.cluster.actors
        for (_, actor), (_, time) in self.arrivals.items():
            self.must_precede_exit(actor, time)
        ordered, observed = actors.fit(self.exit_clock)
        known = np.where(actors.is_async[: actors.capacity], observed, ordered)
        return np.flatnonzero(known[: len(self.needed)] < self.needed).tolist()


@dataclass
class Cluster:
    actors: Actors = field(default_factory=Actors)
    warps: list[Warp] = field(default_factory=list)
    locations: dict[tuple[object, int], LocationClock] = field(default_factory=dict)
    """Ordinary memory locations that somebody released to or acquired from."""
