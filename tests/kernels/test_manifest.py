"""The manifest says what the compiled kernel is: parameters, boxes and resources are the DSL's and the cubin's own."""

import gzip
import hashlib

import pytest

pytest.importorskip("cutlass", reason="the kernels are compiled by nvidia-cutlass-dsl, which is not installed")

from kernels import compile as build
from kernels import parameters
from kernels.variants_sm90 import BF16, BF16_TO_F32, HOPPER, hopper

SMALL = hopper(BF16, "knn", (128, 128), (2, 1), pingpong=True)


@pytest.fixture(scope="module")
def small_kernel(tmp_path_factory):
    """(manifest entry, folder) of one Hopper kernel, compiled once."""
    folder = tmp_path_factory.mktemp("kernel")
    return build.compile_variant(SMALL, folder), folder


def test_the_entry_describes_the_image_beside_it(small_kernel):
    entry, folder = small_kernel
    image = (folder / entry["image"]).read_bytes()
    assert entry["image_sha256"] == hashlib.sha256(image).hexdigest()
    assert entry["name"] == "sm90_bf16_bf16_f32_bf16_knn_128x128x64_pingpong_c2x1_s6_static"
    assert entry["symbol"].encode() in image
    assert entry["local_bytes"] == 0
    assert 0 < entry["registers"] <= 168  # 384 threads of 65536 registers
    assert entry["dynamic_smem_bytes"] <= 232448
    assert entry["launch"] == {"block": [384, 1, 1], "cluster": [2, 1, 1], "grid": "workers"}


def test_the_box_of_a_tensor_map_is_what_one_cta_copies(small_kernel):
    maps = {p["operand"]: p for p in small_kernel[0]["params"] if p["kind"] == "tensor_map"}
    assert (maps["a"]["axes"], maps["a"]["box"]) == (["k", "m", "l"], [64, 128, 1])
    # b is shared by the two CTAs of the cluster: each loads 64 of its 128 rows, and n is contiguous.
    assert (maps["b"]["axes"], maps["b"]["box"]) == (["n", "k", "l"], [64, 64, 1])
    assert (maps["d"]["axes"], maps["d"]["box"]) == (["n", "m", "l"], [64, 64, 1])
    assert {m["swizzle"] for m in maps.values()} == {"128B"}
    assert {m["element_type"] for m in maps.values()} == {"bfloat16"}


def test_the_parameters_are_those_of_the_ptx_in_order(small_kernel):
    entry, folder = small_kernel
    ptx = gzip.decompress((folder / entry["ptx"]).read_bytes()).decode()
    parameters.check_against_ptx(entry["params"], ptx)
    words = [p.get("operand") or p["values"][0] for p in entry["params"]]
    assert words == ["a", "b", "d", "m", "n", "k", "l", "raster_group", "raster_along"]
    assert [p["offset"] for p in entry["params"]] == [0, 128, 256, *range(384, 408, 4)]


def test_a_parameter_list_that_differs_from_the_ptx_is_refused(small_kernel):
    entry, folder = small_kernel
    ptx = gzip.decompress((folder / entry["ptx"]).read_bytes()).decode()
    with pytest.raises(ValueError, match="PTX has"):
        parameters.check_against_ptx(entry["params"][:-1], ptx)
    longer = [*entry["params"][:-1], {**entry["params"][-1], "size": 8}]
    with pytest.raises(ValueError, match="PTX has"):
        parameters.check_against_ptx(longer, ptx)


def test_spilled_registers_fail_the_build(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "resource_usage", lambda image: {"registers": 168, "local_bytes": 64})
    with pytest.raises(ValueError, match="64 bytes of registers spilled"):
        build.compile_variant(SMALL, tmp_path)


def test_a_kernel_takes_pointers_and_strides_for_what_tma_cannot_address(tmp_path):
    variant = hopper(BF16_TO_F32, "kkn", (128, 128), operand_copies="elements", output_copies="elements")
    entry = build.compile_variant(variant, tmp_path)
    words = [(p["kind"], p.get("operand") or p["values"][0]) for p in entry["params"]]
    strides = [("int64", f"{operand}_{axis}") for operand in "abd" for axis in ("outer", "batch")]
    assert words[:9] == [("pointer", "a"), ("pointer", "b"), ("pointer", "d"), *strides]
    assert {kind for kind, _ in words[9:]} == {"int32"}


def test_a_store_from_registers_takes_an_aligned_pointer_and_no_staging(tmp_path):
    entries = [
        build.compile_variant(
            hopper(BF16, "kkn", (64, 64), (1, 1), "nonpersistent", stages=4, output_copies=copies), tmp_path / copies
        )
        for copies in ("tma", "registers")
    ]
    staged, entry = entries
    pointers = [p for p in entry["params"] if p["kind"] == "pointer"]
    assert [(p["operand"], p["access_bytes"]) for p in pointers] == [("d", 16)]
    assert [p["operand"] for p in entry["params"] if p["kind"] == "tensor_map"] == ["a", "b"]
    assert staged["dynamic_smem_bytes"] - entry["dynamic_smem_bytes"] == 2 * 64 * 64 * 2


@pytest.mark.parametrize("facts", [
    {"split_k": True}, {"cluster_k": 2}, {"schedule": "static", "stream_k": True}, {"majors": "kkm"},
    {"dtypes": BF16_TO_F32}, {"cta_tile": (64, 16)},
])  # fmt: skip
def test_stores_from_registers_are_of_whole_tiles_of_16_bit_rows(facts):
    usual = {"dtypes": BF16, "majors": "kkn", "cta_tile": (64, 64), "schedule": "nonpersistent"}
    with pytest.raises(ValueError, match=r"Variant\(.*stores from registers are of"):
        build.make_kernel(hopper(**usual | facts, output_copies="registers"))


def test_a_variant_that_does_not_fit_names_itself():
    with pytest.raises(ValueError, match=r"Variant\(.*256, 256.*do not fit"):
        build.make_kernel(hopper(BF16, "kkn", (256, 256), stages=9))


def test_every_name_is_given_once():
    names = [build.kernel_name(variant) for variant in HOPPER]
    assert len(set(names)) == len(names)


def test_a_kernel_depends_on_the_files_that_it_imports_and_on_no_other():
    hopper_files = {path.name for path in build.kernel_sources("kernels.gemm_sm90")}
    assert {"gemm_sm90.py", "raster.py", "split_k.py", "tile_scheduler.py"} <= hopper_files
    assert not hopper_files & {"gemm_sm100.py", "variants.py", "variants_sm90.py", "compile.py"}


@pytest.mark.parametrize(("schedule", "promotion"), [("dynamic", "256B"), ("static", "128B")])
def test_kernels_that_claim_whole_tiles_fetch_whole_rows_of_short_k(tmp_path, schedule, promotion):
    entry = build.compile_variant(hopper(BF16, "kkn", (128, 256), (2, 1), schedule), tmp_path)
    maps = [p for p in entry["params"] if p["kind"] == "tensor_map"]
    assert [p["l2_promotion"] for p in maps] == 3 * [promotion]
