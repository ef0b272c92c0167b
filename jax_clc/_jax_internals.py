"""Everything that jax_clc takes from JAX's private modules, in one place, with the reason for each.

Checked on jax 0.9.1, 0.10.2, 0.11.2 and 0.12.0 by the test suite.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import checkify, core, dispatch, sharding_impls, xla_bridge
from jax._src.interpreters import batching, mlir
from jax._src.lax import lax as _lax

# The class alone: `jax.extend.core` loads Pallas with it, a third of what importing jax_clc would then take.
Primitive = core.Primitive
# What every primitive of JAX does when it is called outside any trace.
apply_primitive = dispatch.apply_primitive
# `precision=None` means `jax_default_matmul_precision`; the names and pairs that users pass have one canonical form.
canonicalize_precision = _lax.canonicalize_precision
# `out_sharding` may be a PartitionSpec, meant for the mesh in context.
canonicalize_sharding = sharding_impls.canonicalize_sharding
# Batching an `out_sharding` needs the mesh axis of the vmapped axis, which only this registry's rules are given.
fancy_primitive_batchers = batching.fancy_primitive_batchers
get_sharding_for_vmap = batching.get_sharding_for_vmap


def convert_element_type(x: Any, dtype: Any, weak_type: bool) -> jax.Array:
    """`lax.convert_element_type` that can also give a weakly typed result, as `jnp.matmul` does for weak operands."""
    return _lax._convert_element_type(x, dtype, weak_type)


def require_devices_during_lowering(primitive: core.Primitive) -> None:
    """Tells JAX that the primitive's lowering looks at the devices: it may contain `custom_partitioning`."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def check_nans_of(primitive: core.Primitive) -> None:
    """Tells `checkify` to look for NaNs in the primitive's results, as in those of JAX's own."""
    checkify.error_checks[primitive] = functools.partial(checkify.nan_error_check, primitive)


def match_varying_axes(a: Any, b: Any) -> tuple[Any, Any]:
    """Brings operands inside `shard_map` to the same varying axes, as `lax.dot_general` does before it binds."""
    insert = getattr(core, "auto_insert_reshard", None) or getattr(core, "standard_insert_pvary")  # noqa: B009 (0.9)
    a, b = insert(a, b)
    return a, b


def has_partial_sums(x: Any) -> bool:
    """Whether an explicit sharding marks the value as unreduced or reduced over a mesh axis."""
    spec = getattr(getattr(core.typeof(x), "sharding", None), "spec", None)
    return bool(getattr(spec, "unreduced", None)) or bool(getattr(spec, "reduced", None))


def explicit_sharding(aval: Any) -> Any:
    """The sharding that an abstract value carries on an explicit mesh, None where there is none."""
    sharding = getattr(aval, "sharding", None)
    return None if sharding is None or sharding.mesh.empty or not sharding.mesh._any_axis_explicit else sharding


def cotangent_sharding(aval: Any) -> Any:
    """The sharding that the cotangent of an operand must come in, None outside explicit meshes."""
    return explicit_sharding(aval.to_ct_aval() if hasattr(aval, "to_ct_aval") else aval)


def partitions_over(sharding: Any, ndim: int, meshes: Sequence[Any]) -> tuple[Any, tuple[tuple[str, ...], ...]] | None:
    """The first of `meshes` whose axes can say how XLA splits an array, and each dimension's axes; None if none can."""
    hlo_sharding = sharding._to_xla_hlo_sharding(ndim)
    for mesh in meshes:
        try:
            (spec,) = sharding_impls.parse_flatten_op_sharding(hlo_sharding, mesh)
        except (AssertionError, KeyError, NotImplementedError, StopIteration, ValueError):
            continue  # JAX's parser knows shardings by whole axes of the mesh only, and fails in these ways on others
        entries = (*spec, *(None,) * (ndim - len(spec)))
        return mesh, tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)
    return None


def for_export(module_context: Any) -> bool:
    """Whether the program is lowered to be saved, for devices that need not be those of this process."""
    return bool(module_context.lowering_parameters.for_export)


def partitioned_over(module_context: Any) -> str | None:
    """How XLA will split the program being lowered: `auto` (over a known mesh), `other` (unknown to us) or None.

    Inside a `shard_map` over all its axes, or under `pmap`, the program already is one device's: None.
    """
    context = module_context.axis_context
    if isinstance(context, sharding_impls.ShardingContext):
        if context.num_devices == 1:
            return None
        known = context.abstract_mesh is not None and context.device_assignment is not None
        return "auto" if known and not for_export(module_context) else "other"
    if isinstance(context, sharding_impls.SPMDAxisContext):
        manual = set(context.manual_axes) == set(context.mesh.axis_names)
        return None if manual or context.mesh.size == 1 else "other"
    return None


def computes_on_host(ctx: Any) -> bool:
    """Whether the equation being lowered stands under `compute_on("device_host")`: the host's compiler gets it."""
    return getattr(ctx.jaxpr_eqn_ctx, "compute_type", None) == "device_host"


def inside_shard_map() -> bool:
    """Whether what is traced now is the body of a `shard_map`, over all axes of its mesh or some."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def backends_are_initialized() -> bool:
    """Whether JAX has looked for devices yet. Some of its settings can only be made before."""
    return bool(xla_bridge.backends_are_initialized())


def register_lowering(primitive: core.Primitive, rule: Any) -> None:
    """Registers the one rule for all platforms, and not as cacheable.

    A cached rule is lowered as a function of its own, where what made the operands is out of sight. One rule, because
    jax 0.10 fails to combine several that are not cacheable in a program for several platforms.
    """
    flag: dict[str, Any] = (
        {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
    )
    mlir.register_lowering(primitive, rule, **flag)


def platforms(ctx: Any) -> tuple[str, ...]:
    """The platforms that the program is lowered for; those of the branch, inside one of `lax.platform_dependent`."""
    return tuple(ctx.module_context.platforms if ctx.platforms is None else ctx.platforms)


def outside_any_mesh() -> Any:
    """A context in which programs of one device are traced, whatever mesh the caller has set."""
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


def plain_aval(shape: Sequence[int], dtype: Any) -> Any:
    """The abstract value of an array of this shape and dtype, outside any mesh."""
    return core.ShapedArray(tuple(shape), dtype)


def lower_traced(function: Any, ctx: Any, *operands: Any, plain: bool = False) -> Any:
    """Lowers a traceable function of one result in place. `plain`: with shapes and dtypes only, outside any mesh."""
    if not plain:
        return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)
    avals = [plain_aval(aval.shape, aval.dtype) for aval in ctx.avals_in]
    with outside_any_mesh():
        return mlir.lower_fun(function, multiple_results=False)(ctx.replace(avals_in=avals), *operands)


def pin_explicit_sharding(ctx: Any, results: Any) -> Any:
    """Holds the result to the sharding in its type, as every primitive on an explicit mesh does."""
    (aval,) = ctx.avals_out
    return [mlir.lower_with_sharding_in_types(ctx, results[0], aval)]
