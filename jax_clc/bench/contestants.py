"""Who races: jax_clc under each schedule, jnp.dot, jnp.dot after padding, and Pallas' Hopper kernel."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jax_clc.bench.environment import plan_here, running_family
from jax_clc.bench.operands import Product, on_stored
from jax_clc.planning import GemmProblem

PAD_MULTIPLE = 8
"""Elements of a 16-bit type in the 16 bytes that the copy engine asks for."""


class NotApplicable(RuntimeError):
    """A contestant that cannot run this problem here; the text says why."""


def ours(problem: GemmProblem, **request: Any) -> Product:
    """`jax_clc.matmul`, strictly: a fallback would race against itself."""
    import jax_clc

    made, family = plan_here(problem, **request), running_family()
    if made.fallback_reason is not None or (family is not None and family not in made.choices):
        raise NotApplicable(made.fallback_reason or made.unserved.get(str(family), "no kernel"))
    product = functools.partial(jax_clc.matmul, preferred_element_type=problem.out_dtype, **request)
    return jax.jit(on_stored(problem, product))


def jnp_dot(problem: GemmProblem) -> Product:
    """What JAX does by itself."""
    return jax.jit(on_stored(problem, functools.partial(jnp.matmul, preferred_element_type=problem.out_dtype)))


def jnp_dot_padded(problem: GemmProblem) -> Product:
    """`jnp.dot` on operands zero-padded to multiples of 8 in every axis, and the result sliced; copies counted."""

    def padded(a: jax.Array, b: jax.Array) -> jax.Array:
        m, n, k = (-(-size // PAD_MULTIPLE) * PAD_MULTIPLE - size for size in (problem.m, problem.n, problem.k))
        batch = [(0, 0)] * (a.ndim - 2)
        a, b = jnp.pad(a, [*batch, (0, m), (0, k)]), jnp.pad(b, [*batch, (0, k), (0, n)])
        return jnp.matmul(a, b, preferred_element_type=problem.out_dtype)[..., : problem.m, : problem.n]

    if not any(size % PAD_MULTIPLE for size in (problem.m, problem.n, problem.k)):
        raise NotApplicable("nothing to pad")
    return jax.jit(on_stored(problem, padded))


def pallas_configurations(problem: GemmProblem) -> Iterator[tuple[str, Product]]:
    """Pallas Mosaic GPU's own Hopper matmul in its sensible configurations, for row-major operands.

    Raises NotApplicable where the installed jax does not hold it or its tiles do not divide the problem.
    """
    try:
        from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as mosaic
    except Exception as error:  # its imports fail in several ways, none of which is ours
        raise NotApplicable(f"the installed jax has no importable Hopper matmul: {error}") from error
    if (problem.batch, problem.a_major, problem.b_major) != (1, "k", "n") or problem.a_dtype != problem.out_dtype:
        raise NotApplicable("it takes one pair of row-major operands and gives their dtype")
    along = mosaic.MatmulDimension
    found = False
    for (tile_m, tile_n, halves), minor, width, cluster in itertools.product(
        ((128, 128, along.N), (128, 128, along.M), (64, 256, along.M)), (along.N, along.M), (8,), (None, along.M)
    ):
        cta_m, cta_n = tile_m * (1 + (halves == along.M)), tile_n * (1 + (halves == along.N))
        if problem.m % (cta_m * (1 + (cluster == along.M))) or problem.n % cta_n or problem.k % 64:
            continue
        configuration = mosaic.TuningConfig(
            tile_m=tile_m, tile_n=tile_n, tile_k=64, max_concurrent_steps=4, epi_tile_m=64, epi_tile_n=64,
            grid_minor_dim=minor, grid_tile_width=width, wg_dimension=halves, cluster_dimension=cluster,
        )  # fmt: skip
        found = True
        name = f"{cta_m}x{cta_n} minor {minor} cluster {1 + (cluster is not None)}"
        yield name, jax.jit(functools.partial(_pallas, mosaic.matmul, configuration))
    if not found:
        raise NotApplicable("its tiles do not divide the problem")


def _pallas(matmul: Callable[..., jax.Array], configuration: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    return matmul(a, b, None, configuration)
