"""On a GPU: CUPTI times what runs, the holder takes SMs and gives them back, forced candidates are what is launched."""

import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupti():
    from jax_clc.bench.device_timer import timer

    return timer("cupti")


@pytest.fixture(scope="module")
def large():
    from jax_clc.bench import contestants, operands
    from jax_clc.planning import GemmProblem

    problem = GemmProblem.compact(4096, 4096, 4096)
    return problem, contestants.jnp_dot(problem), operands.random_sets(problem, 2)


def test_device_time_is_the_kernels_own_and_less_than_wall_time(cupti, large):
    from jax_clc.bench.race import Effort, race

    _, product, sets = large
    timing = race({"jnp.dot": product}, sets, cupti, Effort.quick())["jnp.dot"]
    assert 100 < timing.median_us < 400  # 137 GFLOP at 340 to 1370 TFLOP/s
    assert timing.median_us < timing.wall_us
    assert timing.activities


def test_held_sms_slow_a_product_down_and_are_given_back(cupti, large):
    from jax_clc.bench.race import Effort, race
    from jax_clc.bench.sm_holder import SmHolder

    _, product, sets = large
    holder = SmHolder()
    times = {}
    for held in (0, 66, 0):
        with holder.holding(held):
            times.setdefault(held, []).append(race({"p": product}, sets, cupti, Effort.quick())["p"].median_us)
    assert times[66][0] > 1.3 * times[0][0]
    assert times[0][1] < 1.1 * times[0][0]


def test_every_candidate_of_a_sweep_is_launched_as_forced_and_exact(cupti):
    from jax_clc.bench.environment import running_family
    from jax_clc.bench.race import Effort
    from jax_clc.bench.sweep import sweep
    from jax_clc.planning import GemmProblem

    found = sweep(GemmProblem.compact(1024, 1280, 512), running_family(), cupti, most=4, effort=Effort.quick())
    assert found["candidates"]
    assert found["inexact"] == {}
