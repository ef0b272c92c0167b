"""Parts of k in the CTAs of one cluster: partial sums meet in the first CTA's shared memory.

For problems of few tiles, where one CTA for each tile would leave SMs without work and the copy of a wide operand to one
CTA at a time could not fill the memory's bandwidth. Nothing passes through global memory, and no counter has to be
cleared; the order of the parts is that of the ranks, so the bits are always the same.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from kernels import memory_access as memory
from kernels.device_values import DeviceValues

QUAD_BYTES = 16


class ClusterSums(DeviceValues):
    """One CTA's side of it.

    Args:
      exchange: `exchange_bytes` of shared memory; those of rank 0 take the others' sums.
      parts: CTAs of the cluster, a part of k each.
      values: float32 that a thread accumulates.
      threads: threads of a CTA that accumulate.
      thread: index among them.
    """

    FIELDS = ("exchange", "rank", "thread")

    def __init__(self, exchange: cute.Pointer, parts: int, values: int, threads: int, rank: Int32, thread: Int32):
        self.exchange = exchange
        self.parts = parts
        self.values = values
        self.threads = threads
        self.rank = rank
        self.thread = thread

    @staticmethod
    def exchange_bytes(parts: int, values: int, threads: int) -> int:
        return (parts - 1) * values * threads * 4

    @cute.jit
    def meet(self, accumulator: cute.Tensor) -> Int32:
        """All accumulating threads of the cluster; the others pass the same cluster barrier. Returns 1 in the CTA whose
        accumulators hold the whole sum. No CTA touches another's shared memory after it, so each may leave."""
        if self.rank > 0:
            self.send(accumulator)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if self.rank == 0:
            self.receive(accumulator)
        return Int32(self.rank == 0)

    def place(self, part: Int32, value: int) -> Int32:
        """Byte offset of a group of four sums of this thread."""
        return ((part * (self.values // 4) + value // 4) * self.threads + self.thread) * QUAD_BYTES

    @cute.jit
    def send(self, accumulator: cute.Tensor):
        for i in cutlass.range_constexpr(0, self.values, 4):
            address = self.exchange.toint() + self.place(self.rank - 1, i)
            memory.store_quad_in_cta(address, Int32(0), [accumulator[i + j] for j in range(4)])

    @cute.jit
    def receive(self, accumulator: cute.Tensor):
        for part in cutlass.range_constexpr(self.parts - 1):
            for i in cutlass.range_constexpr(0, self.values, 4):
                address = self.exchange.toint() + self.place(Int32(part), i)
                place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=16)
                term = cute.make_tensor(place, cute.make_layout(4)).load()
                for j in cutlass.range_constexpr(4):
                    accumulator[i + j] = accumulator[i + j] + term[j]
