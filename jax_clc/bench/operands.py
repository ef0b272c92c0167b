"""Operands of a problem as JAX arrays: as they lie in memory, random or integer-valued, and rotated beyond L2."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jax_clc.planning import GemmProblem

ROTATED_BYTES = 256 << 20
"""Operands of one problem's sets together, at least: several times the L2 of any device we know (60 to 126 MB)."""
MAX_SETS = 64
EXACT_SUM_LIMIT = 1 << 24

Product = Callable[[jax.Array, jax.Array], jax.Array]


def stored_shapes(problem: GemmProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a and b as they lie in memory: the contiguous axis last."""
    a = (problem.m, problem.k) if problem.a_major == "k" else (problem.k, problem.m)
    b = (problem.k, problem.n) if problem.b_major == "n" else (problem.n, problem.k)
    batch = (problem.batch,) if problem.batch != 1 else ()
    return (*batch, *a), (*batch, *b)


def on_stored(problem: GemmProblem, product: Product) -> Product:
    """`product` of (m, k) by (k, n) matrices as a function of the stored arrays: views that cost nothing under jit."""

    def stored(a: jax.Array, b: jax.Array) -> jax.Array:
        a = a if problem.a_major == "k" else jnp.swapaxes(a, -1, -2)
        b = b if problem.b_major == "n" else jnp.swapaxes(b, -1, -2)
        return product(a, b)

    return stored


def sets_beyond_l2(problem: GemmProblem) -> int:
    """How many operand sets to rotate so that no call finds its operands in L2."""
    a_shape, b_shape = stored_shapes(problem)
    bytes_of_set = sum(math.prod(shape) for shape in (a_shape, b_shape)) * jnp.dtype(problem.a_dtype).itemsize
    return max(1, min(MAX_SETS, -(-ROTATED_BYTES // max(1, bytes_of_set))))


def random_sets(problem: GemmProblem, count: int, seed: int = 0) -> list[tuple[jax.Array, jax.Array]]:
    """`count` sets of operands: standard normal, integers of all but the greatest value. Never zeros: they run faster
    than any real data."""

    def drawn(key: jax.Array, shape: tuple[int, ...], dtype: str) -> jax.Array:
        if not jnp.issubdtype(dtype, jnp.integer):
            return jax.random.normal(key, shape, dtype)
        values = jnp.iinfo(dtype)
        return jax.random.randint(key, shape, values.min, values.max, dtype)

    @jax.jit
    def operands(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        a_shape, b_shape = stored_shapes(problem)
        a_key, b_key = jax.random.split(key)
        return drawn(a_key, a_shape, problem.a_dtype), drawn(b_key, b_shape, problem.b_dtype)

    return [operands(key) for key in jax.random.split(jax.random.key(seed), count)]


def integer_set(problem: GemmProblem, seed: int = 1) -> tuple[jax.Array, jax.Array]:
    """Integer-valued operands whose partial sums are exact in float32, in whatever order they are added."""
    largest = max(1, min(4, math.isqrt((EXACT_SUM_LIMIT - 1) // max(1, problem.k))))
    keys = jax.random.split(jax.random.key(seed))
    a, b = (
        jax.random.randint(key, shape, -largest, largest + 1).astype(dtype)
        for key, shape, dtype in zip(keys, stored_shapes(problem), (problem.a_dtype, problem.b_dtype), strict=True)
    )
    return a, b
