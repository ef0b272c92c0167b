"""What a product lowers to for CUDA, seen on any machine: how many calls of which kernels, and no operand copied."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo import lowered
from jax._src.compute_on import extend_compute_type

from jax_clc import gemm_lowering
from jax_clc.matmul import dot_general, einsum, matmul, plan
from jax_clc.options import GemmOptions

sys.path.append(str(Path(__file__).parent.parent / "planning"))
import synthetic_manifest  # noqa: E402

COPIES = {"transpose", "pad", "reshape", "copy", "gather", "concatenate", "dynamic_slice", "slice", "dot_general"}


@pytest.fixture(autouse=True)
def kernels(tmp_path, monkeypatch):
    wide = [
        synthetic_manifest.entry("sm_90a", "static", out="float32", majors=m)
        for m in ("knn", "mkn", "mnn", "kkm", "mnm")
    ]
    content = synthetic_manifest.entries() + wide
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path, content)))
    jax.clear_caches()
    yield
    jax.clear_caches()


def struct(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def _loss(call, a, b):
    out = call(a, b)
    return (out * out).astype(jnp.float32).sum()


BATCHED = (((2,), (1,)), ((0,), (0,)))
FORWARD = {
    "matmul": (matmul, struct(256, 128), struct(128, 512)),
    "matmul_batched": (matmul, struct(4, 256, 128), struct(4, 128, 512)),
    "matmul_broadcast": (matmul, struct(4, 256, 128), struct(128, 512)),
    "dot_general": (functools.partial(dot_general, dimension_numbers=BATCHED), struct(4, 256, 128), struct(4, 128, 64)),
    "dot_general_k_first": (
        functools.partial(dot_general, dimension_numbers=(((0,), (0,)), ((), ()))), struct(128, 256), struct(128, 64)
    ),
    "einsum_projection": (functools.partial(einsum, "bsd,dhe->bshe"), struct(2, 128, 64), struct(64, 8, 32)),
    "einsum_projection_back": (functools.partial(einsum, "bshe,hed->bsd"), struct(2, 128, 8, 32), struct(8, 32, 64)),
    "einsum_each_head_its_own": (
        functools.partial(einsum, "bsnd,ndk->bsnk"), struct(2, 64, 8, 32), struct(8, 32, 64)
    ),
    "einsum_k_major_b": (functools.partial(einsum, "mk,nk->mn"), struct(256, 128), struct(64, 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_forward_is_one_call_on_the_operands_as_they_lie(name) -> None:
    call, a, b = FORWARD[name]
    program = lowered(call, a, b)
    assert len(program.calls) == 1
    assert set(program.calls[0].operands) == {"%arg0", "%arg1"}
    assert not COPIES & set(program.operations), program.text


@pytest.mark.parametrize("name", FORWARD)
def test_backward_is_two_more_calls_and_no_copy(name) -> None:
    call, a, b = FORWARD[name]
    program = lowered(jax.grad(functools.partial(_loss, call), (0, 1)), a, b)
    assert len(program.calls) == 3
    assert not COPIES & set(program.operations), program.text
    linear = lowered(jax.grad(lambda a, b: call(a, b).astype(jnp.float32).sum(), (0, 1)), a, b)
    assert len(linear.calls) == 2, "the forward product is not needed for its own derivative"


def test_backward_products_read_operands_by_other_majors() -> None:
    _, a, b = FORWARD["matmul"]
    forward, *backward = lowered(jax.grad(functools.partial(_loss, matmul), (0, 1)), a, b).calls
    assert (forward["a_major"], forward["b_major"]) == ("k", "n")
    assert sorted((c["a_major"], c["b_major"]) for c in backward) == [("k", "k"), ("m", "n")]


def test_a_transposed_operand_is_read_as_it_lies() -> None:
    program = lowered(lambda a, b: matmul(a.T, b), struct(128, 256), struct(128, 64))
    (call,) = program.calls
    assert call.operands == ("%arg0", "%arg1") and call["a_major"] == "m"


def test_widened_operands_are_read_narrow() -> None:
    def f(a, b):
        return matmul(a.astype(jnp.float32), b.astype(jnp.float32))

    (call,) = lowered(f, struct(128, 256), struct(256, 64)).calls
    assert call.operands == ("%arg0", "%arg1")


def test_gradient_of_a_32_bit_result_runs_on_16_bit_kernels() -> None:
    def loss(a, b):
        out = matmul(a, b, preferred_element_type=jnp.float32).astype(jnp.bfloat16)
        return _loss(lambda x, y: x * y, out, out)

    program = lowered(jax.grad(loss, (0, 1)), struct(128, 256), struct(256, 64))
    assert len(program.calls) == 3 and "dot_general" not in program.operations


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "a", "b", "sizes"),
    [
        ((0, None), 0, struct(3, 64, 128), struct(128, 256), (1, 192, 256, 128)),
        ((None, 1), 1, struct(64, 128), struct(128, 3, 256), (1, 64, 768, 128)),
        ((None, 0), 0, struct(64, 128), struct(3, 128, 256), (3, 64, 256, 128)),
        ((0, 0), 0, struct(3, 64, 128), struct(3, 128, 256), (3, 64, 256, 128)),
    ],
)
def test_a_vmapped_axis_folds_into_m_or_n_or_is_the_batch(in_axes, out_axes, a, b, sizes) -> None:
    (call,) = lowered(jax.vmap(matmul, in_axes, out_axes), a, b).calls
    assert tuple(int(call[name]) for name in "lmnk") == sizes
    assert call.operands == ("%arg0", "%arg1")


def test_an_operand_shared_by_all_batches_has_batch_stride_zero() -> None:
    (call,) = lowered(jax.vmap(matmul, (None, 0)), struct(64, 128), struct(3, 128, 256)).calls
    assert call["a_strides"].split(", ")[0] == "0"


def test_unaligned_rows_are_padded_inside_the_program() -> None:
    program = lowered(matmul, struct(256, 100), struct(100, 513))
    (call,) = program.calls
    assert (call["m"], call["n"], call["k"]) == ("256", "513", "100"), "sizes stay: the kernel reads no padding"
    assert program.operations["pad"] == 2 and program.operations["slice"] == 1
    assert call["a_strides"].split(", ")[1] == "128" and call["b_strides"].split(", ")[1] == "576"


def test_an_element_copying_kernel_needs_no_padding() -> None:
    (name,) = [
        k["name"] for k in synthetic_manifest.entries() if k["operand_copies"] == "elements" and "_knn_" in k["name"]
    ]
    program = lowered(functools.partial(matmul, kernel=name), struct(256, 100), struct(100, 513))
    assert program.calls[0]["kernels"] == name and "pad" not in program.operations


def test_a_program_holds_kernel_names_and_no_code() -> None:
    program = lowered(matmul, struct(4096, 4096), struct(4096, 4096))
    names = program.calls[0]["kernels"].split(",")
    assert [name.split("_")[0] for name in names] == ["sm90", "sm100"]
    assert len(program.text) < 3000


@pytest.mark.parametrize("call", [functools.partial(matmul, precision="highest"), matmul])
def test_what_has_no_kernel_is_lax(call) -> None:
    dtype = jnp.bfloat16 if call is not matmul else jnp.float32
    program = lowered(call, struct(64, 64, dtype=dtype), struct(64, 64, dtype=dtype))
    assert not program.calls and program.operations["dot_general"] == 1


def test_the_default_precision_is_that_of_the_call() -> None:
    """Not that of the lowering: a traced program, or a backward product, may meet another one later."""

    def highest(call, traced_in, lowered_in) -> int:
        with jax.default_matmul_precision(traced_in):
            traced = jax.jit(call).trace(struct(64, 64), struct(64, 64))
        with jax.default_matmul_precision(lowered_in):
            return traced.lower().as_text().count("HIGHEST")

    for contexts in ((None, "highest"), ("highest", None), (None, None), ("highest", "highest")):
        assert highest(matmul, *contexts) == highest(jnp.matmul, *contexts)


def test_a_backward_product_has_the_default_precision_of_its_own_call() -> None:
    a, b = jnp.ones((256, 128), jnp.bfloat16), jnp.ones((128, 512), jnp.bfloat16)
    out, backward = jax.vjp(matmul, a, b)
    assert len(lowered(backward, out).calls) == 2
    with jax.default_matmul_precision("highest"):
        assert not lowered(backward, out).calls


def test_a_64_bit_program_is_lowered_outside_the_64_bit_mode() -> None:
    with jax.enable_x64(True):
        traced = jax.jit(functools.partial(matmul, preferred_element_type=jnp.float64)).trace(
            jnp.ones((4, 8), jnp.float32), jnp.ones((8, 3), jnp.float64)
        )
    assert "tensor<4x3xf64>" in traced.lower().as_text()


@pytest.mark.parametrize(
    ("dtype", "algorithm", "calls"),
    [
        (jnp.bfloat16, "DEFAULT", 1),
        (jnp.bfloat16, "BF16_BF16_F32", 1),
        (jnp.float16, "F16_F16_F32", 1),
        (jnp.bfloat16, "F16_F16_F32", 0),
        (jnp.bfloat16, "F32_F32_F32", 0),
        (jnp.bfloat16, "BF16_BF16_F32_X3", 0),
    ],
)
def test_an_algorithm_is_ours_where_it_casts_nothing(dtype, algorithm, calls) -> None:
    call = functools.partial(matmul, precision=algorithm)
    assert len(lowered(call, struct(64, 64, dtype=dtype), struct(64, 64, dtype=dtype)).calls) == calls


@pytest.mark.parametrize(
    ("a", "b"), [((4, 0), (0, 4)), ((0, 4), (4, 4)), ((3, 4, 0), (3, 0, 4)), ((0, 4, 8), (0, 8, 4))]
)
def test_empty_products_call_no_kernel(a, b, monkeypatch) -> None:
    monkeypatch.setenv("JAX_CLC_STRICT", "1")
    for call in (matmul, functools.partial(matmul, schedule="static")):
        assert not lowered(call, struct(*a), struct(*b)).calls
    assert "empty" in str(plan(struct(*a), struct(*b), schedule="static").fallback_reason)


def test_scan_and_while_call_the_kernel_from_their_bodies() -> None:
    def loop(a, b):
        return jax.lax.scan(lambda c, x: (c, matmul(x, b)), 0, a)[1]

    assert len(lowered(loop, struct(5, 64, 128), struct(128, 256)).calls) == 1


def test_strict_mode_forbids_every_fallback(monkeypatch) -> None:
    monkeypatch.setenv("JAX_CLC_STRICT", "1")
    lowered(matmul, struct(64, 64), struct(64, 64))
    with pytest.raises(ValueError, match=r"strict mode forbids.*float32"):
        lowered(matmul, struct(64, 64, dtype=jnp.float32), struct(64, 64, dtype=jnp.float32))
    with pytest.raises(ValueError, match=r"bfloat16\[64,64\]|bfloat16\[64, 64\].*kernels"):
        jax.jit(matmul)(jnp.ones((64, 64), jnp.bfloat16), jnp.ones((64, 64), jnp.bfloat16))


@pytest.mark.parametrize(("value", "strict"), [("", False), ("0", False), ("false", False), ("1", True), ("On", True)])
def test_the_strict_variable_is_a_switch(monkeypatch, value, strict) -> None:
    monkeypatch.setenv("JAX_CLC_STRICT", value)
    assert GemmOptions.checked("auto", None, None).strict is strict


def test_a_strict_variable_that_says_neither_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("JAX_CLC_STRICT", "maybe")
    with pytest.raises(ValueError, match="JAX_CLC_STRICT='maybe': expected 1, or 0 or nothing"):
        plan(struct(64, 64), struct(64, 64))


def test_a_pinned_kernel_is_the_forward_products_alone() -> None:
    a, b = struct(256, 128), struct(128, 512)
    name = plan(a, b, schedule="nonpersistent").choices["sm_90a"].kernel
    forward, *backward = lowered(
        jax.grad(functools.partial(_loss, functools.partial(matmul, kernel=name)), (0, 1)), a, b
    ).calls
    assert forward["kernels"] == name
    assert all(name not in call["kernels"].split(",") for call in backward)


def test_a_pinned_kernel_is_given_the_operands_that_the_caller_sees() -> None:
    a, b = struct(128, 256), struct(128, 512)
    name = plan(struct(256, 128), b, schedule="static").choices["sm_90a"].kernel
    program = lowered(lambda a, b: matmul(a.T, b, kernel=name), a, b)
    assert program.calls[0]["kernels"] == name and program.calls[0].operands[0] != "%arg0"


def test_a_schedule_is_kept_in_the_backward_products_where_it_fits() -> None:
    call = functools.partial(matmul, schedule="static")
    program = lowered(jax.grad(functools.partial(_loss, call), (0, 1)), struct(256, 128), struct(128, 512))
    assert all(name.endswith("_static") for c in program.calls for name in c["kernels"].split(","))


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
def test_demands_that_cannot_be_honoured_are_errors_on_every_platform(platform) -> None:
    a, b = struct(256, 128), struct(128, 512)
    with pytest.raises(ValueError, match="does not exist; choose from auto, nonpersistent, static"):
        lowered(functools.partial(matmul, schedule="greedy"), a, b, platform=platform)
    with pytest.raises(ValueError, match=r"(?s)does not exist.*Kernels that fit: sm100_"):
        lowered(functools.partial(matmul, kernel="sm90_none"), a, b, platform=platform)
    with pytest.raises(ValueError, match=r"schedule='clc' cannot be honoured.*float32.*No kernel fits"):
        lowered(
            functools.partial(matmul, schedule="clc"), struct(8, 8, dtype=jnp.float32), struct(8, 8), platform=platform
        )
    with pytest.raises(ValueError, match="leaves no SM"):
        lowered(functools.partial(matmul, sm_limit=0), a, b, platform=platform)


def test_sm_limit_reaches_the_call_and_leaves_schedules_that_honour_it() -> None:
    (call,) = lowered(functools.partial(matmul, sm_limit=8), struct(4096, 512), struct(512, 4096)).calls
    assert call["sm_limit"] == "8"
    assert all(name.endswith(("_static", "_dynamic")) for name in call["kernels"].split(","))


@pytest.mark.parametrize("limit", [np.int64(8), 2**63])
def test_sm_limit_is_any_whole_number(limit) -> None:
    (call,) = lowered(functools.partial(matmul, sm_limit=limit), struct(4096, 512), struct(512, 4096)).calls
    assert int(call["sm_limit"]) == min(limit, 2**31 - 1)


def test_what_the_host_computes_calls_no_kernel() -> None:
    def on_the_host(a, b):
        with extend_compute_type("device_host"):  # what `compute_on` sets, which jax 0.10 has changed
            return matmul(a, b)

    found = lowered(on_the_host, struct(256, 128), struct(128, 512))
    assert not found.calls
    assert found.operations["dot_general"] == 1


def test_plan_is_for_the_gpu_at_hand(monkeypatch) -> None:
    a, b = struct(256, 128), struct(128, 512)
    jax.devices()  # plans are for a GPU only once JAX has looked for one
    assert set(plan(a, b).choices) == {"sm_90a", "sm_100f"}
    for capability, family in (("9.0", "sm_90a"), ("10.3", "sm_100f")):
        monkeypatch.setattr(gemm_lowering, "_local_gpu", lambda found=capability: found)
        assert set(plan(a, b).choices) == {family}
    monkeypatch.setattr(gemm_lowering, "_local_gpu", lambda: "8.0")
    assert not plan(a, b).choices
    assert "no kernels are built for compute capability 8.0" in plan(a, b).fallback_reason


def test_plan_does_not_make_jax_look_for_devices() -> None:
    code = (
        "import jax, jax.numpy as jnp, jax_clc; from jax._src import xla_bridge\n"
        "x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)\n"
        "print(len(jax_clc.plan(x, x).choices), xla_bridge.backends_are_initialized())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["2", "False"]


def test_plan_tells_what_the_call_does() -> None:
    a, b = struct(256, 128), struct(128, 512)
    (call,) = lowered(matmul, a, b).calls
    told = plan(a, b)
    assert ",".join(choice.kernel for choice in told.choices.values()) == call["kernels"]
    assert "float32" in plan(struct(8, 8, dtype=jnp.float32), struct(8, 8, dtype=jnp.float32)).fallback_reason
    assert "precision" in plan(a, b, precision="highest").fallback_reason
    numbers = (((0,), (0,)), ((), ()))
    assert plan(struct(128, 256), struct(128, 64), dimension_numbers=numbers).problem.a_major == "m"
    with pytest.raises(TypeError, match="contracting dimensions"):
        plan(a, a)


def test_operands_with_symbolic_sizes_fall_back() -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    exported = jax.export.export(jax.jit(matmul), platforms=("cuda",))(struct(rows, 128), struct(128, 256))
    assert "jax_clc.gemm" not in exported.mlir_module() and "dot_general" in exported.mlir_module()
