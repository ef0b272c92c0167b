"""Stream-K: the shares hold every k tile of the shared tiles once, and kernels that cut tiles give the same bits
whichever part comes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kernel_building import build

from jax_clc.emulator.kernel_run import Problem, exact_operands, reference, run_kernel
from jax_clc.emulator.options import Hostility
from kernels.shares import LEAST_PART, MOST_K_TILES, boundary, shared_tiles
from kernels.variants_sm90 import BF16, turns

MOST = 72  # clusters of two
SM_COUNT = 10
WORKERS = SM_COUNT // 2
HOSTILE = Hostility(sm_changes=6, spurious_failures=0.2, copy_delay=(0, 300), mma_delay=(0, 150), turn=(1, 4))
VARIANTS = [
    turns(BF16, "kkn", "static", width=128, stream_k=True),
    turns(BF16, "mnn", "dynamic", width=128, stream_k=True),
    turns(BF16, "knn", "dynamic", width=192, stream_k=True),
]


def cuts(tiles: int, workers: int, k_tiles: int) -> list[int]:
    """Where the shares begin and end."""
    shared = shared_tiles(tiles, workers, MOST, k_tiles)
    return [boundary(share, shared, workers, k_tiles) for share in range(workers + 1)] if shared else []


@given(tiles=st.integers(1, 3000), workers=st.integers(1, MOST), k_tiles=st.integers(1, 3000))
@example(tiles=8, workers=5, k_tiles=48)
@example(tiles=7, workers=5, k_tiles=47)
@example(tiles=2 * MOST - 1, workers=MOST, k_tiles=MOST_K_TILES - 1)
def test_shares_follow_one_another_and_none_is_empty(tiles, workers, k_tiles):
    shared = shared_tiles(tiles, workers, MOST, k_tiles)
    places = cuts(tiles, workers, k_tiles)
    if tiles < workers or tiles % workers == 0:
        assert shared == 0  # the rounds come out even, or there is no whole one
        return
    assert shared % workers == tiles % workers and shared <= tiles
    assert places[0] == 0 and places[-1] == shared * k_tiles
    assert all(begin < end for begin, end in zip(places, places[1:], strict=False))


@given(tiles=st.integers(1, 3000), workers=st.integers(1, MOST), k_tiles=st.integers(2 * LEAST_PART, 3000))
def test_no_part_is_short_and_the_work_is_shared_evenly(tiles, workers, k_tiles):
    places = cuts(tiles, workers, k_tiles)
    inside = {place % k_tiles for place in places} - {0}
    assert all(LEAST_PART <= place <= k_tiles - LEAST_PART for place in inside)
    if places:
        even = places[-1] / workers
        assert all(abs(end - begin - even) < 2 * LEAST_PART for begin, end in zip(places, places[1:], strict=False))


def test_more_workers_than_there_is_scratch_for_share_nothing():
    assert shared_tiles(tiles=3 * MOST, workers=MOST + 1, most_workers=MOST, k_tiles=64) == 0
    assert shared_tiles(tiles=MOST + 1, workers=MOST, most_workers=MOST, k_tiles=MOST_K_TILES) == 0


def problem_of_tiles(variant, tiles: int, k_tiles: int) -> Problem:
    """So many cluster tiles in a line, the last one not full, and a k that ends within a k tile."""
    m, n = (tile * ctas for tile, ctas in zip(variant.cta_tile, variant.cluster, strict=False))
    return Problem(tiles * m - 40, n - 8, 64 * k_tiles - 8)


@pytest.mark.emulated
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name(0).removeprefix("sm90_"))
@pytest.mark.parametrize("tiles, k_tiles", [(7, 50), (6, 20), (9, 3), (16, 11), (7, 25)])
def test_cut_tiles_are_exact_and_the_same_bits_in_any_order(variant, tiles, k_tiles):
    """7 tiles of 50 k tiles on 5 workers: shares of 0.4 tiles, a tile in three parts. 6 of 20: shares of 1.2 tiles.
    9 of 3: too short to be cut. 16 of 11: a round of whole tiles before the shares, parts shorter than the ring. 7 of
    25: all is cut, and the last piece of a worker is a part."""
    built = build([variant])[0]
    problem = problem_of_tiles(variant, tiles, k_tiles)
    parts = {place % k_tiles for place in cuts(tiles, WORKERS, k_tiles)} - {0}
    assert bool(parts) == (k_tiles > 2 * LEAST_PART)
    a, b = exact_operands(built.entry, problem, 0)

    def result(a, b, seed, hostility):
        return run_kernel(built.entry, built.ptx, problem, a, b, sm_count=SM_COUNT, seed=seed, hostility=hostility).d

    assert np.array_equal(result(a, b, 1, HOSTILE), reference(built.entry, a, b))
    draw = np.random.default_rng(1)  # sums that round: another order would show
    a, b = (draw.standard_normal(operand.shape).astype(operand.dtype) for operand in (a, b))
    results = [result(a, b, seed, hostility) for seed, hostility in ((2, HOSTILE), (3, Hostility.calm()))]
    assert results[0].tobytes() == results[1].tobytes()
    assert np.allclose(results[0].astype(float), reference(built.entry, a, b).astype(float), rtol=2e-2, atol=0.5)
