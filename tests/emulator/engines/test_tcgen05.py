"""Tensor memory and tcgen05.mma: allocation rules, lane maps, and products placed where the ISA puts them."""

import numpy as np
import pytest

from jax_clc.emulator import mma_tcgen05
from jax_clc.emulator.errors import (
    BadDescriptor,
    TensorMemoryMisuse,
    TensorMemoryNotFreed,
    UnsupportedInstruction,
)
from jax_clc.emulator.fragments import tensor_memory_map
from jax_clc.emulator.mma_wgmma import OPERAND_TYPES
from jax_clc.emulator.tensor_memory import TensorMemory, allocate_pair

RNG = np.random.default_rng(2)
FORMAT_BITS = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1}
KIND = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}


def descriptor_bits(start, leading, stride, layout=2):
    return (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | layout << 61


def instruction_bits(m, n, kind, *, a_mn=0, b_mn=0, negate_a=0):
    formats = FORMAT_BITS[kind] << 7 | FORMAT_BITS[kind] << 10
    return 1 << 4 | formats | negate_a << 13 | a_mn << 15 | b_mn << 16 | (n >> 3) << 17 | (m >> 4) << 24


def put_k_major(shared, start, tile):
    """128B-swizzled K-major atoms, 32 bytes of K at `start` inside of the atom's 128."""
    raw = np.ascontiguousarray(tile).view(np.uint8)
    for row in range(len(tile)):
        for byte in range(32):
            at = start + row % 8 * 128 + row // 8 * 1024 + byte
            shared[at ^ ((at >> 3) & 0x70)] = raw[row, byte]


def put_mn_major(shared, start, tile):
    """128B-swizzled MN-major atoms of 64 16-bit elements x 8 of K: K atoms adjacent, MN atoms 2048 bytes apart."""
    raw = np.ascontiguousarray(tile.T).view(np.uint8)  # (k, mn bytes)
    for k in range(raw.shape[0]):
        for byte in range(raw.shape[1]):
            at = start + byte % 128 + byte // 128 * 2048 + k % 8 * 128 + k // 8 * 1024
            shared[at ^ ((at >> 3) & 0x70)] = raw[k, byte]


def read_result(memories, m, n, group, column):
    """D (m, n) out of tensor memory, cell by cell."""
    d = np.zeros((m, n), np.float32)
    for row in range(m):
        for col in range(n):
            if (m, group) == (64, 1):
                sm, lane, c = 0, row // 16 * 32 + row % 16, col
            elif (m, group) == (128, 2):
                sm, lane, c = row // 64, row % 64 + 64 * (col // (n // 2)), col % (n // 2)
            else:
                sm, lane, c = row // 128, row % 128, col
            d[row, col] = memories[sm].cells[lane, column + c : column + c + 1].view(np.float32)[0]
    return d


@pytest.mark.parametrize(
    ("m", "n", "group", "kind"),
    [(64, 24, 1, "bf16"), (128, 48, 1, "f16"), (128, 32, 2, "bf16"), (256, 64, 2, "bf16"), (128, 32, 1, "tf32"),
     (256, 32, 2, "e4m3")],
)  # fmt: skip
def test_products_land_where_the_isa_places_them(m, n, group, kind):
    dtype = OPERAND_TYPES[kind]
    k = 32 // dtype.itemsize
    a = RNG.integers(-3, 4, size=(m, k)).astype(dtype)
    b = RNG.integers(-3, 4, size=(n, k)).astype(dtype)
    shared = [np.zeros(65536, np.uint8) for _ in range(group)]
    for rank in range(group):
        put_k_major(shared[rank], 1024 + 32, a[rank * m // group : (rank + 1) * m // group])
        put_k_major(shared[rank], 32768, b[rank * n // group : (rank + 1) * n // group])
    memories, ctas = [TensorMemory() for _ in range(group)], [7, 8][:group]
    if group == 1:
        memories[0].allocate(7, 128)
        column = memories[0].allocate(7, 64)
    else:
        allocate_pair(tuple(memories), tuple(ctas), 128)
        column = allocate_pair(tuple(memories), tuple(ctas), 64)
    assert column == 128
    instruction = mma_tcgen05.decode_instruction(instruction_bits(m, n, kind), KIND[kind], group)
    assert (instruction.m, instruction.n, instruction.k) == (m, n, k)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    for times in (1, 2):
        reads = mma_tcgen05.multiply(
            instruction, column, descriptor_bits(1024 + 32, 16, 1024), descriptor_bits(32768, 16, 1024), shared,
            memories, ctas, a_in_tensor_memory=False, accumulate=times > 1,
        )  # fmt: skip
        np.testing.assert_array_equal(read_result(memories, m, n, group, column), times * expected)
    assert len(reads.a) == len(reads.b) == group


def test_mn_major_operands_and_negated_a():
    a = RNG.integers(-3, 4, size=(128, 16)).astype(np.float16)
    b = RNG.integers(-3, 4, size=(64, 16)).astype(np.float16)
    shared = np.zeros(65536, np.uint8)
    put_mn_major(shared, 1024, a)
    put_mn_major(shared, 32768, b)
    memory = TensorMemory()
    memory.allocate(0, 64)
    bits = instruction_bits(128, 64, "f16", a_mn=1, b_mn=1, negate_a=1)
    mma_tcgen05.multiply(
        mma_tcgen05.decode_instruction(bits, "f16", 1), 0, descriptor_bits(1024, 2048, 1024),
        descriptor_bits(32768, 2048, 1024), [shared], [memory], [0], a_in_tensor_memory=False, accumulate=False,
    )  # fmt: skip
    np.testing.assert_array_equal(read_result([memory], 128, 64, 1, 0), -(a.astype("f4") @ b.astype("f4").T))


def test_a_may_come_from_tensor_memory():
    a = RNG.integers(-3, 4, size=(128, 16)).astype(np.float16)
    b = RNG.integers(-3, 4, size=(16, 16)).astype(np.float16)
    shared, memory = np.zeros(8192, np.uint8), TensorMemory()
    put_k_major(shared, 0, b)
    memory.allocate(0, 64)
    memory.cells[:, 32:40] = a.view(np.uint32)
    mma_tcgen05.multiply(
        mma_tcgen05.decode_instruction(instruction_bits(128, 16, "f16"), "f16", 1), 0, 32,
        descriptor_bits(0, 16, 1024), [shared], [memory], [0], a_in_tensor_memory=True, accumulate=False,
    )  # fmt: skip
    np.testing.assert_array_equal(read_result([memory], 128, 16, 1, 0), a.astype("f4") @ b.astype("f4").T)


@pytest.mark.parametrize(("shape", "registers"), [("32x32b", 4), ("16x64b", 4), ("16x128b", 8), ("16x256b", 16)])
def test_loads_and_stores_cover_each_cell_once(shape, registers):
    memory = TensorMemory()
    memory.allocate(0, 64)
    cells = memory.cells_of(0, 6, 64 << 16 | 8, shape, 4)
    assert cells[0].shape == (registers, 32)
    assert len(set(zip(cells[0].ravel().tolist(), cells[1].ravel().tolist(), strict=True))) == registers * 32
    values = RNG.integers(0, 1 << 32, size=(registers, 32), dtype=np.uint32)
    memory.store(cells, values)
    np.testing.assert_array_equal(memory.load(cells), values)


def test_16x256b_follows_the_accumulator_fragment():
    lanes, columns = tensor_memory_map("16x256b", 2)
    t, register = 13, 6
    assert (lanes[register, t], columns[register, t]) == (t // 4 + 8, 8 + 2 * (t % 4))


def test_allocation_blocks_and_keeps_the_rules():
    memory = TensorMemory()
    assert memory.allocate(0, 512) == 0
    assert memory.allocate(1, 32) is None
    with pytest.raises(TensorMemoryMisuse, match="holds 512 at 0"):
        memory.free(0, 0, 256)
    memory.free(0, 0, 512)
    assert memory.allocate(1, 32) == 0
    for columns in (16, 48, 1024):
        with pytest.raises(TensorMemoryMisuse, match="power of two"):
            memory.allocate(1, columns)
    with pytest.raises(TensorMemoryMisuse, match="must not increase"):
        memory.allocate(1, 64)
    memory.relinquish(1)
    with pytest.raises(TensorMemoryMisuse, match="after relinquish"):
        memory.allocate(1, 32)
    with pytest.raises(TensorMemoryMisuse, match="cta_group::2 after cta_group::1"):
        memory.use_group(1, 2)
    with pytest.raises(TensorMemoryNotFreed, match="32 columns at 0"):
        memory.cta_exit(1)


def test_warps_reach_their_own_lanes_of_their_own_columns_only():
    memory = TensorMemory()
    memory.allocate(0, 32)
    with pytest.raises(TensorMemoryMisuse, match="may touch 32 to 63"):
        memory.cells_of(0, 1, 0, "32x32b", 1)
    with pytest.raises(TensorMemoryMisuse, match="not allocated"):
        memory.cells_of(0, 0, 0, "32x32b", 64)
    with pytest.raises(TensorMemoryMisuse, match="not allocated"):
        memory.cells_of(3, 0, 0, "32x32b", 1)


def test_bad_descriptors_are_named():
    with pytest.raises(BadDescriptor, match="46 to 48"):
        mma_tcgen05.decode_descriptor(0)
    with pytest.raises(BadDescriptor, match="no shape 256x64"):
        mma_tcgen05.decode_instruction(instruction_bits(256, 64, "bf16"), "f16", 1)
    with pytest.raises(BadDescriptor, match="no shape 128x24"):
        mma_tcgen05.decode_instruction(instruction_bits(128, 24, "bf16"), "f16", 1)
    with pytest.raises(UnsupportedInstruction, match="mxf4"):
        mma_tcgen05.decode_instruction(0, "mxf4", 1)


def test_commit_arrives_at_the_named_ranks():
    assert mma_tcgen05.commit_targets(2, None) == (2,)
    assert mma_tcgen05.commit_targets(2, 0b1001) == (0, 3)
