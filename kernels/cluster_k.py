"""Parts of k in the CTAs of one cluster: partial sums meet in shared memory.

For problems of few tiles, where one CTA for each tile would leave SMs without work and the copy of a wide operand to
one CTA at a time could not fill the memory's bandwidth. Nothing passes through global memory and no counter has to be
cleared. Every CTA of the cluster adds up a slice of the tile's columns, the parts in the order of their numbers, so the
bits are always the same; a tile too narrow for so many slices is left to the first parts.

The sums are stored asynchronously, and a barrier of the CTA that adds them up counts them: a cluster barrier behind
them would have to wait for all earlier writes, to global memory too (MEMBAR.ALL.GPU in SASS).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from kernels import barriers
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
      exchange: shared memory of `exchange_bytes`.
      is_apart: whether it is used for nothing else, and every thread has arrived at the cluster barrier when it
        started; otherwise it is where the load stages lie, which are done with by then.
      full: barrier in this CTA's shared memory, initialised by `expect`.
      parts: CTAs of the cluster, a part of k each.
      slices: as `slices_of` says; CTA r of the first ones gets slice r.
      values: float32 that a thread accumulates, by columns.
      threads: threads of a CTA that accumulate.
      rank: of this CTA in the cluster: the number of its part of k, and of its slice.
      thread: index among the threads.
    """

    FIELDS = ("exchange", "full", "rank", "thread")

    def __init__(
        self,
        exchange: Int32,
        is_apart: bool,
        full: cute.Pointer,
        parts: int,
        slices: int,
        values: int,
        threads: int,
        rank: Int32,
        thread: Int32,
    ):
        self.exchange = exchange
        self.is_apart = is_apart
        self.full = full
        self.parts = parts
        self.slices = slices
        self.values = values // slices
        self.threads = threads
        self.rank = rank
        self.thread = thread

    @staticmethod
    def exchange_bytes(parts: int, slices: int, values: int, threads: int) -> int:
        return parts * (values // slices) * threads * 4

    @staticmethod
    def expect(full: cute.Pointer, exchange_bytes: int) -> None:
        """One thread of each CTA, before the cluster barrier that all pass when they start."""
        cute.arch.mbarrier_init(full, 1)
        barriers.expect(full, exchange_bytes)

    @cute.jit
    def meet(self, accumulator: cute.Tensor, total: cute.Tensor):
        """All accumulating threads of the cluster; the others pass the same cluster barrier (`wait_for_exchange`).
        Leaves the sums of its slice in `total`, in the CTAs that have one. Nobody touches a CTA's shared memory after
        it has got all its sums, and a CTA without a slice gets none, so that each may leave when it is done."""
        wait_for_exchange(self.is_apart)
        for slice_ in cutlass.range_constexpr(self.slices):
            for i in cutlass.range_constexpr(0, self.values, 4):
                quad = [accumulator[slice_ * self.values + i + j] for j in range(4)]
                memory.send_quad(self.place(self.rank, i), self.full, Int32(slice_), quad)
        if self.rank < self.slices:
            barriers.wait(self.full, Int32(0))
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


def wait_for_exchange(is_apart: bool) -> None:
    """Every CTA of the cluster has started, and read its last stage if those are where the sums are exchanged."""
    if not is_apart:
        cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
