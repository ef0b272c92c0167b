"""The referee's view of asynchronous operations: actors of their own, judged by what their issuer knew at issue.

An operation that completes on a barrier is observed by whoever observes the barrier's phase, so its actor is the
barrier and its time the phase. Others form streams that complete in order; operation n is the stream's time n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from jax_clc.emulator import happens_before as hb
from jax_clc.emulator.axioms import Axioms
from jax_clc.emulator.barrier_clock import BarrierClock
from jax_clc.emulator.errors import (
    AsyncInFlightAtExit,
    BufferReusedInFlight,
    DataRace,
    EmulatorError,
    MissingProxyFence,
    RemoteAccessToExitedCta,
    TensorMemoryNotReady,
    UninitializedRead,
)
from jax_clc.emulator.happens_before import ALL_LANES, NOBODY, Actors, lanes_of
from jax_clc.emulator.referee_state import (
    ASYNC_STORES,
    GENERIC_PROXY,
    MERGED,
    ON_BARRIER,
    PER_THREAD,
    Cta,
    Op,
    Touch,
    Warp,
    stream_kind,
)
from jax_clc.emulator.shadow_memory import Access, Request, Selection, ShadowMemory

TENSOR_BANDS = 8  # granules of tensor memory: 16 lanes x 8 columns
TENSOR_COLUMNS = 64


class AsyncOperations:
    """Mixin of Referee."""

    axioms: Axioms
    _ctas: dict[int, Cta]
    report: Callable[..., None]
    report_no_access: Callable[..., bool]

    # Issue

    def issue(self, warp: Warp, mask: int, kind: str, line: int) -> Op:
        """An operation leaves its thread (or warp). See README.md for the kinds."""
        message = warp.message(mask)
        if kind in ON_BARRIER:
            return Op(kind, warp, mask, line, message, NOBODY, 0)
        one_lane = mask & (mask - 1) == 0
        lane = mask.bit_length() - 1 if kind in PER_THREAD and one_lane else ALL_LANES
        per_lane = kind == "cp.async" and not one_lane
        key = (stream_kind(kind), lane)
        stream = warp.streams.get(key)
        if stream is None:
            name = hb.ActorName(f"the {kind} operations of warp {warp.index}", warp.cta)
            actor = warp.actors.add(name, 32 if per_lane else 1, asynchronous=kind not in GENERIC_PROXY)
            stream = (actor, 0)
            if kind in ("tcgen05.ld", "tcgen05.st"):
                warp.actors.waited_streams.add(actor)
            if per_lane:
                warp.copies = actor
        actor, count = stream
        warp.streams[key] = (actor, count + 1)
        op = Op(kind, warp, mask, line, message, actor, count + 1, per_lane)
        if kind.startswith("tcgen05"):
            op.usable = warp.usable(mask)
        return op

    # Effects

    def async_access(
        self, op: Op, kind: str, space: str, cta: int, ranges: np.ndarray, line: int, rows: np.ndarray | None = None
    ) -> None:
        """Memory that an operation touches. `ranges`: (n, 2) of start and bytes (tensor memory: of column * 4 and
        bytes, with `rows`: (n, 2) of first lane and lanes, None for all), or (n,) numbers of 16-byte chunks."""
        if space == "global":
            return
        touch = Touch("write" if kind == "atomic" else kind, space, cta, ranges, rows, line)
        if op.kind in ON_BARRIER:
            op.pending.append(touch)
        elif op.kind in MERGED:
            op.pending.append(touch)
            queue = op.warp.queues.setdefault(op.stream, [])
            if not queue or queue[-1] is not op:
                queue.append(op)
        else:
            self._apply(op, op.actor, op.time, [touch])

    def reads_complete(self, op: Op) -> None:
        """Nobody has observed it yet: only `group_wait` and barriers order."""

    def complete(self, op: Op) -> None:
        """Performed, and not yet observed: only `group_wait` and barriers order."""

    def group_wait(self, warp: Warp, mask: int, ops: Iterable[Op], line: int, reads_only: bool = False) -> None:
        """These lanes observed that operations are complete. Groups belong to the lane that issued them."""
        newest: dict[tuple[int, int], Op] = {}
        for op in ops:
            lanes = mask & op.mask if op.kind in PER_THREAD else mask
            if lanes:
                newest[op.actor, lanes] = op
        for (actor, lanes), op in newest.items():
            self.flush_stream(op.warp, op.stream, op.time)
            if op.per_lane:
                warp.copies_done[lanes_of(lanes)] = op.time
            else:
                warp.acquire_operation(lanes, actor, op.time, usable=op.kind.startswith("tcgen05"))

    def complete_on_barrier(self, ops: Iterable[Op], home: Cta, barrier: BarrierClock) -> None:
        """Operations arrive on a barrier: whoever observes its present phase observes them."""
        for op in ops:
            if op.kind in ON_BARRIER:
                self._land(op, home, barrier)
                continue
            self.flush_stream(op.warp, op.stream, op.time)
            if op.per_lane:
                for lane in lanes_of(op.mask).tolist():
                    barrier.arrive_async(op.actor + lane, op.time)
            else:
                barrier.arrive_async(op.actor, op.time)
                if op.warp.cta != home.number:
                    home.must_precede_exit(op.actor, op.time)

    # How operations meet memory

    def flush_streams(self, warp: Warp) -> None:
        for stream in list(warp.queues):
            self.flush_stream(warp, stream)

    def flush_stream(self, warp: Warp, stream: str, until: int | None = None) -> None:
        """Judges queued operations of a merged stream, up to time `until`. When they are judged does not matter:
        clocks decide, not the order of events. Neighbours that knew the same are judged as one."""
        queue = warp.queues.get(stream)
        if not queue:
            return
        ready = [op for op in queue if until is None or op.time <= until]
        queue[:] = queue[len(ready) :]
        start = 0
        for i in range(1, len(ready) + 1):
            # A gap in time is a commit: what precedes it is observed earlier than what follows.
            if i == len(ready) or ready[i].time != ready[i - 1].time + 1 or not _same_past(ready[start], ready[i]):
                touches = [touch for op in ready[start:i] for touch in op.pending]
                last = ready[i - 1]
                self._apply(ready[start], last.actor, last.time, merged_reads(touches))
                start = i
        for op in ready:
            op.pending = []

    def _land(self, op: Op, home: Cta, barrier: BarrierClock) -> None:
        actor, time = barrier.async_epoch()
        mine = [t for t in op.pending if t.cta == home.number or t.kind == "read"]
        if not mine:  # data in one CTA of a pair, barrier in the other
            peers = [t for t in op.pending if t.cta in self._ctas and self._ctas[t.cta].rank ^ 1 == home.rank]
            mine = peers or op.pending
        op.pending = [t for t in op.pending if not any(t is m for m in mine)]
        home.must_precede_exit(actor, time)
        self._apply(op, actor, time, mine)
        barrier.arrive_async(actor, time)

    def _apply(self, op: Op, actor: int, time: int, touches: list[Touch]) -> None:
        for touch in touches:
            home = self._ctas.get(touch.cta)
            if home is None or home.exited:
                error = RemoteAccessToExitedCta if touch.kind == "write" else AsyncInFlightAtExit
                text = f"{op.kind} {touch.kind}s shared memory of CTA {touch.cta}, which has exited"
                self.report(error(text, **op.place(op.line)))
            elif touch.space == "shared":
                self._apply_shared(op, actor, time, touch, home)
            else:
                self._apply_tensor(op, actor, time, touch, home)

    def _apply_shared(self, op: Op, actor: int, time: int, touch: Touch, home: Cta) -> None:
        actors, message = op.warp.actors, op.known()
        if op.vector is None or len(op.vector) < actors.capacity:
            published = message[hb.P if self.axioms.fence_by_accessing_thread else hb.L]
            lenient = op.kind in ASYNC_STORES and not self.axioms.async_stores_need_fence
            generic = op.kind in GENERIC_PROXY or lenient
            op.vector = message[hb.H] if generic else np.where(actors.is_async, message[hb.H], published)
        by: int | np.ndarray = actor
        if op.per_lane:
            by = actor + lanes_of(op.mask)
        home.must_precede_exit(by, time)
        own = _own_copies(op) if op.per_lane else _same_stream(actor)
        request = Request(by, time, touch.line, op.vector, touch.kind != "read", is_own=own)
        for where in _selections(home.shadow, touch.ranges, op.per_lane):
            for access in home.shadow.check_and_record(where, request):
                self._async_conflict(op, home, touch, access)

    def _async_conflict(self, op: Op, home: Cta, touch: Touch, access: Access) -> None:
        place = op.place(touch.line)
        if self.report_no_access(home, f"{op.kind} {touch.kind}", access, place):
            return
        actors, message = op.warp.actors, op.known()
        ordered = message[:, access.actor] >= access.time
        if access.actor in actors.whole_warps:
            ordered |= message[:, access.actor - ALL_LANES : access.actor].min(axis=1) >= access.time
            if ordered[hb.P]:
                return
        address = access.granule * home.shadow.granule_bytes
        what = f"{op.kind} {touch.kind}s shared memory {address:#x} of CTA {home.number}"
        earlier, lines = describe(actors, access), (touch.line, access.line)
        asynchronous = bool(actors.is_async[access.actor])
        axiom: str | None = None
        if ordered[hb.H] and not asynchronous:
            if not access.is_write and not self.axioms.fence_covers_write_after_read:
                return
            if op.kind in ASYNC_STORES:
                axiom, hint = "async_stores_need_fence", "no fence.proxy.async lies between"
            elif ordered[hb.L]:
                axiom = "fence_by_accessing_thread"
                hint = "a fence.proxy.async lies on the path, but not in the thread that made the access"
            else:
                axiom = "generic_to_async_needs_fence" if access.is_write else "fence_covers_write_after_read"
                hint = "no fence.proxy.async lies between"
            self.report(MissingProxyFence(f"{what} after {earlier}: {hint}", axiom=axiom, **place), lines)
            return
        hint = ""
        if ordered[hb.S]:
            axiom = "scope_limits_async_hand_back" if asynchronous else "scope_limits_order"
            hint = "; only the scope (.cta) of an arrival or wait breaks the order"
        base, first = op.warp.base, access.actor - op.warp.base
        later = 0 <= first < hb.ACTORS_PER_WARP and access.time > message[hb.H, base + first]
        if later:  # program order puts the access after the issue
            hint = ", which its own warp made before it waited"
        error = BufferReusedInFlight if asynchronous or later else DataRace
        self.report(error(f"{what}, not ordered after {earlier}{hint}", axiom=axiom, **place), lines)

    def _apply_tensor(self, op: Op, actor: int, time: int, touch: Touch, home: Cta) -> None:
        if home.tensor is None:
            home.tensor = ShadowMemory(TENSOR_BANDS * TENSOR_COLUMNS, 1, TENSOR_COLUMNS)
        actors, message = op.warp.actors, op.known()
        usable = message[hb.H]
        if self.axioms.tensor_fences and op.usable is not None:
            usable = op.usable = np.pad(op.usable, (0, actors.capacity - len(op.usable)))
        home.must_precede_exit(actor, time)
        request = Request(actor, time, touch.line, usable, touch.kind != "read", is_own=_same_stream(actor))
        for where in _tensor_selections(touch):
            for access in home.tensor.check_and_record(where, request):
                self._tensor_conflict(op, home, touch, access)

    def tensor_free(self, warp: Warp, mask: int, cta: int, column: int, columns: int) -> None:
        """tcgen05.dealloc, which does not wait by itself: all use of the columns is ordered before it."""
        home = self._ctas[cta]
        for other in warp.cluster.warps:
            self.flush_stream(other, "tcgen05")
        if home.tensor is None:
            return
        touch = Touch("write", "tensor", cta, np.array([[4 * column, 4 * columns]]), None, 0)
        known = warp.known(mask.bit_length() - 1)[hb.H]
        request = Request(NOBODY, 0, 0, known, True, is_own=_same_stream(NOBODY))
        for where in _tensor_selections(touch):
            for access in home.tensor.check_and_record(where, request):
                text = f"tensor memory is freed without being ordered after {describe(warp.actors, access)}"
                self.report(TensorMemoryNotReady(text, warp=warp.index, cta=cta), (access.line,))

    def _tensor_conflict(self, op: Op, home: Cta, touch: Touch, access: Access) -> None:
        band, column = divmod(access.granule, TENSOR_COLUMNS)
        cell = f"tensor memory lane {16 * band}, column {8 * column} of CTA {home.number}"
        place, lines = op.place(touch.line), (touch.line, access.line)
        error: EmulatorError
        if access.actor == NOBODY:
            text = f"{op.kind} reads {cell}, which nobody has written"
            error = UninitializedRead(text, axiom="written_before_read", **place)
        else:
            ordered = op.known()[hb.H, access.actor] >= access.time
            hint = "; a tcgen05.fence is missing" if ordered else ""
            text = f"{op.kind} {touch.kind}s {cell}, not ordered after {describe(op.warp.actors, access)}{hint}"
            waited = access.actor in op.warp.actors.waited_streams
            axiom = "tensor_fences_after_wait" if waited else "tensor_fences"
            error = TensorMemoryNotReady(text, axiom=axiom if ordered else None, **place)
        self.report(error, lines)


def describe(actors: Actors, access: Access) -> str:
    """The earlier side of a conflict, in words."""
    kind = "the write" if access.is_write else "the read"
    return f"{kind} at PTX line {access.line} by {actors.describe(access.actor)}"


def _same_past(a: Op, b: Op) -> bool:
    """Whether two operations of a stream were issued with the same knowledge of other actors."""
    if a.message.shape != b.message.shape:
        return False
    first, last = a.warp.base, a.warp.base + hb.ACTORS_PER_WARP
    one, other = a.message[: hb.A], b.message[: hb.A]
    return bool((one[:, :first] == other[:, :first]).all() and (one[:, last:] == other[:, last:]).all())


_merged: dict[tuple[int, ...], tuple[list[np.ndarray], np.ndarray]] = {}
"""Unions of ranges by the identities of the arrays merged; the arrays are kept, so that identities stay theirs."""


def merged_reads(touches: list[Touch]) -> list[Touch]:
    """Reads of one shared memory become one touch of the union of their ranges; writes of the same tensor memory,
    which a chain of multiplications repeats, become one."""
    rest: dict[object, Touch] = {}
    reads: dict[int, list[Touch]] = {}
    for touch in touches:
        if touch.space == "shared" and touch.kind == "read":
            reads.setdefault(touch.cta, []).append(touch)
        else:
            rows = touch.rows.tobytes() if touch.rows is not None else None
            rest[touch.kind, touch.space, touch.cta, touch.ranges.tobytes(), rows] = touch
    for cta, group in reads.items():
        key = tuple(id(touch.ranges) for touch in group)
        cached = _merged.get(key)
        if cached is None:
            arrays = [touch.ranges for touch in group]
            if len(_merged) > 4096:
                _merged.clear()
            cached = _merged[key] = (arrays, _union(arrays))
        rest[cta] = Touch("read", "shared", cta, cached[1], None, group[0].line)
    return list(rest.values())


def _union(arrays: list[np.ndarray]) -> np.ndarray:
    """(n, 2) ranges that cover all of the given ranges or chunks of 16 bytes."""
    whole = np.concatenate([a if a.ndim == 2 else np.stack([a * 16, np.full(a.shape, 16)], axis=1) for a in arrays])
    edges = np.zeros(int(whole.sum(axis=1).max()) // 4 + 2, np.int64)
    np.add.at(edges, whole[:, 0] // 4, 1)
    np.add.at(edges, -(-whole.sum(axis=1) // 4), -1)
    covered = np.flatnonzero(np.diff(np.cumsum(edges) > 0, prepend=False))
    starts, ends = covered[::2] * 4, covered[1::2] * 4
    return np.stack([starts, ends - starts], axis=1)


def _selections(shadow: ShadowMemory, ranges: np.ndarray, per_lane: bool) -> list[Selection]:
    if ranges.ndim == 1:
        return [shadow.chunks(ranges)]
    if len(ranges) == 0:
        return []
    sizes = ranges[:, 1]
    if (len(ranges) > 4 or per_lane) and (sizes == sizes[0]).all() and sizes[0] % shadow.granule_bytes == 0:
        return [shadow.lanes(ranges[:, 0], int(sizes[0]))]
    return [shadow.span(start, size) for start, size in ranges.tolist()]


def _tensor_selections(touch: Touch) -> list[Selection]:
    out: list[Selection] = []
    for i, (start, size) in enumerate(touch.ranges.tolist()):
        first, count = (0, 128) if touch.rows is None else touch.rows[i].tolist()
        bands = np.arange(first // 16, -(-(first + count) // 16))
        columns = np.arange(start // 32, -(-(start + size) // 32))
        out.append(bands[:, None] * TENSOR_COLUMNS + columns)
    return out


def _same_stream(actor: int) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    return lambda earlier, times, own: earlier == actor


def _own_copies(op: Op) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """A lane's cp.async follows that lane's own past."""
    base, actor = op.warp.base, op.actor
    return lambda earlier, times, own: (earlier - base == own - actor) | (earlier == base + ALL_LANES)
