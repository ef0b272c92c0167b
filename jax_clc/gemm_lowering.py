"""Lowers `PRODUCTS`: to the custom call `jax_clc.gemm.v1` where a kernel serves, to `lax.dot_general` elsewhere.

`plan_contraction` answers which; `_lower_for` writes the program: padding copies if the plan asks for them, the call
with its scratch, and a slice of the result if its rows were padded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_clc import _jax_internals as internals
from jax_clc import emulation, native, partitioning
from jax_clc.contraction import Contraction
from jax_clc.gemm_primitive import PRODUCTS, gemm_p, reference
from jax_clc.gemm_view import GemmView, MatrixView, NotAGemm, gemm_view
from jax_clc.operand_source import given, sources_of
from jax_clc.options import GemmOptions
from jax_clc.planning import GemmPlan, GemmProblem, planner, reference_devices
from jax_clc.planning.catalog import FAMILIES, family_of
from jax_clc.planning.device_model import DeviceModel

KERNEL_OPERAND_DTYPES = frozenset({"bfloat16", "float16"})
"""Operand dtypes that kernels are written for; which of them ship, the manifest says."""
ALGORITHM_DTYPES: dict[Any, frozenset[str]] = {
    lax.DotAlgorithmPreset.DEFAULT: KERNEL_OPERAND_DTYPES,
    lax.DotAlgorithmPreset.BF16_BF16_F32: frozenset({"bfloat16"}),
    lax.DotAlgorithmPreset.F16_F16_F32: frozenset({"float16"}),
}
"""Algorithms that are ours, with the dtypes that they leave as they are: XLA casts others to them first."""


def static_fallback_reason(a: Any, b: Any, precision: Any) -> str | None:
    """Why no kernel can serve whatever the sizes are; None if one may. `a`, `b` have dtypes."""
    for name, operand in (("a", a), ("b", b)):
        if operand.dtype.name not in KERNEL_OPERAND_DTYPES:
            return f"{name} is {operand.dtype.name}; kernels take {', '.join(sorted(KERNEL_OPERAND_DTYPES))}"
    if isinstance(precision, lax.DotAlgorithmPreset | lax.DotAlgorithm):
        served = {a.dtype.name, b.dtype.name} <= ALGORITHM_DTYPES.get(precision, frozenset())
    else:
        wanted = precision if isinstance(precision, tuple) else (precision,)
        served = set(wanted) <= {None, lax.Precision.DEFAULT}
    return None if served else f"precision {precision} asks for another sum than one pass in 32 bits"


def plan_contraction(
    contraction: Contraction,
    a: Any,
    b: Any,
    out_dtype: Any,
    precision: Any,
    options: GemmOptions,
    devices: Sequence[DeviceModel] | None = None,
    unserved: str | None = None,
) -> tuple[GemmPlan, GemmView | None]:
    """The plan for operands with shapes and dtypes. The view is None where the contraction is not a GEMM. `unserved`
    says why no kernel can run here, if none can.

    Raises ValueError for a demanded schedule or kernel that cannot be honoured, listing those that fit. An empty sum or
    result needs none, whatever is demanded.
    """
    reason = static_fallback_reason(a, b, precision) or unserved
    empty = 0 in (*a.shape, *b.shape)
    try:
        if empty:
            raise NotAGemm(f"shapes {a.shape} and {b.shape}: an empty sum or result needs no kernel")
        view = gemm_view(contraction, a.shape, b.shape)
    except NotAGemm as error:
        reason, view = reason or str(error), None
    problem = _problem(contraction, view, a, b, out_dtype)
    if reason is None:
        request = functools.partial(planner.plan, problem, sm_limit=options.sm_limit, devices=devices)
        try:
            return request(schedule=options.schedule, kernel=options.kernel), view
        except ValueError:
            if options.demanded:
                raise
        return request(), view
    if options.demanded and options.pinned and not empty:
        asked = f"kernel={options.kernel!r}" if options.kernel is not None else f"schedule={options.schedule!r}"
        raise ValueError(f"{asked} cannot be honoured for {problem}: {reason}. No kernel fits.")
    return GemmPlan(problem, {}, reason), view


def _problem(contraction: Contraction, view: GemmView | None, a: Any, b: Any, out_dtype: Any) -> GemmProblem:
    """The product as the planner knows it; with sizes only where it is not a GEMM that a kernel could be asked for."""
    out = np.dtype(out_dtype).name
    if view is not None:
        first, second = (b, a) if view.exchanged else (a, b)
        a_strides, b_strides, d_strides = (v.strides(view.batch) for v in (view.a, view.b, view.d))
        return GemmProblem(
            view.batch, view.m, view.n, view.k, first.dtype.name, second.dtype.name, out, view.a.major, view.b.major,
            a_strides, b_strides, d_strides,
        )  # fmt: skip
    sizes = contraction.sizes(a.shape, b.shape)

    def product(labels: Iterable[int]) -> int:
        return math.prod(sizes[x] if isinstance(sizes[x], int) else 1 for x in labels)

    free = [x for x in contraction.out if x not in contraction.batch]
    m, n = (product(x for x in free if x in labels) for labels in (contraction.a, contraction.b))
    compact = GemmProblem.compact(
        m, n, product(contraction.contracted), batch=product(contraction.batch), out_dtype=out
    )
    return dataclasses.replace(compact, a_dtype=a.dtype.name, b_dtype=b.dtype.name)


def _lower_reference(ctx: Any, a: Any, b: Any, *, reason: str = "", **parameters: Any) -> Any:
    if parameters["options"].strict:
        (out,) = ctx.avals_out
        shapes = " x ".join(f"{aval.dtype.name}{list(aval.shape)}" for aval in ctx.avals_in)
        raise ValueError(
            f"jax_clc: {parameters['contraction']} of {shapes} -> {out.dtype.name}{list(out.shape)} "
            f"falls back to lax.dot_general, which strict mode forbids: {reason or 'kernels are for CUDA devices'}"
        )
    return internals.lower_traced(functools.partial(reference, **parameters), ctx, a, b)


def _lower_for(ctx: Any, a: Any, b: Any, *, devices: Sequence[DeviceModel] | None, **parameters: Any) -> Any:
    """One device's product for CUDA, or for the emulated device."""
    (out_aval,) = ctx.avals_out
    operands = (a, b, ctx.avals_in, parameters["contraction"])
    request = (out_aval.dtype, parameters["precision"], parameters["options"], devices)
    sources, contraction = sources_of(*operands)
    try:
        plan, view = plan_contraction(contraction, *sources, *request)
    except ValueError:
        if parameters["options"].kernel is None:
            raise
        # Pinned for the operands that the caller sees, rather than for those behind a transpose of theirs.
        sources, contraction = given(*operands)
        plan, view = plan_contraction(contraction, *sources, *request)
    if plan.fallback_reason is not None or view is None:
        empty = any(0 in source.shape for source in sources)
        options = parameters["options"] if not empty else GemmOptions()
        return _lower_reference(ctx, a, b, reason=plan.fallback_reason or "", **{**parameters, "options": options})
    program = _program(view, plan, out_aval)
    inner = ctx.replace(avals_in=[source.aval for source in sources])
    return internals.lower_traced(program, inner, *(source.value for source in sources), plain=True)


def _program(view: GemmView, plan: GemmPlan, out: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The product as a traceable function of the contraction's operands."""
    rows: dict[str, int] = {operand: row for operand, row in plan.pads.items()}
    laid = {name: _grown(getattr(view, name), rows.get(name)) for name in "abd"}
    strides = {f"{name}_strides": np.array(laid[name].strides(view.batch), np.int64) for name in "abd"}
    attributes = {**plan.attributes(), **(strides if plan.k_parts == 1 else {})}
    direct = laid["d"] == view.d and view.d.permutation is None
    d_shape, parts = out.shape if direct else laid["d"].shape, plan.k_parts
    d_type = jax.ShapeDtypeStruct(d_shape if parts == 1 else (parts, *d_shape), plan.called.out_dtype)
    scratch_type = jax.ShapeDtypeStruct((plan.scratch_bytes,), jnp.uint8)

    def program(a: jax.Array, b: jax.Array) -> jax.Array:
        first, second = (b, a) if view.exchanged else (a, b)
        first, second = _lay_out(first, view.a, laid["a"]), _lay_out(second, view.b, laid["b"])
        d, _ = jax.ffi.ffi_call(native.TARGET, (d_type, scratch_type), vmap_method="sequential")(
            first, second, **attributes
        )
        if parts > 1:
            d = functools.reduce(jnp.add, (d[part] for part in range(parts))).astype(out.dtype)
        if direct:
            return d
        d = lax.slice(d, (0,) * d.ndim, view.d.shape)
        if view.d.permutation is None:
            return d.reshape(out.shape)
        source = [0] * len(out.shape)
        for i, axis in enumerate(view.d.permutation):
            source[axis] = out.shape[i]
        return lax.transpose(d.reshape(source), view.d.permutation)

    return program


def _grown(view: MatrixView, row: int | None) -> MatrixView:
    return view if row is None else view.with_rows_of(row)


def _lay_out(operand: jax.Array, view: MatrixView, laid: MatrixView) -> jax.Array:
    """The operand's buffer as the kernel gets it: transposed if it must be, rows grown by zeros if they must be."""
    if view.permutation is not None:
        operand = lax.transpose(operand, view.permutation)
    return operand if laid.shape == view.shape else padded(operand.reshape(view.shape), laid.shape)


def padded(operand: jax.Array, shape: Sequence[int]) -> jax.Array:
    """The operand with zeros behind it along every axis, up to `shape`.

    Rows of an even number of 16-bit elements are copied as 32-bit words, of which XLA's copy moves more bytes a second.
    """
    if operand.dtype.itemsize == 2 and operand.shape[-1] % 2 == 0 and shape[-1] % 2 == 0:
        words = lax.bitcast_convert_type(operand.reshape(*operand.shape[:-1], -1, 2), jnp.uint32)
        words = padded(words, (*shape[:-1], shape[-1] // 2))
        return lax.bitcast_convert_type(words, operand.dtype).reshape(shape)
    missing = [(0, new - old, 0) for old, new in zip(operand.shape, shape, strict=True)]
    return lax.pad(operand, np.zeros((), operand.dtype), missing)


@functools.cache
def _local_gpu() -> str | None:
    """Compute capability of this process's GPU, made ready for our calls; None where JAX has no CUDA backend."""
    try:
        capability = jax.devices("cuda")[0].compute_capability
    except RuntimeError:
        return None
    native.register()
    return capability


def local_devices() -> tuple[DeviceModel, ...] | None:
    """What a product is planned for: the reference device of the GPU at hand alone, since what suits another family
    would decide which operands are padded. Empty where no kernels are built for that GPU, None where there is none."""
    gpu = _local_gpu()
    if gpu is None:
        return None
    served = any(gpu in capabilities for capabilities in FAMILIES.values())
    return tuple(reference_devices((family_of(gpu),))) if served else ()


def devices_at_hand() -> tuple[DeviceModel, ...] | None:
    """The same, without making JAX look for a GPU: None where it has not yet."""
    return local_devices() if internals.backends_are_initialized() else None


def no_kernels_here() -> str:
    """Why `local_devices` is empty."""
    return f"no kernels are built for compute capability {_local_gpu()}"


def _lower_cuda(ctx: Any, a: Any, b: Any, **parameters: Any) -> Any:
    here = None if internals.for_export(ctx.module_context) else local_devices()
    if here == ():
        return _lower_split(ctx, a, b, no_kernels_here(), **parameters)
    return _lower_split(ctx, a, b, functools.partial(_lower_for, devices=here), **parameters)


def _lower_cpu(ctx: Any, a: Any, b: Any, **parameters: Any) -> Any:
    target = parameters["options"].emulated_target or emulation.current_target()
    if target is None:
        return _lower_split(ctx, a, b, "a CPU runs kernels only inside jax_clc.emulated(...)", **parameters)
    return _lower_split(ctx, a, b, functools.partial(_lower_for, devices=(target.model,)), **parameters)


def _lower_split(ctx: Any, a: Any, b: Any, served: Callable[..., Any] | str, **parameters: Any) -> Any:
    """Lowers what is one device's program, and hands what XLA will split to the partitioning rule.

    `served`: the rule of a device that has kernels, or the reason why there are none.
    """
    if internals.computes_on_host(ctx):
        return _lower_reference(ctx, a, b, reason="compute_on asks for the host", **parameters)
    split = internals.partitioned_over(ctx.module_context)
    if split is None:
        if isinstance(served, str):
            return _lower_reference(ctx, a, b, reason=served, **parameters)
        return served(ctx, a, b, **parameters)
    if split != "auto":
        return _lower_reference(ctx, a, b, reason="XLA splits this program in a way no rule serves", **parameters)
    look = sources_of if parameters["options"].kernel is None else given
    sources, contraction = look(a, b, ctx.avals_in, parameters["contraction"])
    reason = static_fallback_reason(*sources, parameters["precision"])
    if reason is None and isinstance(served, str) and parameters["options"].strict:
        reason = served  # an error here, where the caller sees it, and not in XLA's call
    if reason is not None:
        return _lower_reference(ctx, a, b, reason=reason, **parameters)
    return _lower_partitioned(ctx, sources, contraction, parameters)


def _lower_partitioned(ctx: Any, sources: Sequence[Any], contraction: Contraction, parameters: dict[str, Any]) -> Any:
    """The product as a function that XLA calls back to split."""
    # The type is said outright: behind the operands that are split may lie others, of other dtypes.
    preferred = gemm_p.abstract_eval(*ctx.avals_in, **{**parameters, "out_dtype": None})[0].dtype
    options = dataclasses.replace(parameters["options"], emulated_target=emulation.current_target())
    inner = {**parameters, "contraction": contraction, "preferred_element_type": preferred, "options": options}
    results = internals.lower_traced(
        partitioning.partitioned(**inner), ctx.replace(avals_in=[s.aval for s in sources]), *(s.value for s in sources)
    )
    return internals.pin_explicit_sharding(ctx, results)


portable_gemm_p = internals.Primitive("portable_gemm")
"""A product inside a program for several platforms, where JAX chooses between rules registered one for each."""
portable_gemm_p.def_abstract_eval(lambda a, b, **parameters: gemm_p.abstract_eval(a, b, **parameters)[0])


def _lower(ctx: Any, a: Any, b: Any, **parameters: Any) -> Any:
    platforms = internals.platforms(ctx)
    if len(platforms) > 1:
        return internals.lower_traced(functools.partial(portable_gemm_p.bind, **parameters), ctx, a, b)
    rule = {"cuda": _lower_cuda, "cpu": _lower_cpu}.get(platforms[0], _lower_reference)
    return rule(ctx, a, b, **parameters)


for _primitive in PRODUCTS:
    internals.register_lowering(_primitive, _lower)
internals.require_devices_during_lowering(gemm_p)
mlir.register_lowering(portable_gemm_p, _lower_reference)
mlir.register_lowering(portable_gemm_p, _lower_cpu, platform="cpu")
mlir.register_lowering(portable_gemm_p, _lower_cuda, platform="cuda")
internals.require_devices_during_lowering(portable_gemm_p)
