"""The raster hands out every cluster tile once, for every grid, and keeps tiles that run together close together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.raster import cluster_tile, tiles_along

tiles = st.integers(1, 40)
groups = st.integers(1, 50)
along = st.integers(0, 1)


@settings(max_examples=300)
@given(tiles_m=tiles, tiles_n=tiles, batches=st.integers(1, 3), raster_group=groups, raster_along=along)
def test_every_tile_is_handed_out_once(tiles_m, tiles_n, batches, raster_group, raster_along):
    handed_out = [
        cluster_tile(linear, tiles_m, tiles_n, raster_group, raster_along)
        for linear in range(tiles_m * tiles_n * batches)
    ]
    grid = {(m, n, batch) for m in range(tiles_m) for n in range(tiles_n) for batch in range(batches)}
    assert len(handed_out) == len(grid)
    assert set(handed_out) == grid


@given(tiles_m=tiles, tiles_n=tiles, wider=st.integers(0, 100), raster_along=along)
def test_a_group_wider_than_the_tiles_is_all_of_them(tiles_m, tiles_n, wider, raster_along):
    """So the launcher passes none that is wider: the kernels multiply it by the length of the walk, in 32 bits."""
    across = tiles_m if raster_along else tiles_n
    for linear in range(tiles_m * tiles_n + 10):
        expected = cluster_tile(linear, tiles_m, tiles_n, across, raster_along)
        assert cluster_tile(linear, tiles_m, tiles_n, across + wider, raster_along) == expected


@given(tiles_m=tiles, tiles_n=tiles, batches=st.integers(1, 3), past=st.integers(0, 100), group=groups, walk=along)
def test_an_index_past_the_end_is_no_tile(tiles_m, tiles_n, batches, past, group, walk):
    _, _, batch = cluster_tile(tiles_m * tiles_n * batches + past, tiles_m, tiles_n, group, walk)
    assert batch >= batches


@given(tiles_m=tiles, tiles_n=tiles, raster_group=groups, raster_along=along, data=st.data())
def test_a_panel_is_as_wide_as_its_group(tiles_m, tiles_n, raster_group, raster_along, data):
    across, walked = (tiles_n, tiles_m) if raster_along == 0 else (tiles_m, tiles_n)
    panel = data.draw(st.integers(0, (across - 1) // raster_group))
    first = panel * raster_group * walked
    count = min(raster_group, across - panel * raster_group) * walked
    axis = 1 if raster_along == 0 else 0
    columns = {cluster_tile(first + i, tiles_m, tiles_n, raster_group, raster_along)[axis] for i in range(count)}
    assert columns == set(range(panel * raster_group, min((panel + 1) * raster_group, across)))


@given(tiles_m=tiles, tiles_n=tiles, raster_group=groups, raster_along=along)
def test_the_walk_turns_round_between_panels(tiles_m, tiles_n, raster_group, raster_along):
    axis = 0 if raster_along == 0 else 1
    walk = [cluster_tile(i, tiles_m, tiles_n, raster_group, raster_along)[axis] for i in range(tiles_m * tiles_n)]
    assert all(abs(after - before) <= 1 for before, after in zip(walk, walk[1:], strict=False))


@given(size=st.integers(1, 10**6), cta_tile=st.sampled_from([64, 128, 160, 192, 256]), cluster=st.sampled_from([1, 2]))
def test_cluster_tiles_cover_the_size_and_none_lies_outside(size, cta_tile, cluster):
    count = tiles_along(size, cta_tile, cluster)
    assert (count - 1) * cta_tile * cluster < size <= count * cta_tile * cluster
