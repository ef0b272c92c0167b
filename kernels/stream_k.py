"""Stream-K: the tiles that do not fill a whole round of workers are shared out among all of them, by k tiles.

With w workers and more than w tiles, whole tiles end in a round that leaves some workers idle. Here as many tiles as
that round has are cut into w shares, ranges of k tiles of equal length, which may begin and end within a tile. The
other tiles are whole, and as many for each worker. Where the shares would be short, each has a whole tile more. They
are kept few because workers at different k find less of each other's operands in L2. They come second, after one whole
tile of each worker, where that leaves whole tiles behind them to hide the meetings; of a share's parts the shorter
comes first, so that whoever meets over it is done when its next turn comes.

The parts of a tile are added from left to right, two by two: where two meet, the first to come leaves its sums, the
second adds them to its own and goes on to the next cut, or stores. Nobody waits, and the order is fixed; so the bits
are the same whoever comes first.

Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", 2023.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from kernels.branch_free import at_least
from kernels.device_values import DeviceValues
from kernels.shares import boundary, leading_tiles, shared_tiles
from kernels.split_k import StoredSums
from kernels.tile_scheduler import StaticScheduler, WorkGrid, WorkTile
from kernels.tile_scheduler_sm90 import RECORD_WORDS, DynamicScheduler, make_pipeline, read_record

MOST_CTAS = 144  # that there is scratch for: as many SMs as the largest Hopper die has
ARRIVED = 2  # in a counter; one more where the tile goes on behind the part that arrived
WHOLE = -1  # instead of the number of a share
PIECE_RECORD_BYTES = 32


class WorkPiece(WorkTile):
    """A work tile, or a part of its k.

    Attributes:
      first_k, k_count: `k_count` k tiles from `first_k` on.
      share: number of the share that a part of a tile belongs to, WHOLE where all of k is here.
      ring_place: stages that the worker filled before this piece, modulo twice their number. A ping-pong warpgroup does
        not see the other's pieces.
    """

    FIELDS = (*WorkTile.FIELDS, "first_k", "k_count", "share", "ring_place")

    def __init__(self, tile: WorkTile, first_k: Int32, k_count: Int32, share: Int32, ring_place: Int32):
        super().__init__(tile.tile_m, tile.tile_n, tile.batch, tile.split, tile.is_valid)
        self.first_k, self.k_count = Int32(first_k), Int32(k_count)
        self.share, self.ring_place = Int32(share), Int32(ring_place)


class Shares(DeviceValues):
    """What a worker has in hand: the k tiles from `place` to `end` of share `share`, and, when they are done, or where
    `leads` is 1, the whole tile `tile`.

    Args:
      grid: all tiles.
      k_tiles: of each.
      stages: of the ring of load stages.
    """

    FIELDS = ("k_tiles", "tiles", "lead", "shares", "share", "place", "end", "leads", "tile", "ring_place")

    def __init__(self, grid: WorkGrid, k_tiles: Int32, stages: int):
        workers = cute.arch.grid_dim()[0] // math.prod(grid.cluster)
        self.k_tiles = k_tiles
        self.tiles = shared_tiles(grid.cluster_tiles, workers, MOST_CTAS // math.prod(grid.cluster), k_tiles)
        self.lead = leading_tiles(grid.cluster_tiles, workers, self.tiles)
        self.shares = workers * at_least(self.tiles, 1)
        self.stages = stages
        self.share = self.place = self.end = self.leads = self.tile = self.ring_place = Int32(0)

    def bounds(self, share: Int32) -> tuple[Int32, Int32]:
        """Where a share begins and ends: nowhere, if there are none."""
        workers = cutlass.select_(self.shares > 0, self.shares, Int32(1))
        begin, end = (boundary(share + i, self.tiles, workers, self.k_tiles) for i in (0, 1))
        return Int32(begin), Int32(cutlass.select_(self.shares > 0, end, begin))

    @cute.jit
    def in_hand(self, number: Int32) -> tuple[Int32, Int32, Int32, Int32]:
        """`share`, `place`, `end` and `tile`; where the share is spent, those of piece of work `number`. Pieces are
        `lead` whole tiles, the shares, then the other whole tiles. It branches: for the scheduler warp alone."""
        share, place, end, tile = self.share, self.place, self.end, self.tile
        if place >= end:
            share = number - self.lead
            tile = self.tiles + number - cutlass.select_(share < 0, Int32(0), self.shares)
            if (share >= 0) & (share < self.shares):
                place, end = self.bounds(share)
        return share, place, end, tile

    def next_piece(self) -> tuple[Int32, ...]:
        """The tile's number and the piece's `first_k`, `k_count`, `share` and `ring_place`; by selections alone, so
        that wgmmas behind it are not taken for divergent. From the end of the share where its last part is shorter."""
        shared = self.has_part()
        place, end = self.place, self.end
        first_tile, last_tile = place // self.k_tiles, (end - 1) // self.k_tiles
        first_end, last_begin = (first_tile + 1) * self.k_tiles, last_tile * self.k_tiles
        first_end = cutlass.select_(first_end < end, first_end, end)
        last_begin = cutlass.select_(last_begin > place, last_begin, place)
        takes_last = end - last_begin < first_end - place
        begin = cutlass.select_(takes_last, last_begin, place)
        count = cutlass.select_(takes_last, end - last_begin, first_end - place)
        tile = cutlass.select_(takes_last, last_tile, first_tile)
        first_k = cutlass.select_(shared, begin - tile * self.k_tiles, Int32(0))
        count = Int32(cutlass.select_(shared, count, self.k_tiles))
        tile = cutlass.select_(shared, tile, self.tile)
        taken = cutlass.select_(shared, count, Int32(0))
        self.place = place + cutlass.select_(takes_last, Int32(0), taken)
        self.end = end - cutlass.select_(takes_last, taken, Int32(0))
        self.leads = Int32(0)
        share = cutlass.select_(count == self.k_tiles, Int32(WHOLE), self.share)
        ring_place = self.ring_place
        self.ring_place = (ring_place + count) % (2 * self.stages)
        return tile, first_k, count, share, ring_place

    def has_part(self) -> Boolean:
        """Whether the next piece is of the share."""
        return (self.place < self.end) & (self.leads == 0)


class StaticStreamK(StaticScheduler):
    """A fixed sequence per worker: whole tiles, `workers` apart, its share of the first tiles before them or after
    the first of them.

    Args:
      grid: all tiles.
      shares: this worker's.
    """

    FIELDS = (*StaticScheduler.FIELDS, "shares")

    def __init__(self, grid: WorkGrid, shares: Shares):
        super().__init__(grid)
        self.shares = shares
        self.shares.share = self.linear
        self.shares.place, self.shares.end = self.shares.bounds(self.linear)
        self.shares.leads = at_least(self.shares.lead, 1)
        self.shares.tile = self.shares.tiles + self.linear

    def initial_work(self) -> WorkPiece:
        return self.fetch_next_work()

    def fetch_next_work(self) -> WorkPiece:
        tile, *part = self.advance()
        return WorkPiece(self.grid.work_tile(tile), *part)

    def has_last_work(self) -> Boolean:
        return (self.shares.place >= self.shares.end) & (self.shares.tile >= self.grid.cluster_tiles)

    def skip_work(self) -> None:
        """Ping-pong: the next piece is the other warpgroup's."""
        self.advance()

    def advance(self) -> tuple[Int32, ...]:
        shared = self.shares.has_part()
        piece = self.shares.next_piece()
        self.shares.tile = self.shares.tile + cutlass.select_(shared, Int32(0), self.workers())
        return piece


class DynamicStreamK(DynamicScheduler):
    """Shares and whole tiles claimed at run time. A share's pieces are sent one by one; a record says beside the tile
    what the piece is.

    Args:
      grid, pipeline, counter: as in `DynamicScheduler`.
      shares: what the scheduler warp has claimed.
    """

    FIELDS = (*DynamicScheduler.FIELDS, "shares")

    def __init__(self, grid: WorkGrid, pipeline, counter: cute.Pointer, shares: Shares):
        super().__init__(grid, pipeline, counter)
        self.shares = shares

    def claim(self) -> list[Int32]:
        """The next piece of the share in hand; takes a number where that is done."""
        return self.record_of(self.take_number(self.shares.place >= self.shares.end))

    def record_of(self, number: Int32) -> list[Int32]:
        shares = self.shares
        shares.share, shares.place, shares.end, shares.tile = shares.in_hand(number)
        tile, *part = self.shares.next_piece()
        tile_m, tile_n, batch, _ = self.grid.place(tile)
        return [tile, tile_m, tile_n, batch, *part]

    def fetch_next_work(self) -> WorkPiece:
        words = self.pipeline.read(read_piece, 2 * RECORD_WORDS)
        tile = self.grid.own_tile(*words[:RECORD_WORDS], Int32(0))
        tile.is_valid = cute.arch.vote_any_sync(tile.is_valid)  # as in `DynamicScheduler`
        return WorkPiece(tile, *words[RECORD_WORDS:])


def read_piece(record: cute.Pointer) -> list[Int32]:
    """The words of a piece's record."""
    return [*read_record(record), *read_record(record + 4 * RECORD_WORDS)]


def make_scheduler(
    schedule: str, grid: WorkGrid, cluster_size: int, readers_per_cta: int, storage, counter, k_tiles, stages: int
):
    """The stream-K scheduler of a Hopper kernel; arguments as for `tile_scheduler_sm90.make_scheduler` and `Shares`."""
    shares = Shares(grid, k_tiles, stages)
    if schedule == "static":
        return StaticStreamK(grid, shares)
    pipeline = make_pipeline(cluster_size, readers_per_cta, storage, PIECE_RECORD_BYTES)
    return DynamicStreamK(grid, pipeline, counter, shares)


class CutSums(StoredSums):
    """One warpgroup's side of the meetings of the parts of a tile.

    Args:
      scratch: counters, then float32 sums: for each cut, CTA of the cluster and warpgroup, those of what lies before
        the cut and of the part behind it. Cut i lies between the shares i and i + 1.
      k_tiles: of each tile.
      sharer: this warpgroup among those of its cluster that have a part of its tile: `warpgroups` in a CTA.
      flag, values, thread: as in `StoredSums`.
    """

    FIELDS = (*StoredSums.FIELDS, "k_tiles", "sharer")
    # All workers' parts meet at about the same time, under the other warpgroup's multiplications: without pauses they
    # are in the way of its loads, and each part costs it 2000 cycles.
    pauses = 8

    def __init__(
        self, scratch, k_tiles: Int32, sharer: Int32, warpgroups: int, cluster_size: int, flag, values: int, thread
    ):
        super().__init__(scratch, self.counter_bytes(warpgroups), flag, values, thread)
        self.k_tiles = k_tiles
        self.sharer = sharer
        self.sharers = warpgroups * cluster_size

    @staticmethod
    def counter_bytes(warpgroups: int) -> int:
        """What is zeroed before each launch: 4 bytes for each cut, CTA and warpgroup that has a part of its tile."""
        return MOST_CTAS * warpgroups * 4

    @classmethod
    def scratch_bytes(cls, cta_tile: tuple[int, int, int], warpgroups: int) -> int:
        """Counters and sums of the most CTAs."""
        return cls.counter_bytes(warpgroups) + MOST_CTAS * 2 * cta_tile[0] * cta_tile[1] * 4

    @cute.jit
    def meet(self, accumulator: cute.Tensor, piece: WorkPiece, sync) -> Int32:
        """Goes from cut to cut as far as it can; returns 1 to the warpgroup that ends with the whole sum. Who finds the
        other's sums need not leave its own."""
        behind = Int32(piece.first_k > 0)  # side of the cut from which the sums in hand come
        cut = piece.share - behind
        goes_on = Int32(piece.first_k + piece.k_count < self.k_tiles)  # the tile does, behind the sums in hand
        has_sum = Int32(1)
        meets = Boolean(True)
        while meets:
            place = cut * self.sharers + self.sharer
            other = self.arrive(place, sync, Int32(0))
            if other == 0:
                self.leave(accumulator, self.address(2 * place + behind))
                sync()  # the whole warpgroup's sums are written, seen from this CTA; the atomic carries that further
                other = self.arrive(place, sync, ARRIVED + behind * goes_on)
            has_sum = Int32(other != 0)
            if other != 0:
                self.add(accumulator, self.address(2 * place + 1 - behind))
                # A part tells from behind the cut whether the tile ends with it.
                goes_on = cutlass.select_(behind == 1, goes_on, Int32(other == ARRIVED + 1))
            meets = cute.arch.vote_any_sync(
                has_sum * goes_on == 1
            )  # all lanes agree; the vote as in `DynamicScheduler`
            cut = cut + 1
            behind = Int32(0)
        return has_sum
