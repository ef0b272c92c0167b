"""Split-K: partial sums of one tile, meeting in global memory in a fixed order.

Every part of k is a work tile of its own. A warpgroup writes its partial sums to scratch, in the order in which its
threads hold them, and counts itself in at its tile's counter. Who comes last reads all partial sums of the tile back, adds
them in the order of the parts, its own among them, and stores the result. So the bits do not depend on who came last.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir import ir

from kernels.device_values import DeviceValues
from kernels.tile_scheduler import WorkGrid, WorkTile

COUNTER_BYTES = 8192  # zeroed before each launch; 4 bytes for each CTA tile and consumer warpgroup
WARPGROUP_THREADS = 128


class PartialSums(DeviceValues):
    """One warpgroup's side of it.

    Args:
      scratch: counters (COUNTER_BYTES), then float32 partial sums: for each part, batch and CTA tile of the grid's whole
        cluster tiles, for each warpgroup, groups of four registers by thread.
      grid: all work.
      warpgroup_index, warpgroups: this warpgroup among those that share a tile.
      flag: a word of shared memory of this warpgroup.
      values: float32 that a thread accumulates.
    """

    FIELDS = ("counters", "partials", "grid", "warpgroup_index", "flag", "thread")

    def __init__(self, scratch, grid: WorkGrid, warpgroup_index: Int32, warpgroups: int, flag, values: int, thread):
        self.counters = cute.recast_ptr(scratch, dtype=Int32)
        self.partials = scratch.toint() + COUNTER_BYTES
        self.grid = grid
        self.warpgroup_index = warpgroup_index
        self.warpgroups = warpgroups
        self.flag = flag
        self.values = values
        self.thread = thread

    def place(self, work: WorkTile) -> Int32:
        """Index of this warpgroup's part of the tile among all of one part of k."""
        ctas_m = self.grid.tiles_m * self.grid.cluster[0]
        ctas_n = self.grid.tiles_n * self.grid.cluster[1]
        tile = (work.batch * ctas_m + work.tile_m) * ctas_n + work.tile_n
        return tile * self.warpgroups + self.warpgroup_index

    def address(self, work: WorkTile, part: Int32) -> Int64:
        """Where this thread's partial sums of `part` begin."""
        ctas = self.grid.tiles_m * self.grid.tiles_n * self.grid.batches * (self.grid.cluster[0] * self.grid.cluster[1])
        index = Int64(part) * Int64(ctas * self.warpgroups) + Int64(self.place(work))
        return self.partials + (index * self.values * WARPGROUP_THREADS + 4 * self.thread) * 4

    @cute.jit
    def meet(self, accumulator: cute.Tensor, work: WorkTile, sync) -> Int32:
        """Hands in the accumulators; returns 1 to the warpgroup that came last, with the whole sum in its accumulators."""
        vector = ir.VectorType.get([4], cutlass.Float32.mlir_type)
        stride = WARPGROUP_THREADS * 16
        own = self.address(work, work.split)
        for i in cutlass.range_constexpr(0, self.values, 4):
            quad = cute.make_rmem_tensor(4, cutlass.Float32)
            for j in cutlass.range_constexpr(4):
                quad[j] = accumulator[i + j]
            pointer = cute.make_ptr(cutlass.Float32, own + (i // 4) * stride, cute.AddressSpace.gmem, assumed_align=16)
            cute.autovec_copy(quad, cute.make_tensor(pointer, cute.make_layout(4)))
        sync()  # all of the warpgroup's sums are written, as far as this CTA sees; the atomic carries that further
        flag = cute.make_tensor(self.flag, cute.make_layout(1))
        if self.thread == 0:
            arrived = cute.arch.atomic_add(self.counters + self.place(work), Int32(1), sem="acq_rel", scope="gpu")
            flag[0] = arrived
        sync()
        is_last = Int32(flag[0] == self.grid.split_k - 1)
        if is_last == 1:
            accumulator.fill(0.0)
            for part in cutlass.range(self.grid.split_k, unroll=1):
                source = self.address(work, part)
                for i in cutlass.range_constexpr(0, self.values, 4):
                    pointer = cute.make_ptr(
                        cutlass.Float32, source + (i // 4) * stride, cute.AddressSpace.gmem, assumed_align=16
                    )
                    # Past L1, which other SMs' stores do not reach.
                    term = cute.TensorSSA(cute.arch.load(pointer, vector, cop="cg"), 4, cutlass.Float32)
                    for j in cutlass.range_constexpr(4):
                        accumulator[i + j] = accumulator[i + j] + term[j]
        return is_last
