"""The cost model: what its terms must do, whatever the fitted values."""

import dataclasses

import pytest

from jax_clc.planning import GemmProblem, catalog, cost_model
from jax_clc.planning.cost_parameters import CostParameters
from jax_clc.planning.device_model import REFERENCE_DEVICES

COSTS = CostParameters(element_store_us=3.0)


def tile_us(k: int, *, pingpong: bool, elements: bool) -> float:
    kernel = next(k for k in catalog.kernels("sm_90a") if k.schedule == "static" and k.cta_tile == (128, 256, 64))
    moved = frozenset("ab") if elements else frozenset("abd")
    kernel = dataclasses.replace(kernel, pingpong=pingpong, tensor_map_operands=moved)
    problem = GemmProblem.compact(4096, 4096, k)
    return cost_model.estimate(kernel, problem, REFERENCE_DEVICES["sm_90a"], costs=COSTS).tile_us


@pytest.mark.parametrize("k", [64, 4096])
def test_a_cooperative_kernel_stores_elements_between_its_tiles(k):
    extra = tile_us(k, pingpong=False, elements=True) - tile_us(k, pingpong=False, elements=False)
    assert extra == pytest.approx(COSTS.element_store_us)


def test_pingpong_stores_elements_under_the_other_tile_where_that_takes_as_long():
    assert tile_us(4096, pingpong=True, elements=True) == tile_us(4096, pingpong=True, elements=False)
    short = tile_us(64, pingpong=True, elements=False)
    assert tile_us(64, pingpong=True, elements=True) == pytest.approx((short + COSTS.element_store_us) / 2)
