"""How a product is split over a mesh: the Shardy rule, and the program of one shard with its collectives.

Shardy propagates shardings through the rule as through `lax.dot_general`. What it settles on is then cut here: every label
of the contraction gets the mesh axes it is split over, operands and result are asked for in that split, and sums that are split
over k are finished with a reduce-scatter where the result wants those axes, and an all-reduce for the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_clc.contraction import Contraction
from jax_clc.gemm_primitive import gemm_p

Axes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Split:
    """Mesh axes of each label as the shard's product sees it, and what happens to the sums after it."""

    axes: Mapping[int, Axes]
    scattered: Mapping[int, Axes]
    """Labels of the result whose split comes from a reduce-scatter over axes of k."""
    reduced: Axes
    """Axes of k that are left to an all-reduce."""


def split_labels(contraction: Contraction, sizes: Mapping[int, int], mesh_shape: Mapping[str, int],
                 a: Mapping[int, Axes], b: Mapping[int, Axes], out: Mapping[int, Axes]) -> Split:  # fmt: skip
    """Which axes each label is split over, from the shardings of the operands and of the result.

    No mesh axis is used twice, and only axes that divide a label's size are used. Where the operands disagree, the result
    decides, as it has been decided by Shardy; then a comes before b.
    """
    used: set[str] = set()
    axes: dict[int, Axes] = {}

    def take(label: int, *wishes: Axes) -> None:
        for wish in wishes:
            if wish and not used & set(wish) and sizes[label] % math.prod(mesh_shape[axis] for axis in wish) == 0:
                axes[label] = wish
                used.update(wish)
                return
        axes[label] = ()

    for label in contraction.out:
        held = (a.get(label, ()), b.get(label, ()))
        if out.get(label, ()) in held:
            take(label, out[label] if out.get(label) else ())
    for label in contraction.contracted:
        take(label, *((a[label],) if a[label] == b[label] else (a[label], b[label])))
    for label in contraction.out:
        if not axes.get(label):
            wanted, summed = out.get(label, ()), {x for k in contraction.contracted for x in axes[k]}
            take(label, a.get(label, ()), b.get(label, ()), () if summed & set(wanted) else wanted)
    summed = tuple(axis for label in contraction.contracted for axis in axes[label])
    scattered = {
        label: out[label] for label in contraction.out
        if not axes[label] and out.get(label) and set(out[label]) <= set(summed)
        and sizes[label] % math.prod(mesh_shape[axis] for axis in out[label]) == 0
    }  # fmt: skip
    done = {axis for taken in scattered.values() for axis in taken}
    return Split(axes, scattered, tuple(axis for axis in summed if axis not in done))


def _labelled(labels: tuple[int, ...], sharding: Any) -> dict[int, Axes]:
    """The mesh axes of each label of an array. Only a NamedSharding reaches here: the mesh is known before we partition."""
    entries = (*sharding.spec, *(None,) * (len(labels) - len(sharding.spec)))
    as_axes = {label: entry for label, entry in zip(labels, entries, strict=True)}
    return {
        label: () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for label, entry in as_axes.items()
    }


def _sharding(mesh: Any, labels: tuple[int, ...], axes: Mapping[int, Axes]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes[label] or None for label in labels)))


def _split_for(parameters: Mapping[str, Any], mesh: Any, operands: Any, out: Any) -> Split:
    contraction = parameters["contraction"]
    a, b = operands
    return split_labels(
        contraction, contraction.sizes(a.shape, b.shape), dict(mesh.shape), _labelled(contraction.a, a.sharding),
        _labelled(contraction.b, b.sharding), _labelled(contraction.out, out) if out is not None else {},
    )  # fmt: skip


def _partition(parameters: Any, mesh: Any, operands: Any, result: Any) -> tuple[Any, Callable[..., Any], Any, Any]:
    """`custom_partitioning`'s call-back: the mesh, one shard's program, and the shardings it takes and gives."""
    parameters = dict(parameters)
    contraction: Contraction = parameters["contraction"]
    split = _split_for(parameters, mesh, operands, result.sharding)

    def shard(a: jax.Array, b: jax.Array) -> jax.Array:
        out = gemm_p.bind(a, b, **{**parameters, "out_sharding": None})
        for label, axes in split.scattered.items():
            out = lax.psum_scatter(out, axes, scatter_dimension=contraction.out.index(label), tiled=True)
        return lax.psum(out, split.reduced) if split.reduced else out

    arguments = tuple(_sharding(mesh, labels, split.axes) for labels in (contraction.a, contraction.b))
    return mesh, shard, _sharding(mesh, contraction.out, {**split.axes, **split.scattered}), arguments


def _infer_result(parameters: Any, mesh: Any, operands: Any, result: Any) -> NamedSharding:
    """The result's sharding when propagation is GSPMD's, which asks instead of being given a rule."""
    del result
    parameters = dict(parameters)
    return _sharding(mesh, parameters["contraction"].out, _split_for(parameters, mesh, operands, None).axes)


def _shardy_rule(parameters: Any, mesh: Any, operand_types: Any, result_types: Any) -> tuple[str, dict[str, Any]]:
    del mesh, operand_types, result_types
    contraction: Contraction = dict(parameters)["contraction"]
    a, b, out = (" ".join(f"f{label}" for label in labels) for labels in (contraction.a, contraction.b, contraction.out))
    return f"{a}, {b} -> {out}", {"reduction_factors": tuple(f"f{label}" for label in contraction.contracted)}


@functools.partial(custom_partitioning, static_argnums=(2,))
def _partitioned_gemm(a: jax.Array, b: jax.Array, parameters: Any) -> jax.Array:
    return gemm_p.bind(a, b, **dict(parameters))


_partitioned_gemm.def_partition(_partition, infer_sharding_from_operands=_infer_result, sharding_rule=_shardy_rule)


def partitioned(**parameters: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The product as a traceable function that XLA splits by the rule above."""
    return lambda a, b: _partitioned_gemm(a, b, tuple(sorted(parameters.items())))
