"""Bad attributes and bad buffers: an error that names what is wrong, never a launch."""

from __future__ import annotations

import pytest
from calls import Gemm
from fake_kernels import fake_entry
from fake_xla import HandlerError, Runtime

from jax_clc.planning.constraints import MAX_RASTER_GROUP, MAX_SIZE, SIZE_MARGIN

REMOVE = object()


@pytest.mark.parametrize("changed,text", [
    ({"abi": 2}, "lowered for launcher ABI 2, this jax_clc has ABI 1"),
    ({"abi": REMOVE}, "attribute abi"),
    ({"m": -1}, "attribute m is -1"),
    ({"m": "x"}, "attribute m"),
    ({"l": 2**31}, f"attribute l is 2147483648, beyond the limit of {MAX_SIZE}"),
    ({"m": MAX_SIZE + 1}, f"attribute m is {MAX_SIZE + 1}, beyond the limit of {MAX_SIZE}"),
    ({"n": 2**31 - 1}, f"attribute n is 2147483647, beyond the limit of {MAX_SIZE}"),
    ({"k": 2**31 - 63}, f"attribute k is 2147483585, beyond the limit of {MAX_SIZE}"),
    ({"raster_group": [0]}, f"attribute raster_group holds 0, expected 1 to {MAX_RASTER_GROUP}"),
    ({"raster_group": [MAX_RASTER_GROUP + 1]}, f"attribute raster_group holds {MAX_RASTER_GROUP + 1}, expected 1 to"),
    ({"raster_along": [2]}, "attribute raster_along holds 2, expected 0 to 1"),
    ({"a_major": "n"}, "a_major is 'n'"),
    ({"b_major": ""}, "b_major is ''"),
    ({"a_strides": [1]}, "a_strides has 1 entries instead of 2"),
    ({"d_strides": [1, -8]}, "d_strides holds -8"),
    ({"kernels": ""}, "names no kernel"),
    ({"kernels": "gone"}, "none of the kernels gone; it has 1 kernels"),
    ({"swapped": [0, 0]}, "swapped has 2 entries instead of 1"),
    ({"sm_limit": -3}, "sm_limit is -3"),
    ({"split_k": [2]}, "split_k is 2, the kernel cannot split"),
    ({"a_major": "m"}, "operand a of the kernel must be k-major, the call's is m-major"),
    ({"swapped": [1]}, r"operand d of the kernel \(swapped\) must be n-major, the call's is m-major"),
])  # fmt: skip
def test_bad_attributes_are_named(native, ship, changed, text):
    ship(fake_entry())
    attributes = {**Gemm().attributes, **changed}
    attributes = {name: value for name, value in attributes.items() if value is not REMOVE}
    with pytest.raises(HandlerError, match=text):
        Runtime().call(native.handlers("CUDA")["instantiate"], "instantiate", attributes)


def test_the_extension_and_the_planner_have_the_same_limits(native):
    assert (native.max_size, native.size_margin) == (MAX_SIZE, SIZE_MARGIN)
    assert native.max_raster_group == MAX_RASTER_GROUP


def test_more_parts_of_k_than_the_kernel_counts_in_32_bits_is_an_error(native, ship):
    ship(fake_entry(partial_bytes=4))
    call = Gemm(m=16, n=16, k=MAX_SIZE, split_k=[65])
    with pytest.raises(HandlerError, match=f"split_k is 65: that many times {MAX_SIZE // 64} k tiles is beyond"):
        Runtime().call(native.handlers("CUDA")["instantiate"], "instantiate", call.attributes)
    call = Gemm(m=16, n=16, k=MAX_SIZE, split_k=[64])
    Runtime().call(native.handlers("CUDA")["instantiate"], "instantiate", call.attributes)


@pytest.mark.parametrize("operand,dtype", [("a", "float16"), ("b", "float64"), ("d", "float32")])
def test_wrong_dtype_of_a_buffer_names_operand_and_both_dtypes(native, device, ship, operand, dtype):
    ship(fake_entry())
    call = Gemm()
    call.dtypes[operand] = dtype
    named = "another dtype" if dtype == "float64" else dtype
    with pytest.raises(HandlerError, match=f"operand {operand} is {named}, the kernel takes bfloat16"):
        call.run_on_cpu(native)
    assert device.of("launch") == []


def test_null_buffer_of_a_product_that_is_not_empty_is_an_error(native, device, ship):
    ship(fake_entry())
    call = Gemm()
    call.addresses["b"] = 0
    with pytest.raises(HandlerError, match="operand b has no memory"):
        call.run_on_cpu(native)


def test_more_tiles_than_a_grid_can_have_is_an_error(native, device, ship):
    ship(fake_entry(grid="tiles"))
    with pytest.raises(HandlerError, match="more tiles than a grid can have"):
        call = Gemm(l=MAX_SIZE, m=1024, n=1024, k=64, a_strides=[0, 64], b_strides=[0, 64], d_strides=[0, 1024])
        call.run_on_cpu(native)


@pytest.mark.parametrize("l,fits", [(MAX_SIZE // 2, True), (MAX_SIZE // 2 + 1, False)])
def test_workers_may_count_on_past_the_last_tile_within_32_bits(native, device, ship, l, fits):  # noqa: E741
    ship(fake_entry(cluster=(1, 1)))
    call = Gemm(l=l, m=129, n=8, k=64, a_strides=[0, 64], b_strides=[0, 64], d_strides=[0, 8])
    if fits:
        call.run_on_cpu(native)
    else:
        with pytest.raises(HandlerError, match="more tiles than a grid can have"):
            call.run_on_cpu(native)
    assert len(device.of("launch")) == fits


@pytest.mark.parametrize("change,text", [
    (lambda e: e.update(abi_version=7), "built for launcher ABI 7, this extension has ABI 1"),
    (lambda e: e.pop("symbol"), "the field 'symbol' is missing"),
    (lambda e: e.update(minimum_driver="new"), "the field 'minimum_driver' has the wrong type"),
    (lambda e: e["dtypes"].update(a="bf16"), "dtype is 'bf16', known are bfloat16"),
    (lambda e: e["majors"].update(a="n"), "the major of a is 'n'"),
    (lambda e: e.update(compute_capabilities=["9"]), "compute capability '9'"),
    (lambda e: e["launch"].update(cluster=[1, 1, 1]), "launch.cluster"),
    (lambda e: e["launch"].update(block=[384, 0, 1]), "launch.block must have three positive axes"),
    (lambda e: e.update(cta_tile=[128, 0, 64]), "cta_tile must be three and cluster two positive integers"),
    (lambda e: e.update(cluster=[0, 1]), "cta_tile must be three and cluster two positive integers"),
    (lambda e: e.update(cta_tile=[SIZE_MARGIN // 8 + 1, 256, 64]), "cta_tile has more than 8192 elements along"),
    (lambda e: e.update(cta_tile=[2**62, 2**62, 64]), "cta_tile has more than 8192 elements along"),
    (lambda e: e.update(cta_tile=[128, 256, SIZE_MARGIN]), "cta_tile has more than 8192 elements along"),
    (lambda e: e.update(cluster_k=2**62), "a cluster has at most 8 CTAs"),
    (lambda e: e["launch"].update(grid="some"), "launch.grid is 'some', known are workers, tiles"),
    (lambda e: e["params"][0].update(size=64), "a parameter at offset 0 has size 64, its contents take 128"),
    (lambda e: e["params"][0].update(axes=["k", "n", "l"]), "axis 'n' of a tensor map must be one of mkl"),
    (lambda e: e["params"][0].update(axes=["k", "k", "l"]), "axis 'k' of a tensor map"),
    (lambda e: e["params"][0].update(swizzle="256B"), "swizzle is '256B', known are none, 32B, 64B, 128B"),
    (lambda e: e["params"][2].update(kind="pointer", size=8, access_bytes=32), "access_bytes is 32, known is 16"),
    (lambda e: e["params"][2].update(kind="pointer", size=8, access_bytes="16"), "'access_bytes' has the wrong type"),
    (lambda e: e["params"][3].update(access_bytes=16), "scratch has no access_bytes"),
    (lambda e: e["params"][1].update(offset=64), "params must be in order and not overlap"),
    (lambda e: e["params"][-1].update(offset=5000), "the parameters take more than 4096 bytes"),
    (lambda e: e["params"][-1].update(values=["a_outer"], size=4), "the stride 'a_outer' must be passed as int64"),
    (lambda e: e["params"][-1].update(values=["q"], size=4), "values is 'q', known are m, n"),
    (lambda e: e["scratch"].update(zeroed_bytes=4), "zeroed_bytes"),
])  # fmt: skip
def test_bad_manifest_entry_is_refused_with_kernel_and_field(native, change, text):
    entry = fake_entry("broken")
    change(entry)
    with pytest.raises(ValueError, match="kernel broken: .*") as error:
        native.register_kernel(entry, "broken.cubin")
    assert text in str(error.value)


@pytest.mark.parametrize("name", [5, None, ["x"], "\ud800"])
def test_manifest_entry_whose_name_is_no_text_is_refused(native, name):
    with pytest.raises(ValueError, match=r"kernel \(unnamed\): the field 'name' has the wrong type"):
        native.register_kernel({**fake_entry(), "name": name}, "broken.cubin")
