"""The primitive `gemm_p`: a contraction of two arrays, with its abstract value, derivatives and batching.

Where it lowers to a kernel and where to `lax.dot_general` is decided in `gemm_lowering`; its type, errors and
derivatives are those of `lax.dot_general` everywhere.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad

from jax_clc import _jax_internals as internals
from jax_clc.contraction import Contraction
from jax_clc.options import GemmOptions

gemm_p = internals.Primitive("gemm")
"""Operands a, b. Parameters: `contraction`; `precision`, `preferred_element_type` as `lax.dot_general`; `out_dtype`, to
which the sum is rounded (None: what `lax.dot_general` gives); `out_sharding` of the result; `options`."""
shard_gemm_p = internals.Primitive("gemm")
"""The same inside a `shard_map`, where the product is one device's, or `lax`'s if XLA splits what is left: its lowering
needs no devices, so that JAX lowers it on an `AbstractMesh` too."""
PRODUCTS = (gemm_p, shard_gemm_p)


def contract(
    a: Any,
    b: Any,
    contraction: Contraction,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_dtype: Any = None,
    out_sharding: Any = None,
    options: GemmOptions = GemmOptions(),  # noqa: B008 (frozen)
) -> jax.Array:
    """Binds the primitive; `out_sharding` is in canonical form, shapes and dtypes are checked.

    No `precision` means the default one here and now, as in `lax`: of a backward product, where that is called.
    """
    parameters = dict(
        contraction=contraction, precision=internals.canonicalize_precision(precision),
        preferred_element_type=preferred_element_type, out_dtype=out_dtype, out_sharding=out_sharding,
    )  # fmt: skip
    a, b = internals.match_varying_axes(a, b)
    unreduced = out_sharding is not None and getattr(out_sharding.spec, "unreduced", None)
    if unreduced or internals.has_partial_sums(a) or internals.has_partial_sums(b):
        return reference(a, b, **parameters)
    primitive = shard_gemm_p if internals.inside_shard_map() else gemm_p
    return primitive.bind(a, b, options=options, **parameters)


def reference(
    a: Any,
    b: Any,
    *,
    contraction: Contraction,
    precision: Any,
    preferred_element_type: Any,
    out_dtype: Any,
    out_sharding: Any,
    options: GemmOptions | None = None,
) -> jax.Array:
    """The same product by `lax.dot_general`: what runs where no kernel does.

    Narrower operands of a float64 product are widened first: a GPU would multiply and add in their own precision.
    The primitives are bound, not `lax`'s functions called: a program may be lowered under another default precision, or
    without the 64-bit mode, that it was traced in.
    """
    del options
    if _better_exchanged(contraction) and not isinstance(precision, lax.DotAlgorithm):
        a, b, contraction = b, a, contraction.exchanged()
        precision = precision[::-1] if isinstance(precision, tuple) else precision
    if preferred_element_type == jnp.float64 and all(jnp.issubdtype(x.dtype, jnp.floating) for x in (a, b)):
        a, b = (internals.convert_element_type(x, np.dtype(np.float64), False) for x in (a, b))
    out = lax.dot_general_p.bind(
        a, b, dimension_numbers=contraction.dimension_numbers(), precision=precision,
        preferred_element_type=preferred_element_type, out_sharding=_natural_sharding(out_sharding, contraction),
    )  # fmt: skip
    permutation = contraction.permutation()
    if permutation != tuple(range(len(permutation))):
        out = lax.transpose(out, permutation)
    return out if out_dtype is None or out.dtype == out_dtype else internals.convert_element_type(out, out_dtype, False)


def _better_exchanged(contraction: Contraction) -> bool:
    """Whether the result's axis order needs a transpose as it is and none with the operands exchanged.

    `jnp.einsum` exchanges them as well: XLA's CPU compiler folds such a transpose into products that it cannot run.
    """
    exchanged = contraction.exchanged()
    return contraction.natural_out != contraction.out and exchanged.natural_out == exchanged.out


def _natural_sharding(out_sharding: Any, contraction: Contraction) -> Any:
    """The result's sharding in the axis order of `lax.dot_general`."""
    if out_sharding is None or contraction.natural_out == contraction.out:
        return out_sharding
    partitions = tuple(getattr(out_sharding.spec, "partitions", out_sharding.spec))
    partitions += (None,) * (len(contraction.out) - len(partitions))
    natural = [partitions[contraction.out.index(label)] for label in contraction.natural_out]
    return out_sharding.update(spec=out_sharding.spec.update(partitions=tuple(natural)))


def _abstract_eval(
    a: Any, b: Any, *, contraction: Contraction, precision: Any, preferred_element_type: Any, out_dtype: Any,
    out_sharding: Any, options: GemmOptions,
) -> Any:  # fmt: skip
    del options
    aval, _ = lax.dot_general_p.abstract_eval(
        a, b, dimension_numbers=contraction.dimension_numbers(), precision=precision,
        preferred_element_type=preferred_element_type, out_sharding=_natural_sharding(out_sharding, contraction),
    )  # fmt: skip
    permutation = contraction.permutation()
    if permutation != tuple(range(len(permutation))):
        aval, _ = lax.transpose_p.abstract_eval(aval, permutation=permutation)
    return aval if out_dtype is None else aval.update(dtype=jax.numpy.dtype(out_dtype))


def _transpose_a(cotangent: Any, a: Any, b: Any, *, contraction: Contraction, **parameters: Any) -> jax.Array:
    return _backward(cotangent, b, contraction.wrt_a(), a.aval, **parameters)


def _transpose_b(cotangent: Any, a: Any, b: Any, *, contraction: Contraction, **parameters: Any) -> jax.Array:
    return _backward(a, cotangent, contraction.wrt_b(), b.aval, **parameters)


def _backward(
    a: Any, b: Any, contraction: Contraction, wanted: Any, *, precision: Any, preferred_element_type: Any,
    out_dtype: Any, out_sharding: Any, options: GemmOptions,
) -> jax.Array:  # fmt: skip
    """The cotangent of an operand: computed as `lax` computes it, rounded once to the operand's dtype."""
    del out_dtype, out_sharding
    return contract(
        a, b, contraction, precision=precision, preferred_element_type=preferred_element_type, out_dtype=wanted.dtype,
        out_sharding=internals.cotangent_sharding(wanted), options=options.for_backward(),
    )  # fmt: skip


def _batch(
    axis_data: Any, operands: Any, axes: Any, *, contraction: Contraction, out_sharding: Any, **parameters: Any
) -> Any:
    a, b = operands
    if all(axis is None for axis in axes):  # JAX asks this registry even then
        return contract(a, b, contraction, out_sharding=out_sharding, **parameters), None
    contraction, position = contraction.batched(*axes)
    if out_sharding is not None:
        out_sharding = internals.get_sharding_for_vmap(axis_data, out_sharding, position)
    return contract(a, b, contraction, out_sharding=out_sharding, **parameters), position


for _primitive in PRODUCTS:
    _primitive.def_abstract_eval(_abstract_eval)
    # JAX's own rule for eager calls: it compiles the primitive even where `disable_jit` or `debug_nans` run op by op.
    _primitive.def_impl(functools.partial(internals.apply_primitive, _primitive))
    ad.defbilinear(_primitive, _transpose_a, _transpose_b)
    internals.fancy_primitive_batchers[_primitive] = _batch
    internals.check_nans_of(_primitive)
