"""wgmma: descriptors as CuTe builds them give the tiles that were put there; fragments are the ISA's."""

import ml_dtypes
import numpy as np
import pytest

from jax_clc.emulator import fragments, mma_wgmma
from jax_clc.emulator.errors import AddressOutOfRange, BadDescriptor

RNG = np.random.default_rng(1)
SM90_LAYOUT = {0: 0, 1: 3, 2: 2, 3: 1}


def descriptor_bits(start, leading, stride, swizzle):
    return (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | SM90_LAYOUT[swizzle] << 62


def swizzled(address, swizzle):
    return address ^ ((address >> 3) & (((1 << swizzle) - 1) << 4))


def store(shared, address, value, swizzle):
    raw = np.asarray(value).reshape(1).view(np.uint8)
    at = swizzled(address, swizzle)
    shared[at : at + len(raw)] = raw


@pytest.mark.parametrize(
    ("swizzle", "start"),  # the second K step of an atom starts 32 bytes in, where the atom is wider than that
    [(0, 1024), (1, 1024), (2, 1024), (3, 1024), (2, 2048 + 32), (3, 2048 + 96)],
)
@pytest.mark.parametrize("kind", ["bf16", "f16", "tf32", "e4m3", "s8"])
def test_k_major_tiles_are_found(swizzle, start, kind):
    dtype = mma_wgmma.OPERAND_TYPES[kind]
    mn, k = 64, 32 // dtype.itemsize
    tile = RNG.integers(-4, 5, size=(mn, k)).astype(dtype)
    shared = np.zeros(16384, np.uint8)
    width = 16 << swizzle
    stride, leading = (8 * width, 16) if swizzle else (256, 128)
    for row in range(mn):
        for col in range(k):
            byte = col * dtype.itemsize
            step = byte if swizzle else byte % 16 + byte // 16 * leading
            store(shared, start + row % 8 * width + row // 8 * stride + step, tile[row, col], swizzle)
    descriptor = mma_wgmma.decode_descriptor(descriptor_bits(start, leading, stride, swizzle))
    got, chunks = mma_wgmma.read_operand(shared, descriptor, mn, False, kind)
    np.testing.assert_array_equal(got, tile.astype(np.float32))
    assert len(chunks) == 2 * mn


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_mn_major_tiles_are_found(swizzle):
    mn, k, item = 128, 16, 2
    tile = RNG.integers(-4, 5, size=(mn, k)).astype(ml_dtypes.bfloat16)
    shared = np.zeros(32768, np.uint8)
    width = 16 << swizzle
    if swizzle:  # atoms of width bytes of MN x 8 of K; K atoms next to each other, then MN atoms
        stride, leading = 8 * width, 16 * width
    else:
        stride, leading = 128, 128 * (mn // 8)
    for row in range(mn):
        for col in range(k):
            byte = row * item
            if swizzle:
                at = byte % width + byte // width * leading + col % 8 * width + col // 8 * stride
            else:
                at = byte % 16 + byte // 16 * stride + col % 8 * 16 + col // 8 * leading
            store(shared, 1024 + at, tile[row, col], swizzle)
    descriptor = mma_wgmma.decode_descriptor(descriptor_bits(1024, leading, stride, swizzle))
    got, _ = mma_wgmma.read_operand(shared, descriptor, mn, True, "bf16")
    np.testing.assert_array_equal(got, tile.astype(np.float32))


def test_accumulator_registers_are_where_the_isa_puts_them():
    n = 24
    d = np.arange(64 * n, dtype=np.float32).reshape(64, n)
    registers = fragments.accumulator_to_registers(d)
    for warp, index, lane in [(0, 0, 0), (1, 3, 5), (3, n // 2 - 1, 31), (2, 6, 17)]:
        row = 16 * warp + lane // 4 + 8 * (index // 2 % 2)
        column = 8 * (index // 4) + 2 * (lane % 4) + index % 2
        assert registers[warp, index, lane] == d[row, column]
    np.testing.assert_array_equal(fragments.registers_to_accumulator(registers), d)


def test_packed_accumulators_and_register_operands_round_trip():
    d = RNG.normal(size=(64, 32)).astype(np.float16)
    packed = fragments.accumulator_to_packed_registers(d)
    assert packed.shape == (4, 8, 32)
    np.testing.assert_array_equal(fragments.packed_registers_to_accumulator(packed, np.dtype(np.float16)), d)
    full = fragments.accumulator_to_registers(d[:, :16].astype(np.float32))
    pairs = fragments.accumulator_to_packed_registers(d[:, :16])
    halves = pairs.view(np.float16).reshape(4, 4, 32, 2)
    np.testing.assert_array_equal(halves[..., 0], full[:, 0::2])  # register 2 c + h of A is accumulator pair (c, h)
    np.testing.assert_array_equal(fragments.registers_to_a(pairs, np.dtype(np.float16)), d[:, :16])


@pytest.mark.parametrize("transpose", [False, True])
def test_ldmatrix_and_stmatrix_are_inverse_and_follow_the_lane_map(transpose):
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    rows = matrices.view(np.uint8).reshape(4, 8, 16)
    registers = fragments.ldmatrix(rows, transpose)
    for j, lane in [(0, 0), (1, 6), (3, 31)]:
        r, c = lane // 4, 2 * (lane % 4)
        pair = (matrices[j, c, r], matrices[j, c + 1, r]) if transpose else (matrices[j, r, c], matrices[j, r, c + 1])
        assert registers[j, lane] == int(pair[0]) | int(pair[1]) << 16
    np.testing.assert_array_equal(fragments.stmatrix(registers, transpose), rows)


def test_products_of_integers_are_exact_and_scales_negate():
    a = RNG.integers(-8, 9, size=(64, 16)).astype(np.float32)
    b = RNG.integers(-8, 9, size=(40, 16)).astype(np.float32)
    d = RNG.integers(-8, 9, size=(64, 40)).astype(np.float32)
    np.testing.assert_array_equal(mma_wgmma.multiply_accumulate(a, b, d), d + a @ b.T)
    np.testing.assert_array_equal(mma_wgmma.multiply_accumulate(a, b, None, -1, 1), -(a @ b.T))


def test_bad_descriptors_are_named():
    with pytest.raises(AddressOutOfRange, match="shared memory"):
        descriptor = mma_wgmma.decode_descriptor(descriptor_bits(15 * 1024, 16, 1024, 3))
        mma_wgmma.read_operand(np.zeros(16384, np.uint8), descriptor, 64, False, "bf16")
    with pytest.raises(BadDescriptor, match="m64n12"):
        mma_wgmma.check_shape(12, "bf16")
