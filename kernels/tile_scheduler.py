"""Tile schedulers: who computes which cluster tile. One interface: a kernel body does not know which one answers.

A kernel makes one scheduler in every warp and walks the same loop whatever the schedule:

    scheduler.ask_for_initial_work()         # the scheduler warp of the cluster's first CTA alone, where tiles are
    scheduler.take_initial_work(...)         # claimed at run time: before barriers are initialised, and before and
    scheduler.send_initial_work(...)         # after the cluster has come together
    work = scheduler.initial_work()
    while work.is_valid:
        scheduler.note_work_started()        # the load warp of the cluster's first CTA alone
        ...                                  # the warp's part of this tile
        scheduler.advance_to_next_work()     # the scheduler warp of the cluster's first CTA alone
        work = scheduler.fetch_next_work()
    scheduler.finish()                       # every warp of the CTA, those without work too; or `LoadPipeline.drain`

Work is handed out in whole cluster tiles; the work tile that a warp gets is already its own CTA's.
"""

import math

import cutlass.cute as cute
from cutlass import Boolean, Int32

from kernels import barriers, raster
from kernels.device_values import DeviceValues


class WorkTile(DeviceValues):
    """One CTA's tile: `tile_m`, `tile_n` in CTA tiles, `batch`, `split` (part of k, of split-K kernels), `is_valid`."""

    FIELDS = ("tile_m", "tile_n", "batch", "split", "is_valid")

    def __init__(self, tile_m: Int32, tile_n: Int32, batch: Int32, split: Int32, is_valid: Boolean):
        self.tile_m = Int32(tile_m)
        self.tile_n = Int32(tile_n)
        self.batch = Int32(batch)
        self.split = Int32(split)
        self.is_valid = Boolean(is_valid)

    def found_here(self):
        """The same, computed before whatever follows: no compiler puts the raster's divisions off until after a barrier
        that they could be done at."""
        copy = self.clone()
        for name in ("tile_m", "tile_n", "batch"):
            setattr(copy, name, barriers.computed_here(getattr(self, name)))
        return copy


class WorkGrid(DeviceValues):
    """All tiles of a problem, and this CTA's place in a cluster tile: turns linear indices into work tiles.

    Args:
      m, n, batches: sizes of the problem.
      cta_tile: (m, n, ...) elements that one CTA accumulates.
      cluster: (m, n) CTAs of a cluster; CTA rank r stands at m = r mod cluster m, n = r div cluster m. A third number
        counts CTAs that share a tile: they all get the same work.
      raster_group, raster_along: see `raster.cluster_tile`.
      split_k: parts of k that are separate work. They come last in the order, as further batches would: parts of one
        tile share no operand, so there is nothing to gain from running them together.
    """

    FIELDS = ("tiles_m", "tiles_n", "batches", "split_k", "raster_group", "raster_along", "cta_m", "cta_n")

    def __init__(self, m, n, batches, cta_tile, cluster, raster_group, raster_along, split_k=1):
        self.cluster = cluster
        self.tiles_m = Int32(raster.tiles_along(m, cta_tile[0], cluster[0]))
        self.tiles_n = Int32(raster.tiles_along(n, cta_tile[1], cluster[1]))
        self.batches = Int32(batches)
        self.split_k = Int32(split_k)
        self.raster_group = Int32(raster_group)
        self.raster_along = Int32(raster_along)
        rank = cluster_rank(cluster)
        self.cta_m = Int32(rank % cluster[0])
        self.cta_n = Int32(rank // cluster[0] % cluster[1])

    @property
    def cluster_tiles(self) -> Int32:
        """Pieces of work: cluster tiles of all batches, times the parts of k."""
        return self.tiles_m * self.tiles_n * self.batches * self.split_k

    def work_tile(self, linear: Int32) -> WorkTile:
        """This CTA's part of the cluster tile `linear`; not valid when `linear` is past the end."""
        return self.own_tile(linear, *self.place(linear))

    @cute.jit
    def only_work_tile(self, linear: Int32) -> WorkTile:
        """The same, at once where all tiles lie in one line: every raster walks along it, and the divisions that find
        a place would take a good part of a microsecond in which nothing is loaded yet."""
        tile_m, tile_n, batch, split = linear, Int32(0), Int32(0), Int32(0)
        if self.tiles_m == 1:
            tile_m, tile_n = tile_n, tile_m
        if (self.tiles_m != 1 and self.tiles_n != 1) or linear >= self.tiles_m * self.tiles_n:
            tile_m, tile_n, batch, split = self.place(linear)
        return self.own_tile(linear, tile_m, tile_n, batch, split)

    def place(self, linear: Int32) -> tuple[Int32, Int32, Int32, Int32]:
        """(tile_m, tile_n, batch, split) of a cluster tile."""
        tile_m, tile_n, place = raster.cluster_tile(
            linear, self.tiles_m, self.tiles_n, self.raster_group, self.raster_along
        )
        split = place // self.batches
        return tile_m, tile_n, place - split * self.batches, split

    def own_tile(self, linear, tile_m, tile_n, batch, split) -> WorkTile:
        """This CTA's part of a cluster tile."""
        return WorkTile(
            tile_m * self.cluster[0] + self.cta_m,
            tile_n * self.cluster[1] + self.cta_n,
            batch,
            split,
            linear < self.cluster_tiles,
        )


def cluster_rank(cluster: tuple[int, ...]) -> Int32:
    """This CTA's rank in its cluster, the same for all lanes."""
    if math.prod(cluster) == 1:
        return Int32(0)
    return cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


class NonpersistentScheduler(DeviceValues):
    """One cluster per cluster tile: the first tile is the only one."""

    FIELDS = ("grid",)

    def __init__(self, grid: WorkGrid):
        self.grid = grid

    def initialize_barriers(self) -> None:
        """By one thread, before the start-up barrier: only schedulers that hand out work at run time have barriers."""

    def initial_work(self) -> WorkTile:
        return self.grid.only_work_tile(launched_cluster(self.grid.cluster))

    def note_work_started(self) -> None:
        """By the load warp of the first CTA at the start of each tile; what a throttled scheduler waits for."""

    def advance_to_next_work(self) -> None:
        pass

    def fetch_next_work(self) -> WorkTile:
        zero = Int32(0)
        return WorkTile(zero, zero, zero, zero, Boolean(False))

    def finish(self) -> None:
        leave_cluster_together(self.grid.cluster)


class StaticScheduler(DeviceValues):
    """A fixed sequence per worker: cluster c of w takes the tiles c, c + w, c + 2w, ..."""

    FIELDS = ("grid", "linear")

    def __init__(self, grid: WorkGrid):
        self.grid = grid
        self.linear = launched_cluster(grid.cluster)

    def initialize_barriers(self) -> None:
        """By one thread, before the start-up barrier: only schedulers that hand out work at run time have barriers."""

    def initial_work(self) -> WorkTile:
        return self.grid.work_tile(self.linear)

    def note_work_started(self) -> None:
        """By the load warp of the first CTA at the start of each tile; what a throttled scheduler waits for."""

    def advance_to_next_work(self) -> None:
        pass

    def has_last_work(self) -> Boolean:
        """Whether the work in hand is the last of this CTA."""
        return self.linear + self.workers() >= self.grid.cluster_tiles

    def fetch_next_work(self) -> WorkTile:
        self.linear = self.linear + self.workers()
        return self.grid.work_tile(self.linear)

    def skip_work(self) -> None:
        """Ping-pong: the next tile is the other warpgroup's."""
        self.linear = self.linear + self.workers()

    def workers(self) -> Int32:
        return cute.arch.grid_dim()[0] // math.prod(self.grid.cluster)

    def finish(self) -> None:
        leave_cluster_together(self.grid.cluster)


def launched_cluster(cluster: tuple[int, ...]) -> Int32:
    """Linear index of this cluster in the one-dimensional launch grid."""
    return cute.arch.make_warp_uniform(cute.arch.block_idx()[0]) // math.prod(cluster)


def leave_cluster_together(cluster: tuple[int, ...]) -> None:
    """Cluster barrier before exit: no CTA leaves while a peer can still signal it or write into its shared memory."""
    if math.prod(cluster) > 1:
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


SCHEDULERS = {"nonpersistent": NonpersistentScheduler, "static": StaticScheduler}
