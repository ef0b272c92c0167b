"""Tensor maps: boxes land where a plain model of the copy engine says, swizzled, filled and clipped."""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import pytest

from jax_clc.emulator.errors import BadDescriptor, MisalignedAddress
from jax_clc.emulator.tensor_map import SIZE, TensorMap

BASE = 0x10000
RNG = np.random.default_rng(0)
TYPE_CODES = {np.dtype("u1"): 0, np.dtype("f2"): 6, np.dtype("f4"): 7, np.dtype(ml_dtypes.bfloat16): 9}


def make(dims, box, dtype, *, swizzle=0, steps=None, fill=0):
    """A tensor map over a dense tensor with rows padded to 16 bytes, and its memory."""
    item = np.dtype(dtype).itemsize
    strides, pitch = [], -(-dims[0] * item // 16) * 16
    for size in dims[1:]:
        strides.append(pitch)
        pitch *= size
    memory = RNG.integers(1, 120, size=pitch, dtype=np.uint8)
    tensor_map = TensorMap(
        TYPE_CODES[np.dtype(dtype)], BASE, tuple(dims), tuple(strides), tuple(box),
        tuple(steps or [1] * len(dims)), swizzle=swizzle, fill=fill,
    )  # fmt: skip
    return TensorMap.from_bytes(tensor_map.to_bytes()), memory


def view_of(memory):
    def view(address, size):
        assert 0 <= address - BASE and address - BASE + size <= len(memory)
        return memory[address - BASE : address - BASE + size]

    return view


def element(memory, tensor_map, index):
    strides = (tensor_map.dtype.itemsize, *tensor_map.strides_bytes)
    at = sum(i * s for i, s in zip(index, strides, strict=True))
    return memory[at : at + tensor_map.dtype.itemsize]


def expected_box(memory, tensor_map, coordinates):
    """Element by element, axes innermost first."""
    out = []
    for index in itertools.product(*(range(c) for c in reversed(tensor_map.counts))):
        index = index[::-1]
        steps = (1, *tensor_map.element_strides[1:])
        at = [c + i * s for c, i, s in zip(coordinates, index, steps, strict=True)]
        inside = all(0 <= a < d for a, d in zip(at, tensor_map.dims, strict=True))
        out.append(element(memory, tensor_map, at) if inside else np.zeros(tensor_map.dtype.itemsize, np.uint8))
    return np.concatenate(out)


CASES = [
    ((40,), (32,), "u1", (-16,)),
    ((20, 9), (8, 4), ml_dtypes.bfloat16, (16, 7)),
    ((24, 9), (64, 4), ml_dtypes.bfloat16, (-8, -2)),
    ((16, 5, 3), (16, 2, 2), "f2", (8, 4, -1)),
    ((8, 4, 3, 2), (8, 3, 2, 1), "f4", (0, 2, 2, 1)),
    ((8, 4, 3, 2, 3), (8, 3, 2, 2, 2), "f4", (4, -1, 1, 1, 2)),
    ((8, 4), (8, 2), "f4", (100, 0)),
]


@pytest.mark.parametrize(("dims", "box", "dtype", "coordinates"), CASES)
def test_a_box_holds_the_tensor_where_it_is_and_zeros_elsewhere(dims, box, dtype, coordinates):
    tensor_map, memory = make(dims, box, dtype)
    rows = tensor_map.read_box(view_of(memory), coordinates)
    np.testing.assert_array_equal(rows.reshape(-1), expected_box(memory, tensor_map, coordinates))
    assert rows.size == tensor_map.box_bytes


def test_element_strides_skip_elements_of_the_outer_axes():
    tensor_map, memory = make((8, 20), (8, 9), "f4", steps=(1, 3))
    assert tensor_map.counts == (8, 3)
    rows = tensor_map.read_box(view_of(memory), (0, 13))
    np.testing.assert_array_equal(rows.reshape(-1), expected_box(memory, tensor_map, (0, 13)))


def test_fill_nan_applies_to_floating_types_out_of_range_only():
    tensor_map, memory = make((8, 3), (8, 4), ml_dtypes.bfloat16, fill=1)
    values = tensor_map.read_box(view_of(memory), (0, 1)).view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.isnan(values[2:]).all() and not np.isnan(values[:2]).any()


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize("offset", [0, 128, 1024, 1024 + 640])
def test_swizzle_is_the_address_bit_exclusive_or(swizzle, offset):
    inner = {0: 64, 1: 16, 2: 32, 3: 64}[swizzle]
    tensor_map, memory = make((inner, 24), (inner, 24), ml_dtypes.bfloat16, swizzle=swizzle)
    rows = tensor_map.read_box(view_of(memory), (0, 0))
    shared = np.zeros(8192, np.uint8)
    tensor_map.scatter(shared, offset, rows)
    expected = np.zeros_like(shared)
    for i, byte in enumerate(rows.reshape(-1)):
        linear = offset + i
        expected[linear ^ ((linear >> 3) & 0x70 & ((1 << (4 + swizzle)) - 1))] = byte
    np.testing.assert_array_equal(shared, expected)
    np.testing.assert_array_equal(tensor_map.gather(shared, offset), rows)


def test_rows_narrower_than_the_swizzle_span_are_spread_to_it():
    tensor_map, memory = make((16, 8), (16, 8), ml_dtypes.bfloat16, swizzle=3)
    assert (tensor_map.row_bytes, tensor_map.row_pitch, tensor_map.box_bytes) == (32, 128, 256)
    rows = tensor_map.read_box(view_of(memory), (0, 0))
    shared = np.zeros(2048, np.uint8)
    tensor_map.scatter(shared, 1024, rows)
    np.testing.assert_array_equal(tensor_map.gather(shared, 1024), rows)
    assert np.array_equal(shared[1024 + 128 + 16 : 1024 + 128 + 32], rows[1, :16])  # line 1: chunk 0 goes to 1


@pytest.mark.parametrize(("dims", "box", "dtype", "coordinates"), CASES)
def test_a_store_writes_what_lies_inside_and_nothing_else(dims, box, dtype, coordinates):
    tensor_map, memory = make(dims, box, dtype)
    rows = RNG.integers(121, 250, size=(tensor_map.rows, tensor_map.row_bytes), dtype=np.uint8)
    before = memory.copy()
    tensor_map.write_box(view_of(memory), coordinates, rows)
    assert np.count_nonzero(memory != before) % tensor_map.dtype.itemsize == 0
    flat = rows.reshape(-1, tensor_map.dtype.itemsize)
    written = np.zeros(len(memory), bool)
    box_indices = itertools.product(*(range(c) for c in reversed(tensor_map.counts)))
    for value, index in zip(flat, box_indices, strict=True):
        at = [c + i for c, i in zip(coordinates, index[::-1], strict=True)]
        if all(0 <= a < d for a, d in zip(at, tensor_map.dims, strict=True)):
            np.testing.assert_array_equal(element(memory, tensor_map, at), value)
            strides = (tensor_map.dtype.itemsize, *tensor_map.strides_bytes)
            start = sum(a * s for a, s in zip(at, strides, strict=True))
            written[start : start + tensor_map.dtype.itemsize] = True
    np.testing.assert_array_equal(memory[~written], before[~written])


def test_reduction_add_combines_with_memory():
    tensor_map, memory = make((8, 2), (8, 2), "f4")
    memory[:] = np.arange(16, dtype=np.float32).view(np.uint8)
    rows = np.ones((2, 8), np.float32).view(np.uint8)
    tensor_map.write_box(view_of(memory), (0, 1), rows, "add")
    np.testing.assert_array_equal(memory.view(np.float32), [*range(8), *range(9, 17)])


def test_errors_name_what_is_wrong():
    tensor_map, _ = make((24, 9), (8, 4), ml_dtypes.bfloat16)
    with pytest.raises(MisalignedAddress, match="128"):
        tensor_map.gather(np.zeros(4096, np.uint8), 64)
    with pytest.raises(BadDescriptor, match="does not point to a tensor map"):
        TensorMap.from_bytes(bytes(SIZE))
    with pytest.raises(BadDescriptor, match="coordinates"):
        tensor_map.read_box(lambda a, n: None, (0, 0, 0))
    for change, words in [
        ({"address": 8}, "16 bytes"),
        ({"strides_bytes": (24,)}, "multiples of 16"),
        ({"box": (4, 4)}, "multiple of 16"),
        ({"box": (512, 4)}, "1 to 256"),
        ({"box": (128, 4), "swizzle": 3}, "exceeds swizzle 128B"),
    ]:
        with pytest.raises(BadDescriptor, match=words):
            dataclasses.replace(tensor_map, **change).to_bytes()


def test_a_box_starts_at_whole_granules_of_the_contiguous_axis():
    tensor_map, memory = make((24, 9), (8, 4), ml_dtypes.bfloat16)
    rows = tensor_map.read_box(view_of(memory), (8, 3))
    for start in (1, 4, -3, 23):
        with pytest.raises(MisalignedAddress, match="illegal instruction"):
            tensor_map.read_box(view_of(memory), (start, 3))
        with pytest.raises(MisalignedAddress, match="illegal instruction"):
            tensor_map.write_box(view_of(memory), (start, 3), rows)
    for start in (-8, 0, 8, 16, 24):
        tensor_map.read_box(view_of(memory), (start, 3))
        tensor_map.write_box(view_of(memory), (start, 3), rows)
