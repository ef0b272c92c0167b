"""tcgen05.mma of one and of two SMs: descriptors decoded from their bits, result placed in tensor memory.

A pair's instruction reads, by the same descriptors, half of A's rows and half of B's rows from each CTA's own shared
memory. Accuracy as in `mma_wgmma`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from jax_clc.emulator.errors import BadDescriptor, UnsupportedInstruction
from jax_clc.emulator.mma_wgmma import (
    OPERAND_TYPES,
    MatrixDescriptor,
    multiply_accumulate,
    read_operand,
    widen,
)
from jax_clc.emulator.tensor_memory import TensorMemory, split_address

_SM100_SWIZZLE = {0: 0, 2: 3, 4: 2, 6: 1}

_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2"},
    "i8": {0: "u8", 1: "s8"},
}


@lru_cache(maxsize=4096)
def decode_descriptor(bits: int) -> MatrixDescriptor:
    """A shared-memory descriptor of sm_100: bits 0-13 start, 16-29 leading, 32-45 stride (all >> 4), 46-48 the
    constant 0b001, 49-51 base offset, 52 mode of leading, 61-63 swizzle. Raises BadDescriptor."""
    if (bits >> 46) & 7 != 1:
        raise BadDescriptor(f"matrix descriptor {bits:#018x}: bits 46 to 48 must be 0b001")
    swizzle = (bits >> 61) & 7
    if swizzle in (3, 5, 7) or (bits >> 53) & 0xFF:
        raise BadDescriptor(f"matrix descriptor {bits:#018x}: swizzle {swizzle}, reserved bits {bits >> 53 & 0xFF:#x}")
    base_offset, absolute = (bits >> 49) & 7, (bits >> 52) & 1
    if swizzle == 1 or absolute or base_offset:
        raise UnsupportedInstruction(
            f"matrix descriptor {bits:#018x}: swizzle {swizzle}, base offset {base_offset}, absolute leading "
            f"dimension {absolute} are not emulated"
        )
    return MatrixDescriptor(
        start=(bits & 0x3FFF) << 4,
        leading=((bits >> 16) & 0x3FFF) << 4,
        stride=((bits >> 32) & 0x3FFF) << 4,
        swizzle=_SM100_SWIZZLE[swizzle],
    )


@dataclass(frozen=True)
class InstructionDescriptor:
    """What the 32-bit instruction descriptor says. `m` and `n` are those of the whole instruction, pair included."""

    m: int
    n: int
    a: str
    b: str
    d: str
    a_mn_major: bool
    b_mn_major: bool
    a_sign: int
    b_sign: int

    @property
    def k(self) -> int:
        return 32 // OPERAND_TYPES[self.a].itemsize


@lru_cache(maxsize=1024)
def decode_instruction(bits: int, kind: str, group: int) -> InstructionDescriptor:
    """Bits 2 sparse, 3 saturate, 4-5 d format, 7-9 a and 10-12 b format, 13 and 14 negate, 15 and 16 MN-major, 17-22
    n >> 3, 24-28 m >> 4. Raises BadDescriptor, UnsupportedInstruction."""
    if kind not in _FORMATS:
        raise UnsupportedInstruction(f"tcgen05.mma kind::{kind} is not emulated")
    if bits & 0b1100 or bits >> 30:
        raise UnsupportedInstruction(f"instruction descriptor {bits:#010x}: sparse, saturating or .ws forms")
    formats = _FORMATS[kind]
    a, b, d = (bits >> 7) & 7, (bits >> 10) & 7, (bits >> 4) & 3
    if a not in formats or b not in formats:
        raise BadDescriptor(f"instruction descriptor {bits:#010x}: formats {a}, {b} for kind::{kind}")
    if d != (2 if kind == "i8" else 1):
        raise UnsupportedInstruction(f"instruction descriptor {bits:#010x}: accumulator format {d} is not emulated")
    m, n = ((bits >> 24) & 31) << 4, ((bits >> 17) & 63) << 3
    step = 8 if (group, m) == (1, 64) else 16
    if m not in ((64, 128) if group == 1 else (128, 256)) or n % step or not step <= n <= 256:
        raise BadDescriptor(f"instruction descriptor {bits:#010x}: no shape {m}x{n} for cta_group::{group}")
    return InstructionDescriptor(
        m, n, formats[a], formats[b], "s32" if kind == "i8" else "f32", bool(bits >> 15 & 1), bool(bits >> 16 & 1),
        -1 if bits >> 13 & 1 else 1, -1 if bits >> 14 & 1 else 1,
    )  # fmt: skip


@lru_cache(maxsize=256)
def result_cells(m: int, n: int, group: int, lane: int, column: int) -> tuple[np.ndarray | slice, np.ndarray | slice]:
    """Index of one SM's part of D in its tensor memory; the part is (m / group, n).

    One row per lane, but: m = 64 of one SM uses 16 lanes of each 32; m = 128 of a pair puts the left half of the
    columns on lanes 0-63 and the right half on lanes 64-127.
    """
    rows = m // group
    if rows == 128:
        if lane:
            raise BadDescriptor(f"accumulator of {m} rows at tensor memory lane {lane}")
        return slice(0, 128), slice(column, column + n)
    r, c = np.arange(rows)[:, None], np.arange(n)[None, :]
    if group == 1:
        if lane not in (0, 16):
            raise BadDescriptor(f"accumulator of 64 rows at tensor memory lane {lane}; 0 or 16 is needed")
        return r // 16 * 32 + r % 16 + lane, c + column + 0 * r
    if lane:
        raise BadDescriptor(f"accumulator of a pair's 128 rows at tensor memory lane {lane}")
    return r + 64 * (c // (n // 2)), c % (n // 2) + column + 0 * r


def result_columns(instruction: InstructionDescriptor, group: int) -> int:
    """Columns of tensor memory that D takes in each SM."""
    return instruction.n // 2 if (group, instruction.m) == (2, 128) else instruction.n


@dataclass
class OperandReads:
    """16-byte chunks of shared memory that one instruction read, per CTA of the pair, for the referee."""

    a: list[np.ndarray]
    b: list[np.ndarray]


def multiply(
    instruction: InstructionDescriptor,
    d_address: int,
    a: int,
    b_descriptor: int,
    shared: Sequence[np.ndarray],
    memories: Sequence[TensorMemory],
    ctas: Sequence[int],
    *,
    a_in_tensor_memory: bool,
    accumulate: bool,
) -> OperandReads:
    """Executes one tcgen05.mma on one SM or on a pair (as many as `shared` has; even rank first).

    `a` is a matrix descriptor or a tensor-memory address. Raises BadDescriptor, TensorMemoryMisuse,
    AddressOutOfRange.
    """
    group = len(shared)
    lane, column = split_address(d_address)
    dtype = np.int32 if instruction.d == "s32" else np.float32
    reads = OperandReads([], [])
    b_layout = decode_descriptor(b_descriptor)
    b_parts = []
    for part in shared:
        tile, chunks = read_operand(part, b_layout, instruction.n // group, instruction.b_mn_major, instruction.b)
        b_parts.append(tile)
        reads.b.append(chunks)
    b_tile = b_parts[0] if group == 1 else np.concatenate(b_parts)
    cells = result_cells(instruction.m, instruction.n, group, lane, column)
    for sm in range(group):
        memories[sm].check_columns(ctas[sm], column, result_columns(instruction, group))
        if a_in_tensor_memory:
            a_tile = _read_a(instruction, memories[sm], ctas[sm], a, group)
        else:
            a_tile, chunks = read_operand(
                shared[sm], decode_descriptor(a), instruction.m // group, instruction.a_mn_major, instruction.a
            )
            reads.a.append(chunks)
        old = memories[sm].cells[cells].view(dtype) if accumulate else None
        new = multiply_accumulate(a_tile, b_tile, old, instruction.a_sign, instruction.b_sign)
        memories[sm].cells[cells] = np.ascontiguousarray(new, dtype).view(np.uint32)
    return reads


def _read_a(instruction: InstructionDescriptor, memory: TensorMemory, cta: int, address: int, group: int) -> np.ndarray:
    """A out of tensor memory: a row per lane, 8 columns of 32 bits."""
    lane, column = split_address(address)
    rows = instruction.m // group
    memory.check_columns(cta, column, 8)
    r = np.arange(rows)
    lanes = r if rows == 128 or group == 2 else r // 16 * 32 + r % 16
    words = np.ascontiguousarray(memory.cells[lanes + lane, column : column + 8])
    return widen(words.view(OPERAND_TYPES[instruction.a]), instruction.a)


def commit_targets(own_rank: int, multicast_mask: int | None) -> tuple[int, ...]:
    """Cluster ranks whose barrier, at the same offset, gets one arrival from tcgen05.commit. `own_rank` is the rank
    that the barrier's address names."""
    if multicast_mask is None:
        return (own_rank,)
    return tuple(rank for rank in range(16) if multicast_mask >> rank & 1)
