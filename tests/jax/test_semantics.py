"""Shapes, dtypes, weak types and errors are those of `jnp.matmul`, `lax.dot_general` and `jnp.einsum`, on any input."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import why_no_emulated_device
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import checkify

import jax_clc
from jax_clc.matmul import dot_general, einsum, matmul
from jax_clc.planning import cost_model, planner

# The shapes that JAX's own tests use for these calls.
DOT_GENERAL = [
    *((a, b, ((x, y), ((), ()))) for a, b, x, y in [
        ((5,), (5,), (0,), (0,)), ((5, 7), (5,), (0,), (0,)), ((7, 5), (5,), (1,), (0,)), ((3, 5), (2, 5), (1,), (1,)),
        ((5, 3), (5, 2), (0,), (0,)), ((5, 3, 2), (5, 2, 4), (0,), (0,)), ((5, 3, 2), (5, 2, 4), (0, 2), (0, 1)),
        ((5, 3, 2), (3, 5, 2, 4), (0, 2), (1, 2)), ((1, 2, 2, 3), (1, 2, 3, 1), (1,), (1,)),
        ((3, 2), (2, 4), (1,), (0,)),
    ]),
    ((3, 3, 2), (3, 2, 4), (((2,), (1,)), ((0,), (0,)))),
    ((3, 3, 2), (2, 3, 4), (((2,), (0,)), ((0,), (1,)))),
    ((3, 4, 2, 4), (3, 4, 3, 2), (((2,), (3,)), ((0, 1), (0, 1)))),
]  # fmt: skip
MATMUL = [
    ((3,), (3,)), ((3, 3), (3,)), ((3,), (3, 3)), ((3, 3), (3, 3)), ((3,), (5, 3, 2)), ((5, 3, 2), (2,)),
    ((5, 2), (3, 2, 4)), ((5, 2, 3), (3, 2)), ((5, 3, 4), (5, 4, 1)), ((3, 1, 3, 4), (5, 4, 1)),
    ((1, 5, 4), (1, 4, 3)), ((1, 3, 4), (6, 4, 5)), ((2, 1, 3, 4), (1, 6, 4, 5)), ((4, 0), (0, 4)), ((0, 4), (4, 3)),
    ((2, 3, 0), (2, 0, 4)), ((0, 3, 4), (0, 4, 5)),
]  # fmt: skip
EINSUM = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("ij,kj->ki", (3, 4), (5, 4)),
    ("bij,bjk->bki", (2, 3, 4), (2, 4, 5)), ("i,j->ij", (3,), (4,)), ("i,i->", (3,), (3,)),
    ("ii,ij->j", (3, 3), (3, 4)), ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)), ("bhqk,bkhd->bqhd", (2, 2, 3, 5), (2, 5, 2, 4)),
    ("ab,cd->acbd", (2, 3), (4, 5)),
]  # fmt: skip
DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.int32, jnp.uint8, jnp.complex64, jnp.bool_]


def array(shape, dtype, seed=0):
    values = np.random.default_rng([seed, *shape]).integers(
        0 if jnp.issubdtype(dtype, jnp.unsignedinteger) else -2, 3, shape
    )
    return jnp.asarray(values, dtype)


def outcome(call, *arguments, **options):
    """What a call gives: a value, or the type and text of its error."""
    try:
        return call(*arguments, **options)
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def assert_same_outcome(ours, theirs):
    if isinstance(theirs, tuple):
        assert ours == theirs
        return
    assert not isinstance(ours, tuple), ours
    assert (ours.shape, ours.dtype, jax.typeof(ours).weak_type) == (
        theirs.shape,
        theirs.dtype,
        jax.typeof(theirs).weak_type,
    )
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_general_on_the_public_shapes(dtype) -> None:
    for a_shape, b_shape, numbers in DOT_GENERAL:
        a, b = array(a_shape, dtype), array(b_shape, dtype, 1)
        for options in ({}, {"preferred_element_type": jnp.float32}, {"precision": "highest"}):
            assert_same_outcome(
                outcome(dot_general, a, b, numbers, **options), outcome(lax.dot_general, a, b, numbers, **options)
            )


@pytest.mark.parametrize("dtypes", [*zip(DTYPES, DTYPES, strict=True), *itertools.combinations(DTYPES[:5], 2)], ids=str)
def test_matmul_on_the_public_shapes(dtypes) -> None:
    for a_shape, b_shape in MATMUL:
        a, b = array(a_shape, dtypes[0]), array(b_shape, dtypes[1], 1)
        assert_same_outcome(outcome(matmul, a, b), outcome(jnp.matmul, a, b))


@pytest.mark.parametrize(("subscripts", "a", "b"), EINSUM)
@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_einsum_on_public_shapes(subscripts, a, b, dtype) -> None:
    a, b = array(a, dtype), array(b, dtype, 1)
    assert_same_outcome(outcome(einsum, subscripts, a, b), outcome(jnp.einsum, subscripts, a, b))


def test_einsum_of_three_operands_and_with_axis_lists() -> None:
    a, b, c = array((3, 4), jnp.bfloat16), array((4, 5), jnp.bfloat16), array((5, 6), jnp.bfloat16)
    assert_same_outcome(einsum("ij,jk,kl->il", a, b, c), jnp.einsum("ij,jk,kl->il", a, b, c))
    assert_same_outcome(einsum(a, [0, 1], b, [1, 2], [2, 0]), jnp.einsum(a, [0, 1], b, [1, 2], [2, 0]))


BAD = [
    (matmul, jnp.matmul, ((3, 4), (5, 6))), (matmul, jnp.matmul, ((), (3,))), (matmul, jnp.matmul, ((3,), ())),
    (matmul, jnp.matmul, ((2, 3, 4), (3, 4, 5))), (matmul, jnp.matmul, ((3,), (4,))),
    *((functools.partial(dot_general, dimension_numbers=n), functools.partial(lax.dot_general, dimension_numbers=n), x)
      for x, n in [
        (((3, 4), (5, 6)), (((1,), (0,)), ((), ()))), (((3, 4), (4, 6)), (((2,), (0,)), ((), ()))),
        (((3, 4), (4, 6)), (((1, 1), (0, 0)), ((), ()))), (((3, 4), (4, 6)), (((1,), (0,)), ((0,), ()))),
        (((2, 3, 4), (3, 4, 6)), (((2,), (1,)), ((0,), (0,)))), (((3, 3), (3, 3)), (((0,), (0,)), ((0,), (0,)))),
        (((3, 4), (4, 6)), (((-1,), (0,)), ((), ()))), (((3, 4), (4, 6)), (((1.5,), (0,)), ((), ()))),
        (((3, 4), (4, 6)), ((("1",), (0,)), ((), ()))),
    ]),
    (functools.partial(einsum, "ij,jk->ik"), functools.partial(jnp.einsum, "ij,jk->ik"), ((3, 4), (5, 6))),
    (functools.partial(einsum, "ij,jk->iz"), functools.partial(jnp.einsum, "ij,jk->iz"), ((3, 4), (4, 6))),
]  # fmt: skip


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize(("ours", "theirs", "shapes"), BAD)
def test_bad_shapes_raise_jaxs_own_errors(ours, theirs, shapes, compile_it) -> None:
    a, b = (array(shape, jnp.bfloat16) for shape in shapes)
    expected = outcome(jax.jit(theirs) if compile_it else theirs, a, b)
    assert isinstance(expected, tuple), "JAX takes these operands: not a bad input"
    assert outcome(jax.jit(ours) if compile_it else ours, a, b) == expected


@pytest.mark.parametrize("operands", [([[1.0]], [[1.0]]), ("a", "b"), (None, jnp.ones((2, 2)))], ids=repr)
def test_what_is_no_array_raises_jaxs_own_errors(operands) -> None:
    numbers = (((1,), (0,)), ((), ()))
    assert outcome(matmul, *operands)[0] is outcome(jnp.matmul, *operands)[0]
    assert outcome(dot_general, *operands, numbers)[0] is outcome(lax.dot_general, *operands, numbers)[0]


class MadeAnArray:
    """What is no array, but is made one by JAX."""

    def __init__(self, array) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __jax_array__(self):
        return self.array


@pytest.mark.parametrize("compile_it", [False, True])
def test_einsum_of_what_is_no_array_is_as_jaxs(compile_it) -> None:
    a, b = array((3, 4), jnp.bfloat16), array((4, 5), jnp.bfloat16, 1)
    for operand in (MadeAnArray(b), np.asarray(b), [[1.0] * 5] * 4, 2.0, None):

        def einsum_with(call, operand=operand):
            return (jax.jit if compile_it else lambda f: f)(lambda a: call("ij,jk->ik", a, operand))

        assert_same_outcome(outcome(einsum_with(einsum), a), outcome(einsum_with(jnp.einsum), a))


def test_a_transposed_32_bit_result_of_16_bit_operands_on_the_cpu() -> None:
    a, b = array((2, 8, 8), jnp.bfloat16), array((2, 8, 8), jnp.bfloat16, 1)
    call = functools.partial(jax.jit(einsum, static_argnums=0, static_argnames="preferred_element_type"),
                             "zij,zjk->zki", preferred_element_type=jnp.float32)  # fmt: skip
    expected = np.einsum("zij,zjk->zki", np.asarray(a, np.float32), np.asarray(b, np.float32))
    np.testing.assert_array_equal(np.asarray(call(a, b)), expected)


@pytest.mark.parametrize("call", [matmul, functools.partial(einsum, "ij,jk->ik")], ids=["matmul", "einsum"])
def test_modes_that_run_op_by_op(call) -> None:
    a, b = array((3, 4), jnp.bfloat16), array((4, 5), jnp.bfloat16, 1)
    expected = jax.value_and_grad(functools.partial(_squares, call), (0, 1))(a, b)
    with jax.disable_jit():
        jax.tree.map(
            np.testing.assert_array_equal,
            jax.value_and_grad(functools.partial(_squares, call), (0, 1))(a, b),
            expected,
        )
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in gemm"):
        jax.jit(call)(a.at[0, 0].set(jnp.inf), b * 0)


def test_checkify_sees_nans_in_our_products() -> None:
    a = array((3, 3), jnp.float32)
    for call in (matmul, jnp.matmul):
        check = checkify.checkify(jax.jit(lambda x: call(x, a)), errors=checkify.float_checks)  # noqa: B023
        assert "nan generated by primitive" in check(a * jnp.nan)[0].get()
        assert check(a)[0].get() is None


def test_weak_types_follow_jax() -> None:
    weak = jnp.asarray(2.0) * jnp.ones(())  # a weakly typed scalar stays one
    a = jnp.full((2, 2), 1.0) * 1.0
    weak_matrix = (
        lax.full_like(weak, 2.0, shape=(2, 2)) if jax.typeof(weak).weak_type else jnp.broadcast_to(2.0, (2, 2))
    )
    for x, y in itertools.product((a, weak_matrix, array((2, 2), jnp.bfloat16), array((2, 2), jnp.int8)), repeat=2):
        assert_same_outcome(outcome(matmul, x, y), outcome(jnp.matmul, x, y))


def test_numpy_arrays_are_operands_too() -> None:
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    assert_same_outcome(matmul(a, b), jnp.matmul(a, b))
    assert_same_outcome(dot_general(a, b, (((1,), (0,)), ((), ()))), lax.dot_general(a, b, (((1,), (0,)), ((), ()))))


@pytest.mark.parametrize("precision", [None, "default", "highest", lax.Precision.HIGH, (lax.Precision.DEFAULT,
    lax.Precision.HIGHEST),
                                       lax.DotAlgorithmPreset.F32_F32_F32, "nonsense"], ids=str)  # fmt: skip
def test_precision_is_taken_as_jax_takes_it(precision) -> None:
    for dtype in (jnp.float32, jnp.bfloat16):
        a, b = array((4, 8), dtype), array((8, 3), dtype)
        assert_same_outcome(outcome(matmul, a, b, precision=precision), outcome(jnp.matmul, a, b, precision=precision))


@pytest.mark.parametrize("compile_it", [False, True])
def test_a_list_of_two_precisions_is_a_pair_to_dot_general(compile_it) -> None:
    a, b = array((4, 8), jnp.float32), array((8, 3), jnp.float32)
    ours, theirs = (
        functools.partial(f, dimension_numbers=(((1,), (0,)), ((), ())), precision=["default", "highest"])
        for f in (dot_general, lax.dot_general)
    )
    maybe_jit = jax.jit if compile_it else lambda f: f
    assert_same_outcome(maybe_jit(ours)(a, b), maybe_jit(theirs)(a, b))


def test_64_bit_mode_follows_jax() -> None:
    with jax.enable_x64(True):
        for dtype, preferred in (
            (jnp.float32, jnp.float64),
            (jnp.float64, None),
            (jnp.int8, jnp.int64),
            (jnp.bfloat16, jnp.float64),
        ):
            a, b = array((4, 8), dtype), array((8, 3), dtype, 1)
            assert_same_outcome(
                outcome(matmul, a, b, preferred_element_type=preferred),
                outcome(jnp.matmul, a, b, preferred_element_type=preferred),
            )


def draw_product(data, sizes) -> tuple[jax.Array, jax.Array, tuple]:
    """Operands of a product over up to five axes of any kind, in any order, and its dimension numbers."""
    kinds = data.draw(st.lists(st.sampled_from("lmnk"), max_size=5))
    size = [data.draw(sizes) for _ in kinds]
    a_axes = data.draw(st.permutations([i for i, kind in enumerate(kinds) if kind in "lmk"]))
    b_axes = data.draw(st.permutations([i for i, kind in enumerate(kinds) if kind in "lnk"]))
    pairs = {
        wanted: [(a_axes.index(i), b_axes.index(i)) for i, kind in enumerate(kinds) if kind == wanted]
        for wanted in "lk"
    }
    unzip = lambda found: tuple(zip(*found, strict=True)) if found else ((), ())  # noqa: E731
    dtype = data.draw(st.sampled_from([jnp.bfloat16, jnp.float32]))
    a, b = array([size[i] for i in a_axes], dtype), array([size[i] for i in b_axes], dtype, 1)
    return a, b, (unzip(pairs["k"]), unzip(pairs["l"]))


@settings(max_examples=60)
@given(st.data())
def test_any_dimension_numbers(data) -> None:
    a, b, numbers = draw_product(data, st.integers(0, 4))
    assert_same_outcome(outcome(dot_general, a, b, numbers), outcome(lax.dot_general, a, b, numbers))


@pytest.mark.emulated
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100f"])
def test_any_dimension_numbers_on_the_emulated_device(arch) -> None:
    """Merged axes, middle batches, shared operands, padded rows and exchanged operands, down to the kernel's stores."""
    missing = why_no_emulated_device(arch)
    if missing:
        pytest.skip(missing)
    launches = 0

    @settings(max_examples=25, derandomize=True)
    @given(st.data())
    def check(data) -> None:
        nonlocal launches
        a, b, numbers = draw_product(data, st.sampled_from([1, 2, 3, 8, 17]))
        with jax_clc.emulated(arch, sm_count=4) as device:
            ours = dot_general(a, b, numbers)
            assert_same_outcome(ours, lax.dot_general(a, b, numbers))
            launches += len(device.reports)

    check()
    assert launches >= 5, "the kernels hardly ran: the test proves nothing"


@pytest.mark.emulated
@pytest.mark.parametrize("k_axis_of_a, k_axis_of_b", [(1, 0), (0, 1)])
def test_parts_of_k_on_the_emulated_device(k_axis_of_a, k_axis_of_b, monkeypatch) -> None:
    """Few tiles and a long k: a batch of parts, added up. The model is made to think that adding gains time."""
    missing = why_no_emulated_device("sm_90a")
    if missing:
        pytest.skip(missing)
    monkeypatch.setattr(cost_model, "parts_us", lambda problem, parts, *_: -1e4 * (parts > 1))
    planner._plan.cache_clear()
    rng = np.random.default_rng(0)
    a, b = (
        jnp.asarray(np.moveaxis(rng.integers(-3, 4, (size, 8192)), 1, axis), jnp.bfloat16)
        for size, axis in ((72, k_axis_of_a), (48, k_axis_of_b))
    )
    numbers = (((k_axis_of_a,), (k_axis_of_b,)), ((), ()))
    with jax_clc.emulated("sm_90a", sm_count=4) as device:
        assert jax_clc.plan(a, b, dimension_numbers=numbers).k_parts == 4
        ours = jax.block_until_ready(jax.jit(functools.partial(dot_general, dimension_numbers=numbers))(a, b))
        assert len(device.reports) == 1
    planner._plan.cache_clear()
    assert jnp.array_equal(ours, lax.dot_general(a, b, numbers))


def _squares(f, a, b):
    return sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in jax.tree.leaves(f(a, b)))


STEPS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "grad": lambda f: jax.grad(functools.partial(_squares, f), (0, 1)),
    "vmap": lambda f: lambda a, b: jax.vmap(f)(jnp.stack([a, -a]), jnp.stack([b, b])),
    "vmap_b": lambda f: lambda a, b: jax.vmap(f, (None, b.ndim), 0)(a, jnp.stack([b, -b], -1)),
    "vmap_a": lambda f: lambda a, b: jax.vmap(f, (0, None), 0)(jnp.stack([a, a]), b),
    "jvp": lambda f: lambda a, b: jax.jvp(f, (a, b), (a, b)),
    "linearize": lambda f: lambda a, b: jax.linearize(f, a, b)[1](a, b),
    "jacfwd": lambda f: lambda a, b: jax.jacfwd(lambda t: f(a * t, b))(jnp.ones((), a.dtype)),
    "scan": lambda f: lambda a, b: lax.scan(lambda c, x: (c, f(a * x, b)), 0, jnp.ones(2, a.dtype))[1],
    "cond": lambda f: (
        lambda a, b: lax.cond(a.sum() > -1e9, f, lambda a, b: jax.tree.map(jnp.zeros_like, f(a, b)), a, b)
    ),
}


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=4),
    st.sampled_from([(matmul, jnp.matmul), (functools.partial(einsum, "...ij,...jk->...ki"),
        functools.partial(jnp.einsum, "...ij,...jk->...ki"))]),
    st.sampled_from([((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((2, 3, 4), (2, 4, 3))]),
)  # fmt: skip
def test_transformations_in_any_order(steps, calls, shapes) -> None:
    a, b = (array(shape, jnp.float32, seed) for seed, shape in enumerate(shapes))
    results = []
    for call in calls:
        for step in steps:
            call = STEPS[step](call)
        results.append(jax.tree.leaves(call(a, b)))
    for mine, other in zip(*results, strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        scale = max(1.0, float(jnp.abs(other).max(initial=0.0)))
        np.testing.assert_allclose(np.asarray(mine) / scale, np.asarray(other) / scale, atol=1e-5)
