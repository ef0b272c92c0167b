"""wgmma: matrix descriptors of Hopper decoded from their bits, operand tiles gathered, one product per instruction.

Accuracy: operands are widened exactly to float32, products of 16-bit and 8-bit operands are exact, sums run in float32
in an order of NumPy's choice and are rounded to nearest. The tensor core aligns and truncates instead. For integers
below 2**24 both are exact; else results differ by a few units in the last place of the largest partial sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

from jax_clc.emulator.errors import AddressOutOfRange, BadDescriptor, UnsupportedInstruction

ROWS = 64
K_BYTES = 32  # every wgmma and tcgen05.mma of dense types consumes 32 bytes of K per row

OPERAND_TYPES: dict[str, np.dtype] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}


@dataclass(frozen=True)
class MatrixDescriptor:
    """A matrix in shared memory. `swizzle` counts XORed address bits: 0 none, 1 32B, 2 64B, 3 128B. All in bytes."""

    start: int
    leading: int
    stride: int
    swizzle: int


_SM90_SWIZZLE = {0: 0, 1: 3, 2: 2, 3: 1}


@lru_cache(maxsize=4096)
def decode_descriptor(bits: int) -> MatrixDescriptor:
    """Decodes a wgmma matrix descriptor: bits 0-13 start, 16-29 leading, 32-45 stride (all >> 4), 49-51 base offset,
    62-63 swizzle. Raises BadDescriptor."""
    base_offset = (bits >> 49) & 7
    swizzle = _SM90_SWIZZLE[(bits >> 62) & 3]
    if base_offset and swizzle:
        raise UnsupportedInstruction(f"matrix descriptor {bits:#018x} with base offset {base_offset} is not emulated")
    return MatrixDescriptor(
        start=(bits & 0x3FFF) << 4,
        leading=((bits >> 16) & 0x3FFF) << 4,
        stride=((bits >> 32) & 0x3FFF) << 4,
        swizzle=swizzle,
    )


@lru_cache(maxsize=4096)
def operand_chunks(descriptor: MatrixDescriptor, mn: int, mn_major: bool, item_bytes: int) -> np.ndarray:
    """Shared-memory addresses, in 16-byte chunks, of one operand tile of `mn` x 32 bytes of K.

    K-major: (mn, 2), the two chunks of K of each row. MN-major: (K elements, mn * item_bytes / 16).
    """
    width = 1 << descriptor.swizzle  # chunks in a row of the swizzle atom
    leading, stride = descriptor.leading // 16, descriptor.stride // 16
    if not mn_major:
        rows = np.arange(mn)[:, None]
        k = np.arange(2)[None, :]
        step = k if descriptor.swizzle else k * leading
        linear = (rows % 8) * width + (rows // 8) * stride + step
    else:
        k = np.arange(K_BYTES // item_bytes)[:, None]
        chunk = np.arange(mn * item_bytes // 16)[None, :]
        if descriptor.swizzle:
            linear = chunk % width + (chunk // width) * leading + (k % 8) * width + (k // 8) * stride
        else:
            linear = chunk * stride + (k % 8) + (k // 8) * leading
    linear = linear + descriptor.start // 16
    physical = linear ^ ((linear >> 3) & (width - 1))
    physical.setflags(write=False)
    return physical


@lru_cache(maxsize=4096)
def chunks_read(descriptor: MatrixDescriptor, mn: int, mn_major: bool, item_bytes: int) -> np.ndarray:
    """The same addresses as a list, always the same array for the same tile, so that readers can remember it."""
    chunks = np.unique(operand_chunks(descriptor, mn, mn_major, item_bytes))
    chunks.setflags(write=False)
    return chunks


def gather_operand(shared: np.ndarray, chunks: np.ndarray, mn_major: bool, dtype: np.dtype) -> np.ndarray:
    """The operand tile as (mn, k) elements of `dtype` out of one CTA's shared memory (uint8)."""
    lines = shared[: len(shared) // 16 * 16].view(np.complex128)
    try:
        tile = lines[chunks].view(dtype)
    except IndexError:
        raise AddressOutOfRange(
            f"matrix descriptor reaches byte {int(chunks.max()) * 16 + 15} of {len(shared)} bytes of shared memory"
        ) from None
    return tile.T if mn_major else tile


def widen(tile: np.ndarray, kind: str) -> np.ndarray:
    """Operand elements as float32 (int32 for 8-bit integers); tf32 drops the 13 low bits of the mantissa."""
    if kind == "bf16":
        return (np.ascontiguousarray(tile).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "tf32":
        return (np.ascontiguousarray(tile).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if kind in ("s8", "u8"):
        return tile.astype(np.int32)
    return tile.astype(np.float32)


def read_operand(
    shared: np.ndarray, descriptor: MatrixDescriptor, mn: int, mn_major: bool, kind: str
) -> tuple[np.ndarray, np.ndarray]:
    """(tile of (mn, k) float32 or int32, the 16-byte chunks it was read from as `chunks_read` lists them)."""
    dtype = OPERAND_TYPES[kind]
    if mn_major and dtype.itemsize != 2 and kind not in ("s8", "u8", "e4m3", "e5m2", "tf32"):
        raise BadDescriptor(f"MN-major operands of type {kind} do not exist")
    chunks = operand_chunks(descriptor, mn, mn_major, dtype.itemsize)
    tile = widen(gather_operand(shared, chunks, mn_major, dtype), kind)
    return tile, chunks_read(descriptor, mn, mn_major, dtype.itemsize)


def multiply_accumulate(
    a: np.ndarray, b: np.ndarray, d: np.ndarray | None, scale_a: int = 1, scale_b: int = 1
) -> np.ndarray:
    """`d + (scale_a * a) @ (scale_b * b).T` for a (m, k), b (n, k), d (m, n) or None for zero."""
    product = a @ b.T
    if scale_a * scale_b < 0:
        product = -product
    if d is not None:
        product += d
    return product


def check_shape(n: int, kind: str) -> None:
    """Raises BadDescriptor where m64nN of this type does not exist."""
    if n % 8 or not 8 <= n <= 256 or (kind in ("s8", "u8") and n > 32 and n % 16):
        raise BadDescriptor(f"wgmma has no shape m64n{n} for {kind}")
