"""What the PTX and the machine code of the Blackwell kernels promise, read off them without executing them."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from broken_twins import TWINS
from kernel_building import Built, build

from jax_clc.cli import sass_report
from kernels.variants_sm100 import BF16, BLACKWELL, FAMILIES, pair, single

LARGE = [pair(BF16, "kkn", 256, schedule) for schedule in ("clc", "static", "nonpersistent")]
CLC = [
    LARGE[0],
    single(BF16, "mnn", 128),
    pair(BF16, "kkn", 256, cluster=(4, 1)),
    single(BF16, "kkn", 128, cluster=(2, 2)),
]


@pytest.fixture(scope="module")
def kernels() -> dict:
    variants = list(dict.fromkeys([*LARGE, *CLC]))
    return dict(zip(variants, build(variants), strict=True))


def statements(ptx: str) -> list[str]:
    """The instructions of a module, one each, without comments."""
    return [line.strip() for line in ptx.splitlines() if line.strip().endswith(";")]


def count(ptx: str, pattern: str) -> int:
    return sum(bool(re.search(pattern, line)) for line in statements(ptx))


def test_every_variant_is_listed_once_and_every_family_says_why():
    assert len(set(BLACKWELL)) == len(BLACKWELL)
    assert all(len(family.reason.split()) > 8 and family.variants for family in FAMILIES)


def test_parameters_are_three_tensor_maps_and_six_integers(kernels):
    for kernel in kernels.values():
        assert [p.get("operand") or p["values"][0] for p in kernel.entry["params"]] == [
            "a", "b", "d", "m", "n", "k", "l", "raster_group", "raster_along",
        ]  # fmt: skip


def test_box_is_the_share_of_one_cta_in_a_multicast_tile(kernels):
    boxes = {p["operand"]: p["box"] for p in kernels[CLC[2]].entry["params"] if p["kind"] == "tensor_map"}
    assert boxes["a"] == [64, 128, 1]  # one CTA in its row
    assert boxes["b"] == [64, 64, 1]  # half of 256 columns in each CTA of a pair, half of that from each of two pairs


@pytest.mark.parametrize("variant", CLC, ids=lambda v: v.name(0))
def test_coordinates_of_a_record_are_decoded_only_under_its_predicate(kernels, variant):
    """Rule 5: decoding a refused record is undefined, so the predicate of is_canceled guards each decode."""
    ptx = kernels[variant].ptx
    blocks = re.findall(r"\{[^{}]*query_cancel[^{}]*\}", ptx.replace("{%", "(%"))
    assert blocks and len(blocks) == ptx.count("query_cancel.is_canceled")
    for block in blocks:
        assert re.search(
            r"query_cancel\.is_canceled\.pred\.b128 (\w+), (\w+);.*\n"
            r"@\1 clusterlaunchcontrol\.query_cancel\.get_first_ctaid::x\.b32\.b128 %r\d+, \2;\n\}$",
            block,
            re.DOTALL,
        ), block
    assert ptx.count("get_first_ctaid") == len(blocks)


def test_the_check_of_guarded_decodes_can_fail():
    (broken,) = build([single(BF16, "kkn", 128)], "decode_without_looking")
    assert not re.search(r"@\w+ clusterlaunchcontrol\.query_cancel\.get_first_ctaid", broken.ptx)


def test_only_clc_asks_and_in_one_place(kernels):
    for variant, kernel in kernels.items():
        assert count(kernel.ptx, r"clusterlaunchcontrol\.try_cancel") == (variant.schedule == "clc")


def test_record_is_read_fenced_and_then_released(kernels):
    """Rule 8, in program order, wherever a record is read."""
    for variant in CLC:
        lines = statements(kernels[variant].ptx)
        reads = [i for i, line in enumerate(lines) if line.startswith("ld.shared.b128 record")]
        assert reads
        for read in reads:
            following = " ".join(lines[read : read + 12])
            assert re.search(
                r"get_first_ctaid.*fence\.proxy\.async::generic\.release\.sync_restrict::shared::cta\.cluster;"
                r".*mbarrier\.arrive\.relaxed\.cluster\.shared::cluster\.b64",
                following,
            )


@pytest.mark.parametrize("variant", CLC, ids=lambda v: v.name(0))
def test_empty_barrier_of_records_counts_every_reading_warp(kernels, variant):
    """Rule 12: in each CTA load and four epilogue warps, one MMA warp for each MMA tile, and one scheduler warp."""
    cluster_size = variant.cluster[0] * variant.cluster[1]
    readers = cluster_size * 5 + cluster_size // (2 if variant.two_sm_mma else 1) + 1
    ptx = kernels[variant].ptx
    constants = dict(re.findall(r"mov\.b32 \t(%r\d+), (\d+);", ptx))
    values = re.findall(r"mbarrier\.init\.shared\.b64 \t\[[^]]+\], ([%\w]+);", ptx)
    counts = Counter(int(constants.get(value, value)) for value in values)
    assert counts[readers] == kernels[variant].entry["record_stages"] == 3


def test_signals_to_other_ctas_have_cluster_scope(kernels):
    """Rule 16: a .cta arrival on a peer's barrier counts and orders nothing."""
    for kernel in kernels.values():
        remote = [line for line in statements(kernel.ptx) if "mbarrier.arrive" in line and "[remote]" in line]
        assert remote or kernel.entry["cluster"] == [1, 1]
        assert all(".cluster.shared::cluster" in line for line in remote)


def test_sums_are_waited_for_and_tensor_memory_is_fenced(kernels):
    """Rule 17: each tcgen05.ld is followed by wait::ld, each wait for a barrier before tcgen05 work by a fence."""
    for kernel in kernels.values():
        lines = statements(kernel.ptx)
        loads = [i for i, line in enumerate(lines) if line.startswith("tcgen05.ld")]
        assert loads
        for load in loads:
            after = lines[load + 1 :]
            wait = next(i for i, line in enumerate(after) if line.startswith("tcgen05.wait::ld"))
            registers = set(re.findall(r"%r\d+", lines[load].partition("{")[2].partition("}")[0]))
            between = " ".join(line for line in after[:wait] if not line.startswith("mov.b64"))
            assert not registers & set(re.findall(r"%r\d+", between))
        before_sync = [i for i, line in enumerate(lines) if line.startswith("tcgen05.fence::before_thread_sync")]
        assert len(before_sync) == 2  # the allocation, and the accumulator that is handed back
        assert count(kernel.ptx, r"tcgen05\.fence::after_thread_sync") == 5


def test_tensor_memory_is_given_back_after_the_last_meeting(kernels):
    """Rule 15: the whole cluster meets before exit, and before a deallocation that a peer's MMA could reach."""
    for variant, kernel in kernels.items():
        lines = statements(kernel.ptx)
        dealloc = next(i for i, line in enumerate(lines) if line.startswith("tcgen05.dealloc"))
        meeting = "bar.sync" if variant.cluster == (1, 1) else "barrier.cluster.wait"
        last = max(i for i, line in enumerate(lines) if line.startswith(meeting))
        assert last < dealloc
        signals = ("mbarrier", "tcgen05.commit", "tcgen05.ld", "cp.async")
        assert not any(line.startswith(signals) for line in lines[last:])


def test_schedules_differ_only_in_how_work_is_found(kernels):
    """The same copies, MMAs, stores and tensor-memory reads in each of the three kernels."""

    def body(built: Built) -> Counter:
        forms = r"^(@%p\d+ )?(cp\.async\.bulk|tcgen05\.|st\.shared|cvt\.rn|fence\.proxy\.async\.shared)"
        return Counter(line.split()[0] for line in statements(built.ptx) if re.match(forms, line))

    bodies = [body(kernels[variant]) for variant in LARGE]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[0]["tcgen05.mma.cta_group::2.kind::f16.collector::a::discard"] == 4


def test_machine_code_has_no_spills_and_the_computed_instructions_per_k_block(kernels):
    try:
        sass_report.find_tool("nvdisasm", "nvidia-cuda-nvdisasm")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for kernel in kernels.values():
        facts = sass_report.read_facts(kernel.cubin)
        assert sass_report.check(kernel.entry, facts) == []
        assert facts.mma_per_k_block == 4
        assert facts.lane_loops == 0


def test_every_broken_twin_is_another_kernel():
    """Each fault reaches the PTX: a twin that equals the kernel would prove nothing."""
    variants = [single(BF16, "kkn", 128, cluster=twin.cluster) for twin in TWINS.values()]
    for name, broken, healthy in zip(TWINS, build(variants, list(TWINS)), build(variants), strict=True):
        assert broken.ptx != healthy.ptx, name
