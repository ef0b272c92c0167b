"""The referee: told everything that the machine does, it decides what the memory model leaves unordered.

It never changes what the machine does. Events are those of README.md; the rules are those of docs/memory_model.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from jax_clc.emulator import happens_before as hb
from jax_clc.emulator.async_operations import AsyncOperations, describe
from jax_clc.emulator.axioms import STRICT, Axioms, is_unproven
from jax_clc.emulator.barrier_clock import BarrierClock, LocationClock, Rendezvous
from jax_clc.emulator.errors import (
    AsyncInFlightAtExit,
    BarrierMisuse,
    BufferReusedInFlight,
    DataRace,
    EmulatorError,
    RemoteAccessToExitedCta,
    UninitializedRead,
)
from jax_clc.emulator.happens_before import ALL_LANES, BARRIER_MEMORY, NOBODY, lanes_of
from jax_clc.emulator.referee_state import Cluster, Cta, Op, Place, Warp
from jax_clc.emulator.shadow_memory import NARROW, WEAK, WIDE, Access, Request, Selection, ShadowMemory

WIDE_SCOPES = ("cluster", "gpu", "sys")
ACQUIRES = ("acquire", "acq_rel", "sc")
RELEASES = ("release", "acq_rel", "sc")

Addresses = int | np.ndarray
"""One address for all lanes, or 32 of them."""


class Referee(AsyncOperations):
    """See README.md for the events. `foreign`: the kernel is not ours, so that a violation which rests on more than
    the ISA's rules is kept in `unproven` and not raised. `sink` receives errors instead of a raise.

    `granule_bytes`: the narrowest access to shared memory in the kernel, 4 at most.
    """

    def __init__(
        self,
        axioms: Axioms = STRICT,
        *,
        foreign: bool = False,
        sink: Callable[[EmulatorError], None] | None = None,
        granule_bytes: int = 4,
    ):
        self.axioms = axioms
        self.foreign = foreign
        self.sink = sink
        self.granule_bytes = granule_bytes
        self.unproven: list[EmulatorError] = []
        self._seen: set[tuple[object, ...]] = set()
        self._ctas: dict[int, Cta] = {}
        self._clusters: dict[int, Cluster] = {}
        self._rendezvous: dict[object, Rendezvous] = {}
        self._arrivals = 0  # so many from other CTAs, of all barriers

    # Life

    def grid_start(self, grid: int) -> None:
        """Launches of one stream are ordered: nothing of an earlier grid is left in shared memory."""

    def grid_end(self, grid: int) -> None:
        """Forgets what the grid's clusters left."""
        self._clusters.clear()
        self._rendezvous.clear()
        self._ctas.clear()

    def host_access(self, kind: str, space: str, ranges: object) -> None:
        """Ordered before and after everything by the launch."""

    def cta_start(self, cta: int, cluster: int, rank: int, shared_bytes: int, grid: int) -> None:
        """A CTA becomes resident; its shared memory counts as never written."""
        owner = self._clusters.setdefault(cluster, Cluster())
        granules = -(-shared_bytes // 16) * 16 // self.granule_bytes
        self._ctas[cta] = Cta(cta, rank, owner, ShadowMemory(granules, self.granule_bytes))

    def warp_start(self, cta: int, warp_index: int, live_mask: int) -> Warp:
        """Returns the handle by which events name the warp."""
        home = self._ctas[cta]
        warp = home.warps[warp_index] = Warp(home.cluster.actors, cta, warp_index, live_mask, home.cluster)
        home.cluster.warps.append(warp)
        return warp

    def warp_exit(self, warp: Warp, mask: int, line: int) -> None:
        """Lanes have executed `exit`."""
        home = self._ctas[warp.cta]
        self.flush_streams(warp)
        home.exit_clock = warp.actors.join(home.exit_clock, warp.at_exit(mask))
        warp.live &= ~mask
        for lane in lanes_of(mask).tolist():
            warp.lane_clocks.pop(lane, None)

    def cta_exit(self, cta: int, line: int) -> None:
        """All warps have exited: whatever still aims at the CTA's memory is an error."""
        home = self._ctas[cta]
        for warp in home.warps.values():
            self.flush_streams(warp)
        home.exited = True
        actors = home.cluster.actors
        for actor in home.late_actors():
            who = actors.describe(actor)
            error: EmulatorError
            if actors.is_async[actor]:
                text = f"CTA {cta} exits before it is known that {who} are done with its memory"
                error = AsyncInFlightAtExit(text, cta=cta, axiom="async_done_before_exit")
            else:
                text = f"CTA {cta} exits without being ordered after an access by {who}"
                error = RemoteAccessToExitedCta(text, cta=cta, axiom="remote_access_before_exit")
            self.report(error, (who,))
        del self._ctas[cta]

    # Generic accesses

    def access(
        self,
        warp: Warp,
        mask: int,
        kind: str,
        space: str,
        cta: int,
        addresses: Addresses,
        size: int,
        line: int,
        semantics: str = "weak",
        scope: str | None = None,
    ) -> None:
        """Lanes read, write or update memory. See README.md."""
        strong = NARROW if scope == "cta" else WIDE
        if semantics == "weak" and kind not in ("atomic", "reduction"):
            strong = WEAK
        if space == "shared":
            self._access_shared(warp, mask, kind, cta, addresses, size, line, strong)
        if semantics != "weak":  # a volatile access is a relaxed one of system scope (8.4.2)
            self._synchronise(warp, mask, kind, cta if space == "shared" else space, addresses, semantics, scope)

    def _access_shared(
        self, warp: Warp, mask: int, kind: str, cta: int, addresses: Addresses, size: int, line: int, strong: int
    ) -> None:
        home = self._alive(cta, warp, line)
        if home is None:
            return
        if cta != warp.cta:
            home.must_precede_exit(warp.base + lanes_of(mask), warp.time)
        if warp.lane_clocks and mask & (mask - 1):
            # Lanes that learnt something alone are judged one by one.
            for lane in [lane for lane in warp.lane_clocks if mask >> lane & 1]:
                self._access_lanes(home, warp, 1 << lane, kind, addresses, size, line, strong)
                mask &= ~(1 << lane)
        if mask:
            self._access_lanes(home, warp, mask, kind, addresses, size, line, strong)

    def _access_lanes(
        self, home: Cta, warp: Warp, mask: int, kind: str, addresses: Addresses, size: int, line: int, strong: int
    ) -> None:
        lane = mask.bit_length() - 1 if mask & (mask - 1) == 0 else None
        actors: int | np.ndarray
        where: Selection
        if lane is not None:
            address = addresses if isinstance(addresses, int) else int(addresses[lane])
            where, actors = home.shadow.span(address, size), warp.base + lane
        elif isinstance(addresses, int) and (mask == warp.live or kind != "read"):
            where, actors = home.shadow.span(addresses, size), warp.base + ALL_LANES
        else:
            lanes = lanes_of(mask)
            where, actors = home.shadow.lanes(np.broadcast_to(addresses, 32)[lanes], size), warp.base + lanes
        known = warp.known(lane)[hb.H]
        request = Request(actors, warp.time, line, known, kind != "read", strong, _own_past(warp), warp.of_my_cta)
        for access in home.shadow.check_and_record(where, request):
            self._generic_conflict(home, warp, lane, kind, access, line, strong != WEAK)

    def _generic_conflict(
        self, home: Cta, warp: Warp, lane: int | None, kind: str, access: Access, line: int, strong: bool
    ) -> None:
        actors, known, place = warp.actors, warp.known(lane), warp.place(line)
        if self.report_no_access(home, kind, access, place):
            return
        if access.actor in actors.whole_warps:
            lanes = known[hb.H, access.actor - ALL_LANES : access.actor]
            if (lanes >= access.time).all():
                return
        address = access.granule * home.shadow.granule_bytes
        earlier = describe(actors, access)
        text = f"{kind} of shared memory {address:#x} of CTA {home.number} is not ordered after {earlier}"
        axiom = None
        if known[hb.S, access.actor] >= access.time:
            axiom = "scope_limits_order"
            text += "; only the scope (.cta) of an arrival or wait breaks the order"
        elif warp.base <= access.actor < warp.base + hb.ACTORS_PER_WARP:
            axiom = "lanes_are_threads"
        elif strong and access.strong:
            axiom = "scope_limits_order"
            text += "; both are strong, but the scope (.cta) of one does not include the other's thread"
        error = BufferReusedInFlight if actors.is_async[access.actor] else DataRace
        self.report(error(text, axiom=axiom, **place), (line, access.line))

    def report_no_access(self, home: Cta, kind: str, access: Access, place: Place) -> bool:
        """Conflicts that are no meeting of two accesses: memory of a barrier, memory never written."""
        where = f"{kind} of shared memory {access.granule * home.shadow.granule_bytes:#x} of CTA {home.number}"
        if access.actor == BARRIER_MEMORY:
            text = f"{where}, which holds an mbarrier (initialised at PTX line {access.line})"
            self.report(BarrierMisuse(text, axiom="barrier_memory_is_opaque", **place), (place["line"], access.line))
        elif access.actor == NOBODY:
            text = f"{where}, which nobody has written"
            self.report(UninitializedRead(text, axiom="written_before_read", **place), (place["line"],))
        return access.actor in (BARRIER_MEMORY, NOBODY)

    def _synchronise(
        self, warp: Warp, mask: int, kind: str, owner: object, addresses: Addresses, semantics: str, scope: str | None
    ) -> None:
        """Release and acquire through ordinary memory locations."""
        wide = scope in WIDE_SCOPES
        places = {addresses: mask} if isinstance(addresses, int) else {}
        if not isinstance(addresses, int):
            for lane in lanes_of(mask).tolist():
                places[int(addresses[lane])] = places.get(int(addresses[lane]), 0) | 1 << lane
        for place, lanes in places.items():
            location = warp.cluster.locations.get((owner, place))
            if location is None:
                location = warp.cluster.locations[owner, place] = LocationClock(warp.actors, warp.cta, place)
            if kind in ("read", "atomic"):  # the read of a reduction makes no acquire pattern (8.8)
                location.wait(warp, lanes, wide, semantics in ACQUIRES)
            if kind != "read":
                location.write(warp, lanes, wide, semantics in RELEASES, kind != "write")

    # Warps, CTAs and clusters

    def warp_sync(self, warp: Warp, mask: int, line: int) -> None:
        """bar.warp.sync."""
        warp.synchronise_lanes(mask)

    def rendezvous_arrive(
        self, warp: Warp, mask: int, key: object, line: int, semantics: str = "release", scope: str = "cta"
    ) -> None:
        """Arrival at a named barrier or at the cluster's."""
        meeting = self._rendezvous.setdefault(key, Rendezvous())
        warp.rendezvous[key] = meeting
        if semantics in RELEASES:
            message = warp.message(mask)
        else:
            message = warp.relaxed_message(mask, True)
        meeting.message = warp.actors.join(meeting.message, message)

    def rendezvous_complete(self, key: object) -> None:
        """Everybody has arrived; the next arrival begins a new phase."""
        self._rendezvous.pop(key, None)

    def rendezvous_leave(
        self, warp: Warp, mask: int, key: object, line: int, semantics: str = "acquire", scope: str = "cta"
    ) -> None:
        """A wait that has succeeded."""
        meeting = warp.rendezvous.get(key)
        if meeting is None or meeting.message is None:
            return
        if semantics in ACQUIRES:
            warp.acquire(mask, meeting.message)
        else:
            warp.receive_relaxed(mask, meeting.message, scope == "cluster")

    # mbarriers

    def mbarrier_init(self, warp: Warp, mask: int, cta: int, address: int, line: int) -> None:
        """mbarrier.init by one lane: a write of eight bytes, which belong to the barrier from here on."""
        home = self._alive(cta, warp, line)
        if home is not None:
            self._access_lanes(home, warp, mask, "write", address, 8, line, WEAK)
            home.shadow.hold_barrier(address, line)
            home.barriers[address] = BarrierClock(warp.actors, cta, address, *warp.initialise_barrier(mask))

    def mbarrier_inval(self, warp: Warp, mask: int, cta: int, address: int, line: int) -> None:
        """mbarrier.inval: ordinary memory again, written by this lane."""
        home = self._alive(cta, warp, line)
        if home is not None:
            home.barriers.pop(address, None)
            home.shadow.release_barrier(address, warp.base + mask.bit_length() - 1, warp.time, line)

    def mbarrier_arrive(
        self, warp: Warp, mask: int, cta: int, address: int, line: int, semantics: str = "release", scope: str = "cta"
    ) -> None:
        """Arrivals of these lanes, on their own CTA's barrier or on another's."""
        home = self._alive(cta, warp, line)
        barrier = self._barrier(home, address, line, warp, mask) if home else None
        if home is None or barrier is None:
            return
        barrier.arrive(warp, mask, scope in WIDE_SCOPES, semantics in RELEASES)
        if cta != warp.cta:
            self._arrivals += 1
            for lane in lanes_of(mask).tolist():
                home.arrived_from_outside(address, warp.base + lane, self._arrivals, warp.time)
                if scope in WIDE_SCOPES:
                    barrier.arrived_from_outside(warp.base + lane, self._arrivals)

    def mbarrier_async_arrive(self, ops: Op | Iterable[Op], cta: int, address: int, line: int) -> None:
        """complete_tx, tcgen05.commit, cp.async.mbarrier.arrive: operations tell a barrier that they are complete.
        Of a stream it is enough to name the last."""
        operations = [ops] if isinstance(ops, Op) else list(ops)
        home = self._ctas.get(cta)
        if home is None or home.exited:
            error = RemoteAccessToExitedCta(f"completion on barrier {address:#x} of CTA {cta}, which has exited")
            for op in operations[:1]:
                error.located(**op.place(line))
            self.report(error)
            return
        barrier = home.barriers.get(address)
        if barrier is None:
            return  # the machine names a completion on memory that holds no barrier
        for op in operations[:1]:
            self._check_init(barrier, op.known()[hb.H], op.place(op.line))
        self.complete_on_barrier(operations, home, barrier)

    def mbarrier_phase_complete(self, cta: int, address: int, phase: int) -> None:
        """The phase ends, at this moment."""
        home = self._ctas.get(cta)
        if home and address in home.barriers:
            home.barriers[address].end_phase()

    def mbarrier_wait_success(
        self,
        warp: Warp,
        mask: int,
        cta: int,
        address: int,
        phase: int,
        line: int,
        semantics: str = "acquire",
        scope: str = "cta",
    ) -> None:
        """test_wait or try_wait returned true to these lanes."""
        home = self._alive(cta, warp, line)
        barrier = self._barrier(home, address, line, warp, mask) if home else None
        if home is not None and barrier is not None:
            barrier.wait(warp, mask, scope in WIDE_SCOPES, semantics in ACQUIRES)
            if cta == warp.cta and scope in WIDE_SCOPES:
                home.arrivals_seen(address, barrier.seen_from_outside())

    def _barrier(self, home: Cta, address: int, line: int, warp: Warp, mask: int) -> BarrierClock | None:
        barrier = home.barriers.get(address)
        if barrier is not None and not (barrier.init_actor == warp.init_actor and mask & ~warp.init_lanes == 0):
            self._check_init(barrier, warp.known(mask.bit_length() - 1)[hb.H], warp.place(line))
        return barrier

    def _check_init(self, barrier: BarrierClock, known: np.ndarray, place: Place) -> None:
        if known[barrier.init_actor] < barrier.init_time:
            text = f"barrier {barrier.address:#x} of CTA {barrier.cta} is used without being ordered after its init"
            self.report(DataRace(text, axiom="init_before_use", **place), (place["line"],))

    # Fences

    def fence(
        self, warp: Warp, mask: int, kind: str, line: int, semantics: str = "acq_rel", scope: str | None = None
    ) -> None:
        """See README.md for the kinds. Those that order nothing here (alias, tensormap, wgmma) pass."""
        if kind == "mbarrier_init":
            warp.released_by_fence[True] = (mask, warp.init_message(mask))
        elif kind == "tcgen05.before":
            warp.fence_tensor_before(mask)
        elif kind == "tcgen05.after":
            warp.fence_tensor_after(mask)
        elif kind in ("proxy.async", "proxy.async.shared::cta", "proxy.async.shared::cluster"):
            warp.fence_proxy(mask)
        elif kind == "thread" or "sync_restrict" in kind:
            semantics = kind.rpartition(".")[2] if "sync_restrict" in kind else semantics
            if semantics in ACQUIRES:
                warp.fence_acquire(mask, scope != "cta")
            if semantics in RELEASES:
                if kind.startswith("proxy.async"):
                    warp.fence_proxy(mask)
                warp.fence_release(mask, scope != "cta")

    # Verdicts

    def report(self, error: EmulatorError, key: tuple[object, ...] = ()) -> None:
        """Raises, records or drops an error, by the switches. `key` tells repeated reports of one fault."""
        if error.axiom is not None and not getattr(self.axioms, error.axiom):
            return
        unproven = self.foreign and is_unproven(error.axiom)
        if not unproven and self.sink is None:
            raise error
        full = (type(error), error.axiom, *key)
        if not key or full not in self._seen:
            self._seen.add(full)
            if unproven:
                self.unproven.append(error)
            elif self.sink is not None:
                self.sink(error)

    def _alive(self, cta: int, warp: Warp, line: int) -> Cta | None:
        home = self._ctas.get(cta)
        if home is None:
            text = f"access to CTA {cta}, which has exited or not started"
            self.report(RemoteAccessToExitedCta(text, **warp.place(line)))
        return home


def _own_past(warp: Warp) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Program order: a lane's own accesses, those of the whole warp, and the copies that it has waited for."""
    base, copies, done = warp.base, warp.copies, warp.copies_done

    def is_own(earlier: np.ndarray, times: np.ndarray, own: np.ndarray) -> np.ndarray:
        mine = (earlier == own) | (earlier == base + ALL_LANES)
        if copies:
            lane = own - base
            single = lane < ALL_LANES
            mine |= single & (earlier - copies == lane) & (times <= done[np.where(single, lane, 0)])
            mine |= ~single & (earlier >= copies) & (earlier < copies + 32) & (times <= done.min())
        return mine

    return is_own
