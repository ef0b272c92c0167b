"""The cost model: what its terms must do, whatever the fitted values."""

import dataclasses
import itertools

import pytest

from jax_clc.planning import GemmProblem, catalog, cost_model
from jax_clc.planning.cost_parameters import CostParameters
from jax_clc.planning.device_model import REFERENCE_DEVICES
from kernels.shares import shared_tiles

COSTS = CostParameters(element_store_us=3.0)


def tile_us(k: int, *, pingpong: bool, elements: bool) -> float:
    kernel = next(k for k in catalog.kernels("sm_90a") if k.schedule == "static" and k.cta_tile == (128, 256, 64))
    moved = frozenset("ab") if elements else frozenset("abd")
    kernel = dataclasses.replace(kernel, pingpong=pingpong, aligned_operands=moved)
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


def test_shared_tiles_make_the_last_round_as_long_as_it_is_full():
    """66 workers: 143 tiles are two rounds and 11 tiles, 132 are two rounds."""
    device = REFERENCE_DEVICES["sm_90a"]
    kernel = next(k for k in catalog.kernels("sm_90a") if k.schedule == "static" and k.cta_tile == (128, 256, 64))
    tile_m, tile_n = kernel.cluster_tile
    assert cost_model.resident_clusters(kernel, device, sm_limit=0) == 66

    def mainloop_us(stream_k: bool, columns: int) -> float:
        problem = GemmProblem.compact(11 * tile_m, columns * tile_n, 8192)
        alike = dataclasses.replace(kernel, stream_k=stream_k)
        return cost_model.estimate(alike, problem, device).mainloop_us

    assert mainloop_us(True, 12) == mainloop_us(False, 12)
    assert mainloop_us(False, 13) > 1.4 * mainloop_us(False, 12)
    assert mainloop_us(True, 13) < 1.1 * mainloop_us(True, 12)


def test_parts_that_meet_behind_the_last_tile_cost_their_pauses():
    """66 workers: of 80 tiles all are cut, of 104 only 38, and a whole tile for each worker hides the meetings."""
    device = REFERENCE_DEVICES["sm_90a"]
    kernel = next(k for k in catalog.kernels("sm_90a") if k.schedule == "static" and k.cta_tile == (128, 256, 64))
    tile_m, tile_n = kernel.cluster_tile

    def beside_the_mainloop_us(rows: int, of) -> float:
        found = cost_model.estimate(of, GemmProblem.compact(rows * tile_m, 8 * tile_n, 8192), device, costs=COSTS)
        return found.total_us - found.mainloop_us - COSTS.unhidden_share * found.memory_us

    def extra_us(rows: int) -> float:
        plain, cut = (dataclasses.replace(kernel, stream_k=stream_k) for stream_k in (False, True))
        return beside_the_mainloop_us(rows, cut) - beside_the_mainloop_us(rows, plain)

    for tiles, k_steps in itertools.product(range(1, 300), (16, 47, 48, 128)):
        every = cost_model.cuts_every_tile(tiles, 66, k_steps)
        assert every == (shared_tiles(tiles, 66, 72, k_steps) == tiles)
    assert extra_us(13) == pytest.approx(COSTS.stream_k_us)
    assert extra_us(10) == pytest.approx(COSTS.stream_k_us + cost_model.MEETING_AT_THE_END_US)


@pytest.mark.parametrize("stream_k", [False, True])
def test_the_raster_that_measured_best_is_taken_where_the_tensor_cores_hide_its_traffic(stream_k):
    device = REFERENCE_DEVICES["sm_90a"]
    kernel = next(k for k in catalog.kernels("sm_90a") if k.schedule == "static" and k.cta_tile == (128, 256, 64))
    kernel = dataclasses.replace(kernel, stream_k=stream_k)
    tile_m, tile_n = kernel.cluster_tile

    def raster(problem, of=kernel):
        found = cost_model.estimate(of, problem, device)
        return found.raster_group, found.raster_along

    def least(problem):
        rasters = [(group, along) for group in cost_model.RASTER_GROUPS for along in (0, 1)]
        return min(rasters, key=lambda r: cost_model.estimate(kernel, problem, device, raster=r).memory_bytes)

    extent = cost_model.GROUP_EXTENT["sm_90a"]
    large = GemmProblem.compact(8192, 8192, 8192)
    assert raster(large) == ((extent // tile_n, 0) if stream_k else (extent // tile_m, 1))
    # k is so short that the memory decides, and one round of tiles walks along its group: the least traffic.
    short = GemmProblem.compact(65536, 512, 64)
    assert raster(short) == least(short)
    assert raster(large, dataclasses.replace(kernel, launch_grid="tiles")) == least(large)
