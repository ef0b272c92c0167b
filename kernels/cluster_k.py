"""Parts of k in the CTAs of one cluster: partial sums meet in shared memory.

For problems of few tiles, where one CTA for each tile would leave SMs without work and the copy of a wide operand to
one CTA at a time could not fill the memory's bandwidth. Nothing passes through global memory and no counter has to be
cleared. Every CTA of the cluster adds up a slice of the tile's columns, the parts in the order of the ranks, so the
bits are always the same; a tile too narrow for so many slices is left to the first CTAs.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from kernels import memory_access as memory
from kernels.device_values import DeviceValues

QUAD_BYTES = 16
NARROWEST_SLICE = 16  # columns that the epilogue stores at once


def slices_of(columns: int, parts: int) -> int:
    """Slices of a warpgroup's `columns` that are added up, and stored, by a CTA each."""
    return next(slices for slices in (8, 4, 2, 1) if slices <= parts and columns % (slices * NARROWEST_SLICE) == 0)


class ClusterSums(DeviceValues):
    """One CTA's side of it.

    Args:
      exchange: shared memory of `exchange_bytes`; the load stages, which are done with by then.
      parts: CTAs of the cluster, a part of k each.
      slices: as `slices_of` says; CTA r of the first ones gets slice r.
      values: float32 that a thread accumulates, by columns.
      threads: threads of a CTA that accumulate.
      thread: index among them.
    """

    FIELDS = ("exchange", "rank", "thread")

    def __init__(self, exchange: Int32, parts: int, slices: int, values: int, threads: int, rank: Int32, thread: Int32):
        self.exchange = exchange
        self.parts = parts
        self.slices = slices
        self.values = values // slices
        self.threads = threads
        self.rank = rank
        self.thread = thread

    @staticmethod
    def exchange_bytes(parts: int, slices: int, values: int, threads: int) -> int:
        return parts * (values // slices) * threads * 4

    @cute.jit
    def meet(self, accumulator: cute.Tensor, total: cute.Tensor):
        """All accumulating threads of the cluster; the others pass the same two cluster barriers (`pass_by`). Leaves
        the sums of its slice in `total`, in the CTAs that have one. No CTA touches another's shared memory
        afterwards."""
        cluster_barrier()  # every CTA has read its last stage
        for slice_ in cutlass.range_constexpr(self.slices):
            for i in cutlass.range_constexpr(0, self.values, 4):
                quad = [accumulator[slice_ * self.values + i + j] for j in range(4)]
                memory.store_quad_in_cta(self.place(self.rank, i), Int32(slice_), quad)
        cluster_barrier()
        if self.rank < self.slices:
            total.fill(0.0)
            for part in cutlass.range_constexpr(self.parts):
                for i in cutlass.range_constexpr(0, self.values, 4):
                    place = self.place(Int32(part), i)
                    pointer = cute.make_ptr(Float32, place, cute.AddressSpace.smem, assumed_align=QUAD_BYTES)
                    term = cute.make_tensor(pointer, cute.make_layout(4)).load()
                    for j in cutlass.range_constexpr(4):
                        total[i + j] = total[i + j] + term[j]

    def place(self, part: Int32, value: int) -> Int32:
        """Where a group of four sums of this thread lies in the exchange of the CTA that adds them up."""
        return self.exchange + ((part * (self.values // 4) + value // 4) * self.threads + self.thread) * QUAD_BYTES


def cluster_barrier() -> None:
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


def pass_by() -> None:
    """Threads of the cluster that accumulate nothing: the barriers of `ClusterSums.meet`."""
    cluster_barrier()
    cluster_barrier()
