"""More of what nvcc emits runs right: device functions, local arrays, halves, mma.sync, cp.async, lanes that wait for
lanes.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jax_clc.emulator.run import Buffer, run_ptx

PTX = (Path(__file__).parent / "ptx" / "wider_forms.ptx").read_text()


def integers(seed: int, shape, dtype, low: int = -3, high: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def test_device_functions_and_math_calls():
    x, out = np.linspace(-20, 20, 100).astype(np.float32), np.zeros(100, np.float32)
    run_ptx(PTX, "calls", grid=2, block=64, args=[x, Buffer(out, output=True), 100])
    harmonic = [sum(v / (k + 1) for k in range(i % 5)) for i, v in enumerate(x.astype(np.float64))]
    np.testing.assert_allclose(out, harmonic + np.exp(x * 0.01) + np.sin(x), rtol=1e-4, atol=1e-4)


def switched(x: int) -> int:
    case = x & 15
    if case == 2:
        return x - 9 + (x >> 2)
    results = {
        0: x * 3,
        1: x ^ 77,
        3: x >> 2,
        4: 7,
        5: int(np.trunc(x / 7)),
        6: int(np.fmod(x, 5)),
        7: -x,
        8: x << 3,
        9: 1,
    }
    return results.get(case, 99)


def test_switch_with_lanes_in_different_cases():
    x, out = np.arange(-50, 50, dtype=np.int32), np.zeros(100, np.int32)
    run_ptx(PTX, "sw", grid=4, block=32, args=[x, Buffer(out, output=True), 100])
    assert out.tolist() == [switched(int(v)) for v in x]


def test_arrays_in_local_memory():
    x, out = integers(0, 64, np.int32, 0, 100), np.zeros(64, np.int32)
    run_ptx(PTX, "localarr", grid=1, block=64, args=[x, Buffer(out, output=True), 64])
    expected = [sum(int(x[(i * 7 + (x[i] + j) % 40) % 64]) * j for j in range(40)) for i in range(64)]
    assert out.tolist() == expected


def test_halves_and_pairs():
    a = np.random.default_rng(0).normal(size=100).astype(np.float16)
    b = np.random.default_rng(1).normal(size=100).astype(ml_dtypes.bfloat16)
    out, pairs = np.zeros(100, np.float32), np.zeros((100, 2), np.float16)
    run_ptx(PTX, "halves", grid=2, block=64, args=[a, b, Buffer(out, output=True), Buffer(pairs, output=True), 100])
    np.testing.assert_array_equal(out, (a + np.float16(1.5)).astype(np.float32) * (b * b).astype(np.float32))
    exact = a.astype(np.float64)[:, None] * [2.0, 3.0] + a.astype(np.float64)[:, None]
    np.testing.assert_array_equal(pairs, exact.astype(np.float16))


def test_constant_and_device_variables():
    out = np.zeros(32, np.int32)
    run_ptx(PTX, "constants", grid=1, block=32, args=[Buffer(out, output=True)])
    assert out.tolist() == [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3] * 2


def test_64_bit_integers():
    a, out = np.random.default_rng(0).integers(0, 1 << 63, 32, dtype=np.uint64) * 2 + 1, np.zeros(32, np.uint64)
    run_ptx(PTX, "wide", grid=1, block=32, args=[a, Buffer(out, output=True), 32])
    v = [int(x) for x in a]
    expected = [
        (v[i] * v[(i + 1) % 32] >> 64)
        + v[i] // (v[(i + 3) % 32] | 1)
        + v[i] % 1000003
        + v[i].bit_count()
        + int(v[i] * 0.5)
        for i in range(32)
    ]
    assert out.tolist() == [x & (2**64 - 1) for x in expected]


def test_mma_sync_with_ldmatrix():
    a, b, out = (
        integers(0, (16, 16), ml_dtypes.bfloat16),
        integers(1, (8, 16), ml_dtypes.bfloat16),
        np.zeros((16, 8), np.float32),
    )
    run_ptx(PTX, "mma16", grid=1, block=32, args=[a, b, Buffer(out, output=True)])
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T + 1)


@pytest.mark.parametrize("seed", range(5))
def test_double_buffered_cp_async(seed):
    x = np.arange(128 * 6, dtype=np.int32)
    out = np.zeros_like(x)
    run_ptx(PTX, "cpasync", grid=1, block=32, args=[x, Buffer(out, output=True), 6], seed=seed)
    np.testing.assert_array_equal(out, (x ^ 5) + 1)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_that_wait_for_each_other(seed):
    flag, out = np.zeros(2, np.int32), np.zeros(64, np.int32)
    run_ptx(PTX, "spin", grid=2, block=64, args=[flag, out], seed=seed)
    assert (out == 42).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_lane_may_wait_for_another_of_its_warp(seed):
    out = np.zeros(2, np.int32)
    run_ptx(PTX, "lane_pair", grid=1, block=32, args=[out], seed=seed)
    assert out.tolist() == [7, 8]


@pytest.mark.parametrize("kernel", ["lock", "naive_lock"])
@pytest.mark.parametrize("seed", range(3))
def test_every_lane_gets_a_spin_lock(kernel, seed):
    mutex, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run_ptx(PTX, kernel, grid=2, block=64, args=[mutex, total], seed=seed)
    assert total[0] == 128


def test_eight_bit_floats():
    values = np.random.default_rng(0).normal(size=64).astype(np.float32) * np.float32(100)
    values[:6] = [np.nan, 1e9, -1e9, np.inf, 0.0, -0.0]
    first, second, back = np.zeros(32, np.uint16), np.zeros(32, np.uint16), np.zeros(64, np.float32)
    outputs = [Buffer(x, output=True) for x in (first, second, back)]
    run_ptx(PTX, "eight_bits", grid=1, block=32, args=[values, *outputs, 32])
    for bits, dtype, limit in ((first, ml_dtypes.float8_e4m3fn, 448), (second, ml_dtypes.float8_e5m2, 57344)):
        expected = values.clip(-limit, limit).astype(dtype)
        np.testing.assert_array_equal(bits.view(np.uint8)[1:], expected.view(np.uint8)[1:])
        assert bits.view(np.uint8)[0] == 0x7F
    np.testing.assert_array_equal(back, first.view(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def low24(value: int, signed: bool) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if signed and value >> 23 else value


def test_24_bit_products():
    x, out = integers(0, 32, np.int32, -(1 << 31), 1 << 31), np.zeros((32, 2), np.int32)
    run_ptx(PTX, "products_24", grid=1, block=32, args=[x, Buffer(out, output=True), 32])
    pairs = [(int(x[i]), int(x[(i + 1) % 32])) for i in range(32)]
    low = [low24(a, True) * low24(b, True) & 0xFFFFFFFF for a, b in pairs]
    high = [(low24(a, False) * low24(b, False) >> 16) + 7 & 0xFFFFFFFF for a, b in pairs]
    np.testing.assert_array_equal(out.view(np.uint32), np.array([low, high]).T)
