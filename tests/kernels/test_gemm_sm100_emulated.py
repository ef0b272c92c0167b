"""The Blackwell kernels on the emulated device: exact under hostile conditions, and their broken twins found out.

Exact: integer operands whose partial sums are exact in float32, compared for equality. The referee is strict in every
run.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from broken_twins import TWINS
from kernel_building import Built, build

from jax_clc.emulator import errors, mma_tcgen05, warp_tensor_memory
from jax_clc.emulator.kernel_run import KernelRun, Problem, cluster_tiles, exact_operands, reference, run_kernel
from jax_clc.emulator.options import Hostility
from kernels.variant import Variant
from kernels.variants_sm100 import BF16, BF16_TO_F32, F16, SCHEDULES, pair, single

pytestmark = pytest.mark.emulated

SM_COUNT = 8
HOSTILE = Hostility(
    clc_refusals=0.3, sm_changes=6, spurious_failures=0.2, copy_delay=(0, 300), mma_delay=(0, 150), clc_delay=(0, 500),
    turn=(1, 4), shuffle_launches=8,
)  # fmt: skip
REPRESENTATIVES = [
    pair(BF16, "kkn", 256),
    pair(BF16, "kkn", 128, cluster=(4, 1)),
    pair(BF16, "mnn", 128),
    pair(BF16, "kkn", 256, cluster=(2, 2)),
    single(BF16, "kkn", 128),
    single(F16, "knn", 128),
    single(BF16, "kkn", 256, cluster=(2, 1)),
    single(BF16, "kkn", 128, cluster=(2, 2)),
    single(BF16_TO_F32, "knn", 32),
]


def name(variant: Variant) -> str:
    return variant.name(0).removeprefix("sm100_")


def the(variant: Variant) -> Built:
    return build([variant])[0]


def run(built: Built, problem: Problem, seed: int, hostility: Hostility | None = None, sm_count: int = SM_COUNT):
    """Runs, and checks every element of the result. Raises what the referee finds."""
    a, b = exact_operands(built.entry, problem, seed)
    result = run_kernel(
        built.entry, built.ptx, problem, a, b, sm_count=sm_count, seed=seed, hostility=hostility or Hostility()
    )
    assert np.array_equal(result.d, reference(built.entry, a, b)), f"wrong result: {problem}, seed {seed}"
    return result


def cluster_tile(variant: Variant) -> tuple[int, int]:
    return variant.cta_tile[0] * variant.cluster[0], variant.cta_tile[1] * variant.cluster[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("variant", REPRESENTATIVES, ids=name)
def test_exact_with_refusals_and_sms_taken_and_given_back(variant, seed):
    m, n = cluster_tile(variant)
    problem = Problem(3 * m - 20, 2 * n - 12, 136, 2, raster_group=2)
    assert cluster_tiles(the(variant).entry, problem) > SM_COUNT // (variant.cluster[0] * variant.cluster[1])
    run(the(variant), problem, seed, HOSTILE)


@pytest.mark.parametrize("variant", REPRESENTATIVES, ids=name)
def test_exact_with_fewer_tiles_than_workers_and_every_axis_a_tail(variant):
    m, n = cluster_tile(variant)
    for seed, sizes in enumerate([(1, 8, 8, 1), (m + 1, 9, 72, 1), (5, n + 8, 64, 2), (m, n, 24, 1)]):
        run(the(variant), Problem(*sizes, raster_along=seed % 2), seed)


class MmaRecorder:
    """Stands in for the tensor core: multiplies as it does, and keeps for each tile the MMAs in order, each with its
    descriptor, whether it adds to the accumulator, and a digest of the operands that it read."""

    def __init__(self):
        self.multiply = mma_tcgen05.multiply
        self.tiles: list[list] = []
        self.open: dict[tuple, list] = {}

    def __call__(self, instruction, d, a, b, shared, memories, ctas, *, a_in_tensor_memory, accumulate):
        digest = hashlib.sha256()
        a_rows, b_rows = instruction.m // len(shared), instruction.n // len(shared)
        a_layout, b_layout = mma_tcgen05.decode_descriptor(a), mma_tcgen05.decode_descriptor(b)
        for part in shared:
            for layout, rows, major, kind in [
                (a_layout, a_rows, instruction.a_mn_major, instruction.a),
                (b_layout, b_rows, instruction.b_mn_major, instruction.b),
            ]:
                digest.update(mma_tcgen05.read_operand(part, layout, rows, major, kind)[0].tobytes())
        if not accumulate:
            self.tiles.append([])
            self.open[tuple(ctas), d] = self.tiles[-1]
        self.open[tuple(ctas), d].append((instruction, accumulate, digest.hexdigest()))
        options = {"a_in_tensor_memory": a_in_tensor_memory, "accumulate": accumulate}
        return self.multiply(instruction, d, a, b, shared, memories, ctas, **options)


def test_three_schedules_give_the_same_bits_and_the_same_mmas_for_each_tile(monkeypatch):
    problem = Problem(700, 600, 200, 1, raster_group=2)
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((1, rows, problem.k)).astype(ml_dtypes.bfloat16) for rows in (problem.m, problem.n))
    results, sequences = [], []
    for schedule in SCHEDULES:
        built = the(pair(BF16, "kkn", 256, schedule))
        recorder = MmaRecorder()
        with monkeypatch.context() as patch:
            patch.setattr(warp_tensor_memory.mma_tcgen05, "multiply", recorder)
            results.append(run_kernel(built.entry, built.ptx, problem, a, b, sm_count=4, seed=11).d.view(np.uint16))
        assert len(recorder.tiles) == cluster_tiles(built.entry, problem) == 9
        assert {len(tile) for tile in recorder.tiles} == {4 * 4}  # four K blocks of four MMAs
        sequences.append(Counter(map(tuple, recorder.tiles)))
    assert all(np.array_equal(result, results[0]) for result in results)
    assert all(sequence == sequences[0] for sequence in sequences)


def test_tiles_go_to_the_sms_that_stay_when_others_are_taken_away():
    """Two of four SMs are taken before the start and come back late: CLC's workers share out every tile all the
    same."""
    built = the(single(BF16, "kkn", 128))
    away = tuple((0, sm, False) for sm in (2, 3)) + tuple((100_000, sm, True) for sm in (2, 3))
    problem = Problem(12 * 128, 128, 64)
    result = run(built, problem, 5, Hostility(sm_schedule=away), sm_count=4)
    assert len(result.launches) < 12  # most tiles were granted to workers that ran, not launched


def test_few_rows_and_many_columns_as_in_decoding():
    run(the(single(BF16, "knn", 32)), Problem(16, 1000, 520), 0, HOSTILE)


@pytest.mark.parametrize("record_stages", [1, 2, 5])
def test_record_pipeline_of_any_depth(record_stages):
    variant = replace(single(BF16, "kkn", 128, cluster=(2, 1)), record_stages=record_stages)
    assert the(variant).entry["record_stages"] == record_stages
    for seed in range(3):
        run(the(variant), Problem(9 * 256, 128, 72), seed, HOSTILE, sm_count=4)


def launched_clusters(result: KernelRun) -> int:
    return len(result.launches)


def test_nonpersistent_and_clc_launch_what_they_should():
    problem = Problem(6 * 128, 2 * 128, 64)
    assert launched_clusters(run(the(single(BF16, "kkn", 128, "nonpersistent")), problem, 0)) == 12
    assert launched_clusters(run(the(single(BF16, "kkn", 128, "static")), problem, 0)) == SM_COUNT
    assert launched_clusters(run(the(single(BF16, "kkn", 128)), problem, 0)) <= 12


# The open cases: faults that systems of this kind have had.


@pytest.mark.parametrize("variant", [single(BF16, "kkn", 128), pair(BF16, "kkn", 128)], ids=name)
def test_case_1_and_3_records_are_read_alike_by_all_warps_in_any_order(variant):
    m, n = cluster_tile(variant)
    for seed in range(20):
        run(the(variant), Problem(4 * m, 2 * n, 64), seed, HOSTILE, sm_count=2 * variant.cluster[0])


@pytest.mark.parametrize("refusals", [0.5, 0.9, 1.0])
def test_case_2_refusals_while_many_clusters_are_pending_lose_no_tile(refusals):
    run(the(single(BF16, "kkn", 128)), Problem(24 * 128, 128, 64), 3, Hostility(clc_refusals=refusals), sm_count=2)


@pytest.mark.parametrize("k", [1024, 2048])
def test_case_5_two_sm_barriers_of_a_deep_product(k):
    run(the(pair(BF16, "kkn", 256)), Problem(1024, 256, k), 1)


@pytest.mark.parametrize("seed", range(5))
def test_case_6_no_cta_reuses_shared_memory_that_its_peer_still_reads(seed):
    run(the(single(BF16, "kkn", 256, cluster=(2, 1))), Problem(512, 256, 64 * 11), seed, HOSTILE)


@pytest.mark.parametrize("group", [3, 8])
def test_case_7_raster_group_that_does_not_divide_the_grid(group):
    run(the(single(BF16, "kkn", 128)), Problem(1152, 640, 64, raster_group=group), 0)
    run(the(single(BF16, "kkn", 128)), Problem(640, 1152, 64, raster_group=group, raster_along=1), 0)


@pytest.mark.parametrize("variant", [pair(BF16, "kkn", 256), single(BF16, "kkn", 128, cluster=(2, 2))], ids=name)
def test_case_9_sizes_just_above_a_cluster_tile(variant):
    m, n = cluster_tile(variant)
    run(the(variant), Problem(m + 1, n + 1, 64), 0)


@pytest.mark.parametrize("variant", [single(BF16, "kkn", 128), pair(BF16_TO_F32, "kkn", 256)], ids=name)
def test_case_10_output_ring_goes_on_over_many_tiles_of_one_k_step(variant):
    m, n = cluster_tile(variant)
    for seed in range(2):
        run(the(variant), Problem(6 * m, 2 * n, 64), seed, sm_count=2)


@pytest.mark.parametrize("twin_name", TWINS)
def test_broken_twin_is_named(twin_name):
    """Within eight seeds the referee raises an error that names the broken rule, and no other kind."""
    twin = TWINS[twin_name]
    variant = single(BF16, "kkn", 128, cluster=twin.cluster)
    (broken,) = build([variant], twin_name)
    m, n = cluster_tile(variant)
    problem = Problem(4 * m, 3 * n, 136)
    found = Counter()
    for seed in range(8):
        try:
            run(broken, problem, seed, Hostility(idle_instructions=200_000), sm_count=4)
        except errors.EmulatorError as error:
            found[type(error).__name__] += 1
            if type(error).__name__ in twin.errors:
                break
    assert found and set(found) <= set(twin.errors), found


@pytest.mark.parametrize("twin_name", TWINS)
def test_healthy_kernel_passes_where_its_twins_are_named(twin_name):
    variant = single(BF16, "kkn", 128, cluster=TWINS[twin_name].cluster)
    m, n = cluster_tile(variant)
    run(the(variant), Problem(4 * m, 3 * n, 136), 0, sm_count=4)
