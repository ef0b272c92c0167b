"""Operands of any alignment, without tensor maps: loads into the swizzled stages, stores out of the staging slots.

A tile in shared memory is a stack of lines of 128 bytes, 8 chunks of 16 bytes each; the swizzle puts chunk c of line i
in place c xor (i mod 8), as TMA's 128-byte swizzle does. A line is 64 16-bit elements along the contiguous axis, so it
is a piece of one row of global memory, at any even address.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from kernels import memory_access as memory
from kernels.device_values import DeviceValues

LINE_BYTES = 128
CHUNK_BYTES = 16
CHUNKS = LINE_BYTES // CHUNK_BYTES
BATCH = 8  # chunks that a thread has in flight


def chunk_address(tile: Int32, line: Int32, chunk: Int32) -> Int32:
    """Shared-memory address of a chunk of a tile at `tile`, a multiple of 1024."""
    return tile + line * LINE_BYTES + ((chunk ^ (line % 8)) * CHUNK_BYTES)


class StridedMatrix(DeviceValues):
    """A batched matrix in global memory with one contiguous axis (inner) and any strides.

    Args:
      base: its address; a multiple of the element's size.
      element_bytes: bytes of an element.
      inner_size, outer_size, batches: its sizes.
      outer_stride, batch_stride: elements, 64-bit.
    """

    FIELDS = ("base", "end", "inner_size", "outer_size", "outer_stride", "batch_stride")

    def __init__(self, base, element_bytes, inner_size, outer_size, batches, outer_stride, batch_stride):
        self.element_bytes = element_bytes
        self.base = base.toint()
        self.inner_size = inner_size
        self.outer_size = outer_size
        self.outer_stride = outer_stride
        self.batch_stride = batch_stride
        self.end = self.address(inner_size, outer_size - 1, batches - 1)

    def address(self, inner: Int32, outer: Int32, batch: Int32) -> Int64:
        elements = Int64(batch) * self.batch_stride + Int64(outer) * self.outer_stride + Int64(inner)
        return self.base + elements * self.element_bytes


class ElementLoad(DeviceValues):
    """Copies tiles of A or B into their stages, by the 128 threads of the producer warpgroup.

    Args:
      matrix: the operand, of 16-bit elements.
      lines: lines of a tile.
      lines_are_rows: whether the contiguous axis is k: a line is then 64 k of one row, else 64 rows of one k.
    """

    FIELDS = ("matrix", "line", "chunk")

    def __init__(self, matrix: StridedMatrix, lines: int, lines_are_rows: bool, thread: Int32):
        self.matrix = matrix
        self.lines = lines
        self.lines_are_rows = lines_are_rows
        self.chunk = thread % CHUNKS
        self.line = thread // CHUNKS

    @cute.jit
    def load(self, stage: Int32, first_row: Int32, first_k: Int32, batch: Int32):
        """One tile. Elements outside the matrix become zeros; nothing outside the matrix is read."""
        passes = self.lines * CHUNKS // 128
        for start in cutlass.range_constexpr(0, passes, BATCH):
            count = min(BATCH, passes - start)
            words = cute.make_rmem_tensor((count, 2 * 4), Int32)
            for i in cutlass.range_constexpr(count):
                aligned, shift, valid, is_fast = self.locate(start + i, first_row, first_k, batch)
                reads_second = is_fast * Int32(shift != 0)
                low = memory.load_16_bytes(aligned, is_fast)
                high = memory.load_16_bytes(aligned + CHUNK_BYTES, reads_second)
                for j in cutlass.range_constexpr(4):
                    words[i, j] = low[j]
                    words[i, 4 + j] = high[j]
            for i in cutlass.range_constexpr(count):
                aligned, shift, valid, is_fast = self.locate(start + i, first_row, first_k, batch)
                line = self.line + (start + i) * (128 // CHUNKS)
                result = cute.make_rmem_tensor(4, Int32)
                self.shift_out(words, i, shift, result)
                if valid * (1 - is_fast) != 0:
                    self.load_singly(aligned + Int64(shift), valid, result)
                memory.store_shared_16_bytes(chunk_address(stage, line, self.chunk), [result[j] for j in range(4)])

    def locate(self, index: int, first_row: Int32, first_k: Int32, batch: Int32):
        """Where this thread's chunk `index` is: (address rounded down to 16, bytes past it, valid elements, whether
        both 16-byte words around it lie in the matrix and all 8 elements are valid)."""
        line = self.line + index * (128 // CHUNKS)
        within = self.chunk * 8
        if self.lines_are_rows:
            inner, outer = first_k + within, first_row + line
        else:
            inner, outer = first_row + (line // 64) * 64 + within, first_k + line % 64
        address = self.matrix.address(inner, outer, batch)
        shift = Int32(address & 15)
        aligned = address - Int64(shift)
        left = self.matrix.inner_size - inner
        left = cutlass.select_(left < 8, left, Int32(8))
        valid = cutlass.select_(outer < self.matrix.outer_size, cutlass.select_(left > 0, left, Int32(0)), Int32(0))
        last = aligned + cutlass.select_(shift == 0, Int64(CHUNK_BYTES), Int64(2 * CHUNK_BYTES))
        is_fast = Int32(valid == 8) * Int32(aligned >= self.matrix.base) * Int32(last <= self.matrix.end)
        return aligned, shift, valid, is_fast

    def shift_out(self, words, i: int, shift: Int32, result) -> None:
        """The 16 bytes that start `shift` bytes into the 32 bytes of words[i]: by 8, by 4, then by 2 bytes."""
        w = [words[i, j] for j in range(8)]
        w = [cutlass.select_((shift & 8) != 0, w[j + 2], w[j]) for j in range(6)]
        w = [cutlass.select_((shift & 4) != 0, w[j + 1], w[j]) for j in range(5)]
        for j in range(4):
            result[j] = memory.funnel_shift_right(w[j], w[j + 1], (shift & 2) * 8)

    def load_singly(self, address: Int64, valid: Int32, result) -> None:
        """The first `valid` of 8 elements one by one, zeros after them: at the edges of the matrix."""
        for j in range(4):
            halves = [memory.load_2_bytes(address + 2 * e, Int32(Int32(e) < valid)) for e in (2 * j, 2 * j + 1)]
            result[j] = halves[0] | (halves[1] << 16)
