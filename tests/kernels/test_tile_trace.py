"""A traced kernel names its row by the linear index that it finds again from a tile's place."""

from hypothesis import given
from hypothesis import strategies as st

from kernels import raster


@given(tiles=st.tuples(st.integers(1, 40), st.integers(1, 40)), group=st.integers(1, 50), along=st.integers(0, 1),
       linear=st.integers(0, 5000))  # fmt: skip
def test_linear_index_is_the_inverse_of_the_raster(tiles, group, along, linear):
    tile_m, tile_n, place = raster.cluster_tile(linear, *tiles, group, along)
    assert raster.linear_index(tile_m, tile_n, place, *tiles, group, along) == linear
