"""On a GPU, every kernel gives exactly the sums that integers make exact, whatever the sizes, majors and schedule."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import chosen_cases, pinned_cases

import jax_clc
from jax_clc.bench.check import compare, exact_result, poison
from jax_clc.bench.contestants import ours
from jax_clc.bench.environment import running_family
from jax_clc.bench.operands import integer_set
from jax_clc.planning import GemmProblem, plan

pytestmark = pytest.mark.gpu


@functools.lru_cache(maxsize=1)  # alike problems come in a row
def operands_and_result(problem: GemmProblem):
    a, b = integer_set(problem)
    return a, b, exact_result(problem, a, b)


def assert_exact(problem: GemmProblem, repeats: int = 1, **request) -> None:
    a, b, expected = operands_and_result(problem)
    product = ours(problem, **request)
    for _ in range(repeats):
        poison(problem)
        compare(str(request), problem, product(a, b), expected)


@pytest.fixture(scope="module")
def family() -> str:
    return running_family()


def label(value) -> str:
    return str(value).replace(" ", "_")


@pytest.mark.parametrize("problem, kernel, sm_limit", list(pinned_cases("sm_90a")), ids=label)
def test_every_kernel_is_exact(problem, kernel, sm_limit, family):
    if not kernel.startswith(family.replace("_", "").rstrip("af")):
        pytest.skip(f"{kernel} is not for this GPU ({family})")
    assert_exact(problem, kernel=kernel, sm_limit=sm_limit)


@pytest.mark.parametrize("problem", list(chosen_cases()), ids=label)
def test_whatever_the_planner_takes_is_exact(problem, family):
    assert family in plan(problem).choices
    assert_exact(problem)


@pytest.mark.parametrize("m", [512, 4096])
def test_clusters_stay_exact_when_repeated(m):
    """Case 6: the first CTA of a cluster reused shared memory that its peer still read."""
    assert_exact(GemmProblem.compact(m, 4096, 512), repeats=300)


@pytest.mark.parametrize("n", [1024, 2048])
def test_small_grids_stay_exact_when_repeated(n):
    """Case 5's shapes: a barrier of the wrong scope spoilt a quarter of the runs."""
    assert_exact(GemmProblem.compact(4096, n, 256, b_major="k"), repeats=100)


def test_operand_above_two_to_the_31_elements():
    """Case 14: 32-bit offsets fault just above 2^31 elements."""
    problem = GemmProblem.compact(175_000, 256, 12_288)
    a, b = integer_set(problem)
    result = ours(problem)(a, b)
    rows = jnp.array([0, 1, 87_381, 174_762, 174_763, 174_999])  # around the 2^31st element, and the ends
    expected = (a[rows].astype(jnp.float32) @ b.astype(jnp.float32)).astype(jnp.bfloat16)
    assert jnp.array_equal(result[rows], expected)
    assert bool(jnp.isfinite(result).all())


@pytest.mark.parametrize("m, n, k", [(300, 200, 136), (130, 70, 33)])
def test_nan_and_infinity_stay_where_they_belong(m, n, k):
    """Case 17: padding times NaN must not leak, and one bad row spoils its own row only."""
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.integers(-3, 4, (m, k)), jnp.bfloat16).at[7].set(jnp.nan).at[11, 3].set(jnp.inf)
    b = jnp.asarray(rng.integers(1, 4, (k, n)), jnp.bfloat16).at[:, 5].set(-jnp.inf)
    poison(GemmProblem.compact(m, n, k))
    ours_, theirs = jax.jit(jax_clc.matmul)(a, b), jax.jit(jnp.matmul)(a, b)
    assert jnp.array_equal(jnp.isnan(ours_), jnp.isnan(theirs))
    assert jnp.array_equal(ours_, theirs, equal_nan=True)


@pytest.mark.parametrize(
    "shape_a, shape_b",
    [((4, 0), (0, 4)), ((3, 4, 0), (3, 0, 8)), ((0, 8), (8, 8)), ((0, 4, 8), (0, 8, 4))],
)
def test_empty_sums_are_zero_and_empty_results_are_empty(shape_a, shape_b):
    """Case 16."""
    a, b = jnp.ones(shape_a, jnp.bfloat16), jnp.ones(shape_b, jnp.bfloat16)
    for product in (jax_clc.matmul, jax.jit(jax_clc.matmul)):
        jax.block_until_ready(jnp.full((64, 64), jnp.nan, jnp.bfloat16))
        assert jnp.array_equal(product(a, b), jnp.matmul(a, b))


@pytest.mark.parametrize("offset", [1, 3, 8])
def test_a_slice_that_starts_anywhere_is_exact(offset):
    """A view into a larger buffer, at 2, 6 or 16 bytes: XLA may pass it as it lies."""
    rng = np.random.default_rng(1)
    flat = jnp.asarray(rng.integers(-3, 4, 512 * 256 + 64), jnp.bfloat16)
    b = jnp.asarray(rng.integers(-3, 4, (256, 384)), jnp.bfloat16)

    def sliced(matmul, start):
        return jax.jit(lambda f, b: matmul(jax.lax.dynamic_slice(f, (start,), (512 * 256,)).reshape(512, 256), b))

    assert jnp.array_equal(sliced(jax_clc.matmul, offset)(flat, b), sliced(jnp.matmul, offset)(flat, b))


def relative_error(product, dtype, a, b) -> float:
    """Of the whole result, against float64."""
    truth = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    result = np.asarray(jax.jit(functools.partial(product, preferred_element_type=dtype))(a, b), np.float64)
    return float(np.linalg.norm(result - truth) / np.linalg.norm(truth))


RANDOM_SIZES = [(1024, 1024, 4096), (300, 520, 1000), (64, 4096, 4096), (257, 129, 8191)]


def random_operands(m, n, k):
    keys = jax.random.split(jax.random.key(3))
    return jax.random.normal(keys[0], (m, k), jnp.bfloat16), jax.random.normal(keys[1], (k, n), jnp.bfloat16)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("m, n, k", RANDOM_SIZES)
def test_random_operands_are_as_near_as_jnp_dot(m, n, k, dtype):
    """The error is at most twice that of jnp.dot, which splits k where tiles are few: that shortens the chains in which
    the tensor core truncates."""
    a, b = random_operands(m, n, k)
    error, theirs = (relative_error(product, dtype, a, b) for product in (jax_clc.matmul, jnp.matmul))
    assert error <= 2 * theirs
