"""How a product is split over a mesh: the Shardy rule, and the program of one shard with its collectives.

Shardy propagates shardings through the rule as through `lax.dot_general`. What it settles on is then cut here: every
label of the contraction gets the mesh axes it is split over, operands and result are asked for in that split, and sums
that are split over k are finished with a reduce-scatter where the result wants those axes, an all-reduce for the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_clc import _jax_internals as internals
from jax_clc.contraction import Contraction
from jax_clc.gemm_primitive import gemm_p
from jax_clc.planning import planner

Axes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Split:
    """Mesh axes of each label as the shard's product sees it, and what happens to the sums after it."""

    axes: Mapping[int, Axes]
    scattered: Mapping[int, Axes]
    """Labels of the result whose split comes from a reduce-scatter over axes of k."""
    reduced: Axes
    """Axes of k that are left to an all-reduce."""


def split_labels(
    contraction: Contraction,
    sizes: Mapping[int, int],
    mesh_shape: Mapping[str, int],
    a: Mapping[int, Axes],
    b: Mapping[int, Axes],
    out: Mapping[int, Axes],
) -> Split:
    """Which axes each label is split over, from the shardings of the operands and of the result.

    No mesh axis is used twice. Where the operands disagree the result decides, as it has been decided by Shardy; then a
    comes before b. `out` is empty where the result's sharding is still open.
    """
    used: set[str] = set()
    axes: dict[int, Axes] = {}

    def take(label: int, *wishes: Axes) -> None:
        axes[label] = next((wish for wish in wishes if wish and not used & set(wish)), ())
        used.update(axes[label])

    for label in contraction.out:
        if out.get(label) and out[label] in (a.get(label), b.get(label)):
            take(label, out[label])
    for label in contraction.contracted:
        take(label, a[label], b[label])
    summed = tuple(axis for label in contraction.contracted for axis in axes[label])
    for label in contraction.out:
        if not axes.get(label):
            wanted = out.get(label, ())
            take(label, a.get(label, ()), b.get(label, ()), () if set(wanted) & set(summed) else wanted)
    scattered = {
        label: out[label]
        for label in contraction.out
        if out.get(label) and not axes[label] and set(out[label]) <= set(summed)
        and sizes[label] % math.prod(mesh_shape[axis] for axis in out[label]) == 0
    }  # fmt: skip
    done = {axis for taken in scattered.values() for axis in taken}
    return Split(axes, scattered, tuple(axis for axis in summed if axis not in done))


def refined_meshes(mesh: Any) -> list[Mesh]:
    """The mesh itself, then with its axes cut into prime factors in both orders.

    A reshape before the product can leave an operand split over part of a mesh axis; the parts are axes here.
    """
    meshes = [mesh]
    for descending in (False, True):
        names: list[str] = []
        shape: list[int] = []
        for name, size in mesh.shape.items():
            factors = sorted(_prime_factors(size), reverse=descending) or [1]
            names += [f"{name}.{i}" for i in range(len(factors))]
            shape += factors
        meshes.append(Mesh(mesh.devices.reshape(shape), tuple(names)))
    return meshes


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _parsed(contraction: Contraction, mesh: Any, operands: Any, out: Any) -> tuple[Any, list[dict[int, Axes]]]:
    """A mesh on which all shardings can be said, and each label's axes in a, b and the result (`out`, if it is known).

    An array split in a way that no refinement of the mesh can say is asked for whole: XLA gathers it.
    """
    arrays = [(contraction.a, operands[0].sharding), (contraction.b, operands[1].sharding)]
    arrays += [(contraction.out, out)] if out is not None else []
    meshes = refined_meshes(mesh)
    for i, candidate in enumerate(meshes):
        found = [internals.partitions_over(sharding, len(labels), [candidate]) for labels, sharding in arrays]
        if all(f is not None for f in found) or i == len(meshes) - 1:
            break
    return candidate, [
        dict.fromkeys(labels, ()) if f is None else dict(zip(labels, f[1], strict=True))
        for (labels, _), f in zip(arrays, found, strict=True)
    ]


def _split_for(parameters: Mapping[str, Any], mesh: Any, operands: Any, out: Any) -> tuple[Any, Split]:
    contraction: Contraction = parameters["contraction"]
    mesh, by_label = _parsed(contraction, mesh, operands, out)
    a, b, result = (*by_label, {})[:3]
    sizes = contraction.sizes(*(operand.shape for operand in operands))
    return mesh, split_labels(contraction, sizes, dict(mesh.shape), a, b, result)


def _sharding(mesh: Any, labels: tuple[int, ...], axes: Mapping[int, Axes]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes[label] or None for label in labels)))


def _partition(parameters: Any, mesh: Any, operands: Any, result: Any) -> tuple[Any, Callable[..., Any], Any, Any]:
    """`custom_partitioning`'s call-back: the mesh, one shard's program, and the shardings it takes and gives."""
    parameters = dict(parameters)
    contraction: Contraction = parameters["contraction"]
    mesh, split = _split_for(parameters, mesh, operands, result.sharding)
    sizes = contraction.sizes(*(operand.shape for operand in operands))

    def shard(a: jax.Array, b: jax.Array) -> jax.Array:
        # XLA calls back while the caller's mesh is set; on an explicit one the sums' own additions would get shardings.
        with internals.outside_any_mesh():
            return shard_product(a, b)

    def shard_product(a: jax.Array, b: jax.Array) -> jax.Array:
        for label in contraction.contracted:
            count = math.prod(mesh.shape[axis] for axis in split.axes[label])
            if sizes[label] % count:
                a = _without_padding(a, contraction.a.index(label), sizes[label], split.axes[label])
                b = _without_padding(b, contraction.b.index(label), sizes[label], split.axes[label])
        out = gemm_p.bind(a, b, **{**parameters, "out_sharding": None})
        for label, axes in split.scattered.items():
            out = lax.psum_scatter(out, axes, scatter_dimension=contraction.out.index(label), tiled=True)
        return lax.psum(out, split.reduced) if split.reduced else out

    arguments = tuple(_sharding(mesh, labels, split.axes) for labels in (contraction.a, contraction.b))
    return mesh, shard, _sharding(mesh, contraction.out, {**split.axes, **split.scattered}), arguments


def _without_padding(operand: jax.Array, axis: int, size: int, mesh_axes: Axes) -> jax.Array:
    """Zeros where the last shards reach beyond the array: XLA leaves anything there, and k is summed over it."""
    start = lax.axis_index(mesh_axes) * operand.shape[axis]
    inside = lax.broadcasted_iota(jax.numpy.int32, operand.shape, axis) + start < size
    return jax.numpy.where(inside, operand, jax.numpy.zeros((), operand.dtype))


def _infer_result(parameters: Any, mesh: Any, operands: Any, result: Any) -> NamedSharding:
    """The result's sharding when propagation is GSPMD's, which asks instead of being given a rule."""
    del result
    parameters = dict(parameters)
    mesh, split = _split_for(parameters, mesh, operands, None)
    return _sharding(mesh, parameters["contraction"].out, split.axes)


def _shardy_rule(parameters: Any, mesh: Any, operand_types: Any, result_types: Any) -> tuple[str, dict[str, Any]]:
    del mesh, operand_types, result_types
    contraction: Contraction = dict(parameters)["contraction"]
    a, b, out = (
        " ".join(f"f{label}" for label in labels) for labels in (contraction.a, contraction.b, contraction.out)
    )
    return f"{a}, {b} -> {out}", {"reduction_factors": tuple(f"f{label}" for label in contraction.contracted)}


@functools.partial(custom_partitioning, static_argnums=(2,))
def _partitioned_gemm(a: jax.Array, b: jax.Array, parameters: Any) -> jax.Array:
    return gemm_p.bind(a, b, **dict(parameters))


# Shardings are decoded here, not by JAX, whose decoding raises on parts of a mesh axis.
_partitioned_gemm.def_partition(
    _partition, infer_sharding_from_operands=_infer_result, sharding_rule=_shardy_rule, decode_shardings=False
)


def partitioned(**parameters: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The product as a traceable function that XLA splits by the rule above.

    The program that XLA is given holds a pointer to the rule and not what was asked of it. A persistent compilation
    cache whose key leaves the pointer out must still tell programs apart that ask for different kernels.
    """
    settings = tuple(sorted(parameters.items()))
    told = hashlib.sha256(f"{settings!r} {planner.fingerprint()}".encode()).hexdigest()

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        with set_xla_metadata(jax_clc=told):
            return _partitioned_gemm(a, b, settings)

    return product
