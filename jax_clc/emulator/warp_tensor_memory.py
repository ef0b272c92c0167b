"""A warp's tcgen05 instructions and cluster launch control requests."""

from __future__ import annotations

from collections import deque

import numpy as np

from . import mma_tcgen05
from .errors import BadDescriptor, BrokenAligned, ClcRecordNotComplete, UnsupportedInstruction
from .in_flight import TensorLoadRegister
from .lane_math import LANES
from .memory import check_alignment
from .tensor_memory import allocate_pair, split_address
from .warp_copies import AsyncOperation, WarpCopies

FULL = 0xFFFFFFFF


class TensorPipe:
    """The tensor core of an SM (or of a pair): MMAs and commits of one issuer in order, later than their issue."""

    def __init__(self, machine):
        self.machine = machine
        self.queue: deque = deque()

    def add(self, action, delay, owner) -> None:
        entry = [action, False]
        self.queue.append(entry)
        self.machine.later(delay, self._run_to, owner, entry)

    def _run_to(self, entry) -> None:
        while not entry[1]:
            first = self.queue.popleft()
            first[1] = True
            first[0]()


class WarpTensorMemory(WarpCopies):
    """Mixin of Warp."""

    tensor_pending = TensorLoadRegister()

    def init_tensor_memory(self) -> None:
        self.tensor_loads: list[tuple[int, object, object, object]] = []
        self.tensor_stores: list = []

    @property
    def tensor_memory(self):
        return self.machine.tensor_memory(self.cta.sm)

    def _pair(self, group: int) -> list:
        """The CTAs that a tcgen05 instruction of this group works on, even rank first."""
        if group == 1:
            return [self.cta]
        if self.cta.grid.cluster_size % 2:
            raise BadDescriptor("cta_group::2 in a cluster of odd size")
        even = self.cta.rank & ~1
        return [self.cluster.member(even, "tcgen05 pair"), self.cluster.member(even | 1, "tcgen05 pair")]

    # allocation

    def tensor_alloc(self, address, columns, group, mask, line):
        self.check_aligned(mask, "tcgen05.alloc")
        ctas = self._pair(group)
        if self.ticket is None:
            self.tensor_memory.check_allocation(self.cta.number, columns, group)
            self.ticket = "asked"
            self.cta.tensor_requests.append(columns)
            self.machine.wake_tensor_waiters()
        first = self._try_alloc(ctas, columns, group)
        if first is None:
            self.machine.tensor_waiters.append(self)
            self.sleep(f"tcgen05.alloc of {columns} columns (cta_group::{group})")
            return None
        self.ticket = None
        check_alignment(address, 4)
        self.store_shared(address & FULL, (first,), 4, mask & -mask, line)
        return True

    def _try_alloc(self, ctas, columns, group):
        if group == 1:
            first = self.tensor_memory.allocate(self.cta.number, columns)
            if first is not None:
                self.cta.tensor_requests.remove(columns)
            return first
        granted = self.cta.tensor_grants
        if granted:
            return granted.pop(0)
        if any(not cta.tensor_requests or cta.tensor_requests[0] != columns for cta in ctas):
            return None
        memories = tuple(self.machine.tensor_memory(cta.sm) for cta in ctas)
        first = allocate_pair(memories, tuple(cta.number for cta in ctas), columns)
        if first is None:
            return None
        for cta in ctas:
            cta.tensor_requests.pop(0)
            if cta is not self.cta:
                cta.tensor_grants.append(first)
        self.machine.wake_tensor_waiters()
        return first

    def tensor_dealloc(self, address, columns, group, mask):
        self.check_aligned(mask, "tcgen05.dealloc")
        if self.referee is not None:
            self.referee.tensor_free(self.handle, mask, self.cta.number, address & 0xFFFF, columns)
        self.tensor_memory.free(self.cta.number, address, columns, group)
        self.machine.wake_tensor_waiters()

    def tensor_relinquish(self, group, mask):
        self.check_aligned(mask, "tcgen05.relinquish_alloc_permit")
        self.tensor_memory.relinquish(self.cta.number, group)

    # registers

    def _cells(self, address, shape, repeat, mask):
        self.check_aligned(mask, "tcgen05.ld/st")
        return self.tensor_memory.cells_of(self.cta.number, self.index, address, shape, repeat)

    @staticmethod
    def _where(cells):
        """Ranges of columns and the rows of a cell index, for the referee."""
        lanes, columns = cells
        first, last = int(columns.min()), int(columns.max())
        low, high = int(lanes.min()), int(lanes.max())
        return np.array([[first * 4, (last - first + 1) * 4]], np.int64), np.array([[low, high - low + 1]], np.int64)

    def tensor_load_registers(self, address, shape, repeat, mask, line):
        cells = self._cells(address, shape, repeat, mask)
        actor = None
        if self.referee is not None:
            actor = self.referee.issue(self.handle, mask, "tcgen05.ld", line)
            ranges, rows = self._where(cells)
            self.referee.async_access(actor, "read", "tensor", self.cta.number, ranges, line, rows=rows)
        now = not self.options.tensor_loads_pending
        early = self.tensor_memory.load(cells).copy() if now or self.random.random() < 0.5 else None
        self.tensor_loads.append((line, cells, early, actor))
        return list(early) if now else [self.tensor_pending] * len(cells[0])

    def tensor_wait_load(self, mask, line):
        self.check_aligned(mask, "tcgen05.wait::ld")
        loaded = {}
        for at, cells, early, _ in self.tensor_loads:
            loaded[at] = list(self.tensor_memory.load(cells).copy() if early is None else early)
        if self.referee is not None and self.tensor_loads:
            self.referee.group_wait(self.handle, mask, [actor for *_, actor in self.tensor_loads], line)
        self.tensor_loads = []
        return loaded

    def tensor_store_registers(self, address, shape, repeat, mask, line, values):
        cells = self._cells(address, shape, repeat, mask)
        self.tensor_memory.store(cells, np.stack(values))
        self.machine.changes += 1
        if self.referee is not None:
            actor = self.referee.issue(self.handle, mask, "tcgen05.st", line)
            ranges, rows = self._where(cells)
            self.referee.async_access(actor, "write", "tensor", self.cta.number, ranges, line, rows=rows)
            self.tensor_stores.append(actor)

    def tensor_wait_store(self, mask, line):
        self.check_aligned(mask, "tcgen05.wait::st")
        if self.referee is not None and self.tensor_stores:
            self.referee.group_wait(self.handle, mask, self.tensor_stores, line)
        self.tensor_stores = []

    # MMA

    def tensor_mma(self, d, a, b, descriptor, accumulate, disabled, kind, group, in_tensor_memory, lane, line):
        if any(disabled):
            raise UnsupportedInstruction("tcgen05.mma with disabled output lanes is not emulated")
        instruction = mma_tcgen05.decode_instruction(descriptor, kind, group)
        ctas = self._pair(group)
        if group == 2 and self.cta.rank & 1:
            raise BadDescriptor("tcgen05.mma.cta_group::2 is issued by the odd CTA of a pair")
        actor = self.referee.issue(self.handle, 1 << lane, "tcgen05.mma", line) if self.referee is not None else None
        operation = AsyncOperation("tcgen05.mma", line, self, actor)
        self.machine.note("mma", self.cta, line, (descriptor, d, bool(accumulate)))
        self.machine.changes += 1
        for cta in ctas:
            self.machine.tensor_memory(cta.sm).use_group(cta.number, group)
            cta.reading[operation] = None

        def execute():
            for cta in ctas:
                cta.check_alive(str(operation))
            reads = mma_tcgen05.multiply(
                instruction, d, a, b, [cta.shared.data for cta in ctas],
                [self.machine.tensor_memory(cta.sm) for cta in ctas],
                [cta.number for cta in ctas], a_in_tensor_memory=in_tensor_memory, accumulate=bool(accumulate),
            )  # fmt: skip
            if self.referee is not None:
                self._report_mma(actor, instruction, d, a, ctas, reads, group, accumulate, in_tensor_memory, line)
            for cta in ctas:
                cta.reading.pop(operation, None)
            operation.finish(self.machine)

        ctas[0].tensor_pipe.add(execute, self.options.mma_delay, operation)

    def _report_mma(self, actor, instruction, d, a, ctas, reads, group, accumulate, in_tensor_memory, line):
        columns = mma_tcgen05.result_columns(instruction, group)
        _, column = split_address(d)
        ranges = np.array([[column * 4, columns * 4]], np.int64)
        for index, cta in enumerate(ctas):
            for chunks in ([reads.a[index]] if reads.a else []) + [reads.b[index]]:
                self.referee.async_access(actor, "read", "shared", cta.number, chunks, line)
            if in_tensor_memory:
                _, first = split_address(a)
                self.referee.async_access(
                    actor, "read", "tensor", cta.number, np.array([[first * 4, 32]], np.int64), line
                )
            if accumulate:
                self.referee.async_access(actor, "read", "tensor", cta.number, ranges, line)
            self.referee.async_access(actor, "write", "tensor", cta.number, ranges, line)

    def tensor_commit(self, barrier, multicast, group, lane, line):
        """One arrival, after every earlier tcgen05 operation of this thread, on each barrier named."""
        address = barrier & ((1 << 56) - 1)
        check_alignment(address, 8)
        home, offset = self.shared_owner(address, True)
        ranks = mma_tcgen05.commit_targets(home.rank, multicast)
        machine = self.machine
        actor = self.referee.issue(self.handle, 1 << lane, "tcgen05.mma", line) if self.referee is not None else None
        operation = AsyncOperation("tcgen05.commit", line, self, actor)
        machine.changes += 1

        def arrive(rank):
            cta = self.cluster.member(rank, "tcgen05.commit")
            if self.referee is not None:
                self.referee.mbarrier_async_arrive(actor, cta.number, offset, line)
            if cta.barrier(offset).arrive(1):
                cta.phase_ended(offset)

        def execute():
            for rank in ranks:
                machine.later(self.options.mma_delay if len(ranks) > 1 else (0, 0), arrive, operation, rank)
            operation.finish(machine)

        pipe = self._pair(group)[0].tensor_pipe
        pipe.add(execute, self.options.mma_delay, operation)

    # cluster launch control

    def try_cancel(self, record, barrier, multicast, lane, line):
        record &= (1 << 56) - 1
        barrier &= (1 << 56) - 1
        check_alignment(record, 16)
        check_alignment(barrier, 8)
        home, offset = self.shared_owner(record, False)
        owner, barrier_offset = self.shared_owner(barrier, False)
        self._in_window(home, offset, offset + 16)
        control, machine, cluster = self.cta.grid.control, self.machine, self.cluster
        serial = control.request(self.cta.number, cluster.number)
        operation = self.issue("try_cancel", 1 << lane, line)

        def deliver(cta, answer):
            cta.check_alive(str(operation))
            cta.shared.data[offset : offset + 16] = np.frombuffer(answer, np.uint8)
            if self.referee is not None:
                ranges = np.array([[offset, 16]], np.int64)
                self.referee.async_access(operation.actor, "write", "shared", cta.number, ranges, line)
                self.referee.mbarrier_async_arrive(operation.actor, cta.number, barrier_offset, line)
            cta.writing.pop((operation, cta.rank), None)
            if cta.barrier(barrier_offset).complete_tx(16):
                cta.phase_ended(barrier_offset)

        def decide():
            receivers = [(c.rank, not c.exited) for c in cluster.ctas] if multicast else [(home.rank, not home.exited)]
            answer = control.answer(serial, receivers)
            machine.granted(self.cta, control, serial)
            for cta in cluster.ctas if multicast else [home]:
                cta.writing[(operation, cta.rank)] = None
                machine.later((0, 10), deliver, operation, cta, answer)

        machine.later(self.options.clc_delay, decide, operation)

    def one_record(self, values, mask):
        rows = values[LANES[mask]]
        if (rows != rows[0]).any():
            raise BrokenAligned("lanes decode different records in one instruction")
        return int(rows[0, 0]) | int(rows[0, 1]) << 64

    def _record_bytes(self, record: int) -> bytes:
        if not isinstance(record, int):
            raise ClcRecordNotComplete("a record register that was never written")
        return record.to_bytes(16, "little")

    def is_canceled(self, record):
        granted = self.cta.grid.control.is_canceled(self.cta.number, self._record_bytes(record))
        self.machine.noted_record(self, record, granted)
        return granted

    def first_ctaid(self, record):
        return self.cta.grid.control.first_ctaid(self.cta.number, self._record_bytes(record))
