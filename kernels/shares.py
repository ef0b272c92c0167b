"""How stream-K shares tiles out by k tiles: which, and where one share ends and the next begins. One definition for the
kernels and the tests: integer arithmetic without branches, as in `raster`."""

from kernels.branch_free import at_least, less, positive_part

MOST_K_TILES = 1 << 20  # so that no product of k tiles and workers leaves 32 bits
LEAST_PART = 5  # k tiles, in which the tile before is stored; a shorter part goes to the neighbour
LEAST_SHARE = 16  # k tiles: a meeting takes as long as a good part of so many


def shared_tiles(tiles, workers, most_workers, k_tiles):
    """How many tiles, the first ones, are shared out by k tiles: 0 where the rounds come out even, where not every
    worker has a whole tile, or where there are more workers than scratch is meant for."""
    rounds = tiles // workers
    rest = tiles - rounds * workers
    possible = at_least(rounds, 1) * at_least(rest, 1) * less(workers, most_workers + 1) * less(k_tiles, MOST_K_TILES)
    long_enough = at_least(3 * rest, workers) * at_least(k_tiles, 3 * LEAST_SHARE)
    return possible * (rest + workers - long_enough * workers)


def leading_tiles(tiles, workers, shared):
    """How many whole tiles come before the shares: one for each worker, where that leaves one for after them, under
    whose multiplications the last parts meet. Workers that begin with the same k find each other's operands in L2."""
    return workers * at_least(shared, 1) * at_least(tiles - shared, 2 * workers)


def boundary(share, tiles, shares, k_tiles):
    """Where a share begins, and the one before it ends, counted in k tiles from the first tile's first. Never within
    LEAST_PART of a tile's end, so that no part is shorter."""
    total = tiles * k_tiles
    length = total // shares
    longer = total - length * shares  # the first so many have one more
    place = share * length + share - positive_part(share - longer)
    tile = place // k_tiles
    inside = place - tile * k_tiles
    inside = inside * at_least(inside, LEAST_PART)
    left = k_tiles - inside
    return tile * k_tiles + inside + at_least(inside, 1) * less(left, LEAST_PART) * left
