"""Every transformation of JAX on every call, equal to `jnp` and `lax` bit for bit, in every place.

Inputs are small integers, so that every sum is exact and a result has one right value after one rounding. Only where
products of rounded products are taken is a rounding's worth of difference allowed.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_clc.matmul import dot_general, einsum, matmul

# name -> (ours, JAX's, shapes of a and b)
LAST_FIRST = (((2,), (1,)), ((0,), (0,)))
CALLS = {
    "matmul": (matmul, jnp.matmul, (8, 16), (16, 24)),
    "matmul_broadcast": (matmul, jnp.matmul, (3, 8, 16), (16, 8)),
    "matmul_batched": (matmul, jnp.matmul, (2, 8, 16), (2, 16, 8)),
    "matmul_vector": (matmul, jnp.matmul, (8, 16), (16,)),
    "dot_general": (
        functools.partial(dot_general, dimension_numbers=LAST_FIRST),
        functools.partial(lax.dot_general, dimension_numbers=LAST_FIRST), (2, 8, 16), (2, 16, 8),
    ),
    "dot_general_two_axes": (
        functools.partial(dot_general, dimension_numbers=(((0, 2), (1, 0)), ((), ()))),
        functools.partial(lax.dot_general, dimension_numbers=(((0, 2), (1, 0)), ((), ()))), (2, 8, 8), (8, 2, 8),
    ),
    "einsum": (
        functools.partial(einsum, "bsd,dhe->bshe"), functools.partial(jnp.einsum, "bsd,dhe->bshe"), (2, 4, 8), (8, 2, 8)
    ),
    "einsum_attention": (
        functools.partial(einsum, "bqhd,bkhd->bhqk"), functools.partial(jnp.einsum, "bqhd,bkhd->bhqk"),
        (2, 8, 2, 8), (2, 8, 2, 8),
    ),
}  # fmt: skip


def loss(call, a, b):
    out = call(a, b)
    return (out * out).astype(jnp.float32).sum()


def _scan(call, a, b):
    return lax.scan(lambda carry, x: (carry + 1, call(a * x, b)), 0, jnp.arange(1, 4, dtype=a.dtype))


def _while(call, a, b):
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + call(a, b)), (0, call(a, b)))


def _custom_vjp(call, a, b):
    @jax.custom_vjp
    def f(a, b):
        return call(a, b)

    f.defvjp(lambda a, b: (call(a, b), (a, b)), lambda saved, g: jax.vjp(call, *saved)[1](2 * g))
    return jax.grad(lambda a, b: f(a, b).astype(jnp.float32).sum(), (0, 1))(a, b)


def _linearize(call, a, b):
    out, tangent = jax.linearize(call, a, b)
    return out, tangent(b_like(a), b_like(b))


def b_like(x):
    return (jnp.arange(x.size, dtype=jnp.int32).reshape(x.shape) % 3 - 1).astype(x.dtype)


def _stacked(x, axis=0):
    return jnp.stack([x, 2 * x, -x], axis)


TRANSFORMATIONS = {
    "eager": lambda call, a, b: call(a, b),
    "eager_grad": lambda call, a, b: jax.grad(functools.partial(loss, call), (0, 1))(a, b),
    "jit": lambda call, a, b: jax.jit(call)(a, b),
    "grad": lambda call, a, b: jax.grad(functools.partial(loss, call), (0, 1))(a, b),
    "jit_grad": lambda call, a, b: jax.jit(jax.grad(functools.partial(loss, call), (0, 1)))(a, b),
    "value_and_grad": lambda call, a, b: jax.value_and_grad(functools.partial(loss, call))(a, b),
    "jvp": lambda call, a, b: jax.jvp(call, (a, b), (b_like(a), b_like(b))),
    "vjp": lambda call, a, b: jax.vjp(call, a, b)[1](b_like(call(a, b))),
    "linearize": _linearize,
    "grad_of_grad": lambda call, a, b: jax.grad(
        lambda b: (jax.grad(functools.partial(loss, call))(a, b) ** 2).astype(jnp.float32).sum())(b),
    "third_order": lambda call, a, b: jax.grad(lambda t: jax.grad(lambda t: jax.grad(
        lambda t: loss(call, a * t, b))(t))(t))(jnp.asarray(1.0, a.dtype)),
    "hessian": lambda call, a, b: jax.hessian(
        lambda t: loss(call, a.at[(0,) * a.ndim].set(t[0].astype(a.dtype)), b * t[1].astype(b.dtype)))(
            jnp.asarray([1.0, 2.0])),
    "jacfwd": lambda call, a, b: jax.jacfwd(lambda t: call(a * t[0], b * t[1]))(jnp.asarray([1.0, 2.0], a.dtype)),
    "jacrev": lambda call, a, b: jax.jacrev(
        lambda t: call(a * t[0], b * t[1]).reshape(-1)[:4])(jnp.asarray([1.0, 2.0], a.dtype)),
    "jacfwd_of_grad": lambda call, a, b: jax.jacfwd(lambda t: jax.grad(
        lambda t: loss(call, a * t, b))(t))(jnp.asarray(1.0, a.dtype)),
    "checkpoint": lambda call, a, b: jax.grad(jax.checkpoint(functools.partial(loss, call)), (0, 1))(a, b),
    "scan": _scan,
    "grad_of_scan": lambda call, a, b: jax.grad(
        lambda a, b: _scan(call, a, b)[1].astype(jnp.float32).sum(), (0, 1))(a, b),
    "while_loop": _while,
    "cond": lambda call, a, b: lax.cond(a.reshape(-1)[0] > -9, call, lambda a, b: 0 * call(a, b), a, b),
    "custom_vjp": _custom_vjp,
    "vmap": lambda call, a, b: jax.vmap(call)(_stacked(a), _stacked(b)),
    "vmap_a": lambda call, a, b: jax.vmap(call, (0, None))(_stacked(a), b),
    "vmap_b": lambda call, a, b: jax.vmap(call, (None, 0))(a, _stacked(b)),
    "vmap_last_axes": lambda call, a, b: jax.vmap(call, (a.ndim, b.ndim), -1)(_stacked(a, -1), _stacked(b, -1)),
    "vmap_of_vmap": lambda call, a, b: jax.vmap(jax.vmap(call, (None, 0)), (0, None))(_stacked(a), _stacked(b)),
    "vmap_of_grad": lambda call, a, b: jax.vmap(jax.grad(functools.partial(loss, call), (0, 1)))(
        _stacked(a), _stacked(b)),
    "grad_of_vmap_b": lambda call, a, b: jax.grad(lambda a, b: jax.vmap(call, (None, 0))(a, _stacked(b))
                                                  .astype(jnp.float32).sum(), (0, 1))(a, b),
    "jit_vmap_checkpoint_grad": lambda call, a, b: jax.jit(jax.vmap(jax.grad(
        jax.checkpoint(functools.partial(loss, call)), (0, 1)), (0, None)))(_stacked(a), b),
}  # fmt: skip


def operands(name: str, dtype, rng) -> tuple[jax.Array, jax.Array]:
    _, _, *shapes = CALLS[name]
    return tuple(jnp.asarray(rng.integers(-1, 2, shape), dtype) for shape in shapes)


ROUNDED_BETWEEN = ("grad_of_grad", "third_order", "hessian", "jacfwd_of_grad")
"""Here a rounded result is computed with again, and XLA may leave out a rounding between operations that it fuses."""


def assert_same(ours, theirs, rounded_between: bool = False) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        assert jax.typeof(mine).weak_type == jax.typeof(other).weak_type
        mine, other = np.asarray(mine, np.float64), np.asarray(other, np.float64)
        if rounded_between:
            np.testing.assert_allclose(mine, other, rtol=0, atol=2.0**-7 * np.abs(other).max(initial=0.0))
        else:
            np.testing.assert_array_equal(mine, other)


WHOLE = ("matmul", "dot_general", "einsum")
SELECTED = ("eager", "jit_grad", "grad_of_grad", "scan", "vmap", "vmap_a", "vmap_b", "jit_vmap_checkpoint_grad")
ON_EMULATED_BLACKWELL = ("eager", "jit_grad", "vmap_b")
MATRIX = [(name, t) for name in CALLS for t in TRANSFORMATIONS if name in WHOLE or t in SELECTED]
"""All transformations of the three calls, and those that meet other code on the other kinds of operands."""


@pytest.mark.parametrize(("name", "transformation"), MATRIX, ids=["-".join(pair) for pair in MATRIX])
def test_transformation_matches_jax(place, rng, monkeypatch, name, transformation) -> None:
    """Where kernels run, they run for every product: strict mode forbids any fallback."""
    ours, theirs, *_ = CALLS[name]
    if place.name == "emulated_sm_100f" and transformation not in ON_EMULATED_BLACKWELL:
        pytest.skip("the emulated Blackwell device runs three transformations, for time")
    a, b = operands(name, jnp.bfloat16, rng)
    run = TRANSFORMATIONS[transformation]
    compiled = (
        (lambda f: f) if transformation.startswith("eager") else jax.jit
    )  # one program each: many small ones take longer
    expected = compiled(functools.partial(run, theirs))(a, b)
    if place.runs_kernels:
        monkeypatch.setenv("JAX_CLC_STRICT", "1")
    assert_same(compiled(functools.partial(run, ours))(a, b), expected, transformation in ROUNDED_BETWEEN)


@pytest.mark.parametrize("name", (*WHOLE, "matmul_vector"))
@pytest.mark.parametrize("preferred", [None, jnp.float32])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32, jnp.int8])
def test_dtypes_match_jax(place, rng, name, preferred, dtype) -> None:
    if place.emulated:
        pytest.skip("dtypes are proven on the emulated device by the kernels' own tests")
    ours, theirs, *_ = CALLS[name]
    a, b = operands(name, dtype, rng)
    assert_same(ours(a, b, preferred_element_type=preferred), theirs(a, b, preferred_element_type=preferred))
    if jnp.issubdtype(dtype, jnp.floating):
        pull = lambda call: jax.vjp(lambda a, b: call(a, b, preferred_element_type=preferred), a, b)[1](  # noqa: E731
            b_like(call(a, b, preferred_element_type=preferred)))  # fmt: skip
        assert_same(pull(ours), pull(theirs))
