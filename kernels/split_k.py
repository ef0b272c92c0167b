"""Split-K: partial sums of one tile, meeting in global memory, the same bits whoever comes first.

Every part of k is a work tile of its own. The parts of a tile add up in a binary tree: parts 0 and 1, 2 and 3, then 0-1
and 2-3, and so on. Of two that meet, the first to come leaves its sums in scratch and is done; the second adds them to
its own and goes on upwards; who reaches the top stores the result. Nobody waits for anybody. A sum of two does not
depend on their order, and the tree is fixed: so the bits are too.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir import ir

from kernels import barriers
from kernels.device_values import DeviceValues
from kernels.tile_scheduler import WorkGrid, WorkTile

COUNTER_BYTES = 8192  # zeroed before each launch; 4 bytes for each CTA tile, consumer warpgroup and part of k
WARPGROUP_THREADS = 128
PAUSE_NS = 500


class StoredSums(DeviceValues):
    """Sums that a warpgroup leaves in global memory for another, and the counter where the two meet.

    Args:
      scratch: counters, then float32 sums, groups of four registers by thread.
      counter_bytes: of the counters.
      flag: a word of shared memory of this warpgroup.
      values: float32 that a thread accumulates.
      thread: thread index in the warpgroup.

    Attributes:
      pauses: of PAUSE_NS, while the values are moved.
    """

    FIELDS = ("counters", "partials", "flag", "thread")
    pauses = 0

    def __init__(self, scratch, counter_bytes: int, flag, values: int, thread):
        self.counters = cute.recast_ptr(scratch, dtype=Int32)
        self.partials = scratch.toint() + counter_bytes
        self.flag = flag
        self.values = values
        self.thread = thread

    def address(self, index) -> Int64:
        """Where this thread's part of the sums number `index` begins."""
        return self.partials + (index * self.values * WARPGROUP_THREADS + 4 * self.thread) * 4

    @cute.jit
    def arrive(self, counter: Int32, sync, token: Int32) -> Int32:
        """0 to the first of two warpgroups; to the second the first's token, whose sums it may read then. The same for
        all threads. With a token of 0 it only asks."""
        flag = cute.make_tensor(self.flag, cute.make_layout(1))
        if self.thread == 0:
            flag[0] = cute.arch.atomic_add(self.counters + counter, token, sem="acq_rel", scope="gpu")
        sync()
        found = flag[0]
        sync()  # the flag may be written again
        return found

    @cute.jit
    def leave(self, accumulator: cute.Tensor, address: Int64):
        for i in cutlass.range_constexpr(0, self.values, 4):
            quad = cute.make_rmem_tensor(4, cutlass.Float32)
            for j in cutlass.range_constexpr(4):
                quad[j] = accumulator[i + j]
            cute.autovec_copy(quad, cute.make_tensor(self.quad_pointer(address, i), cute.make_layout(4)))
            self.pace(i)

    @cute.jit
    def add(self, accumulator: cute.Tensor, address: Int64):
        vector = ir.VectorType.get([4], cutlass.Float32.mlir_type)
        for i in cutlass.range_constexpr(0, self.values, 4):
            # Past L1, which other SMs' stores do not reach.
            term = cute.TensorSSA(cute.arch.load(self.quad_pointer(address, i), vector, cop="cg"), 4, cutlass.Float32)
            for j in cutlass.range_constexpr(4):
                accumulator[i + j] = accumulator[i + j] + term[j]
            self.pace(i)

    def pace(self, value: int) -> None:
        """After the four values from `value` on: a pause, where it is time for one."""
        before, after = (place * self.pauses // self.values for place in (value, value + 4))
        if after > before:
            barriers.pause(PAUSE_NS)

    def quad_pointer(self, address: Int64, value: int) -> cute.Pointer:
        place = address + value // 4 * WARPGROUP_THREADS * 16
        return cute.make_ptr(cutlass.Float32, place, cute.AddressSpace.gmem, assumed_align=16)


class PartialSums(StoredSums):
    """One warpgroup's side of it.

    Args:
      scratch: counters (COUNTER_BYTES), then float32 partial sums: for each part, batch and CTA tile of the grid's
        whole cluster tiles, for each warpgroup.
      grid: all work.
      sharer, sharers: this warpgroup among those that share a tile, in all CTAs that do.
      flag, values, thread: as in `StoredSums`.
    """

    FIELDS = (*StoredSums.FIELDS, "grid", "sharer")

    def __init__(self, scratch, grid: WorkGrid, sharer: Int32, sharers: int, flag, values: int, thread):
        super().__init__(scratch, COUNTER_BYTES, flag, values, thread)
        self.grid = grid
        self.sharer = sharer
        self.sharers = sharers

    def place(self, work: WorkTile) -> Int32:
        """Index of this warpgroup's part of the tile among all of one part of k."""
        ctas_m = self.grid.tiles_m * self.grid.cluster[0]
        ctas_n = self.grid.tiles_n * self.grid.cluster[1]
        tile = (work.batch * ctas_m + work.tile_m) * ctas_n + work.tile_n
        return tile * self.sharers + self.sharer

    def address_of(self, work: WorkTile, part: Int32) -> Int64:
        """Where this thread's partial sums of `part` begin."""
        ctas = self.grid.tiles_m * self.grid.tiles_n * self.grid.batches * (self.grid.cluster[0] * self.grid.cluster[1])
        return self.address(Int64(part) * Int64(ctas * self.sharers) + Int64(self.place(work)))

    @cute.jit
    def meet(self, accumulator: cute.Tensor, work: WorkTile, sync) -> Int32:
        """Goes up the tree as far as it can; returns 1 to the warpgroup that ends with the whole sum."""
        node = work.split  # the first part in the subtree whose sum the accumulators hold
        step = Int32(1)
        goes_on = Int32(1)
        while goes_on * Int32(step < self.grid.split_k) == 1:
            sibling = node ^ step
            if sibling < self.grid.split_k:
                self.leave(accumulator, self.address_of(work, node))
                sync()  # the whole warpgroup's sums are written, seen from this CTA; the atomic carries that further
                # Two siblings meet at the counter of the right one: no other pair of the tree has it.
                meeting = cutlass.select_(node < sibling, sibling, node)
                goes_on = self.arrive(self.place(work) * self.grid.split_k + meeting, sync, Int32(1))
                if goes_on == 1:
                    self.add(accumulator, self.address_of(work, sibling))
            node = node & ~step
            step = step * 2
        return goes_on


def parts_that_fit(parts: Int32, k_tiles: Int32, meeting_places: Int32) -> Int32:
    """`parts`, bounded so that each has a k tile; 1 if the counters do not suffice.

    Args:
      meeting_places: CTA tiles of the problem, times the warpgroups that share one.
    """
    parts = cutlass.select_(parts < k_tiles, parts, k_tiles)
    return cutlass.select_(meeting_places <= COUNTER_BYTES // 4 // parts, parts, Int32(1))
