"""Racing: in turns, on rotating operands; checks that can fail; medians and ratios as defined."""

import jax
import jax.numpy as jnp
import pytest

from jax_clc.bench import check, contestants, operands, results
from jax_clc.bench.device_timer import Activity, Sample, WallTimer
from jax_clc.bench.race import MAX_WARMUPS, Effort, race, summarise, warm_up
from jax_clc.planning import GemmProblem

EFFORT = Effort(samples=4, sample_us=1.0, warmup_us=1.0)


def test_contestants_run_in_turns_and_operands_rotate():
    calls = []

    def contestant(name):
        def product(operand):
            calls.append((name, operand))
            return jnp.zeros(())

        return product

    timings = race({"a": contestant("a"), "b": contestant("b")}, [(0,), (1,), (2,)], WallTimer(), EFFORT)
    assert set(timings) == {"a", "b"}
    measured = [name for name, _ in calls[-8:]]
    assert measured == ["a", "b", "b", "a", "a", "b", "b", "a"]
    own = [operand for name, operand in calls if name == "a"]
    assert own == [i % 3 for i in range(len(own))]


def test_warming_up_goes_on_until_rounds_take_as_long_as_before(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("jax_clc.bench.race.time.perf_counter", lambda: now[0])

    def contestant(slower_until, pace):
        def work():
            now[0] += 100e-6 * (1 + pace * min(now[0], slower_until))

        return work

    assert warm_up([contestant(0.0, 0.0)], 10_000.0) == 2
    assert warm_up([contestant(now[0] + 0.025, 10.0)], 10_000.0) == 5
    assert warm_up([contestant(1e9, 10.0)], 10_000.0) == MAX_WARMUPS


def test_a_summary_is_per_call_and_lists_what_one_call_did():
    def sample(microseconds):
        pair = (Activity("memset", "memset", 0, 500), Activity("kernel", "gemm", 1000, 1000 + int(microseconds * 1e3)))
        return Sample("a", 2 * (microseconds + 0.5), 100.0, pair * 2)

    timing = summarise([sample(us) for us in (3, 1, 2)], calls=2)
    assert (timing.median_us, timing.q1_us, timing.q3_us, timing.wall_us) == (2.5, 2.0, 3.0, 50.0)
    assert timing.activities == (("memset", 0.5), ("gemm", 2.0))


@pytest.mark.parametrize(("a_major", "b_major", "batch"), [("k", "n", 1), ("k", "k", 3), ("m", "n", 3), ("m", "k", 1)])
def test_stored_operands_have_the_majors_and_give_the_product(a_major, b_major, batch):
    problem = GemmProblem.compact(8, 12, 20, batch=batch, a_major=a_major, b_major=b_major)
    a_shape, b_shape = operands.stored_shapes(problem)
    assert (a_shape[-1], b_shape[-1]) == (20 if a_major == "k" else 8, 20 if b_major == "k" else 12)
    a, b = operands.integer_set(problem)
    result = operands.on_stored(problem, jnp.matmul)(a, b)
    assert result.shape == ((3, 8, 12) if batch == 3 else (8, 12))
    assert bool(jnp.all(result == check.exact_result(problem, a, b)))


@pytest.mark.parametrize("k", [1, 1000, 1 << 22])
def test_integer_operands_keep_every_partial_sum_exact(k):
    problem = GemmProblem.compact(1, 1, k)
    a, b = operands.integer_set(problem)
    assert float(jnp.max(jnp.abs(a))) * float(jnp.max(jnp.abs(b))) * k < 2**24
    assert float(jnp.max(jnp.abs(a))) >= 1


def test_rotated_sets_exceed_any_l2():
    small = GemmProblem.compact(4096, 1024, 1024)
    assert operands.sets_beyond_l2(small) * 2 * (4096 * 1024 + 1024 * 1024) >= operands.ROTATED_BYTES
    assert operands.sets_beyond_l2(GemmProblem.compact(16384, 16384, 16384)) == 1


def test_random_sets_differ_and_are_not_zero():
    first, second = operands.random_sets(GemmProblem.compact(16, 16, 16), 2)
    assert not bool(jnp.array_equal(first[0], second[0]))
    assert float(jnp.std(first[0].astype(jnp.float32))) > 0.5


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda d: d.at[2, 3].set(jnp.nan), r"1 of 64 elements differ; the first at \(2, 3\)"),
        (lambda d: d * 1.01, "elements differ"),
        (lambda d: d.astype(jnp.float32), "gives float32"),
        (lambda d: d[:-1], r"\(7, 8\)"),
    ],
)
def test_a_result_that_is_not_exact_is_named(fault, text):
    problem = GemmProblem.compact(8, 8, 64)
    with pytest.raises(check.Inexact, match=text):
        check.check_exact("wrong", problem, jax.jit(lambda a, b: fault(jnp.matmul(a, b))))


@pytest.mark.parametrize("k", [64, 5000])
@pytest.mark.parametrize(("dtype", "out_dtype"), [
    ("int8", "int8"), ("int8", "int32"), ("int8", "bfloat16"), ("int8", "float32"), ("int32", "int32"),
])  # fmt: skip
def test_the_exact_result_of_integers_is_what_jax_gives(dtype, out_dtype, k):
    problem = GemmProblem.compact(32, 32, k, dtype=dtype, out_dtype=out_dtype)
    check.check_exact("jnp.dot", problem, contestants.jnp_dot(problem))
    with pytest.raises(check.Inexact, match="1 of 1024"):
        check.check_exact("wrong", problem, lambda a, b: contestants.jnp_dot(problem)(a, b).at[2, 3].add(64))


@pytest.mark.parametrize(("dtype", "out_dtype", "text"), [
    ("bfloat16", "int32", "sums of floats"), ("float8_e4m3fn", "int8", "sums of floats"),
    ("int32", "int8", "narrower"), ("int32", "bfloat16", "narrower"),
])  # fmt: skip
def test_dtypes_without_an_exact_result_are_refused(dtype, out_dtype, text):
    problem = GemmProblem.compact(8, 8, 8, dtype=dtype, out_dtype=out_dtype)
    with pytest.raises(ValueError, match=text):
        check.ExactCheck(problem)


def test_random_integers_take_all_values():
    a, b = operands.random_sets(GemmProblem.compact(64, 64, 64, dtype="int8"), 1)[0]
    assert a.dtype == b.dtype == jnp.int8
    assert int(a.min()) < -100 and int(a.max()) > 100


def test_an_exact_result_passes():
    check.check_exact("right", GemmProblem.compact(8, 8, 64), jax.jit(jnp.matmul))


def _row(ours, theirs):
    timing = {"median_us": 0.0}
    return {
        "m": 1024, "n": 1024, "k": 1024, "batch": 1, "majors": "kn",
        "contestants": {"jax_clc": timing | {"median_us": ours}, "jnp.dot": timing | {"median_us": theirs}},
    }  # fmt: skip


def test_a_ratio_is_the_baselines_time_over_ours():
    assert results.ratio(_row(10.0, 20.0)) == 2.0
    assert results.tflops(_row(10.0, 20.0), 10.0) == pytest.approx(214.7, abs=0.1)
    assert results.geometric_mean([2.0, 0.5, 1.0]) == pytest.approx(1.0)


def test_the_table_fits_sixty_columns_and_ends_with_the_mean_and_the_least():
    lines = results.table([_row(10.0, 20.0), _row(20.0, 10.0)]).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "geometric mean 1.000, least 0.500, of 2"
