"""matmul, dot_general, einsum and plan: the calls of JAX of the same names, on jax_clc's kernels."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_clc import _jax_internals as internals
from jax_clc import emulation, gemm_lowering
from jax_clc.contraction import Contraction, DimensionNumbers, einsum_contraction
from jax_clc.gemm_primitive import contract
from jax_clc.options import GemmOptions
from jax_clc.planning import GemmPlan

__all__ = ["dot_general", "einsum", "matmul", "plan"]


def matmul(
    a: Any,
    b: Any,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    schedule: str = "auto",
    kernel: str | None = None,
    sm_limit: int | None = None,
) -> jax.Array:
    """`jnp.matmul` on jax_clc's kernels: same shapes, dtypes, broadcasting, shardings and errors.

    Args:
      a, b: arrays of shape (..., m, k) or (k,), and (..., k, n) or (k,), whose leading axes broadcast.
      precision, preferred_element_type, out_sharding: as in `jnp.matmul`. A precision above the default falls back.
      schedule: `auto`, `nonpersistent`, `static`, `dynamic` (Hopper) or `clc` (Blackwell).
      kernel: the name of one kernel that ships (`jax_clc.kernels()`). Under differentiation it applies to the forward
        product only.
      sm_limit: the most SMs the kernel may occupy.

    Where no kernel serves, `lax.dot_general` runs; `jax_clc.plan` says why, and JAX_CLC_STRICT=1 makes it a ValueError.

    Raises:
      TypeError, ValueError: what `jnp.matmul` raises for these operands.
      ValueError: a schedule or kernel that cannot be honoured, with those that fit.
    """
    options = GemmOptions.checked(schedule, kernel, sm_limit)
    settings = dict(precision=precision, preferred_element_type=preferred_element_type, out_sharding=out_sharding)
    contraction, *squeezed = _matmul_contraction(np.shape(a), np.shape(b))
    call = _JaxCall(jnp.matmul, (), tuple(settings.items()))
    return _contracted(a, b, call=call, contraction=contraction, squeezed=tuple(squeezed), options=options)


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    schedule: str = "auto",
    kernel: str | None = None,
    sm_limit: int | None = None,
) -> jax.Array:
    """`lax.dot_general` on jax_clc's kernels: a drop-in, e.g. for Flax's `dot_general=`. Options as in `matmul`."""
    options = GemmOptions.checked(schedule, kernel, sm_limit)
    return _dot_general(
        lhs, rhs, dimension_numbers=_as_tuples(dimension_numbers), precision=_hashable(precision),
        preferred_element_type=preferred_element_type, out_sharding=out_sharding, options=options,
    )  # fmt: skip


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    schedule: str = "auto",
    kernel: str | None = None,
    sm_limit: int | None = None,
) -> jax.Array:
    """`jnp.einsum` with every product of two operands on jax_clc's kernels. Options as in `matmul`.

    A product of two arrays is written in the result's own axis order where strides can say it: no transpose follows.
    """
    options = GemmOptions.checked(schedule, kernel, sm_limit)
    settings = dict(precision=precision, preferred_element_type=preferred_element_type, out_sharding=out_sharding)
    # As `jnp.einsum` does it first: `jax.jit` takes no object that only can be made an array.
    conversions = [getattr(x, "__jax_array__", None) for x in operands]
    operands = tuple(x if convert is None else convert() for x, convert in zip(operands, conversions, strict=True))
    arrays = all(isinstance(x, jax.Array | np.ndarray) for x in operands)
    pair = isinstance(subscripts, str) and len(operands) == 2 and arrays
    contraction = einsum_contraction(subscripts, *map(np.shape, operands)) if pair else None
    if contraction is None:
        product = _EinsumProduct(options)
        return jnp.einsum(subscripts, *operands, optimize=optimize, _dot_general=product, **settings)
    call = _JaxCall(jnp.einsum, (subscripts,), tuple(settings.items()))
    return _contracted(*operands, call=call, contraction=contraction, squeezed=((), ()), options=options)


def plan(
    a: Any,
    b: Any,
    *,
    dimension_numbers: DimensionNumbers | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    schedule: str = "auto",
    kernel: str | None = None,
    sm_limit: int | None = None,
    devices: Any = None,
) -> GemmPlan:
    """What `matmul(a, b)` does (or `dot_general`, given `dimension_numbers`): kernels, grid, predicted time, and why.

    `a` and `b` are arrays or `jax.ShapeDtypeStruct`s; only shapes and dtypes are read. `devices` as in
    `jax_clc.planning.plan`: by default the reference device of this process's GPU, and inside `emulated` the emulated
    device. Where there is no GPU, and before JAX has looked for one, it is one for each GPU family.
    Errors as for the call itself.
    """
    options = GemmOptions.checked(schedule, kernel, sm_limit)
    a, b = (x if isinstance(x, jax.ShapeDtypeStruct) else jax.eval_shape(jnp.asarray, x) for x in (a, b))
    if dimension_numbers is None:
        call = functools.partial(jnp.matmul, precision=precision, preferred_element_type=preferred_element_type)
        out_dtype = jax.eval_shape(call, a, b).dtype
        contraction, a_squeezed, b_squeezed = _matmul_contraction(a.shape, b.shape)
        a, b = (
            jax.ShapeDtypeStruct([size for i, size in enumerate(x.shape) if i not in squeezed], x.dtype)
            for x, squeezed in ((a, a_squeezed), (b, b_squeezed))
        )
    else:
        numbers = _as_tuples(dimension_numbers)
        call = functools.partial(
            jax.lax.dot_general,
            dimension_numbers=numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
        out_dtype = jax.eval_shape(call, a, b).dtype
        contraction = Contraction.from_dimension_numbers(numbers, len(a.shape), len(b.shape))
    canonical = internals.canonicalize_precision(precision)
    target = emulation.current_target()
    unserved = None
    if devices is None:
        devices = (target.model,) if target is not None else gemm_lowering.devices_at_hand()
        if devices == ():  # as at lowering, where nothing demanded makes that an error
            unserved, options = gemm_lowering.no_kernels_here(), GemmOptions()
    return gemm_lowering.plan_contraction(contraction, a, b, out_dtype, canonical, options, devices, unserved)[0]


@dataclasses.dataclass(frozen=True)
class _EinsumProduct:
    """`dot_general` with options, as a value: `jnp.einsum` compiles once for equal ones."""

    options: GemmOptions

    def __call__(self, lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, precision: Any = None,
                 preferred_element_type: Any = None, out_sharding: Any = None) -> jax.Array:  # fmt: skip
        return _dot_general(
            lhs, rhs, dimension_numbers=_as_tuples(dimension_numbers), precision=precision,
            preferred_element_type=preferred_element_type, out_sharding=out_sharding, options=self.options,
        )  # fmt: skip


def _hashable(precision: Any) -> Any:
    """A pair of precisions as a tuple: a static argument of `jax.jit`, which takes no list."""
    return tuple(precision) if isinstance(precision, list) else precision


def _as_tuples(dimension_numbers: DimensionNumbers) -> Any:
    """Dimension numbers as tuples; a lone integer stands for one axis, as in `lax.dot_general`."""
    (a_contracting, b_contracting), (a_batch, b_batch) = dimension_numbers
    return (_axes(a_contracting), _axes(b_contracting)), (_axes(a_batch), _axes(b_batch))


def _axes(numbers: Any) -> tuple[int, ...]:
    try:
        return (operator.index(numbers),)
    except TypeError:
        return tuple(map(operator.index, numbers))


def _compiled_when_eager(body: Any) -> Any:
    """Compiles `body` for concrete operands; inside a trace it stays open to the program around it."""
    names = [name for name, p in inspect.signature(body).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    compiled = jax.jit(body, static_argnames=names)

    @functools.wraps(body)
    def call(a: Any, b: Any, **static: Any) -> jax.Array:
        traced = isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer)
        return (body if traced else compiled)(a, b, **static)

    return call


@_compiled_when_eager
def _dot_general(lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any,
                 out_sharding: Any, options: GemmOptions) -> jax.Array:  # fmt: skip
    lhs, rhs = internals.match_varying_axes(lhs, rhs)
    out_sharding = internals.canonicalize_sharding(out_sharding, "dot_general")
    precision = internals.canonicalize_precision(precision)
    if preferred_element_type is not None:
        preferred_element_type = jnp.zeros((), preferred_element_type).dtype
    expected, _ = jax.lax.dot_general_p.abstract_eval(  # lax's own errors for operands that do not go together
        jax.typeof(lhs), jax.typeof(rhs), dimension_numbers=dimension_numbers, precision=precision,
        preferred_element_type=preferred_element_type, out_sharding=out_sharding,
    )  # fmt: skip
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    contraction = Contraction.from_dimension_numbers(dimension_numbers, lhs.ndim, rhs.ndim)
    _check_demands(contraction, lhs, rhs, expected.dtype, precision, options)
    return contract(
        lhs, rhs, contraction, precision=precision, preferred_element_type=preferred_element_type,
        out_sharding=out_sharding, options=options,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _JaxCall:
    """A call of JAX's own function of two arrays, as a value: what ours must agree with in type and in errors."""

    function: Any
    before: tuple[Any, ...]
    settings: tuple[tuple[str, Any], ...]

    def __call__(self, a: Any, b: Any) -> jax.Array:
        return self.function(*self.before, a, b, **dict(self.settings))


@_compiled_when_eager
def _contracted(
    a: Any, b: Any, *, call: _JaxCall, contraction: Contraction, squeezed: Any, options: GemmOptions
) -> jax.Array:
    """Our product for `call`, once JAX has said its type; `squeezed` are axes of size 1 that a and b lose first."""
    expected = jax.jit(call).trace(a, b).jaxpr.out_avals[0]  # `eval_shape` drops shardings of partly explicit meshes
    settings = dict(call.settings)
    a, b = (jax.lax.squeeze(jnp.asarray(x), axes) for x, axes in zip((a, b), squeezed, strict=True))
    precision = internals.canonicalize_precision(settings["precision"])
    _check_demands(contraction, a, b, expected.dtype, precision, options)
    out = contract(
        a, b, contraction, precision=precision, preferred_element_type=expected.dtype,
        out_sharding=None if settings["out_sharding"] is None else expected.sharding, options=options,
    )  # fmt: skip
    return internals.convert_element_type(out, expected.dtype, expected.weak_type)


@functools.lru_cache(maxsize=4096)
def _matmul_contraction(
    a_shape: Sequence[int], b_shape: Sequence[int]
) -> tuple[Contraction, tuple[int, ...], tuple[int, ...]]:
    """`jnp.matmul`'s axes as a contraction, and the axes of size 1 that a and b lose first because they broadcast."""
    m, k, n, first_batch = 0, 1, 2, 3
    a_is_matrix, b_is_matrix = len(a_shape) > 1, len(b_shape) > 1
    a_batch, b_batch = (list(shape[:-2]) for shape in (a_shape, b_shape))
    rank = max(len(a_batch), len(b_batch))
    labels: dict[str, list[int]] = {"a": [], "b": []}
    squeezed: dict[str, list[int]] = {"a": [], "b": []}
    for i in range(rank):
        a_axis, b_axis = i - (rank - len(a_batch)), i - (rank - len(b_batch))
        a_size, b_size = (batch[axis] if axis >= 0 else None for batch, axis in ((a_batch, a_axis), (b_batch, b_axis)))
        for name, axis, size, other in (("a", a_axis, a_size, b_size), ("b", b_axis, b_size, a_size)):
            if size is None:
                continue
            if size == 1 and other not in (None, 1):
                squeezed[name].append(axis)
            else:
                labels[name].append(first_batch + i)
    a_labels = (*labels["a"], *((m, k) if a_is_matrix else (k,)))
    b_labels = (*labels["b"], *((k, n) if b_is_matrix else (k,)))
    out = (*range(first_batch, first_batch + rank), *((m,) if a_is_matrix else ()), *((n,) if b_is_matrix else ()))
    return Contraction(a_labels, b_labels, out)._renumbered(), tuple(squeezed["a"]), tuple(squeezed["b"])


def _check_demands(
    contraction: Contraction, a: Any, b: Any, out_dtype: Any, precision: Any, options: GemmOptions
) -> None:
    """A pinned schedule or kernel that no GPU could honour is an error where it is written, on any platform.

    Which axis of a traced operand is contiguous shows at lowering only, where transposes are looked through; so here a
    kernel passes that serves the operands in either order of their last two axes. Lowering judges the true order.
    """
    if not options.pinned:
        return
    refused: ValueError | None = None
    for a_order, b_order in itertools.product((_as_given, _last_two_swapped), repeat=2):
        turned = Contraction(a_order(contraction.a), b_order(contraction.b), contraction.out)
        a_like, b_like = (jax.ShapeDtypeStruct(order(x.shape), x.dtype) for order, x in ((a_order, a), (b_order, b)))
        try:
            gemm_lowering.plan_contraction(turned, a_like, b_like, out_dtype, precision, options)
            return
        except ValueError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _as_given(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(values)


def _last_two_swapped(values: Sequence[int]) -> tuple[int, ...]:
    return (*values[:-2], *values[-2:][::-1])
