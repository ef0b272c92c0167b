"""What generated code calls: lane vectors, masks, and arithmetic that NumPy does not have in PTX's form."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

from .memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I16, I32, I64 = np.int8, np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_LANE = np.arange(32)
_POWERS = (np.uint64(1) << np.arange(32, dtype=np.uint64)).astype(np.uint64)
TRUE_LANES = np.ones(32, bool)
FALSE_LANES = np.zeros(32, bool)
_SMALLEST_NORMAL = {2: np.float16(2.0**-14), 4: np.float32(2.0**-126), 8: np.float64(2.0**-1022)}


class _Lanes(dict):
    """mask integer -> bool array of lanes; made once for each mask."""

    def __missing__(self, mask: int) -> np.ndarray:
        lanes = (mask >> _LANE & 1).astype(bool)
        lanes.setflags(write=False)
        if len(self) > 50000:
            self.clear()
        self[mask] = lanes
        return lanes


class _First(dict):
    """mask integer -> its lowest lane."""

    def __missing__(self, mask: int) -> int:
        first = (mask & -mask).bit_length() - 1
        if len(self) < 50000:
            self[mask] = first
        return first


LANES = _Lanes()
FIRST = _First()


def BITS(lanes) -> int:
    """bool array of lanes -> mask integer."""
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


def FULL_INT(value: int, dtype) -> np.ndarray:
    """One integer, signed or unsigned, in all lanes."""
    return np.full(32, value, dtype)


def FULL_U128(value: int) -> np.ndarray:
    """A 128-bit integer in all lanes: (32, 2) of uint64, low half first."""
    return np.tile(np.array([value & ((1 << 64) - 1), value >> 64], np.uint64), (32, 1))


def F32_(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def F64_(bits: int) -> np.float64:
    return np.uint64(bits).view(np.float64)


def F16_(bits: int) -> np.float16:
    return np.uint16(bits).view(np.float16)


def AS_FLOATS(registers: list) -> list:
    """Words as floats; stand-ins of registers in flight as they are."""
    return [r.view(F32) if isinstance(r, np.ndarray) else r for r in registers]


def FULL_F32(bits: int) -> np.ndarray:
    return np.full(32, bits, np.uint32).view(np.float32)


def FULL_F64(bits: int) -> np.ndarray:
    return np.full(32, bits, np.uint64).view(np.float64)


def FULL_F16(bits: int) -> np.ndarray:
    return np.full(32, bits, np.uint16).view(np.float16)


# bfloat16: kept as uint16, computed as float32


def BF16_TO_F32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def FULL_BF16(bits: int) -> np.ndarray:
    return np.full(32, bits << 16, np.uint32).view(np.float32)


def F32_TO_BF16(values: np.ndarray) -> np.ndarray:
    """Round to nearest even; NaN becomes the canonical 0x7fff. Returns uint32 below 2**16."""
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(values != values, np.uint32(0x7FFF), rounded)


def F32_TO_F16(values: np.ndarray) -> np.ndarray:
    """Round to nearest even; NaN becomes the canonical 0x7fff. Returns uint32 below 2**16."""
    bits = values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return np.where(values != values, np.uint32(0x7FFF), bits)


def PACK_BF16(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """cvt.rn.bf16x2.f32: two roundings at once. A NaN, rare, takes the path that makes it canonical."""
    pair = np.empty((32, 2), np.float32)
    pair[:, 0] = low
    pair[:, 1] = high
    if math.isnan(pair.sum()):
        return F32_TO_BF16(high) << np.uint32(16) | F32_TO_BF16(low)
    return pair.astype(_BFLOAT16).view(np.uint32).reshape(32)


def PACK_F16(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """cvt.rn.f16x2.f32, as PACK_BF16."""
    pair = np.empty((32, 2), np.float32)
    pair[:, 0] = low
    pair[:, 1] = high
    if math.isnan(pair.sum()):
        return F32_TO_F16(high) << np.uint32(16) | F32_TO_F16(low)
    return pair.astype(np.float16).view(np.uint32).reshape(32)


_EIGHT_BITS = {
    "e4m3": (np.dtype(ml_dtypes.float8_e4m3fn), 448.0),
    "e5m2": (np.dtype(ml_dtypes.float8_e5m2), 57344.0),
}


def PACK_EIGHT_BITS(high: np.ndarray, low: np.ndarray, kind: str) -> np.ndarray:
    """cvt.rn.satfinite.{e4m3x2,e5m2x2}.f32: finite values saturate; NaN becomes 0x7f, the canonical one."""
    dtype, limit = _EIGHT_BITS[kind]
    pair = np.stack((low, high), 1)
    bits = pair.clip(-limit, limit).astype(dtype).view(np.uint8)
    bits = np.where(pair != pair, np.uint8(0x7F), bits)
    return np.ascontiguousarray(bits).view(np.uint16).reshape(32)


def UNPACK_EIGHT_BITS(pairs: np.ndarray, kind: str) -> np.ndarray:
    """Two eight-bit floats in each lane as 64 float16, exactly."""
    return np.ascontiguousarray(pairs).view(_EIGHT_BITS[kind][0]).astype(np.float16)


# integers


def MULHI_U32(a, b):
    return ((np.asarray(a, np.uint64) * np.asarray(b, np.uint64)) >> np.uint64(32)).astype(np.uint32)


def MULHI_S32(a, b):
    return ((np.asarray(a, np.int64) * np.asarray(b, np.int64)) >> np.int64(32)).astype(np.int32)


def MULHI_64(a, b, signed: bool) -> np.ndarray:
    dtype = np.int64 if signed else np.uint64
    first, second = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    product = [(int(x) * int(y)) >> 64 for x, y in zip(first.tolist(), second.tolist(), strict=True)]
    return np.array(product, dtype)


def TRUNC_DIV(a, b, dtype):
    """Integer division towards zero; a zero divisor gives all ones, as the hardware does."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype), np.asarray(b, dtype))
    safe = np.where(b == 0, dtype(1), b)
    if dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        result = a // safe
    else:  # magnitudes as unsigned bits: that of the lowest number exists there
        size = np.dtype(f"u{a.itemsize}")
        magnitude = np.abs(a).view(size) // np.abs(safe).view(size)
        result = np.where((a < 0) != (safe < 0), -magnitude, magnitude).view(dtype)
    ones = dtype(-1) if np.issubdtype(dtype, np.signedinteger) else np.iinfo(dtype).max
    return np.where(b == 0, dtype(ones), result).astype(dtype)


def TRUNC_REM(a, b, dtype):
    a, b = np.broadcast_arrays(np.asarray(a, dtype), np.asarray(b, dtype))
    with np.errstate(over="ignore"):
        result = a - TRUNC_DIV(a, b, dtype) * b
    return np.where(b == 0, a, result).astype(dtype)


def DIV_INT(a: int, b: int, bits: int) -> int:
    """Scalar division towards zero; result as unsigned bits."""
    if b == 0:
        return (1 << bits) - 1
    quotient = abs(a) // abs(b)
    return (quotient if (a < 0) == (b < 0) else -quotient) & ((1 << bits) - 1)


def REM_INT(a: int, b: int, bits: int) -> int:
    if b == 0:
        return a & ((1 << bits) - 1)
    remainder = abs(a) % abs(b)
    return (remainder if a >= 0 else -remainder) & ((1 << bits) - 1)


def POPC(a) -> np.ndarray:
    return np.bitwise_count(a).astype(np.uint32)


def CLZ(a, bits: int) -> np.ndarray:
    return np.array([bits - int(x).bit_length() for x in np.asarray(a).tolist()], np.uint32)


def BFIND(a, bits: int) -> np.ndarray:
    return np.array([(int(x).bit_length() - 1) & 0xFFFFFFFF for x in np.asarray(a).tolist()], np.uint32)


def BREV_INT(a: int, bits: int) -> int:
    return int(format(a, f"0{bits}b")[::-1], 2)


def BREV(a, bits: int) -> np.ndarray:
    values = np.asarray(a)
    return np.array([BREV_INT(x, bits) for x in values.tolist()], values.dtype)


def PRMT_INT(a: int, b: int, selector: int) -> int:
    """Default mode of prmt on scalars."""
    pool = a | b << 32
    result = 0
    for index in range(4):
        nibble = selector >> (4 * index) & 15
        byte = pool >> (8 * (nibble & 7)) & 255
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << (8 * index)
    return result


def PRMT(a, b, selector) -> np.ndarray:
    a, b, selector = (np.broadcast_to(np.asarray(x, np.uint32), 32) for x in (a, b, selector))
    pool = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros(32, np.uint32)
    for index in range(4):
        nibble = (selector >> np.uint32(4 * index)) & np.uint32(15)
        byte = (pool >> ((nibble & np.uint32(7)) * np.uint32(8)).astype(np.uint64)).astype(np.uint32) & np.uint32(255)
        sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        result |= np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * index)
    return result


def FUNNEL(low: int, high: int, shift: int, left: bool, clamp: bool) -> int:
    shift = min(shift, 32) if clamp else shift & 31
    pool = low | high << 32
    return ((pool << shift) >> 32 if left else pool >> shift) & 0xFFFFFFFF


def FUNNEL_LANES(low, high, shift, left: bool, clamp: bool) -> np.ndarray:
    low, high, shift = (np.broadcast_to(np.asarray(x, np.uint64), 32) for x in (low, high, shift))
    shift = np.minimum(shift, np.uint64(32)) if clamp else shift & np.uint64(31)
    pool = low | high << np.uint64(32)
    moved = (pool << shift) >> np.uint64(32) if left else pool >> shift
    return moved.astype(np.uint32)


def BFE(a, start, length, bits: int, signed: bool):
    """Bit field extract for one lane's integers; unsigned bits."""
    start, length = start & 255, length & 255
    if length == 0:
        return 0
    field = (a >> start) & ((1 << length) - 1) if start < bits else 0
    if signed:
        sign = a >> min(start + length - 1, bits - 1) & 1
        usable = min(length, max(bits - start, 0))
        if sign:
            field |= ((1 << bits) - 1) & ~((1 << usable) - 1)
    return field & ((1 << bits) - 1)


def BFI(a, b, start, length, bits: int):
    """Insert a's low bits into b."""
    start, length = start & 255, length & 255
    window = (((1 << length) - 1) << start) & ((1 << bits) - 1)
    return ((a << start) & window) | (b & ~window)


def EACH(function, dtype, *operands) -> np.ndarray:
    """A scalar function over lanes: for rare instructions."""
    columns = [np.broadcast_to(np.asarray(x), 32).tolist() for x in operands]
    return np.array([function(*row) for row in zip(*columns, strict=True)], dtype)


def SHIFT_LEFT(a: int, amount: int, bits: int) -> int:
    return (a << amount) & ((1 << bits) - 1) if amount < bits else 0


# floats


def ADD_TO_ODD(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sum of doubles rounded to odd: of the two doubles around an inexact sum, the one whose last bit is set. What
    rounds it again, to a format at least two bits narrower, in any direction, rounds the exact sum (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008)."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)  # exact (Knuth's TwoSum)
    inexact = np.isfinite(total) & (error != 0)
    if not inexact.any():
        return total
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    return np.where(inexact & even, np.nextafter(total, np.copysign(np.inf, error)), total)


def TO_ODD32(values: np.ndarray) -> np.ndarray:
    """Doubles to floats rounded to odd."""
    nearest = values.astype(np.float32)
    wide = nearest.astype(np.float64)
    inexact = np.isfinite(wide) & (wide != values) & ((nearest.view(np.uint32) & np.uint32(1)) == 0)
    towards = np.where(values > wide, np.float32(np.inf), np.float32(-np.inf))
    return np.where(inexact, np.nextafter(nearest, towards), nearest)


def DIRECTED32(values: np.ndarray, mode: str) -> np.ndarray:
    """Doubles to floats rounded towards zero (rz), down (rm) or up (rp)."""
    nearest = values.astype(np.float32)
    wide = nearest.astype(np.float64)
    up = {"rz": values < 0, "rm": np.zeros(len(values), bool), "rp": np.ones(len(values), bool)}[mode]
    lower = np.nextafter(nearest, np.float32(-np.inf))
    higher = np.nextafter(nearest, np.float32(np.inf))
    return np.where(up, np.where(wide < values, higher, nearest), np.where(wide > values, lower, nearest))


def FMA64(a, b, c) -> np.ndarray:
    """Rounded once, through exact fractions."""

    def fused(x: float, y: float, z: float) -> float:
        if not all(map(math.isfinite, (x, y, z))):
            return x * y + z
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if not exact:
            return x * y + z  # with the sign of its zero
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf

    return EACH(fused, np.float64, a, b, c)


def FLUSH(values: np.ndarray) -> np.ndarray:
    """Subnormals become zero of the same sign (.ftz)."""
    smallest = _SMALLEST_NORMAL[values.dtype.itemsize]
    return np.where(np.abs(values) < smallest, np.copysign(values.dtype.type(0), values), values)


def SATURATE(values: np.ndarray) -> np.ndarray:
    """Into [0, 1]; NaN becomes +0 (.sat)."""
    return np.where(values > 0, np.minimum(values, values.dtype.type(1)), values.dtype.type(0))


def RELU(values: np.ndarray) -> np.ndarray:
    """Negative numbers become zero, NaN stays (.relu)."""
    return np.where(values <= 0, values.dtype.type(0), values)


def CANONICAL(values: np.ndarray) -> np.ndarray:
    """The NaN that PTX calls canonical, 0x7fff or 0x7fffffff, for each NaN of f16 and f32."""
    if values.dtype.itemsize == 8:
        return values
    canonical = np.uint16(0x7FFF).view(F16) if values.dtype == F16 else np.uint32(0x7FFFFFFF).view(F32)
    return np.where(np.isnan(values), canonical, values)


def TO_INT(values: np.ndarray, low: int, high: int, nan: int, dtype, mode: str) -> np.ndarray:
    """Float to integer with saturation; `nan` is what a NaN gives."""
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]

    def convert(x: float) -> int:
        if math.isfinite(x):
            return min(max(int(x), low), high)
        return nan if math.isnan(x) else high if x > 0 else low

    return np.array([convert(x) for x in rounding(np.asarray(values, np.float64)).tolist()], dtype)


def CLIP(values: np.ndarray, low: int, high: int, dtype) -> np.ndarray:
    """Integers cut to the range of another type (cvt.sat)."""
    limits = np.iinfo(values.dtype)
    return values.clip(max(low, int(limits.min)), min(high, int(limits.max))).astype(dtype)


def MIN_FLOAT(a, b, keep_nan: bool) -> np.ndarray:
    """-0 is below +0. A NaN counts only where both are, or with `keep_nan`."""
    least = np.minimum(a, b) if keep_nan else np.fmin(a, b)
    return np.where((a == b) & np.signbit(a), a, least)


def MAX_FLOAT(a, b, keep_nan: bool) -> np.ndarray:
    """As MIN_FLOAT."""
    most = np.maximum(a, b) if keep_nan else np.fmax(a, b)
    return np.where((a == b) & np.signbit(b), a, most)


NAMES = {name: value for name, value in globals().items() if name.isupper() or name in ("F32_", "F64_", "F16_")}
NAMES |= {
    "SHARED_WINDOW": SHARED_WINDOW, "LOCAL_WINDOW": LOCAL_WINDOW, "PARAM_WINDOW": PARAM_WINDOW,
    "np": np, "WHERE": np.where, "MINIMUM": np.minimum, "MAXIMUM": np.maximum, "SQRT": np.sqrt,
    "TRUE_LANES": TRUE_LANES,
    "ZERO_U8": np.zeros(32, U8), "ZERO_U16": np.zeros(32, U16), "ZERO_U32": np.zeros(32, U32),
    "ZERO_U64": np.zeros(32, U64),
    "ZERO_F32": np.zeros(32, F32), "ZERO_F64": np.zeros(32, F64), "ZERO_U128": np.zeros((32, 2), U64), "U128": U64,
}  # fmt: skip
