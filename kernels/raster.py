"""The raster: which cluster tile a linear work index means. One definition for the host, the tests and the kernels.

Tiles that run at the same time should share operand rows and columns, so that they find them in L2. The raster walks
along one axis in a panel `raster_group` tiles wide, and turns round at the end of each panel (serpentine), so that the
first tiles of a panel find what the last tiles of the one before have left in L2.

The functions below are integer arithmetic without branches, so that Python's integers and the DSL's 32-bit ones go
through the same lines.
"""

from kernels.branch_free import positive_part


def cluster_tile(linear, tiles_m, tiles_n, raster_group, raster_along):
    """The (tile_m, tile_n, batch) that the linear index `linear` stands for.

    For every `tiles_m`, `tiles_n`, `raster_group` >= 1, the indices 0 to tiles_m * tiles_n * batches - 1 meet every
    tile exactly once. Indices at or past the end give a batch at or past the number of batches, never a wrong tile.

    Args:
      linear: linear index of the cluster tile, at least 0.
      tiles_m: cluster tiles along m.
      tiles_n: cluster tiles along n.
      raster_group: width of a panel in cluster tiles, at least 1; it need not divide anything.
      raster_along: 0 walks along m in panels of `raster_group` n-tiles, 1 walks along n in panels of m-tiles.
    """
    tiles = tiles_m * tiles_n
    batch = linear // tiles
    index = linear - batch * tiles
    walk_length = tiles_m + raster_along * (tiles_n - tiles_m)  # tiles along the axis that is walked
    across = tiles_n + raster_along * (tiles_m - tiles_n)  # tiles along the axis cut into panels
    panel = index // (walk_length * raster_group)
    first = panel * raster_group
    overhang = raster_group - (across - first)
    width = raster_group - positive_part(overhang)  # the last panel may be narrower
    in_panel = index - first * walk_length
    step = in_panel // width
    minor = first + in_panel - step * width
    backward = panel % 2
    walk = step + backward * (walk_length - 1 - 2 * step)
    tile_m = walk + raster_along * (minor - walk)
    tile_n = minor + raster_along * (walk - minor)
    return tile_m, tile_n, batch


def linear_index(tile_m, tile_n, place, tiles_m, tiles_n, raster_group, raster_along):
    """The linear index of the cluster tile (tile_m, tile_n) of batch `place`: the inverse of `cluster_tile`."""
    walk = tile_m + raster_along * (tile_n - tile_m)
    minor = tile_n + raster_along * (tile_m - tile_n)
    walk_length = tiles_m + raster_along * (tiles_n - tiles_m)
    across = tiles_n + raster_along * (tiles_m - tiles_n)
    panel = minor // raster_group
    first = panel * raster_group
    width = raster_group - positive_part(raster_group - (across - first))
    step = walk + panel % 2 * (walk_length - 1 - 2 * walk)
    return place * tiles_m * tiles_n + first * walk_length + step * width + minor - first


def tiles_along(size, cta_tile, cluster):
    """Cluster tiles that cover `size` elements; at least one CTA of each is inside."""
    return (size + cta_tile * cluster - 1) // (cta_tile * cluster)
