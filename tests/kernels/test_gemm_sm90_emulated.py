"""The Hopper kernels on the emulated device: exact under hostile conditions, and the same bits whatever the order.

Exact: integer operands whose partial sums are exact in float32, compared for equality. The referee is strict in every
run.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: kernels cannot be compiled here")

from broken_twins import HOPPER_TWINS
from kernel_building import Built, build

from jax_clc.emulator import errors
from jax_clc.emulator.kernel_run import KernelRun, Problem, exact_operands, reference, run_kernel
from jax_clc.emulator.options import Hostility
from kernels.variant import Variant
from kernels.variants_sm90 import BF16, BF16_TO_F32, hopper, turns

pytestmark = pytest.mark.emulated

SM_COUNT = 8
HOSTILE = Hostility(
    sm_changes=6, spurious_failures=0.2, copy_delay=(0, 300), mma_delay=(0, 150), turn=(1, 4), shuffle_launches=8
)
COOPERATIVE = hopper(BF16, "kkn", (128, 256), (2, 1))
NONPERSISTENT = hopper(BF16, "knn", (128, 256), (2, 1), "nonpersistent")
DYNAMIC = hopper(BF16, "kkn", (128, 256), (2, 1), "dynamic")
PINGPONG = turns(BF16, "knn")
DYNAMIC_PINGPONG = turns(BF16, "kkn", "dynamic")
STREAM_K = turns(BF16, "mkn", "dynamic", width=128, stream_k=True)
SPLIT_K = hopper(BF16, "mnn", (128, 256), (2, 1), split_k=True)
CLUSTER_K = hopper(BF16, "mkm", (128, 64), (1, 1), "nonpersistent", cluster_k=4)
SPLIT_IN_CLUSTERS = hopper(BF16, "knn", (64, 64), (1, 1), "nonpersistent", cluster_k=4, split_k=True)
TWO_ON_AN_SM = hopper(BF16, "mkm", (64, 16), (1, 1), "nonpersistent", cluster_k=2, ctas_per_sm=2)
CHAINS = hopper(BF16_TO_F32, "mkn", (128, 128), (1, 1), "nonpersistent", cluster_k=2, split_k=True, chain_k_tiles=2)
CHAINS_ALONG_N = hopper(BF16_TO_F32, "knn", (128, 64), (1, 2), "nonpersistent", chain_k_tiles=4)
ELEMENTS = hopper(BF16_TO_F32, "mkn", (128, 128), operand_copies="elements", output_copies="elements")
ELEMENT_STORE = turns(BF16, "kkn", output_copies="elements")
THREE_WARPGROUPS = hopper(BF16, "knn", (192, 176), (1, 2), output_copies="elements")
REGISTER_STORE = hopper(BF16, "knn", (64, 32), (1, 1), "nonpersistent", stages=4, output_copies="registers")
REPRESENTATIVES = [
    COOPERATIVE, NONPERSISTENT, DYNAMIC, PINGPONG, DYNAMIC_PINGPONG, STREAM_K, SPLIT_K, CLUSTER_K, SPLIT_IN_CLUSTERS,
    TWO_ON_AN_SM, CHAINS, CHAINS_ALONG_N, ELEMENTS, ELEMENT_STORE, THREE_WARPGROUPS, REGISTER_STORE,
]  # fmt: skip


def name(variant: Variant) -> str:
    return variant.name(0).removeprefix("sm90_")


def the(variant: Variant) -> Built:
    return build([variant])[0]


def run(variant: Variant, problem: Problem, seed: int, hostility: Hostility | None = None) -> KernelRun:
    """Runs, and checks every element of the result. Raises what the referee finds."""
    built = the(variant)
    a, b = exact_operands(built.entry, problem, seed)
    result = run_kernel(
        built.entry, built.ptx, problem, a, b, sm_count=SM_COUNT, seed=seed, hostility=hostility or Hostility()
    )
    assert np.array_equal(result.d, reference(built.entry, a, b)), f"wrong result: {problem}, seed {seed}"
    return result


def parts_of(variant: Variant, wanted: int) -> int:
    return wanted if variant.split_k else 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("variant", REPRESENTATIVES, ids=name)
def test_exact_with_late_copies_and_sms_taken_and_given_back(variant, seed):
    m, n = (tile * ctas for tile, ctas in zip(variant.cta_tile, variant.cluster, strict=False))
    run(variant, Problem(m + 24, 2 * n + 8, 152, raster_group=2, split_k=parts_of(variant, 2)), seed, HOSTILE)


@pytest.mark.parametrize("k_tiles", (5, 6, 11))
@pytest.mark.parametrize("n_tiles", (1, 4, 9))
def test_last_tile_through_the_stages_it_was_multiplied_from(n_tiles, k_tiles):
    """A CTA has one tile, two, and tiles for both warpgroups and one more; k fills the stages once, or begins again."""
    run(PINGPONG, Problem(264, 192 * n_tiles, 64 * k_tiles, raster_group=2), n_tiles, HOSTILE)


@pytest.mark.parametrize("variant", REPRESENTATIVES, ids=name)
def test_exact_with_fewer_tiles_than_workers_and_every_axis_a_tail(variant):
    for seed, (m, n, k) in enumerate([(8, 8, 8), (136, 16, 72), (8, 264, 64), (128, 72, 24)]):
        run(variant, Problem(m, n, k, raster_along=seed % 2, split_k=parts_of(variant, 3)), seed)


@pytest.mark.parametrize("variant", [ELEMENTS, ELEMENT_STORE, THREE_WARPGROUPS], ids=name)
def test_results_of_any_size_and_alignment_are_written_once(variant):
    unit = 1 if variant.operand_copies == "elements" else 8
    for seed, (m, n) in enumerate([(1, 1), (129, 131), (7, 257), (130, 33)]):
        run(variant, Problem(m, n, 9 * unit, 2), seed)


def test_stores_from_registers_end_with_any_row_and_with_the_16_bytes_that_hold_the_last_column():
    """Rows lie apart by a multiple of 16 bytes: what is stored behind the last column is padding."""
    for seed, (m, n) in enumerate([(1, 1), (37, 40), (65, 31), (130, 33)]):
        run(REGISTER_STORE, Problem(m, n, 152, 2), seed)


@pytest.mark.parametrize("variant", [SPLIT_K, CLUSTER_K, SPLIT_IN_CLUSTERS, TWO_ON_AN_SM, CHAINS], ids=name)
def test_parts_of_k_give_the_same_bits_in_any_order(variant):
    """Inputs whose sums round: a sum in another order would show."""
    built = the(variant)
    problem = Problem(136, 72, 1096, split_k=parts_of(variant, 5))
    a, b = exact_operands(built.entry, problem, 0)
    draw = np.random.default_rng(1)
    a, b = (draw.standard_normal(operand.shape).astype(operand.dtype) for operand in (a, b))
    results = [
        run_kernel(built.entry, built.ptx, problem, a, b, sm_count=SM_COUNT, seed=seed, hostility=HOSTILE).d
        for seed in range(2)
    ]
    assert len({result.tobytes() for result in results}) == 1
    exact = reference(built.entry, a, b).astype(np.float64)
    assert np.allclose(results[0].astype(np.float64), exact, rtol=2e-2, atol=0.5)


def test_more_parts_than_k_tiles_compute_each_k_tile_once():
    run(SPLIT_K, Problem(128, 128, 136, split_k=7), 0)
    run(SPLIT_IN_CLUSTERS, Problem(64, 64, 200, split_k=3), 0)


@pytest.mark.parametrize("seed", range(2))
def test_case_6_no_cta_reuses_shared_memory_that_its_peer_still_reads(seed):
    run(COOPERATIVE, Problem(512, 256, 456), seed, HOSTILE)


@pytest.mark.parametrize("group", [1, 3, 5])
def test_case_7_raster_group_that_does_not_divide_the_grid(group):
    run(COOPERATIVE, Problem(1152, 1280, 64, raster_group=group, raster_along=group % 2), group)


@pytest.mark.parametrize("variant", [COOPERATIVE, PINGPONG], ids=name)
def test_case_8_k_steps_that_do_not_divide_the_pipeline_depth(variant):
    for seed, k_tiles in enumerate([3, 5]):
        run(variant, Problem(640, 264, 64 * k_tiles), seed, HOSTILE)


@pytest.mark.parametrize("variant", [COOPERATIVE, PINGPONG, DYNAMIC_PINGPONG], ids=name)
def test_case_10_output_ring_goes_on_over_many_tiles_of_one_k_step(variant):
    run(variant, Problem(1024, 776, 64), 0, HOSTILE)


@pytest.mark.parametrize("twin_name", HOPPER_TWINS)
def test_broken_twin_is_named(twin_name):
    """Within eight seeds the referee raises an error that names the fault, and no other kind."""
    _, k_tiles, expected = HOPPER_TWINS[twin_name]
    healthy, (broken,) = the(PINGPONG), build([PINGPONG], twin_name)
    assert broken.ptx != healthy.ptx
    problem = Problem(264, 192 * 9, 64 * k_tiles)
    a, b = exact_operands(healthy.entry, problem, 0)
    found = set()
    for seed in range(8):
        try:
            run_kernel(broken.entry, broken.ptx, problem, a, b, sm_count=SM_COUNT, seed=seed, hostility=HOSTILE)
        except errors.EmulatorError as error:
            found.add(type(error).__name__)
            if found & set(expected):
                break
    assert found and found <= set(expected), found
