"""nvcc's PTX of plain CUDA kernels gives right results on the emulated device."""

from pathlib import Path

import numpy as np
import pytest

from jax_clc.emulator.run import Buffer, run_ptx

PTX = (Path(__file__).parent / "ptx" / "plain_kernels.ptx").read_text()
SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [1, 31, 1000, 4096])
def test_reduction_with_shuffles(n, seed):
    values = np.random.default_rng(n).integers(-100, 100, n).astype(np.float32)
    out = np.zeros(1, np.float32)
    run_ptx(PTX, "reduce_sum", grid=3, block=256, args=[values, out, n], seed=seed)
    assert out[0] == values.sum()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows, columns", [(32, 32), (33, 70), (1, 95)])
def test_tiled_transpose(rows, columns, seed):
    values = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    out = np.full((columns, rows), -1, np.int32)
    grid = (-(-columns // 32), -(-rows // 32))
    run_ptx(
        PTX, "transpose", grid=grid, block=(32, 8), args=[values, Buffer(out, output=True), rows, columns], seed=seed
    )
    np.testing.assert_array_equal(out, values.T)


def collatz(x: int) -> int:
    count = 0
    while x != 1:
        x = 3 * x + 1 if x & 1 else x >> 1
        count += 1
    return count


@pytest.mark.parametrize("seed", SEEDS)
def test_divergent_loop(seed):
    n = 150
    values = np.arange(1, n + 1, dtype=np.uint32)
    steps = np.zeros(n, np.uint32)
    run_ptx(PTX, "collatz", grid=3, block=64, args=[values, Buffer(steps, output=True), n], seed=seed)
    np.testing.assert_array_equal(steps, [collatz(int(x)) for x in values])


def mixture(values: np.ndarray) -> list[int]:
    results = []
    lanes = np.concatenate((values, np.zeros(-len(values) % 32, np.int64)))
    for i, x in enumerate(values.tolist()):
        warp = lanes[i // 32 * 32 : i // 32 * 32 + 32]
        bits = x & 0xFFFFFFFF
        same = next(j for j in range(32) if np.fmod(warp[j], 4) == np.fmod(x, 4)) + 1
        r = [int(np.trunc(x / 3)), x * x, bits.bit_count(), 32 - bits.bit_length(), -x, int(f"{bits:032b}"[::-1], 2),
             int(np.fmod(x, 10))][x % 7]  # fmt: skip
        results.append(r + int((warp & 1).sum()) + same)
    return results


def test_votes_matches_switch_and_doubles():
    values = np.random.default_rng(0).integers(-1000, 1000, 100).astype(np.int32)
    out, ratio = np.zeros(100, np.int32), np.zeros(100, np.float64)
    run_ptx(PTX, "mixture", grid=1, block=128, args=[values, out, ratio, 100])
    expected = np.array(mixture(values.astype(np.int64)), np.int64).astype(np.uint32).view(np.int32)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_rotation_through_distributed_shared_memory(seed):
    values = np.arange(8 * 64, dtype=np.int32)
    out = np.zeros_like(values)
    run_ptx(PTX, "cluster_rotate", grid=8, block=64, cluster=4, args=[values, Buffer(out, output=True)], seed=seed)
    np.testing.assert_array_equal(out, np.roll(values.reshape(2, 4, 64), -1, axis=1).reshape(-1))
