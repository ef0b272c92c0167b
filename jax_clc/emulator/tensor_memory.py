"""Tensor memory of one SM: 128 lanes x 512 columns of 32 bits, its allocator and who may touch what."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from jax_clc.emulator.errors import TensorMemoryMisuse, TensorMemoryNotFreed
from jax_clc.emulator.fragments import tensor_memory_map

LANES = 128
COLUMNS = 512
UNIT = 32  # columns
POISON = np.uint32(0x7FC0DEAD)  # a NaN as float32, so that a result made of it shows


def split_address(address: int) -> tuple[int, int]:
    """A tensor-memory address as (lane, column)."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


@dataclass
class _CtaState:
    group: int
    allocations: dict[int, int] = field(default_factory=dict)  # first column -> columns
    last_columns: int = COLUMNS
    relinquished: bool = False


@dataclass
class TensorMemory:
    """One SM's tensor memory. CTAs are known by their numbers. Contents are poisoned when allocated."""

    cells: np.ndarray = field(default_factory=lambda: np.full((LANES, COLUMNS), POISON))
    owner: np.ndarray = field(default_factory=lambda: np.full(COLUMNS, -1, np.int64))
    _ctas: dict[int, _CtaState] = field(default_factory=dict)

    # Allocation

    def use_group(self, cta: int, group: int) -> None:
        """All tcgen05 instructions of a kernel name the same cta_group. Call for each. Raises TensorMemoryMisuse."""
        state = self._ctas.setdefault(cta, _CtaState(group))
        if state.group != group:
            raise TensorMemoryMisuse(f"cta_group::{group} after cta_group::{state.group} in the same kernel")

    def check_allocation(self, cta: int, columns: int, group: int) -> None:
        """What `alloc` forbids, before it may block: odd sizes, growth, alloc after relinquish."""
        self.use_group(cta, group)
        state = self._ctas[cta]
        if columns & (columns - 1) or not UNIT <= columns <= COLUMNS:
            raise TensorMemoryMisuse(f"alloc of {columns} columns; a power of two from {UNIT} to {COLUMNS} is needed")
        if state.relinquished:
            raise TensorMemoryMisuse("alloc after relinquish_alloc_permit")
        if columns > state.last_columns:
            raise TensorMemoryMisuse(
                f"alloc of {columns} columns after {state.last_columns}; sizes must not increase within a CTA"
            )

    def find_free(self, columns: int, other: TensorMemory | None = None) -> int | None:
        """First column of a free range (in both memories of a pair), or None: the instruction blocks."""
        for first in range(0, COLUMNS - columns + 1, columns):
            part = slice(first, first + columns)
            if (self.owner[part] < 0).all() and (other is None or (other.owner[part] < 0).all()):
                return first
        return None

    def take(self, cta: int, first: int, columns: int) -> int:
        """Hands the columns to the CTA. Returns the address `alloc` writes to shared memory."""
        state = self._ctas[cta]
        self.owner[first : first + columns] = cta
        self.cells[:, first : first + columns] = POISON
        state.allocations[first] = columns
        state.last_columns = columns
        return first

    def allocate(self, cta: int, columns: int, group: int = 1) -> int | None:
        """`alloc` of one CTA: the address, or None while it has to wait. Pairs: `allocate_pair`."""
        self.check_allocation(cta, columns, group)
        first = self.find_free(columns)
        return None if first is None else self.take(cta, first, columns)

    def free(self, cta: int, address: int, columns: int, group: int = 1) -> None:
        """`dealloc`: exactly one earlier allocation of this CTA. Raises TensorMemoryMisuse."""
        self.use_group(cta, group)
        state = self._ctas[cta]
        lane, first = split_address(address)
        if lane or state.allocations.get(first) != columns:
            held = ", ".join(f"{n} at {c}" for c, n in state.allocations.items()) or "nothing"
            raise TensorMemoryMisuse(f"dealloc of {columns} columns at {address:#x}; the CTA holds {held}")
        del state.allocations[first]
        self.owner[first : first + columns] = -1

    def relinquish(self, cta: int, group: int = 1) -> None:
        """No `alloc` of this CTA may follow."""
        self.use_group(cta, group)
        self._ctas[cta].relinquished = True

    def cta_exit(self, cta: int) -> None:
        """Raises TensorMemoryNotFreed where the CTA still holds columns."""
        state = self._ctas.pop(cta, None)
        if state and state.allocations:
            self.owner[self.owner == cta] = -1
            held = ", ".join(f"{n} columns at {c}" for c, n in state.allocations.items())
            raise TensorMemoryNotFreed(f"CTA exits holding {held} of tensor memory", cta=cta)

    # Access

    def check_columns(self, cta: int, first: int, count: int) -> None:
        """All columns belong to the CTA. Raises TensorMemoryMisuse."""
        if first + count > COLUMNS or (self.owner[first : first + count] != cta).any():
            last = first + count - 1
            raise TensorMemoryMisuse(f"tensor memory columns {first} to {last} are not allocated by the CTA")

    def cells_of(
        self, cta: int, warp_in_cta: int, address: int, shape: str, repeat: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(lanes, columns), each [register, lane], that a tcgen05.ld or .st of this warp touches. A warp reaches the
        32 lanes that its index modulo 4 names. Raises TensorMemoryMisuse."""
        lanes, columns = tensor_memory_map(shape, repeat)
        lane, column = split_address(address)
        quarter = 32 * (warp_in_cta % 4)
        lanes = lanes + lane
        if lane < quarter or int(lanes.max()) >= quarter + 32:
            raise TensorMemoryMisuse(
                f"warp {warp_in_cta} touches tensor memory lanes {lane} to {int(lanes.max())}; "
                f"it may touch {quarter} to {quarter + 31}"
            )
        if lane % 16 or (shape == "32x32b" and lane % 32):
            raise TensorMemoryMisuse(f"tcgen05 access .{shape} at lane {lane} of tensor memory is misaligned")
        self.check_columns(cta, column, int(columns.max()) + 1)
        return lanes, columns + column

    def load(self, cells: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Registers (n, 32) uint32 of the cells that `cells_of` named."""
        return self.cells[cells]

    def store(self, cells: tuple[np.ndarray, np.ndarray], registers: np.ndarray) -> None:
        """Inverse of `load`."""
        self.cells[cells] = registers


def allocate_pair(memories: tuple[TensorMemory, TensorMemory], ctas: tuple[int, int], columns: int) -> int | None:
    """`alloc.cta_group::2`, once a warp of each CTA has come: the same columns in both SMs, or None while it waits."""
    for memory, cta in zip(memories, ctas, strict=True):
        memory.check_allocation(cta, columns, 2)
    first = memories[0].find_free(columns, memories[1])
    if first is not None:
        for memory, cta in zip(memories, ctas, strict=True):
            memory.take(cta, first, columns)
    return first
