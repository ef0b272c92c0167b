"""The referee: told everything that the machine does, it decides what the memory model leaves unordered.

It never changes what the machine does. Events are those of README.md; the rules are those of docs/memory_model.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from jax_clc.emulator import happens_before as hb
from jax_clc.emulator.axioms import STRICT, Axioms, is_unproven
from jax_clc.emulator.barrier_clock import BarrierClock, Rendezvous
from jax_clc.emulator.errors import (
    AsyncInFlightAtExit,
    BarrierMisuse,
    BufferReusedInFlight,
    DataRace,
    EmulatorError,
    MissingProxyFence,
    RemoteAccessToExitedCta,
    TensorMemoryNotReady,
    UninitializedRead,
)
from jax_clc.emulator.happens_before import ALL_LANES, BARRIER_MEMORY, NOBODY, Agents, WarpClock, lanes_of
from jax_clc.emulator.output_coverage import OutputCoverage
from jax_clc.emulator.shadow_memory import Access, Request, Selection, ShadowMemory

WIDE_SCOPES = ("cluster", "gpu", "sys")
ACQUIRES = ("acquire", "acq_rel", "sc")
RELEASES = ("release", "acq_rel", "sc")

# Operations whose completion only a barrier tells: their agent is the barrier's, their time its phase.
_ON_BARRIER = ("bulk.load", "bulk.shared", "st.async", "red.async", "try_cancel")
# Operations of one stream that complete in order; per thread, or per warp where the warp issues them together.
_PER_THREAD = ("bulk.store", "bulk.reduce", "cp.async", "bulk.prefetch")
_GENERIC_PROXY = ("cp.async",)
_TENSOR_PIPE = ("tcgen05.mma", "tcgen05.cp")

TENSOR_COLUMNS = 512
TENSOR_BANDS = 8  # granules of tensor memory: 16 lanes x 1 column


@dataclass
class Op:
    """One asynchronous operation from issue to completion."""

    kind: str
    warp: Warp
    mask: int
    line: int
    message: np.ndarray
    agent: int  # NOBODY until a barrier tells
    time: int
    per_lane: bool = False
    pending: list[_Touch] = field(default_factory=list)
    vector: np.ndarray | None = None
    usable: np.ndarray | None = None

    @property
    def generic(self) -> bool:
        return self.kind in _GENERIC_PROXY


@dataclass
class _Touch:
    """Memory an operation touched before it is known who can observe its completion."""

    kind: str
    space: str
    cta: int
    ranges: np.ndarray
    rows: np.ndarray | None
    line: int


class Warp(WarpClock):
    """A warp's clock and the streams it feeds."""

    def __init__(self, agents: Agents, cta: int, index: int, live: int, cluster: Cluster):
        super().__init__(agents, cta, index, live)
        self.cluster = cluster
        self.streams: dict[tuple[str, int], tuple[int, int]] = {}  # (kind, lane) -> (agent, operations so far)
        self.queues: dict[str, list[Op]] = {}
        self.rendezvous: dict[object, Rendezvous] = {}


@dataclass
class Cta:
    number: int
    rank: int
    cluster: Cluster
    shadow: ShadowMemory
    tensor: ShadowMemory | None = None
    warps: list[Warp] = field(default_factory=list)
    barriers: dict[int, BarrierClock] = field(default_factory=dict)
    must_precede_exit: np.ndarray | None = None
    exit_clock: np.ndarray | None = None
    exited: bool = False


@dataclass
class Cluster:
    agents: Agents = field(default_factory=Agents)
    locations: dict[tuple[object, int], BarrierClock] = field(default_factory=dict)
    warps: list[Warp] = field(default_factory=list)


class Referee:
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
        self.outputs = OutputCoverage()
        self._seen: set[tuple[object, ...]] = set()
        self._ctas: dict[int, Cta] = {}
        self._clusters: dict[int, Cluster] = {}
        self._rendezvous: dict[object, Rendezvous] = {}

    # Life

    def grid_start(self, grid: int) -> None:
        """Launches of one stream are ordered: nothing of an earlier grid is left in shared memory."""

    def grid_end(self, grid: int) -> None:
        """Drops what the grid's clusters left. Output coverage is judged by `finish`."""
        self._clusters.clear()
        self._rendezvous.clear()
        self._ctas.clear()

    def finish(self) -> None:
        """All work is done: every tracked output element has been written exactly once."""
        error = self.outputs.missing()
        if error is not None:
            self._report(error)

    def track_output(self, address: int, size_bytes: int, element_bytes: int = 1) -> None:
        """From here on, elements of this global buffer must be written once."""
        self.outputs.track(address, size_bytes, element_bytes)

    def host_access(self, kind: str, space: str, ranges: object) -> None:
        """Ordered before and after everything by the launch."""

    def cta_start(self, cta: int, cluster: int, rank: int, shared_bytes: int, grid: int) -> None:
        owner = self._clusters.setdefault(cluster, Cluster())
        granules = -(-shared_bytes // 16) * 16 // self.granule_bytes
        self._ctas[cta] = Cta(cta, rank, owner, ShadowMemory(granules, self.granule_bytes))

    def warp_start(self, cta: int, warp_index: int, live_mask: int) -> Warp:
        home = self._ctas[cta]
        warp = Warp(home.cluster.agents, cta, warp_index, live_mask, home.cluster)
        home.warps.append(warp)
        home.cluster.warps.append(warp)
        return warp

    def warp_exit(self, warp: Warp, mask: int, line: int) -> None:
        home = self._ctas[warp.cta]
        self._flush_streams(warp)
        home.exit_clock = warp.agents.join(home.exit_clock, warp.message(mask))
        warp.live &= ~mask
        for lane in lanes_of(mask).tolist():
            warp.lane_clocks.pop(lane, None)

    def cta_exit(self, cta: int, line: int) -> None:
        home = self._ctas[cta]
        home.exited = True
        for warp in home.warps:
            self._flush_streams(warp)
        needed = home.must_precede_exit
        if needed is None or home.exit_clock is None:
            return
        agents = home.cluster.agents
        known = agents.fit(home.exit_clock)[hb.H]
        late = np.flatnonzero(known[: len(needed)] < needed)
        for agent in late.tolist():
            who = agents.describe(agent)
            if agents.is_async[agent]:
                self._report(
                    AsyncInFlightAtExit(
                        f"CTA {cta} exits before it is known that {who} is done with its memory",
                        cta=cta, line=line, axiom="async_done_before_exit",
                    ),
                    "async_done_before_exit",
                )  # fmt: skip
            else:
                self._report(
                    RemoteAccessToExitedCta(
                        f"CTA {cta} exits without being ordered after an access by {who}",
                        cta=cta, line=line, axiom="remote_access_before_exit",
                    ),
                    "remote_access_before_exit",
                )  # fmt: skip

    # Generic accesses

    def access(
        self,
        warp: Warp,
        mask: int,
        kind: str,
        space: str,
        cta: int,
        addresses: int | np.ndarray,
        size: int,
        line: int,
        semantics: str = "weak",
        scope: str | None = None,
    ) -> None:
        """Lanes read, write or update memory. See README.md."""
        strong = semantics != "weak" or kind == "atomic"
        if space == "global":
            if kind == "write" and self.outputs.tracks:
                error = self.outputs.write_lanes(mask, addresses, size)
                if error is not None:
                    self._report(error.located(line=line, warp=warp.index, cta=warp.cta))
        elif space == "shared":
            self._access_shared(warp, mask, kind, cta, addresses, size, line, strong)
        if strong and semantics not in ("weak", "volatile"):
            self._synchronise(warp, mask, kind, space, cta, addresses, semantics, scope)

    def _access_shared(
        self, warp: Warp, mask: int, kind: str, cta: int, addresses: int | np.ndarray, size: int, line: int, strong: bool
    ) -> None:
        home = self._alive(cta, warp, line)
        if home is None:
            return
        if cta != warp.cta:
            self._must_precede_exit(home, warp.base + lanes_of(mask), warp.time)
        if warp.lane_clocks and mask & (mask - 1):
            # Lanes that learnt something alone are judged one by one.
            for lane in [lane for lane in warp.lane_clocks if mask >> lane & 1]:
                self._access_lanes(home, warp, 1 << lane, kind, addresses, size, line, strong)
                mask &= ~(1 << lane)
        if mask:
            self._access_lanes(home, warp, mask, kind, addresses, size, line, strong)

    def _access_lanes(
        self, home: Cta, warp: Warp, mask: int, kind: str, addresses: int | np.ndarray, size: int, line: int, strong: bool
    ) -> None:
        shadow = home.shadow
        lane = mask.bit_length() - 1 if mask & (mask - 1) == 0 else None
        agents: int | np.ndarray
        where: Selection
        if lane is not None:
            where = shadow.span(addresses if isinstance(addresses, int) else int(addresses[lane]), size)
            agents = warp.base + lane
        elif isinstance(addresses, int) and (mask == warp.live or kind != "read"):
            where = shadow.span(addresses, size)
            agents = warp.base + ALL_LANES
        else:
            lanes = lanes_of(mask)
            where = shadow.lanes(np.broadcast_to(addresses, 32)[lanes], size)
            agents = warp.base + lanes
        known = warp.known(lane)[hb.H]
        request = Request(agents, warp.time, line, known, kind != "read", strong, _own_past(warp))
        for access in shadow.check_and_record(where, request):
            self._generic_conflict(home, warp, lane, kind, access, line)

    def _generic_conflict(self, home: Cta, warp: Warp, lane: int | None, kind: str, access: Access, line: int) -> None:
        agents = warp.agents
        if self._special(home, kind, access, line, warp):
            return
        if access.agent in agents.whole_warps:
            lanes = warp.known(lane)[hb.H, access.agent - ALL_LANES : access.agent]
            if (lanes >= access.time).all():
                return
        earlier = self._what(agents, access)
        place = {"line": line, "warp": warp.index, "cta": warp.cta}
        address = access.granule * home.shadow.granule_bytes
        message = f"{kind} of shared memory {address:#x} of CTA {home.number} is not ordered after {earlier}"
        unscoped = warp.known(lane)[hb.S, access.agent] >= access.time
        axiom = "scope_limits_order" if unscoped else None
        if unscoped:
            message += "; only the scope (.cta) of an arrival or wait breaks the order"
        if agents.is_async[access.agent]:
            self._report(BufferReusedInFlight(message, axiom=axiom, **place), axiom, (line, access.line))
        else:
            same_warp = warp.base <= access.agent < warp.base + hb.AGENTS_PER_WARP
            axiom = axiom or ("lanes_are_threads" if same_warp else None)
            self._report(DataRace(message, axiom=axiom, **place), axiom, (line, access.line))

    def _special(self, home: Cta, kind: str, access: Access, line: int, warp: Warp) -> bool:
        """Conflicts with no real access: barrier memory, memory never written."""
        address = access.granule * home.shadow.granule_bytes
        place = {"line": line, "warp": warp.index, "cta": warp.cta}
        if access.agent == BARRIER_MEMORY:
            axiom = "barrier_memory_is_opaque"
            self._report(
                BarrierMisuse(
                    f"{kind} of shared memory {address:#x} of CTA {home.number}, which holds an mbarrier "
                    f"(initialised at PTX line {access.line})", axiom=axiom, **place,
                ),
                axiom, (line, access.line),
            )  # fmt: skip
            return True
        if access.agent == NOBODY:
            axiom = "written_before_read"
            self._report(
                UninitializedRead(
                    f"{kind} of shared memory {address:#x} of CTA {home.number}, which nobody has written",
                    axiom=axiom, **place,
                ),
                axiom, (line,),
            )  # fmt: skip
            return True
        return False

    def _synchronise(
        self,
        warp: Warp,
        mask: int,
        kind: str,
        space: str,
        cta: int,
        addresses: int | np.ndarray,
        semantics: str,
        scope: str | None,
    ) -> None:
        """Release and acquire through ordinary memory locations."""
        owner: object = cta if space == "shared" else space
        lanes = lanes_of(mask).tolist()
        places = [addresses] if isinstance(addresses, int) else sorted({int(addresses[lane]) for lane in lanes})
        wide = scope in WIDE_SCOPES
        for place in places:
            location = warp.cluster.locations.get((owner, place))
            if location is None:
                location = warp.cluster.locations[owner, place] = BarrierClock(warp.agents, warp.cta, place)
            here = mask if isinstance(addresses, int) else _mask_of(lanes, addresses, place)
            if kind in ("read", "atomic"):
                location.wait(warp, here, wide, semantics in ACQUIRES)
            if kind in ("write", "atomic"):
                location.arrive(warp, here, wide, semantics in RELEASES)
                location.end_phase()

    # Warps, CTAs and clusters

    def warp_sync(self, warp: Warp, mask: int, line: int) -> None:
        warp.synchronise_lanes(mask)

    def rendezvous_arrive(
        self, warp: Warp, mask: int, key: object, line: int, semantics: str = "release", scope: str = "cta"
    ) -> None:
        meeting = self._rendezvous.get(key)
        if meeting is None:
            meeting = self._rendezvous[key] = Rendezvous()
        warp.rendezvous[key] = meeting
        if semantics in RELEASES:
            meeting.message = warp.agents.join(meeting.message, warp.message(mask))
        else:
            published = warp.released_by_fence.get(True)
            if published is not None and mask & ~published[0] == 0:
                meeting.message = warp.agents.join(meeting.message, published[1])

    def rendezvous_complete(self, key: object) -> None:
        self._rendezvous.pop(key, None)

    def rendezvous_leave(
        self, warp: Warp, mask: int, key: object, line: int, semantics: str = "acquire", scope: str = "cta"
    ) -> None:
        meeting = warp.rendezvous.get(key)
        if meeting is None or meeting.message is None:
            return
        if semantics in ACQUIRES:
            warp.acquire(mask, meeting.message)
        else:
            warp.receive_relaxed(mask, meeting.message)

    # mbarriers

    def mbarrier_init(self, warp: Warp, mask: int, cta: int, address: int, line: int) -> None:
        home = self._alive(cta, warp, line)
        if home is None:
            return
        self._access_lanes(home, warp, mask & -mask, "write", address, 8, line, False)
        home.shadow.hold_barrier(address, line)
        home.barriers[address] = BarrierClock(warp.agents, cta, address, *warp.initialise_barrier(mask))

    def mbarrier_inval(self, warp: Warp, mask: int, cta: int, address: int, line: int) -> None:
        home = self._alive(cta, warp, line)
        if home is None:
            return
        home.barriers.pop(address, None)
        home.shadow.release_barrier(address, warp.base + mask.bit_length() - 1, warp.time, line)

    def mbarrier_arrive(
        self, warp: Warp, mask: int, cta: int, address: int, line: int, semantics: str = "release", scope: str = "cta"
    ) -> None:
        home = self._alive(cta, warp, line)
        barrier = home and self._barrier(home, address, line, warp, mask)
        if not home or not barrier:
            return
        if cta != warp.cta:
            self._must_precede_exit(home, warp.base + lanes_of(mask), warp.time)
        barrier.arrive(warp, mask, scope in WIDE_SCOPES, semantics in RELEASES)

    def mbarrier_async_arrive(self, ops: Op | Iterable[Op], cta: int, address: int, line: int) -> None:
        home = self._ctas.get(cta)
        operations = [ops] if isinstance(ops, Op) else list(ops)
        if home is None or home.exited:
            first = operations[0] if operations else None
            self._report(
                RemoteAccessToExitedCta(
                    f"completion on barrier {address:#x} of CTA {cta}, which has exited", line=first.line if first else line
                )
            )
            return
        barrier = home.barriers.get(address)
        if barrier is None:
            return  # the machine names a completion on memory that holds no barrier
        for op in operations:
            if op.kind in _ON_BARRIER:
                self._check_init(barrier, op.message[hb.H], op.line, op.warp)
                self._land(op, home, barrier)
            else:
                self._flush_stream(op.warp, op.kind, op)
                barrier.arrive_async(op.agent, op.time)
                if op.warp.cta != cta:
                    self._must_precede_exit(home, np.array([op.agent]), op.time)

    def mbarrier_phase_complete(self, cta: int, address: int, phase: int) -> None:
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
        home = self._alive(cta, warp, line)
        barrier = home and self._barrier(home, address, line, warp, mask)
        if barrier:
            barrier.wait(warp, mask, scope in WIDE_SCOPES, semantics in ACQUIRES)

    def _barrier(self, home: Cta, address: int, line: int, warp: Warp, mask: int) -> BarrierClock | None:
        barrier = home.barriers.get(address)
        if barrier is not None and not (barrier.init_agent == warp.init_agent and mask & ~warp.init_lanes == 0):
            self._check_init(barrier, warp.known(mask.bit_length() - 1)[hb.H], line, warp)
        return barrier

    def _check_init(self, barrier: BarrierClock, known: np.ndarray, line: int, warp: Warp) -> None:
        if barrier.init_agent < len(known) and known[barrier.init_agent] >= barrier.init_time:
            return
        axiom = "init_before_use"
        self._report(
            DataRace(
                f"barrier {barrier.address:#x} of CTA {barrier.cta} is used without being ordered after its init",
                line=line, warp=warp.index, cta=warp.cta, axiom=axiom,
            ),
            axiom, (line,),
        )  # fmt: skip

    # Fences

    def fence(
        self, warp: Warp, mask: int, kind: str, line: int, semantics: str = "acq_rel", scope: str | None = None
    ) -> None:
        wide = scope in WIDE_SCOPES or scope is None
        if kind == "thread":
            if semantics in RELEASES:
                warp.fence_release(mask, wide)
            if semantics in ACQUIRES:
                warp.fence_acquire(mask)
        elif kind == "sync_restrict.release":
            warp.fence_release(mask, True)
        elif kind == "sync_restrict.acquire":
            warp.fence_acquire(mask)
        elif kind == "proxy.async.sync_restrict.release":
            warp.fence_proxy(mask)
            warp.fence_release(mask, True)
        elif kind == "proxy.async.sync_restrict.acquire":
            warp.fence_acquire(mask)
            warp.fence_proxy(mask)
        elif kind in ("proxy.async", "proxy.async.shared::cta", "proxy.async.shared::cluster"):
            warp.fence_proxy(mask)
        elif kind == "mbarrier_init":
            warp.released_by_fence[True] = (mask, warp.init_message(mask))
        elif kind == "tcgen05.before":
            warp.fence_tensor_before(mask)
        elif kind == "tcgen05.after":
            warp.fence_tensor_after(mask)

    # Asynchronous operations

    def issue(self, warp: Warp, mask: int, kind: str, line: int) -> Op:
        message = warp.message(mask)
        if kind in _ON_BARRIER:
            return Op(kind, warp, mask, line, message, NOBODY, 0)
        lane = mask.bit_length() - 1 if kind in _PER_THREAD and mask & (mask - 1) == 0 else ALL_LANES
        key = ("tcgen05" if kind in _TENSOR_PIPE else kind, lane)
        stream = warp.streams.get(key)
        if stream is None:
            what = f"the {kind} operations of warp {warp.index}"
            per_lane = 32 if kind == "cp.async" and lane == ALL_LANES else 1
            agent = warp.agents.add(hb.AgentName(what, warp.cta), per_lane, asynchronous=kind not in _GENERIC_PROXY)
            stream = (agent, 0)
        agent, count = stream
        warp.streams[key] = (agent, count + 1)
        op = Op(kind, warp, mask, line, message, agent, count + 1, kind == "cp.async" and lane == ALL_LANES)
        if kind.startswith("tcgen05"):
            op.usable = warp.known(lane if mask & (mask - 1) == 0 else None)[hb.U].copy()
        return op

    def async_access(
        self,
        op: Op,
        kind: str,
        space: str,
        cta: int,
        ranges: np.ndarray,
        line: int,
        rows: np.ndarray | None = None,
    ) -> None:
        """Memory that an operation touches. `ranges`: (n, 2) of start and bytes, or (n,) numbers of 16-byte chunks."""
        if space == "global":
            if kind == "write" and op.kind != "bulk.reduce" and self.outputs.tracks:
                error = self.outputs.write_ranges(np.asarray(ranges))
                if error is not None:
                    self._report(error.located(line=line, warp=op.warp.index, cta=op.warp.cta))
            return
        touch = _Touch(kind, space, cta, np.asarray(ranges), rows, line)
        if op.kind in _ON_BARRIER or op.kind == "wgmma" or op.kind in _TENSOR_PIPE:
            op.pending.append(touch)
            if op.kind not in _ON_BARRIER:
                self._queue(op)
        else:
            if space == "tensor":  # multiplications that nobody has observed matter to it, too
                for other in op.warp.cluster.warps:
                    self._flush_stream(other, "tcgen05.mma", None)
            self._apply(op, op.agent, op.time, [touch])

    def reads_complete(self, op: Op) -> None:
        """Nobody has observed it yet: only `group_wait` and barriers order."""

    def complete(self, op: Op) -> None:
        """Performed, and not yet observed: only `group_wait` and barriers order."""

    def group_wait(self, warp: Warp, mask: int, ops: Iterable[Op], line: int, reads_only: bool = False) -> None:
        for op in ops:
            self._flush_stream(op.warp, op.kind, op)
            lanes = mask & op.mask if op.kind in _PER_THREAD else mask
            if not lanes:
                continue
            if op.per_lane:
                for lane in lanes_of(lanes).tolist():
                    warp.acquire_operation(1 << lane, op.agent + lane, op.time)
            else:
                warp.acquire_operation(lanes, op.agent, op.time, usable=op.kind.startswith("tcgen05"))

    # How operations meet memory

    def _queue(self, op: Op) -> None:
        """wgmma and tcgen05.mma read the same stage in several steps: their touches are merged and judged when
        somebody observes them. The order of judging does not matter, since clocks decide, not time."""
        queue = op.warp.queues.setdefault(_stream_kind(op.kind), [])
        if not queue or queue[-1] is not op:
            queue.append(op)

    def _flush_streams(self, warp: Warp) -> None:
        for kind in ("wgmma", "tcgen05"):
            self._flush_stream(warp, kind, None)

    def _flush_stream(self, warp: Warp, kind: str, until: Op | None) -> None:
        queue = warp.queues.get(_stream_kind(kind))
        if not queue:
            return
        ready = [op for op in queue if until is None or op.time <= until.time]
        queue[:] = [op for op in queue if not (until is None or op.time <= until.time)]
        start = 0
        for i in range(1, len(ready) + 1):
            if i == len(ready) or not _same_past(ready[start], ready[i]):
                last = ready[i - 1]
                self._apply(ready[start], last.agent, last.time, _merge([t for op in ready[start:i] for t in op.pending]))
                start = i
        for op in ready:
            op.pending = []

    def _land(self, op: Op, home: Cta, barrier: BarrierClock) -> None:
        """An operation completes on a barrier: whoever observes the barrier's present phase observes it."""
        agent, time = barrier.async_epoch()
        mine = [t for t in op.pending if t.cta == home.number or t.kind == "read"]
        if not mine:
            peers = [t for t in op.pending if t.cta in self._ctas and self._ctas[t.cta].rank ^ 1 == home.rank]
            mine = peers or op.pending
        op.pending = [t for t in op.pending if not any(t is m for m in mine)]
        self._must_precede_exit(home, np.array([agent]), time)
        self._apply(op, agent, time, mine)
        barrier.arrive_async(agent, time)

    def _apply(self, op: Op, agent: int, time: int, touches: list[_Touch]) -> None:
        for touch in touches:
            home = self._ctas.get(touch.cta)
            if home is None or home.exited:
                error = RemoteAccessToExitedCta if touch.kind == "write" else AsyncInFlightAtExit
                self._report(
                    error(
                        f"{op.kind} {touch.kind}s shared memory of CTA {touch.cta}, which has exited",
                        line=op.line, warp=op.warp.index, cta=op.warp.cta,
                    )
                )  # fmt: skip
                continue
            if touch.space == "shared":
                self._apply_shared(op, agent, time, touch, home)
            else:
                self._apply_tensor(op, agent, time, touch, home)

    def _apply_shared(self, op: Op, agent: int, time: int, touch: _Touch, home: Cta) -> None:
        agents = op.warp.agents
        if op.vector is None:
            message = op.message = agents.fit(op.message)
            published = message[hb.P if self.axioms.fence_by_accessing_thread else hb.L]
            op.vector = message[hb.H] if op.generic else np.where(agents.is_async, message[hb.H], published)
        if len(op.vector) < agents.capacity:
            op.vector = np.pad(op.vector, (0, agents.capacity - len(op.vector)))
        self._must_precede_exit(home, np.array([agent]), time)
        by: int | np.ndarray = agent
        if op.per_lane:
            by = agent + lanes_of(op.mask)
        shadow = home.shadow
        request = Request(by, time, touch.line, op.vector, touch.kind != "read", is_own=_same_stream(agent))
        for where in _selections(shadow, touch.ranges, op.per_lane):
            for access in shadow.check_and_record(where, request):
                self._async_conflict(op, home, touch, access)

    def _async_conflict(self, op: Op, home: Cta, touch: _Touch, access: Access) -> None:
        if self._special(home, f"{op.kind} {touch.kind}", access, touch.line, op.warp):
            return
        agents, message = op.warp.agents, _fitted_message(op)
        ordered = message[:, access.agent] >= access.time
        if access.agent in agents.whole_warps:
            lanes = message[:, access.agent - ALL_LANES : access.agent]
            ordered = ordered | (lanes.min(axis=1) >= access.time)
            if ordered[hb.P]:
                return
        place = {"line": touch.line, "warp": op.warp.index, "cta": op.warp.cta}
        address = access.granule * home.shadow.granule_bytes
        what = f"{op.kind} {touch.kind}s shared memory {address:#x} of CTA {home.number}"
        earlier, lines = self._what(agents, access), (touch.line, access.line)
        asynchronous = bool(agents.is_async[access.agent])
        if ordered[hb.H] and not asynchronous:
            if not access.is_write and not self.axioms.fence_covers_write_after_read:
                return
            if ordered[hb.L]:
                axiom = "fence_by_accessing_thread"
                hint = "a fence.proxy.async lies on the path, but not in the thread that made the access"
            else:
                axiom = "generic_to_async_needs_fence" if access.is_write else "fence_covers_write_after_read"
                hint = "no fence.proxy.async lies between"
            error: EmulatorError = MissingProxyFence(
                f"{what} after {earlier}: {hint}", axiom=axiom, **place
            )
            self._report(error, axiom, lines)
            return
        if ordered[hb.S]:
            axiom = "scope_limits_async_hand_back" if asynchronous else "scope_limits_order"
            hint = "; only the scope (.cta) of an arrival or wait breaks the order"
        else:
            axiom, hint = None, ""
        kind = BufferReusedInFlight if asynchronous else DataRace
        self._report(
            kind(f"{what}, not ordered after {earlier}{hint}", axiom=axiom, **place), axiom, lines
        )

    def _apply_tensor(self, op: Op, agent: int, time: int, touch: _Touch, home: Cta) -> None:
        if home.tensor is None:
            home.tensor = ShadowMemory(TENSOR_BANDS * TENSOR_COLUMNS, 1)
        agents, message = op.warp.agents, _fitted_message(op)
        usable = message[hb.H]
        if self.axioms.tensor_fences and op.usable is not None:
            usable = op.usable = np.pad(op.usable, (0, agents.capacity - len(op.usable)))
        self._must_precede_exit(home, np.array([agent]), time)
        request = Request(agent, time, touch.line, usable, touch.kind != "read", is_own=_same_stream(agent))
        for where in _tensor_selections(touch):
            for access in home.tensor.check_and_record(where, request):
                place = {"line": touch.line, "warp": op.warp.index, "cta": op.warp.cta}
                band, column = divmod(access.granule, TENSOR_COLUMNS)
                cell = f"tensor memory lane {16 * band}, column {column} of CTA {home.number}"
                if access.agent == NOBODY:
                    axiom: str | None = "written_before_read"
                    error: EmulatorError = UninitializedRead(f"{op.kind} reads {cell}, which nobody has written", **place)
                else:
                    ordered = message[hb.H, access.agent] >= access.time
                    axiom = "tensor_fences" if ordered else None
                    hint = "; a tcgen05.fence is missing" if ordered else ""
                    earlier = self._what(agents, access)
                    error = TensorMemoryNotReady(
                        f"{op.kind} {touch.kind}s {cell}, not ordered after {earlier}{hint}", **place
                    )
                self._report(error, axiom, (touch.line, access.line))

    # Helpers

    def _alive(self, cta: int, warp: Warp, line: int) -> Cta | None:
        home = self._ctas.get(cta)
        if home is None or home.exited:
            self._report(
                RemoteAccessToExitedCta(f"access to CTA {cta}, which has exited", line=line, warp=warp.index, cta=warp.cta)
            )
            return None
        return home

    def _must_precede_exit(self, home: Cta, agents: np.ndarray, time: int) -> None:
        needed = home.must_precede_exit
        capacity = home.cluster.agents.capacity
        if needed is None:
            needed = home.must_precede_exit = np.zeros(capacity, np.int32)
        elif len(needed) < capacity:
            needed = home.must_precede_exit = np.pad(needed, (0, capacity - len(needed)))
        needed[agents] = np.maximum(needed[agents], time)

    def _what(self, agents: Agents, access: Access) -> str:
        kind = "the write" if access.is_write else "the read"
        return f"{kind} at PTX line {access.line} by {agents.describe(access.agent)}"

    def _report(self, error: EmulatorError, axiom: str | None = None, key: tuple[object, ...] = ()) -> None:
        if axiom is not None and not getattr(self.axioms, axiom):
            return
        if key:
            full = (type(error), axiom, *key)
            if full in self._seen:
                return
            if self.foreign or self.sink:
                self._seen.add(full)
        if self.foreign and is_unproven(axiom):
            self.unproven.append(error)
        elif self.sink is not None:
            self.sink(error)
        else:
            raise error


def _fitted_message(op: Op) -> np.ndarray:
    op.message = op.warp.agents.fit(op.message)
    return op.message


def _stream_kind(kind: str) -> str:
    return "tcgen05" if kind.startswith("tcgen05") else kind


def _same_past(a: Op, b: Op) -> bool:
    """Whether two operations of a stream were issued with the same knowledge of other agents."""
    if a.message.shape != b.message.shape:
        return False
    own = slice(a.warp.base, a.warp.base + hb.AGENTS_PER_WARP)
    difference = a.message[: hb.A] != b.message[: hb.A]
    difference[:, own] = False
    return not difference.any()


def _merge(touches: list[_Touch]) -> list[_Touch]:
    """Chunk reads of one shared memory become the union of their chunks, as ranges."""
    merged, chunks = [], {}
    for touch in touches:
        if touch.space == "shared" and touch.kind == "read" and touch.ranges.ndim == 1:
            chunks.setdefault(touch.cta, []).append(touch)
        else:
            merged.append(touch)
    for cta, group in chunks.items():
        top = max(int(t.ranges.max()) for t in group) + 1
        mark = np.zeros(top + 1, np.int8)
        for touch in group:
            mark[touch.ranges] = 1
        edges = np.flatnonzero(np.diff(mark, prepend=np.int8(0)))
        starts, ends = edges[::2], edges[1::2]
        ranges = np.stack([starts * 16, (ends - starts) * 16], axis=1)
        merged.append(_Touch("read", "shared", cta, ranges, None, group[0].line))
    return merged


def _selections(shadow: ShadowMemory, ranges: np.ndarray, per_lane: bool) -> list[Selection]:
    if ranges.ndim == 1:
        return [shadow.chunks(ranges)]
    if len(ranges) == 0:
        return []
    sizes = ranges[:, 1]
    if len(ranges) > 4 or per_lane:
        if (sizes == sizes[0]).all() and sizes[0] % shadow.granule_bytes == 0:
            return [shadow.lanes(ranges[:, 0], int(sizes[0]))]
    return [shadow.span(int(start), int(size)) for start, size in ranges]


def _tensor_selections(touch: _Touch) -> list[Selection]:
    """`ranges`: (n, 2) of column * 4 and bytes; `rows`: (n, 2) of first lane and lanes, or None for all 128."""
    out: list[Selection] = []
    for i, (start, size) in enumerate(touch.ranges.tolist()):
        first, count = (0, 128) if touch.rows is None else (int(v) for v in touch.rows[i])
        bands = np.arange(first // 16, -(-(first + count) // 16))
        columns = np.arange(start // 4, -(-(start + size) // 4))
        out.append(bands[:, None] * TENSOR_COLUMNS + columns)
    return out


def _same_stream(agent: int) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    return lambda earlier, times, own: earlier == agent


def _own_past(warp: Warp) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """A lane's own accesses precede its next one by program order, the whole warp's included."""
    every = warp.base + ALL_LANES

    def is_own(earlier: np.ndarray, times: np.ndarray, own: np.ndarray) -> np.ndarray:
        return (earlier == own) | ((earlier == every) & (own >= warp.base) & (own <= every))

    return is_own


def _mask_of(lanes: list[int], addresses: np.ndarray, place: int) -> int:
    return sum(1 << lane for lane in lanes if int(addresses[lane]) == place)
