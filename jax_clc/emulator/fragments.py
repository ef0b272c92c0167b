"""Which lane's which register holds which matrix element: ldmatrix, stmatrix, wgmma and tcgen05.ld/st.

All functions are permutations of NumPy arrays. Registers are 32-bit words, indexed (register, lane) for a warp and
(warp, register, lane) for a warpgroup.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from jax_clc.emulator.errors import UnsupportedInstruction

# ldmatrix / stmatrix of 8x8 matrices of 16-bit elements


def ldmatrix(rows: np.ndarray, transpose: bool) -> np.ndarray:
    """`rows` (matrices, 8, 16) uint8, row r of matrix j being the 16 bytes at the address of lane 8 j + r.

    Returns (matrices, 32) uint32: without `transpose` lane t gets elements (t // 4, 2 (t % 4) + {0, 1}).
    """
    halves = np.ascontiguousarray(rows).view(np.uint16)  # (matrices, 8, 8)
    if transpose:
        halves = np.ascontiguousarray(halves.transpose(0, 2, 1))
    return halves.view(np.uint32).reshape(len(rows), 32)


def stmatrix(registers: np.ndarray, transpose: bool) -> np.ndarray:
    """Inverse of `ldmatrix`: (matrices, 32) uint32 to (matrices, 8, 16) uint8, one row per address."""
    halves = np.ascontiguousarray(registers, np.uint32).view(np.uint16).reshape(-1, 8, 8)
    if transpose:
        halves = np.ascontiguousarray(halves.transpose(0, 2, 1))
    return halves.view(np.uint8).reshape(-1, 8, 16)


# wgmma accumulators: D of m64nN. Warp w holds rows 16 w to 16 w + 15. Register 4 j + 2 h + e of lane 4 r + q holds
# row r + 8 h, column 8 j + 2 q + e.


def accumulator_to_registers(d: np.ndarray) -> np.ndarray:
    """(64, N) of any 32-bit type to (4 warps, N / 2 registers, 32 lanes)."""
    n = d.shape[1]
    split = d.reshape(4, 2, 8, n // 8, 4, 2)  # warp, h, r, j, q, e
    return split.transpose(0, 3, 1, 5, 2, 4).reshape(4, n // 2, 32)


def registers_to_accumulator(registers: np.ndarray) -> np.ndarray:
    """(4, N / 2, 32) to (64, N). Inverse of `accumulator_to_registers`."""
    n = registers.shape[1] * 2
    split = registers.reshape(4, n // 8, 2, 2, 8, 4)  # warp, j, h, e, r, q
    return split.transpose(0, 2, 4, 1, 5, 3).reshape(64, n)


def accumulator_to_packed_registers(d: np.ndarray) -> np.ndarray:
    """(64, N) of a 16-bit type to (4, N / 4, 32) uint32: two neighbouring columns share a register."""
    n = d.shape[1]
    pairs = np.ascontiguousarray(d).view(np.uint32).reshape(4, 2, 8, n // 8, 4)  # warp, h, r, j, q
    return pairs.transpose(0, 3, 1, 2, 4).reshape(4, n // 4, 32)


def packed_registers_to_accumulator(registers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(4, N / 4, 32) uint32 to (64, N) of a 16-bit type. Inverse of `accumulator_to_packed_registers`."""
    n = registers.shape[1] * 4
    split = np.ascontiguousarray(registers, np.uint32).reshape(4, n // 8, 2, 8, 4)  # warp, j, h, r, q
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4)).view(dtype).reshape(64, n)


def registers_to_a(registers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Multiplicand A of wgmma from four registers a lane: (4, 4, 32) uint32 to (64, 32 bytes / element).

    Register 2 c + h of lane 4 r + q of warp w holds row 16 w + r + 8 h, the q-th word of the c-th 16 bytes of K.
    """
    split = np.ascontiguousarray(registers, np.uint32).reshape(4, 2, 2, 8, 4)  # warp, c, h, r, q
    words = np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4))  # warp, h, r, c, q
    return words.view(dtype).reshape(64, 32 // np.dtype(dtype).itemsize)


# mma.sync m16n8kN: lane 4 r + q. A's register 2 c + h holds row r + 8 h, the q-th word of the c-th 16 bytes of K; B's
# register c column r, the same word; D's registers 2 h, 2 h + 1 hold row r + 8 h, columns 2 q, 2 q + 1 (f16: one
# packed register).


def registers_to_mma_a(registers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(2 c, 32) uint32 to A (16, k)."""
    chunks = len(registers) // 2
    words = np.ascontiguousarray(registers, np.uint32).reshape(chunks, 2, 8, 4).transpose(1, 2, 0, 3)  # h, r, c, q
    return np.ascontiguousarray(words).view(dtype).reshape(16, -1)


def registers_to_mma_b(registers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(c, 32) uint32 to B as (8 columns, k)."""
    words = np.ascontiguousarray(registers, np.uint32).reshape(-1, 8, 4).transpose(1, 0, 2)  # r, c, q
    return np.ascontiguousarray(words).view(dtype).reshape(8, -1)


def mma_registers_to_d(registers: np.ndarray, kind: str) -> np.ndarray:
    """C's registers to (16, 8) float32 or int32."""
    if kind == "f16":
        halves = np.ascontiguousarray(registers, np.uint32).reshape(2, 8, 4).view(np.float16)
        return halves.reshape(16, 8).astype(np.float32)
    values = np.ascontiguousarray(registers, np.uint32).view(np.int32 if kind == "s32" else np.float32)
    return np.ascontiguousarray(values.reshape(2, 2, 8, 4).transpose(0, 2, 3, 1)).reshape(16, 8)  # h, r, q, e


def d_to_mma_registers(d: np.ndarray, kind: str) -> np.ndarray:
    """Inverse of `mma_registers_to_d`, as uint32."""
    if kind == "f16":
        return np.ascontiguousarray(d.astype(np.float16)).view(np.uint32).reshape(2, 32)
    split = d.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)  # h, e, r, q
    return np.ascontiguousarray(split).view(np.uint32).reshape(4, 32)


# tcgen05.ld and .st


@lru_cache(maxsize=64)
def tensor_memory_map(shape: str, repeat: int) -> tuple[np.ndarray, np.ndarray]:
    """For `.shape.xN`: (registers, 32) arrays of the tensor-memory lane, relative to the addressed lane, and of the
    32-bit column, relative to the addressed column, which each register of each lane of the warp holds."""
    t = np.arange(32)
    if shape == "32x32b":
        cells = [(t, 0 * t)]
        width = 1
    elif shape == "16x64b":
        cells = [(t // 4 + 8 * (t % 2), (t // 2) % 2)]
        width = 2
    elif shape == "16x128b":
        cells = [(t // 4 + 8 * h, t % 4) for h in (0, 1)]
        width = 4
    elif shape == "16x256b":
        cells = [(t // 4 + 8 * h, 2 * (t % 4) + e) for h in (0, 1) for e in (0, 1)]
        width = 8
    else:
        raise UnsupportedInstruction(f"tcgen05.ld/st shape .{shape} is not emulated")
    lanes = np.stack([lane for _ in range(repeat) for lane, _ in cells])
    columns = np.stack([column + width * i for i in range(repeat) for _, column in cells])
    lanes.setflags(write=False)
    columns.setflags(write=False)
    return lanes, columns
