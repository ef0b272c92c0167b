"""What an mbarrier, a named barrier or a memory location orders: messages gathered by arrivals, learnt by waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from jax_clc.emulator import happens_before as hb
from jax_clc.emulator.happens_before import ActorName, Actors, WarpClock


@dataclass
class Rendezvous:
    """One phase of a named or cluster barrier."""

    message: np.ndarray | None = None


@dataclass
class BarrierClock:
    """The ordering side of one mbarrier (the counting side is `mbarrier.Barrier`).

    Messages are kept per CTA of the arriving thread and by whether its scope was wider than the CTA. Waits learn what
    the phases that have ended gathered: arrivals are atomic updates of one location, so later phases include earlier.
    """

    actors: Actors
    cta: int
    address: int
    init_actor: int = hb.NOBODY
    init_time: int = 0
    actor: int = field(init=False, default=hb.NOBODY)
    phase: int = field(init=False, default=0)
    _gathered: dict[tuple[int, bool], np.ndarray] = field(init=False, default_factory=dict)
    _gathered_async: dict[int, int] = field(init=False, default_factory=dict)
    _ended: dict[tuple[int, bool], np.ndarray] = field(init=False, default_factory=dict)
    _ended_async: dict[int, int] = field(init=False, default_factory=dict)
    _from_outside: dict[int, int] = field(init=False, default_factory=dict)
    _ended_from_outside: dict[int, int] = field(init=False, default_factory=dict)

    def arrived_from_outside(self, actor: int, number: int) -> None:
        """An arrival by a thread of another CTA, of a scope that a wait here can see it in."""
        self._from_outside[actor] = number

    def seen_from_outside(self) -> dict[int, int]:
        """Arrivals of other CTAs in phases that have ended and no earlier call has returned: actor and number."""
        found, self._ended_from_outside = self._ended_from_outside, {}
        return found

    def arrive(self, warp: WarpClock, mask: int, wide: bool, releases: bool) -> None:
        # A relaxed arrival of wide scope passes on what a fence of the CTA's scope released, too, inside of the CTA.
        for reach in {wide} if releases else {False, wide}:
            message = warp.message(mask) if releases else warp.relaxed_message(mask, reach)
            key = (warp.cta, reach)
            self._gathered[key] = self.actors.join(self._gathered.get(key), message)

    def async_epoch(self) -> tuple[int, int]:
        """Actor and time of an operation that completes in the present phase."""
        if self.actor == hb.NOBODY:
            name = ActorName(f"copies that complete on barrier {self.address:#x}", self.cta)
            self.actor = self.actors.add(name, asynchronous=True)
        return self.actor, self.phase + 1

    def arrive_async(self, actor: int, time: int) -> None:
        self._gathered_async[actor] = max(time, self._gathered_async.get(actor, 0))

    def end_phase(self) -> None:
        self.phase += 1
        for key, message in self._gathered.items():
            self._ended[key] = self.actors.join(self._ended.get(key), message)
        for actor, time in self._gathered_async.items():
            self._ended_async[actor] = max(time, self._ended_async.get(actor, 0))
        self._gathered.clear()
        self._gathered_async.clear()
        self._ended_from_outside |= self._from_outside
        self._from_outside.clear()

    def wait(self, warp: WarpClock, mask: int, wide: bool, acquires: bool) -> None:
        for (cta, arrived_wide), message in self._ended.items():
            if cta != warp.cta and not (wide and arrived_wide):
                warp.acquire_out_of_scope(mask, message)
            elif acquires:
                warp.acquire(mask, message)
            else:
                warp.receive_relaxed(mask, message, cta != warp.cta)
        if acquires:
            for actor, time in self._ended_async.items():
                warp.acquire_operation(mask, actor, time, committed=actor != self.actor)
        elif self._ended_async:
            message = self.actors.new_clock(hb.MESSAGE)
            message[:, hb.NOBODY] = 0
            for actor, time in self._ended_async.items():
                message[(hb.H, hb.S), actor] = time
                if actor != self.actor:
                    message[hb.A, actor] = time
            warp.receive_relaxed(mask, message, False)

    def observes_other_ctas(self, cta: int) -> bool:
        """Whether a wait by a thread of this CTA now observes arrivals of other CTAs' threads."""
        return any(arrived != cta for arrived, _ in self._ended)


@dataclass
class LocationClock(BarrierClock):
    """The ordering side of an ordinary memory location. A read learns what was released by the thread whose write it
    reads, and by the atomic updates since; a plain write hides what other threads had released to the location."""

    _released: dict[tuple[int, int], dict[tuple[int, bool], np.ndarray]] = field(init=False, default_factory=dict)
    """What each writer (its warp's first actor and its lanes) has released here."""

    def write(self, warp: WarpClock, mask: int, wide: bool, releases: bool, update: bool) -> None:
        """A strong write by these lanes; `update`: an atomic one."""
        self.arrive(warp, mask, wide, releases)
        writer = warp.base, mask
        if releases:
            own = self._released.setdefault(writer, {})
            for key, message in self._gathered.items():
                own[key] = self.actors.join(own.get(key), message)
        if not update:
            self._ended = {key: message.copy() for key, message in self._released.get(writer, {}).items()}
        self.end_phase()
