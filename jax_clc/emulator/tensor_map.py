"""Tensor maps: the emulated 128-byte encoding, and the copies between global boxes and shared memory.

A box travels as 16-byte chunks. Swizzling permutes the chunks of each 128-byte line of shared memory, as a function
of the shared-memory address itself: address bits 4 and up are XORed with bits 7 and up (1, 2 or 3 of them).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import ml_dtypes
import numpy as np

from jax_clc.emulator.errors import BadDescriptor, MisalignedAddress, UnsupportedInstruction

MAGIC = 0x4D54434A  # "JCTM" as a little-endian word
SIZE = 128
_HEADER = struct.Struct("<I6B6xQ5Q4Q5H5B")
assert _HEADER.size <= SIZE

# CUtensorMapDataType, in its order. Packed 4- and 6-bit types are not emulated.
ELEMENT_TYPES: tuple[np.dtype, ...] = tuple(
    np.dtype(t)
    for t in (
        "u1", "u2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16, "f4", "f4", "f4",
    )
)  # fmt: skip
SWIZZLE_NAMES = ("none", "32B", "64B", "128B")
SWIZZLE_SPAN = (0, 32, 64, 128)  # bytes of an inner row that one swizzle pattern covers

GlobalView = Callable[[int, int], np.ndarray]
"""(address, size_bytes) -> uint8 view of global memory; raises AddressOutOfRange."""


@lru_cache(maxsize=4096)
def swizzled_chunks(first_chunk: int, count: int, swizzle: int) -> np.ndarray:
    """For `count` 16-byte chunks that start at chunk `first_chunk` of shared memory (only its low 6 bits matter):
    where each lands, relative to the first."""
    logical = first_chunk + np.arange(count)
    bits = (1 << swizzle) - 1
    physical = logical ^ ((logical >> 3) & bits)
    result = physical - first_chunk
    result.setflags(write=False)
    return result


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map. Axes are innermost first; `strides_bytes` starts at the second axis."""

    element_type: int
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    fill: int = 0

    @classmethod
    @lru_cache(maxsize=256)
    def from_bytes(cls, data: bytes) -> TensorMap:
        """Decodes and checks 128 bytes. Raises BadDescriptor with what is wrong."""
        if len(data) != SIZE:
            raise BadDescriptor(f"a tensor map has {SIZE} bytes, got {len(data)}")
        magic, element_type, rank, interleave, swizzle, promotion, fill, address, *rest = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise BadDescriptor("the address does not point to a tensor map")
        if not 1 <= rank <= 5:
            raise BadDescriptor(f"tensor map of rank {rank}; ranks are 1 to 5")
        dims, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
        result = cls(
            element_type, address, tuple(dims[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]),
            tuple(steps[:rank]), interleave, swizzle, promotion, fill,
        )  # fmt: skip
        result.check()
        return result

    def to_bytes(self) -> bytes:
        """The 128 bytes of the emulated driver's cuTensorMapEncodeTiled. Raises BadDescriptor as it would fail."""
        self.check()
        rank = self.rank

        def padded(values: Sequence[int], length: int) -> list[int]:
            return [*values, *[0] * (length - len(values))]

        return _HEADER.pack(
            MAGIC, self.element_type, rank, self.interleave, self.swizzle, self.l2_promotion, self.fill, self.address,
            *padded(self.dims, 5), *padded(self.strides_bytes, 4), *padded(self.box, 5),
            *padded(self.element_strides, 5),
        ).ljust(SIZE, b"\0")  # fmt: skip

    def check(self) -> None:
        """The conditions of cuTensorMapEncodeTiled."""
        if self.element_type >= len(ELEMENT_TYPES):
            raise BadDescriptor(f"element type {self.element_type} is not emulated")
        if self.interleave != 0 or self.swizzle > 3:
            raise BadDescriptor(f"interleave {self.interleave} with swizzle {self.swizzle} is not emulated")
        if self.address % 16:
            raise BadDescriptor(f"tensor map base {self.address:#x} is not aligned to 16 bytes")
        if any(not 1 <= d <= 1 << 32 for d in self.dims):
            raise BadDescriptor(f"tensor map sizes {self.dims}; each must be 1 to 2**32")
        if len(self.strides_bytes) != self.rank - 1 or any(s % 16 or not 0 <= s < 1 << 40 for s in self.strides_bytes):
            raise BadDescriptor(f"tensor map strides {self.strides_bytes} bytes; multiples of 16 below 2**40 needed")
        if len(self.box) != self.rank or any(not 1 <= b <= 256 for b in self.box):
            raise BadDescriptor(f"tensor map box {self.box}; each size must be 1 to 256")
        if len(self.element_strides) != self.rank or any(not 1 <= s <= 8 for s in self.element_strides):
            raise BadDescriptor(f"tensor map element strides {self.element_strides}; each must be 1 to 8")
        if self.row_bytes % 16:
            raise BadDescriptor(f"inner box of {self.row_bytes} bytes is not a multiple of 16")
        if self.swizzle and self.row_bytes > SWIZZLE_SPAN[self.swizzle]:
            raise BadDescriptor(f"inner box of {self.row_bytes} bytes exceeds swizzle {SWIZZLE_NAMES[self.swizzle]}")

    @property
    def rank(self) -> int:
        return len(self.dims)

    @cached_property
    def dtype(self) -> np.dtype:
        return ELEMENT_TYPES[self.element_type]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements of a box per axis, innermost first. The inner axis has no element stride."""
        outer = zip(self.box[1:], self.element_strides[1:], strict=True)
        return (self.box[0], *(-(-b // s) for b, s in outer))

    @cached_property
    def row_bytes(self) -> int:
        return self.box[0] * self.dtype.itemsize

    @cached_property
    def row_pitch(self) -> int:
        """Bytes from one inner row to the next in shared memory: a row never is narrower than its swizzle span."""
        return max(self.row_bytes, SWIZZLE_SPAN[self.swizzle])

    @cached_property
    def rows(self) -> int:
        return int(np.prod(self.counts[1:], dtype=np.int64))

    @cached_property
    def box_bytes(self) -> int:
        """Bytes that a copy of one box counts on its barrier, out-of-range elements included."""
        return self.row_bytes * self.rows

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from a box's first to its last."""
        return self.row_pitch * self.rows

    # Global side

    def _clip(
        self, coordinates: Sequence[int]
    ) -> tuple[tuple[slice, ...], int, tuple[int, ...], tuple[int, ...]] | None:
        """The part of a box that lies inside of the tensor: slices into the box (outermost axis first), address of its
        first element, its shape and its strides in bytes; None where nothing lies inside."""
        if len(coordinates) != self.rank:
            raise BadDescriptor(f"{len(coordinates)} coordinates for a tensor map of rank {self.rank}")
        if int(coordinates[0]) * self.dtype.itemsize % 16:
            raise MisalignedAddress(
                f"a tensor copy starts at element {int(coordinates[0])} of the contiguous axis, "
                f"{self.dtype.itemsize} bytes each: a device stops with an illegal instruction unless this is a "
                "multiple of 16 bytes"
            )
        slices, shape, strides = [], [], []
        address = self.address
        for axis in range(self.rank):
            step = 1 if axis == 0 else self.element_strides[axis]
            stride = self.dtype.itemsize if axis == 0 else self.strides_bytes[axis - 1]
            start, size = int(coordinates[axis]), self.dims[axis]
            first = max(0, -(start // step)) if start < 0 else 0
            last = min(self.counts[axis], -((start - size) // step))  # first index at or beyond the end
            if last <= first:
                return None
            slices.append(slice(first, last))
            shape.append(last - first)
            strides.append(stride * step)
            address += (start + first * step) * stride
        return tuple(slices[::-1]), address, tuple(shape[::-1]), tuple(strides[::-1])

    def global_region(
        self, view: GlobalView, coordinates: Sequence[int]
    ) -> tuple[tuple[slice, ...], np.ndarray] | None:
        """The in-range part of a box as a strided view of global memory, and where it sits in the box."""
        clipped = self._clip(coordinates)
        if clipped is None:
            return None
        slices, address, shape, strides = clipped
        span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + self.dtype.itemsize
        flat = view(address, span)
        region = np.lib.stride_tricks.as_strided(_typed(flat, self.dtype), shape, strides)
        return slices, region

    def read_box(self, view: GlobalView, coordinates: Sequence[int]) -> np.ndarray:
        """A box as (rows, row_bytes) uint8 in logical order, with elements out of range filled."""
        box = np.zeros(self.counts[::-1], self.dtype)
        if self.fill and self.dtype.kind not in "iu":
            box[...] = np.nan
        inside = self.global_region(view, coordinates)
        if inside is not None:
            slices, region = inside
            box[slices] = region
        return box.view(np.uint8).reshape(self.rows, self.row_bytes)

    def write_box(
        self, view: GlobalView, coordinates: Sequence[int], rows: np.ndarray, reduction: str | None = None
    ) -> None:
        """Writes the in-range part of a box (as `gather` returns it), or combines it with what is there."""
        inside = self.global_region(view, coordinates)
        if inside is None:
            return
        slices, region = inside
        values = np.ascontiguousarray(rows).view(self.dtype).reshape(self.counts[::-1])[slices]
        if reduction is None:
            region[...] = values
        else:
            region[...] = _reduce(reduction, region, values)

    # Shared side

    def _check_shared(self, offset: int) -> None:
        if offset % 128:
            raise MisalignedAddress(f"shared memory address {offset:#x} of a tensor copy is not aligned to 128 bytes")

    def _shared_lines(self, shared: np.ndarray, offset: int) -> np.ndarray:
        self._check_shared(offset)
        return shared[offset : offset + self.shared_bytes].reshape(-1, 16)

    def _chunks(self, offset: int) -> np.ndarray:
        chunks = swizzled_chunks((offset >> 4) & 63, self.shared_bytes // 16, self.swizzle)
        if self.row_pitch == self.row_bytes:
            return chunks
        return chunks.reshape(self.rows, -1)[:, : self.row_bytes // 16].reshape(-1)

    def scatter(self, shared: np.ndarray, offset: int, rows: np.ndarray) -> None:
        """Places a box into one CTA's shared memory (uint8) at `offset`, swizzled."""
        lines = self._shared_lines(shared, offset)
        if self.swizzle == 0:
            lines[:] = rows.reshape(-1, 16)
        else:
            _wide(lines)[self._chunks(offset)] = _wide(rows.reshape(-1, 16))

    def gather(self, shared: np.ndarray, offset: int) -> np.ndarray:
        """A box as (rows, row_bytes) uint8 out of shared memory, unswizzled. The inverse of `scatter`."""
        lines = self._shared_lines(shared, offset)
        if self.swizzle == 0:
            return lines.reshape(self.rows, self.row_bytes).copy()
        return _wide(lines)[self._chunks(offset)].view(np.uint8).reshape(self.rows, self.row_bytes)


def _typed(flat: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The first element of a uint8 view, with the element's type; strides are added by the caller."""
    return flat[: dtype.itemsize].view(dtype)


def _wide(chunks: np.ndarray) -> np.ndarray:
    """(n, 16) contiguous uint8 as n 16-byte scalars, so that one index moves a whole chunk."""
    return chunks.view(np.complex128)[:, 0]


_REDUCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _reduce(name: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    if name not in _REDUCTIONS:
        raise UnsupportedInstruction(f"reduction .{name} of a tensor store is not emulated")
    return _REDUCTIONS[name](old, new)
