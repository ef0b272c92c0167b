"""A warp's matrix instructions: wgmma through its warpgroup, ldmatrix and stmatrix."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from . import fragments
from .errors import AddressOutOfRange, BadDescriptor, BrokenAligned, RegistersInFlight
from .in_flight import WgmmaRegister
from .memory import check_alignment
from .mma_wgmma import (
    OPERAND_TYPES,
    check_shape,
    decode_descriptor,
    multiply_accumulate,
    operand_chunks,
    read_operand,
    widen,
)  # fmt: skip
from .warp_copies import AsyncOperation
from .warp_memory import WarpMemory

FULL = 0xFFFFFFFF


@lru_cache(maxsize=4096)
def warp_chunks(shape: tuple, a: int | None, b: int, quarter: int) -> np.ndarray:
    """16-byte chunks of shared memory that one warp's part of a wgmma reads: its 16 rows of A and all of B."""
    n, _, a_kind, b_kind, _, _, trans_a, trans_b = shape
    chunks = operand_chunks(decode_descriptor(b), n, bool(trans_b), OPERAND_TYPES[b_kind].itemsize).reshape(-1)
    if a is None:
        return chunks
    size = OPERAND_TYPES[a_kind].itemsize
    of_a = operand_chunks(decode_descriptor(a), 64, bool(trans_a), size)
    width = 16 * size // 16
    rows = of_a[:, quarter * width : (quarter + 1) * width] if trans_a else of_a[16 * quarter : 16 * quarter + 16]
    return np.concatenate((chunks, rows.reshape(-1)))


class Accumulator:
    """A warpgroup's D matrix while wgmmas write it."""

    __slots__ = ("key", "matrix", "registers", "pending", "result", "kind")

    def __init__(self, key: str, kind: str):
        self.key, self.kind = key, kind
        self.matrix: np.ndarray | None = None
        self.registers: list = [None] * 4  # each warp's registers, until all four have come
        self.pending = 0
        self.result: np.ndarray | None = None


class MatrixOperation(AsyncOperation):
    """One wgmma of a warpgroup; its four warps join one after another."""

    __slots__ = ("a", "b", "scale_d", "shape", "accumulator", "joined", "a_registers", "actors")

    def __init__(self, line, warp, a, b, scale_d, shape, accumulator):
        super().__init__("wgmma", line, warp, None)
        self.a, self.b, self.scale_d, self.shape, self.accumulator = a, b, scale_d, shape, accumulator
        self.joined: list = []
        self.a_registers: list = [None] * 4
        self.actors: list = [None] * 4


class Warpgroup:
    """Four warps whose wgmmas form one stream, executed in order."""

    def __init__(self, cta):
        self.cta = cta
        self.operations: list[MatrixOperation] = []
        self.base = 0  # number of operations already dropped
        self.executed = 0  # all before this number are done

    def operation(self, number: int) -> MatrixOperation | None:
        return self.operations[number - self.base] if number - self.base < len(self.operations) else None

    def execute_ready(self, upto: MatrixOperation) -> None:
        """The tensor core works in order: everything ready up to and including an operation."""
        while self.executed - self.base < len(self.operations):
            operation = self.operations[self.executed - self.base]
            if len(operation.joined) < 4:
                return
            self._execute(operation)
            self.executed += 1
            if operation is upto:
                return

    def _execute(self, operation: MatrixOperation) -> None:
        n, d_kind, a_kind, b_kind, scale_a, scale_b, trans_a, trans_b = operation.shape
        cta = self.cta
        cta.check_alive(str(operation))
        shared = cta.shared.data
        accumulator = operation.accumulator
        if accumulator.matrix is None:
            accumulator.matrix = to_matrix(accumulator.registers, d_kind, n)
            accumulator.registers = [None] * 4
        if operation.a is None:
            a = fragments.registers_to_a(np.stack(operation.a_registers), OPERAND_TYPES[a_kind])
            a = a.astype(np.int32 if a_kind in ("s8", "u8") else np.float32)
        else:
            a, _ = read_operand(shared, decode_descriptor(operation.a), 64, bool(trans_a), a_kind)
        b, _ = read_operand(shared, decode_descriptor(operation.b), n, bool(trans_b), b_kind)
        before = accumulator.matrix if operation.scale_d else None
        accumulator.matrix = multiply_accumulate(a, b, before, scale_a, scale_b)
        accumulator.pending -= 1
        operation.reads_done = operation.done = True
        operation._wake(cta.machine)


def to_matrix(registers: list, kind: str, n: int) -> np.ndarray:
    """Accumulator registers of four warps as (64, n)."""
    stacked = np.stack(registers)
    if kind == "f16":
        return fragments.packed_registers_to_accumulator(stacked, np.dtype(np.float16)).astype(np.float32)
    return fragments.registers_to_accumulator(stacked.view(np.int32 if kind == "s32" else np.float32)).copy()


def from_matrix(matrix: np.ndarray, kind: str) -> np.ndarray:
    """(64, n) as (4 warps, registers, 32 lanes) of uint32."""
    if kind == "f16":
        return fragments.accumulator_to_packed_registers(matrix.astype(np.float16))
    return np.ascontiguousarray(fragments.accumulator_to_registers(matrix)).view(np.uint32)


class WarpMatrix(WarpMemory):
    """Mixin of Warp."""

    in_flight = WgmmaRegister()

    def init_matrix(self) -> None:
        self.mma_issued = 0  # wgmmas of this warp so far
        self.mma_groups: list[int] = []  # number of wgmmas issued at each commit
        self.mma_waited = 0  # wgmmas that this warp has waited for
        self.mma_fenced = False
        self.mma_touched: set[str] = set()  # registers of wgmmas written since the last wgmma.fence
        self.mma_sources: dict[str, int] = {}  # registers of A -> number of the last wgmma that reads them
        self.mma_keys: dict[str, Accumulator] = {}

    @property
    def warpgroup(self) -> Warpgroup:
        return self.cta.warpgroups[self.index // 4]

    def one_predicate(self, bits: int) -> bool:
        if bits & self.live not in (0, self.live):
            raise BrokenAligned("the predicate of a wgmma differs between lanes")
        return bits & self.live != 0

    def one_value(self, values) -> int:
        if (values != values[0]).any():
            raise BrokenAligned("a matrix descriptor differs between lanes")
        return int(values[0])

    def wgmma_fence(self, mask, line):
        self.check_aligned(mask, "wgmma.fence")
        self.mma_fenced = True
        self.mma_touched.clear()
        if self.referee is not None:
            self.referee.fence(self.handle, mask, "wgmma", line)

    def mma_written(self, names) -> None:
        """Registers that wgmmas use are written by another instruction."""
        self.mma_touched.update(names)
        for name in names:
            if self.mma_sources.get(name, -1) >= self.mma_waited:
                raise RegistersInFlight(
                    f"{name} is written while a wgmma still reads it: no wgmma.wait_group lies between"
                )

    def wgmma_registers(self, results, sources, first) -> None:
        """The registers of the wgmma that is issued next. `first`: what its first accumulator register holds."""
        if self.mma_touched:
            chained = first is self.in_flight
            late = [n for n in (sources if chained else (*results, *sources)) if n in self.mma_touched]
            if late:
                raise RegistersInFlight(f"{late[0]} was written after the last wgmma.fence before this wgmma")
        for name in sources:
            self.mma_sources[name] = self.mma_issued

    def wgmma(self, key, registers, a, b, scale_d, shape, mask, line):
        if mask != FULL:
            self.check_aligned(mask, "wgmma")
            raise BrokenAligned(f"wgmma by lanes {mask:#010x}")
        n, d_kind, a_kind = shape[0], shape[1], shape[2]
        check_shape(n, a_kind)
        group = self.warpgroup
        chained = registers[0] is self.in_flight
        if any((r is self.in_flight) != chained for r in registers):
            raise RegistersInFlight("some accumulator registers are in flight and some are not")
        if not chained and not self.mma_fenced:
            raise RegistersInFlight("accumulator registers were touched without a wgmma.fence before this wgmma")
        number, self.mma_issued = self.mma_issued, self.mma_issued + 1
        operation = group.operation(number)
        if operation is None:
            accumulator = self.mma_keys[key] if chained else Accumulator(key, d_kind)
            operation = MatrixOperation(line, self, None if isinstance(a, tuple) else a, b, scale_d, shape, accumulator)
            accumulator.pending += 1
            group.operations.append(operation)
        accumulator = operation.accumulator
        if (operation.line, operation.b, operation.scale_d) != (line, b, scale_d) or operation.accumulator.key != key:
            raise BrokenAligned(
                f"the warps of a warpgroup execute different wgmmas (PTX lines {operation.line} and {line})"
            )
        if not isinstance(a, tuple) and operation.a != a:
            raise BrokenAligned("the warps of a warpgroup pass different descriptors of A")
        place = self.index % 4
        if chained:
            if self.mma_keys.get(key) is not accumulator:
                raise RegistersInFlight("accumulator registers are in flight in another wgmma")
        else:
            accumulator.registers[place] = np.stack([np.asarray(r).view(np.uint32) for r in registers])
            self.mma_keys[key] = accumulator
        if isinstance(a, tuple):
            operation.a_registers[place] = np.stack(a)
        operation.joined.append(self.index)
        if place == 0:
            self.machine.note("mma", self.cta, line, (shape, key, bool(scale_d)))
        self._report_reads(operation, place, mask, line)
        self.machine.changes += 1
        if len(operation.joined) == 4:
            self.machine.later(self.options.mma_delay, group.execute_ready, operation, operation)

    def _report_reads(self, operation, place, mask, line):
        chunks = warp_chunks(operation.shape, operation.a, operation.b, place)
        if int(chunks.min()) < 64 or int(chunks.max()) * 16 + 16 > self.cta.shared.size:
            raise AddressOutOfRange(
                f"wgmma operands reach from byte {int(chunks.min()) * 16} to {int(chunks.max()) * 16 + 15}"
            )
        if self.referee is not None:
            actor = operation.actors[place] = self.referee.issue(self.handle, mask, "wgmma", line)
            self.referee.async_access(actor, "read", "shared", self.cta.number, chunks, line)

    def wgmma_commit(self):
        self.mma_groups.append(self.mma_issued)

    def wgmma_wait(self, count, mask, line):
        """True once all but the newest `count` groups are done."""
        if len(self.mma_groups) <= count:
            return True
        upto = self.mma_groups[len(self.mma_groups) - count - 1]
        group = self.warpgroup
        if group.executed < upto:
            operation = group.operation(upto - 1)
            if operation is None:
                raise AssertionError("a wgmma was committed and never issued")
            operation.sleepers.append(self)
            self.sleep(f"wgmma group ({operation}; {len(operation.joined)} of 4 warps have issued it)")
            return None
        if self.referee is not None:
            actors = [group.operation(i).actors[self.index % 4] for i in range(self.mma_waited, upto)]
            if actors:
                self.referee.group_wait(self.handle, mask, actors, line)
        self.mma_waited = upto
        self.mma_groups = self.mma_groups[len(self.mma_groups) - count :] if count else []
        if not self.mma_groups and upto == self.mma_issued:
            self.mma_fenced = False
        self._drop_old(group)
        return True

    def _drop_old(self, group: Warpgroup) -> None:
        """Forget operations that every warp of the group has waited for."""
        slowest = min(w.mma_waited for w in self.cta.warps[self.index // 4 * 4 : self.index // 4 * 4 + 4])
        if slowest > group.base:
            del group.operations[: slowest - group.base]
            group.base = slowest

    def wgmma_take(self, key):
        """The registers of an accumulator, once no wgmma writes it and this warp has waited for all of them."""
        accumulator = self.mma_keys.get(key)
        if accumulator is None or self.mma_waited < self.mma_issued or accumulator.pending:
            return None
        if accumulator.result is None:
            accumulator.result = from_matrix(accumulator.matrix, accumulator.kind)
        del self.mma_keys[key]
        return list(accumulator.result[self.index % 4])

    def mma(self, kinds, k, a, b, c, mask):
        """mma.sync.m16n8kN on this warp's registers. Returns D's registers."""
        self.check_aligned(mask, "mma.sync")
        d_kind, a_kind, b_kind, c_kind = kinds
        left = widen(fragments.registers_to_mma_a(np.stack(a), OPERAND_TYPES[a_kind]), a_kind)
        right = widen(fragments.registers_to_mma_b(np.stack(b), OPERAND_TYPES[b_kind]), b_kind)
        if left.shape != (16, k) or right.shape != (8, k):
            raise BadDescriptor(f"mma.sync of k {k}: fragments hold {left.shape} and {right.shape}")
        before = fragments.mma_registers_to_d(np.stack(c), c_kind)
        return list(fragments.d_to_mma_registers(multiply_accumulate(left, right, before), d_kind))

    # ldmatrix and stmatrix

    def _matrix_rows(self, address, count, what, mask):
        self.check_aligned(mask, what)
        rows = 8 * count
        addresses = address[:rows]
        if int(addresses[0]) >> 56:
            addresses = addresses & 0xFFFFFFFF
        offsets = addresses - self.shared_window
        check_alignment(offsets, 16)
        self._in_window(self.cta, int(offsets.min()), int(offsets.max()) + 16)
        lanes = FULL >> (32 - rows)
        return offsets, lanes

    def load_matrices(self, address, count, transpose, mask, line):
        offsets, lanes = self._matrix_rows(address, count, "ldmatrix", mask)
        if self.referee is not None:
            padded = np.resize(offsets, 32)
            self.referee.access(self.handle, lanes, "read", "shared", self.cta.number, padded, 16, line, "weak", None)
        rows = self.cta.shared.data.reshape(-1, 16)[offsets >> 4].reshape(count, 8, 16)
        return fragments.ldmatrix(rows, transpose)

    def store_matrices(self, address, values, transpose, mask, line):
        count = len(values)
        offsets, lanes = self._matrix_rows(address, count, "stmatrix", mask)
        self.machine.changes += 1
        if self.referee is not None:
            padded = np.resize(offsets, 32)
            self.referee.access(self.handle, lanes, "write", "shared", self.cta.number, padded, 16, line, "weak", None)
        rows = fragments.stmatrix(np.stack(values), transpose)
        self.cta.shared.data.reshape(-1, 16)[offsets >> 4] = rows.reshape(-1, 16)
