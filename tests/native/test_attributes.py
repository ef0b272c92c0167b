"""Bad attributes and bad buffers: an error that names what is wrong, never a launch."""

from __future__ import annotations

import pytest
from calls import Gemm
from fake_kernels import fake_entry
from fake_xla import HandlerError, Runtime

REMOVE = object()


@pytest.mark.parametrize("changed,text", [
    ({"abi": 2}, "lowered for launcher ABI 2, this jax_clc has ABI 1"),
    ({"abi": REMOVE}, "attribute abi"),
    ({"m": -1}, "attribute m is -1"),
    ({"m": "x"}, "attribute m"),
    ({"m": 2**31}, "2147483648 does not fit into the kernel's 32-bit sizes"),
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
        call = Gemm(l=2**31 - 1, m=1024, n=1024, k=64, a_strides=[0, 64], b_strides=[0, 64], d_strides=[0, 1024])
        call.run_on_cpu(native)


@pytest.mark.parametrize("change,text", [
    (lambda e: e.update(abi_version=7), "built for launcher ABI 7, this extension has ABI 1"),
    (lambda e: e.pop("symbol"), "the field 'symbol' is missing"),
    (lambda e: e.update(minimum_driver="new"), "the field 'minimum_driver' has the wrong type"),
    (lambda e: e["dtypes"].update(a="bf16"), "dtype is 'bf16', known are bfloat16"),
    (lambda e: e["majors"].update(a="n"), "the major of a is 'n'"),
    (lambda e: e.update(compute_capabilities=["9"]), "compute capability '9'"),
    (lambda e: e["launch"].update(cluster=[1, 1, 1]), "launch.cluster"),
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
