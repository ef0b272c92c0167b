"""What the core asks of a device: parameter blocks, tensor maps, grids, memsets. No kernel runs."""

from __future__ import annotations

import struct

import pytest
from calls import Gemm
from fake_kernels import decode_tensor_map, fake_entry
from fake_xla import HandlerError

INTEGERS = 3 * 128 + 8  # where the integers of a fake TMA kernel lie: after three maps and the scratch pointer


def integers(params: bytes, offset: int = INTEGERS) -> dict[str, int]:
    names = ("m", "n", "k", "l", "raster_group", "raster_along", "split_k")
    return dict(zip(names, struct.unpack_from("<7i", params, offset), strict=True))


def test_parameter_block_holds_maps_pointer_and_integers_where_the_manifest_says(native, device, ship):
    ship(fake_entry())
    call = Gemm(l=3, m=1400, n=328, k=72, raster_group=[5], raster_along=[1])
    call.run_on_cpu(native)
    launch = device.launched
    assert len(launch["params"]) == INTEGERS + 28
    assert struct.unpack_from("<Q", launch["params"], 384)[0] == call.addresses["scratch"]
    assert integers(launch["params"]) == {
        "m": 1400, "n": 328, "k": 72, "l": 3, "raster_group": 5, "raster_along": 1, "split_k": 1,
    }  # fmt: skip
    assert launch["block"] == (384, 1, 1) and launch["cluster"] == (2, 1, 1) and launch["smem"] == 200_000
    assert launch["buffers"] == {
        "a": (call.addresses["a"], 3 * 1400 * 72 * 2), "b": (call.addresses["b"], 3 * 328 * 72 * 2),
        "d": (call.addresses["d"], 3 * 1400 * 328 * 2), "scratch": (call.addresses["scratch"], 0),
    }  # fmt: skip


@pytest.mark.parametrize("a_major,b_major", ["kk", "kn", "mk", "mn"])
def test_tensor_maps_follow_majors_and_strides_of_the_call(native, device, ship, a_major, b_major):
    ship(fake_entry(majors=a_major + b_major + "n"))
    call = Gemm(l=2, m=96, n=160, k=64, a_major=a_major, b_major=b_major)
    call.run_on_cpu(native)
    maps = [decode_tensor_map(device.launched["params"][i : i + 128]) for i in (0, 128, 256)]
    a_inner, a_outer = (64, 96) if a_major == "k" else (96, 64)
    b_inner, b_outer = (64, 160) if b_major == "k" else (160, 64)
    expected = [
        ("a", (a_inner, a_outer, 2), (2 * a_inner, 2 * 96 * 64)),
        ("b", (b_inner, b_outer, 2), (2 * b_inner, 2 * 160 * 64)),
        ("d", (160, 96, 2), (2 * 160, 2 * 160 * 96)),
    ]
    for encoded, (operand, dims, strides) in zip(maps, expected, strict=True):
        assert encoded == {
            "element_type": 9, "rank": 3, "interleave": 0, "swizzle": 3, "l2_promotion": 2, "fill": 0,
            "address": call.addresses[operand], "dims": dims, "strides": strides, "box": (64, 64, 1),
            "element_strides": (1, 1, 1),
        }  # fmt: skip


def test_axis_of_one_element_gets_a_legal_stride_whatever_the_call_says(native, device, ship):
    ship(fake_entry())
    Gemm(l=1, m=1, n=64, k=64, a_strides=[7, 13], d_strides=[5, 3]).run_on_cpu(native)
    encoded = decode_tensor_map(device.launched["params"][:128])
    assert encoded["dims"] == (64, 1, 1) and encoded["strides"] == (16, 16)


def test_swapped_kernel_gets_operands_and_sizes_exchanged(native, device, ship):
    ship(fake_entry(majors="kkm"))
    call = Gemm(l=2, m=16, n=512, k=64, swapped=[1])
    call.run_on_cpu(native)
    params = device.launched["params"]
    a, b, d = (decode_tensor_map(params[i : i + 128]) for i in (0, 128, 256))
    assert a["address"] == call.addresses["b"] and a["dims"] == (64, 512, 2)
    assert b["address"] == call.addresses["a"] and b["dims"] == (64, 16, 2)
    assert d["address"] == call.addresses["d"] and d["dims"] == (512, 16, 2) and d["strides"] == (1024, 2 * 16 * 512)
    assert integers(params)["m"] == 512 and integers(params)["n"] == 16
    assert device.launched["grid"] == (2 * 4, 1, 1)  # 2 x 1 cluster tiles of 256 x 256, batch 2


@pytest.mark.parametrize("swapped,along,group,expected", [
    (0, 0, 32768, 3), (0, 1, 32768, 8), (0, 0, 3, 3), (0, 0, 2, 2), (0, 1, 7, 7), (1, 0, 32768, 4), (1, 1, 32768, 6),
])  # fmt: skip
def test_no_raster_group_wider_than_the_tiles_reaches_a_kernel(native, device, ship, swapped, along, group, expected):
    """The kernels multiply it by the length of the walk, in 32 bits; a group of all tiles is the same raster."""
    ship(fake_entry(majors="kkm" if swapped else "kkn", cluster=(1, 1)))  # 8 x 3 tiles, swapped 6 x 4
    Gemm(m=1024, n=768, k=64, swapped=[swapped], raster_group=[group], raster_along=[along]).run_on_cpu(native)
    assert integers(device.launched["params"])["raster_group"] == expected


@pytest.mark.parametrize(
    "grid,clusters,sm_limit,expected",
    [
        ("workers", 100, 0, 12),  # fewer tiles than workers: m 2, n 3 (of 256 x 256), batch 2
        ("workers", 5, 0, 5),
        ("workers", 100, 8, 4),  # two SMs a cluster
        ("workers", 100, 9, 4),
        ("workers", 100, 131, 12),
        ("tiles", 5, 0, 12),
        ("tiles", 5, 24, 12),  # the limit holds already
    ],
)
def test_grid_is_whole_clusters_limited_by_tiles_residency_and_sm_limit(
    native, device, ship, grid, clusters, sm_limit, expected
):
    ship(fake_entry(grid=grid))
    device.clusters = clusters
    Gemm(l=2, m=300, n=600, k=64, sm_limit=sm_limit).run_on_cpu(native)
    assert device.launched["grid"] == (2 * expected, 1, 1)


@pytest.mark.parametrize("grid,sm_limit,text", [
    ("workers", 1, "sm_limit is 1, one cluster takes 2 SMs"),
    ("tiles", 8, "sm_limit is 8, and this schedule always fills the device"),
])  # fmt: skip
def test_sm_limit_that_cannot_be_kept_is_an_error(native, device, ship, grid, sm_limit, text):
    ship(fake_entry(grid=grid))
    with pytest.raises(HandlerError, match=text):
        Gemm(l=2, m=300, n=600, k=64, sm_limit=sm_limit).run_on_cpu(native)
    assert device.of("launch") == []


def test_counter_is_zeroed_on_the_stream_before_the_launch(native, device, ship):
    ship(fake_entry(schedule="dynamic", counter_bytes=128))
    call = Gemm(scratch_bytes=128)
    call.run_on_cpu(native)
    assert [what for what, _ in device.events] == ["load", "occupancy", "memset", "launch"]
    assert device.of("memset") == [{"address": call.addresses["scratch"], "value": 0, "bytes": 128}]


def test_split_k_multiplies_tiles_and_needs_scratch_for_partials(native, device, ship):
    ship(fake_entry(counter_bytes=128, partial_bytes=4))
    device.clusters = 1000
    needed = 128 + 4 * 3 * (2 * 256 * 512)  # m 200 -> 256, n 300 -> 512, 3 splits, batch 2
    Gemm(l=2, m=200, n=304, k=512, split_k=[3], scratch_bytes=needed).run_on_cpu(native)
    assert device.launched["grid"] == (2 * 2 * 2 * 3, 1, 1)
    assert integers(device.launched["params"])["split_k"] == 3
    with pytest.raises(HandlerError, match=f"scratch has {needed - 1} bytes, the kernel needs {needed}"):
        Gemm(l=2, m=200, n=304, k=512, split_k=[3], scratch_bytes=needed - 1).run_on_cpu(native)


def test_empty_sum_clears_the_result_and_launches_nothing(native, device, ship):
    ship(fake_entry())
    call = Gemm(l=2, m=4, n=5, k=0)
    call.run_on_cpu(native)
    assert device.events == [("memset", {"address": call.addresses["d"], "value": 0, "bytes": 2 * 4 * 5 * 2})]


@pytest.mark.parametrize("sizes", [{"m": 0}, {"n": 0}, {"l": 0}, {"m": 0, "k": 0}])
def test_empty_result_is_success_even_with_null_buffers(native, device, ship, sizes):
    ship(fake_entry())
    call = Gemm(**sizes)
    call.addresses = dict.fromkeys(call.addresses, 0)
    call.run_on_cpu(native)
    assert device.events == []


ELEMENT_INTEGERS = 4 * 8


@pytest.mark.parametrize("operand,shift", [("a", 2), ("b", 8), ("d", 2)])
def test_unaligned_base_runs_the_kernel_that_loads_elements(native, device, ship, operand, shift):
    ship(fake_entry("fake", schedule="dynamic", counter_bytes=128))
    ship(fake_entry("elementwise", elements=True, cta_tile=(64, 64, 64), cluster=(1, 1), smem=1000, grid="tiles"))
    call = Gemm(m=128, n=128, k=64, scratch_bytes=128)
    call.addresses[operand] += shift
    call.run_on_cpu(native)
    launch = device.launched
    assert launch["kernel"] == "elementwise" and launch["grid"] == (4, 1, 1) and device.of("memset") == []
    assert struct.unpack_from("<3Q", launch["params"]) == tuple(call.addresses[name] for name in "abd")
    assert integers(launch["params"], ELEMENT_INTEGERS)["k"] == 64
    strides = struct.unpack_from("<6q", launch["params"], ELEMENT_INTEGERS + 32)
    assert strides == (64, 128 * 64, 64, 128 * 64, 128, 128 * 128)
    assert [event["kernel"] for event in device.of("load")] == ["elementwise"]


def test_unaligned_strides_run_the_kernel_that_loads_elements(native, device, ship):
    ship(fake_entry("fake"))
    ship(fake_entry("elementwise", elements=True))
    Gemm(m=128, n=128, k=65).run_on_cpu(native)
    assert device.launched["kernel"] == "elementwise"


@pytest.mark.parametrize("other", [
    {"majors": "knn"}, {"dtype": "float16"}, {"family": "sm_100f", "capabilities": ("10.0",)}, {"counter_bytes": 128},
])  # fmt: skip
def test_unaligned_base_is_an_error_where_no_fitting_kernel_loads_elements(native, device, ship, other):
    ship(fake_entry("fake"))
    ship(fake_entry("elementwise", elements=True, **other))
    call = Gemm(m=128, n=128, k=64)
    call.addresses["b"] += 2
    with pytest.raises(HandlerError) as error:
        call.run_on_cpu(native)
    for part in ("operand b", hex(call.addresses["b"]), "not multiples of 16 bytes", "A[1,128,64]", "kernel fake"):
        assert part in str(error.value)
    assert device.of("launch") == []


def test_stand_in_for_a_swapped_kernel_need_not_be_swapped(native, device, ship):
    ship(fake_entry("fake", majors="kkm"))
    ship(fake_entry("elementwise", elements=True, cta_tile=(128, 128, 64), cluster=(1, 1)))
    call = Gemm(m=16, n=512, k=64, swapped=[1])
    call.addresses["b"] += 2
    call.run_on_cpu(native)
    launch = device.launched
    assert launch["kernel"] == "elementwise" and launch["grid"] == (4, 1, 1)
    assert struct.unpack_from("<3Q", launch["params"]) == tuple(call.addresses[name] for name in "abd")
    assert integers(launch["params"], ELEMENT_INTEGERS)["m"] == 16


@pytest.mark.parametrize("operand,shift,kernel", [
    ("b", 2, "elementwise"), ("d", 2, "elementwise"), ("d", 8, "elementwise"), ("d", 16, "fake"),
])  # fmt: skip
def test_a_result_stored_from_registers_must_be_aligned_as_for_the_copy_engine(
    native, device, ship, operand, shift, kernel
):
    ship(fake_entry("fake", registers=True, grid="tiles"))
    ship(fake_entry("elementwise", elements=True))
    call = Gemm(l=2, m=128, n=128, k=64)
    call.addresses[operand] += shift
    call.run_on_cpu(native)
    assert device.launched["kernel"] == kernel
    if kernel == "fake":
        params = device.launched["params"]
        assert struct.unpack_from("<2Q", params, 256) == (call.addresses["d"], call.addresses["scratch"])
        assert struct.unpack_from("<2q", params, 272 + 32) == (128, 128 * 128)


def test_unaligned_rows_of_a_result_stored_from_registers_run_the_kernel_that_stores_elements(native, device, ship):
    ship(fake_entry("fake", registers=True))
    ship(fake_entry("elementwise", elements=True))
    Gemm(m=128, n=100, k=64).run_on_cpu(native)
    assert device.launched["kernel"] == "elementwise"


def test_a_kernel_that_stores_16_bytes_at_a_time_stands_in_for_none(native, device, ship):
    ship(fake_entry("fake", registers=True))
    ship(fake_entry("another", elements=True, registers=True))
    call = Gemm(m=128, n=128, k=64)
    call.addresses["d"] += 2
    with pytest.raises(HandlerError, match="operand d cannot be moved 16 bytes at a time: its address"):
        call.run_on_cpu(native)
    assert device.of("launch") == []


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("m,n,d_columns,kernel", [
    (1, 264, 264, "fake"),
    (1, 257, 257, "elementwise"),  # the store's last granule would leave the buffer
    (1, 257, 264, "fake"),
    (5, 257, 264, "fake"),  # rows in a padded buffer: the rest of a granule falls into the padding
])  # fmt: skip
def test_store_of_whole_granules_never_leaves_the_rows_of_the_result(
    native, device, ship, m, n, d_columns, kernel, registers
):
    ship(fake_entry("fake", registers=registers))
    ship(fake_entry("elementwise", elements=True))
    call = Gemm(m=m, n=n, k=64, d_strides=[m * d_columns, d_columns])
    call.shapes["d"] = (m, d_columns)
    call.run_on_cpu(native)
    assert device.launched["kernel"] == kernel


def test_unaligned_base_under_an_sm_limit_needs_a_kernel_of_workers(native, device, ship):
    ship(fake_entry("fake"))
    ship(fake_entry("a_fills_the_device", elements=True, grid="tiles"))
    ship(fake_entry("b_keeps_the_limit", elements=True, grid="workers"))
    call = Gemm(m=1280, n=1280, k=64, sm_limit=8)
    call.addresses["a"] += 2
    call.run_on_cpu(native)
    assert device.launched["kernel"] == "b_keeps_the_limit" and device.launched["grid"] == (8, 1, 1)


def test_sizes_and_strides_beyond_32_bits_stay_exact(native, device, ship):
    ship(fake_entry(grid="tiles", cluster=(1, 1), cta_tile=(128, 256, 64)))
    call = Gemm(l=1, m=175_000, n=256, k=12_288)  # more than 2**31 elements in A
    call.run_on_cpu(native)
    encoded = decode_tensor_map(device.launched["params"][:128])
    assert encoded["dims"] == (12_288, 175_000, 1)
    assert device.launched["buffers"]["a"][1] == 175_000 * 12_288 * 2
    assert device.launched["grid"] == (1368, 1, 1)
    # batches far apart: 3 x 2^31 elements
    far = Gemm(l=2, m=128, n=256, k=64, a_strides=[3 << 31, 64])
    far.shapes["a"] = (2, 3 << 31)
    far.run_on_cpu(native)
    assert decode_tensor_map(device.of("launch")[1]["params"][:128])["strides"] == (128, 2 * (3 << 31))


@pytest.mark.parametrize("operand,strides", [("a", [64 * 256, 72]), ("b", [10**7, 64]), ("d", [256 * 512, 520])])
def test_strides_that_leave_a_buffer_are_an_error_before_any_launch(native, device, ship, operand, strides):
    ship(fake_entry())
    call = Gemm(l=2, m=256, n=512, k=64, **{f"{operand}_strides": strides})
    with pytest.raises(HandlerError, match=f"strides of operand {operand} .* reach beyond its"):
        call.run_on_cpu(native)
    assert device.of("launch") == []


def test_strides_whose_reach_overflows_64_bits_are_an_error(native, device, ship):
    ship(fake_entry())
    with pytest.raises(HandlerError, match="reach beyond"):
        Gemm(l=2**31 - 2**16, m=256, n=512, k=64, a_strides=[2**62, 64]).run_on_cpu(native)


def test_sliced_operand_is_seen_through_its_strides(native, device, ship):
    ship(fake_entry())
    call = Gemm(l=1, m=100, n=256, k=64, a_strides=[0, 192])  # 64 of 192 columns
    call.shapes["a"] = (100, 192)
    call.run_on_cpu(native)
    assert decode_tensor_map(device.launched["params"][:128])["strides"][0] == 384


def test_kernel_of_the_devices_family_is_picked(native, device, ship):
    ship(fake_entry("hopper"))
    ship(fake_entry("blackwell", family="sm_100f", capabilities=("10.0", "10.3"), cluster=(1, 1)))
    both = dict(kernels="hopper,blackwell", swapped=[0, 0], raster_group=[1, 9], raster_along=[0, 1], split_k=[1, 1])
    device.compute_capability = (10, 3)
    Gemm(m=1280, **both).run_on_cpu(native)
    assert device.launched["kernel"] == "blackwell"
    assert integers(device.launched["params"])["raster_group"] == 9


def test_no_kernel_for_the_device_names_the_device_and_the_kernels(native, device, ship):
    ship(fake_entry("hopper"))
    device.compute_capability = (8, 0)
    with pytest.raises(HandlerError, match=r"compute capability 8\.0; it names hopper \(sm_90a\)") as error:
        Gemm(kernels="hopper").run_on_cpu(native)
    assert error.value.code == 9


def test_kernel_is_loaded_once_for_a_device_and_again_for_the_next(native, device, ship):
    from fake_kernels import RecordingDevice

    ship(fake_entry())
    for _ in range(3):
        Gemm().run_on_cpu(native)
    assert len(device.of("load")) == 1 and len(device.of("launch")) == 3
    second = RecordingDevice()
    native.set_emulator(second)
    Gemm().run_on_cpu(native)
    assert len(second.of("load")) == 1 and len(second.of("launch")) == 1 and len(device.of("launch")) == 3


def test_exception_of_the_device_becomes_an_error_with_its_text(native, device, ship):
    def fail(*arguments):
        raise RuntimeError("data race at line 42")

    ship(fake_entry())
    device.launch = fail
    with pytest.raises(HandlerError, match="(?s)kernel fake: cuLaunchKernelEx .*data race at line 42") as error:
        Gemm().run_on_cpu(native)
    assert error.value.code == 13


def test_without_a_device_the_error_says_how_to_get_one(native, ship):
    ship(fake_entry())
    with pytest.raises(HandlerError, match="jax_clc.emulated"):
        Gemm().run_on_cpu(native)
