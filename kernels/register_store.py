"""A way out of the registers that skips shared memory: for one short tile of a CTA, whose latency is all that counts.

In wgmma's accumulators a lane holds pairs of neighbours of a row, and the four lanes of a quad hold the pairs of 8
columns. The quad's lanes exchange them, so that each stores 16 bytes of one row.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from kernels import memory_access as memory
from kernels.device_values import DeviceValues
from kernels.element_copies import StridedMatrix

BLOCK_ROWS = 64  # of a wgmma
QUAD_COLUMNS = 32  # that a quad stores at once: 16 bytes a lane


class RegisterStore(DeviceValues):
    """Stores of one warpgroup from its registers, 16 bytes a lane; D is n-major, of 16-bit elements, its rows at
    multiples of 16 bytes. The last 16 bytes of a row are stored whole, as TMA does.

    Args:
      matrix: D.
      tile_columns: columns that the warpgroup accumulates, a multiple of 32.
      thread: thread index in the warpgroup.
    """

    ACCESS_BYTES = 16
    FIELDS = ("matrix", "row", "quad_lane")

    def __init__(self, matrix: StridedMatrix, dtype, tile_columns: int, thread: Int32):
        self.matrix = matrix
        self.dtype = dtype
        self.tile_columns = tile_columns
        self.row = thread // 32 * 16 + thread % 32 // 4
        self.quad_lane = thread % 4

    @cute.jit
    def store(self, accumulator: cute.Tensor, first_row: Int32, place: Int32, batch: Int32, next_slot: Int32):
        """Stores a warpgroup's part of a tile, which begins at row `first_row`, counted in blocks of 64, and column
        `place`, counted in parts. Returns `next_slot` as it is."""
        values = cute.size(accumulator)
        rounded = cute.make_rmem_tensor(values, self.dtype)
        for i in cutlass.range_constexpr(values):
            rounded[i] = accumulator[i].to(self.dtype)
        pairs = cute.recast_tensor(rounded, Int32)
        pairs_of_row = self.tile_columns // 8
        for block in cutlass.range_constexpr(values // (4 * pairs_of_row)):
            for half in cutlass.range_constexpr(2):
                outer = (first_row + block) * BLOCK_ROWS + self.row + 8 * half
                for group in cutlass.range_constexpr(self.tile_columns // QUAD_COLUMNS):
                    first = 2 * (block * pairs_of_row + 4 * group) + half
                    words = self.exchange([pairs[first + 2 * i] for i in range(4)])
                    inner = place * self.tile_columns + group * QUAD_COLUMNS + self.quad_lane * 8
                    inside = Int32(outer < self.matrix.outer_size) * Int32(inner < self.matrix.inner_size)
                    memory.store_16_bytes(self.matrix.address(inner, outer, batch), words, inside)
        return next_slot

    def exchange(self, words: list) -> list:
        """Word i of lane q becomes word q of lane i: a transposition in two steps of pairwise exchange."""
        for step in (1, 2):
            is_upper = (self.quad_lane & step) != 0
            for i in (i for i in range(4) if not i & step):
                low, high = words[i], words[i | step]
                sent = cutlass.select_(is_upper, low, high)
                got = cute.arch.shuffle_sync_bfly(sent, step)
                words[i] = cutlass.select_(is_upper, got, low)
                words[i | step] = cutlass.select_(is_upper, high, got)
        return words

    def finish(self) -> None:
        """Ordinary stores need no waiting for."""
