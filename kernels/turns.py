"""Ping-pong: the turns of two consumer warpgroups at the tensor cores."""

import cutlass.cute as cute
from cutlass import Int32

from kernels.device_values import DeviceValues

WARPGROUP_THREADS = 128
TURN_BARRIER = 3  # named barriers: one for each warpgroup, after those of the epilogue


class Turns(DeviceValues):
    """When a consumer warpgroup may use the tensor cores.

    The turns matter for more than speed. A stage's full barrier names its phase by parity alone, so a warpgroup may
    wait for its tile's stages only when the other has seen all of the tile before filled.
    """

    FIELDS = ("warpgroup_index",)

    def __init__(self, warpgroup_index: Int32):
        self.warpgroup_index = warpgroup_index

    @cute.jit
    def start(self):
        """Warpgroup 1 opens the first turn of warpgroup 0."""
        if self.warpgroup_index == 1:
            self.pass_on()

    def wait(self) -> None:
        barrier = TURN_BARRIER + self.warpgroup_index
        cute.arch.barrier(barrier_id=barrier, number_of_threads=2 * WARPGROUP_THREADS)

    def pass_on(self) -> None:
        barrier = TURN_BARRIER + 1 - self.warpgroup_index
        cute.arch.barrier_arrive(barrier_id=barrier, number_of_threads=2 * WARPGROUP_THREADS)
