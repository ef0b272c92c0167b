"""Exactness before timing: integer operands, compared for equality with the exact sums rounded once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_clc.bench.operands import Product, integer_set, on_stored
from jax_clc.planning import GemmProblem

UNTUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""The reference runs once: searching for its fastest algorithm would take longer than any of them."""


class Inexact(RuntimeError):
    """A contestant's result differs from the exact one; the text says where and by how much."""


def exact_result(problem: GemmProblem, a: jax.Array, b: jax.Array) -> jax.Array:
    """The sums in float32, where the operands make them exact, rounded once to the output dtype.

    An integer output holds what fits of the sum, modulo a power of two, as integers do in JAX. Raises ValueError for
    dtypes that JAX does not take, and for floats summed into integers, as it does not say how they are rounded.
    """
    dtype, out_dtype = jnp.dtype(problem.a_dtype), jnp.dtype(problem.out_dtype)
    whole, whole_out = (jnp.issubdtype(one, jnp.integer) for one in (dtype, out_dtype))
    if whole and out_dtype.itemsize < dtype.itemsize:
        raise ValueError(f"{problem}: JAX takes no output dtype narrower than integer operands")
    if whole_out and not whole:
        raise ValueError(f"{problem}: what sums of floats are as integers is not defined")

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        sums = jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
        return (sums.astype(jnp.int32) if whole_out else sums).astype(out_dtype)

    return jax.jit(on_stored(problem, product), compiler_options=UNTUNED)(a, b)


def poison(problem: GemmProblem) -> None:
    """Leaves NaN, or the least integer, in memory that the allocator hands out next, so that an element never written
    shows."""
    shape, dtype = (problem.batch, problem.m, problem.n), jnp.dtype(problem.out_dtype)
    value = jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.integer) else jnp.nan
    jax.block_until_ready([jnp.full(shape, value, dtype) for _ in range(2)])


def compare(name: str, problem: GemmProblem, result: jax.Array, expected: jax.Array) -> None:
    """Raises Inexact unless every element is equal."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        raise Inexact(f"{name} on {problem}: gives {result.dtype}{result.shape}, not {expected.dtype}{expected.shape}")
    wrong = int(jnp.sum(result != expected))
    if wrong:
        first = tuple(int(i) for i in jnp.argwhere(result != expected, size=1)[0])
        raise Inexact(
            f"{name} on {problem}: {wrong} of {result.size} elements differ; the first at {first}: "
            f"{result[first]} instead of {expected[first]}"
        )


class ExactCheck:
    """Integer operands of a problem and their exact product, computed once for all contestants."""

    def __init__(self, problem: GemmProblem, seed: int = 1) -> None:
        self._problem = problem
        self._operands = integer_set(problem, seed)
        self._expected = exact_result(problem, *self._operands)

    def __call__(self, name: str, product: Product) -> None:
        """Runs a jitted function of the stored operands. Raises Inexact unless every element is equal."""
        poison(self._problem)
        compare(name, self._problem, product(*self._operands), self._expected)


def check_exact(name: str, problem: GemmProblem, product: Product, seed: int = 1) -> None:
    """`ExactCheck` for a single contestant."""
    ExactCheck(problem, seed)(name, product)
