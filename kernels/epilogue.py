"""Epilogue: one consumer warpgroup's accumulators, through shared memory, to global memory.

Every warpgroup has its own ring of staging slots and its own named barrier, so warpgroups never wait for one another
here. The ring goes on from tile to tile: the last stores of a tile are read from shared memory while the warpgroup is
already in the mainloop of its next tile.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

from kernels import memory_access as memory
from kernels.device_values import DeviceValues
from kernels.element_copies import LINE_BYTES, StridedMatrix, chunk_address

WARPGROUP_THREADS = 128
SLOT_ROWS = 64
LINES_AT_ONCE = 4  # lines that a warp reads before it stores them
L2_BYTES = 50 * 2**20  # of a Hopper GPU (H100, H200)
# Cache policies, as `createpolicy.fractional.L2` makes them for all of an access (CUTLASS: `TMA::CacheHintSm90`).
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000
PIECES_AT_ONCE = 2  # of a tile with a slot for each: 3072^3 kn takes 0.6% more with all of them, 1.2% with one


def slot_shape(tile_n: int, element_bytes: int, by_elements: bool) -> tuple[int, int]:
    """(rows, columns) of one store: 64 rows, and as many columns as a 128-byte line holds and, where the copy engine
    stores whole slots, tile_n divides."""
    columns = LINE_BYTES // element_bytes
    while tile_n % columns and not by_elements:
        columns //= 2
    return SLOT_ROWS, columns


def slot_layout(dtype, d_is_m_major: bool, shape: tuple[int, int], slots: int) -> cute.ComposedLayout:
    """Shared-memory layout (rows, columns, slots) of the staging ring, swizzled as the store's tensor map expects."""
    contiguous_bytes = (shape[0] if d_is_m_major else shape[1]) * dtype.width // 8
    width = next(width for width in (128, 64, 32) if contiguous_bytes % width == 0)
    kind = getattr(warpgroup.SmemLayoutAtomKind, f"{'MN' if d_is_m_major else 'K'}_SW{width}")
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(atom, (*shape, slots), order=(1, 0, 2) if d_is_m_major else (0, 1, 2))


def store_policy(m: Int32, n: Int32, batches: Int32, dtype) -> Int64:
    """The cache policy for D's stores. A D that L2 cannot hold goes to memory first: whoever reads it next would not
    find it, and the operands stay."""
    exceeds_l2 = Int64(m) * Int64(n) * Int64(batches) > Int64(L2_BYTES * 8 // dtype.width)
    return cutlass.select_(exceeds_l2, Int64(EVICT_FIRST), Int64(EVICT_NORMAL))


class Staging(DeviceValues):
    """What both ways out share: rounds pieces of the accumulators and writes them into slots.

    Args:
      slots: (rows, columns, slots) of this warpgroup in shared memory.
      tiled_mma: the warpgroup's tiled MMA, whose accumulator layout decides who holds what.
      thread: thread index in the warpgroup.
      barrier_id: named barrier of this warpgroup.
    """

    FIELDS = ("barrier_id", "warp", "slot_target")

    def __init__(self, slots: cute.Tensor, slot_count: int, dtype, d_is_m_major: bool, tiled_mma, thread, barrier_id):
        self.slot_count = slot_count
        self.dtype = dtype
        self.barrier_id = barrier_id
        self.warp = cute.arch.make_warp_uniform(thread // 32)
        # The blocks of 16 columns that stmatrix stores four matrices from are the tiling for every dtype.
        matrices = warp.StMatrix8x8x16bOp(d_is_m_major, 4)
        tiling = cute.make_tiled_copy_C_atom(cute.make_copy_atom(matrices, cutlass.Float16), tiled_mma)
        if dtype.width == 16:
            copy_atom = cute.make_copy_atom(matrices, dtype)
        else:
            # n-major: a thread holds two neighbours of a row; m-major: its elements lie apart.
            bits = dtype.width * (1 if d_is_m_major else 2)
            copy_atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=bits)
        self.tiled_copy = cute.make_tiled_copy_S(copy_atom, tiling)
        thread_copy = self.tiled_copy.get_slice(thread)
        self.slot_target = thread_copy.partition_D(slots)
        self.fragment_shape = cute.shape(thread_copy.partition_S(slots))[:3]

    def pieces(self, accumulator: cute.Tensor) -> tuple[int, int]:
        """Slots that the tile fills: (along m, along n)."""
        rows = cute.size(accumulator, mode=[1])
        size = cute.size(cute.make_layout(self.fragment_shape))
        return rows, -(-cute.size(accumulator) // (rows * size))

    def fill(self, accumulator: cute.Tensor, piece: int, slot: Int32) -> None:
        """This thread's part of piece number `piece`, counted along n first, into `slot`."""
        source = self.tiled_copy.retile(accumulator)
        rounded = cute.make_rmem_tensor(cute.make_layout(self.fragment_shape).shape, self.dtype)
        size = cute.size(rounded)
        for i in range(size):
            place = piece * size + i
            held = place < cute.size(accumulator)  # the last slot may be wider than what is left of the tile
            rounded[i] = source[place].to(self.dtype) if held else self.dtype(0.0)
        cute.copy(self.tiled_copy, rounded, self.slot_target[(None, None, None, slot)])

    def following(self, slot: Int32) -> Int32:
        return cutlass.select_(slot + 1 == self.slot_count, Int32(0), slot + 1)

    def sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=WARPGROUP_THREADS)


class TmaStore(DeviceValues):
    """Stores of one warpgroup by TMA, which leaves out what lies outside of D.

    Args:
      tensor_map: TMA store atom of D with a box of one slot.
      coordinates: D's coordinate tensor (m, n, l).
      slots: as for `staging`.
      policy: L2's cache policy for D.
    """

    FIELDS = ("staging", "tensor_map", "source", "target", "policy")

    def __init__(
        self, staging: Staging, tensor_map: cute.CopyAtom, coordinates: cute.Tensor, slots: cute.Tensor, policy: Int64
    ):
        self.staging = staging
        self.tensor_map = tensor_map
        self.policy = policy
        shape = (cute.size(slots, mode=[0]), cute.size(slots, mode=[1]))
        boxes = cute.local_tile(coordinates, shape, (None, None, None))
        self.source, self.target = cpasync.tma_partition(
            tensor_map, 0, cute.make_layout(1), cute.group_modes(slots, 0, 2), cute.group_modes(boxes, 0, 2)
        )

    @cute.jit
    def store(self, accumulator: cute.Tensor, first_row: Int32, place: Int32, batch: Int32, next_slot: Int32):
        """Stores a warpgroup's part of a tile; returns the ring's next slot.

        The part begins at row `first_row`, counted in slots, and column `place`, counted in parts.
        """
        rows, columns = self.staging.pieces(accumulator)
        first_column = place * columns
        for row in cutlass.range_constexpr(rows):
            for column in cutlass.range_constexpr(columns):
                if self.staging.warp == 0:
                    # Groups belong to the thread that stores, always the same one: all but the latest have been read,
                    # the next slot's among them.
                    with cute.arch.elect_one():
                        cute.arch.cp_async_bulk_wait_group(self.staging.slot_count - 1, read=True)
                self.staging.sync()
                self.staging.fill(accumulator, row * columns + column, next_slot)
                cute.arch.fence_proxy("async.shared", space="cta")
                self.staging.sync()
                if self.staging.warp == 0:
                    # The DSL elects a lane for loads, not for stores: a whole warp would store 32 times.
                    with cute.arch.elect_one():
                        cute.copy(
                            self.tensor_map,
                            self.source[(None, next_slot)],
                            self.target[(None, first_row + row, first_column + column, batch)],
                            cache_policy=self.policy,
                        )
                        cute.arch.cp_async_bulk_commit_group()
                next_slot = self.staging.following(next_slot)
        return next_slot

    @cute.jit
    def store_without_waiting(self, accumulator: cute.Tensor, first_row: Int32, place: Int32, batch: Int32):
        """The same where there is a slot for every piece of the tile that nobody else uses."""
        rows, columns = self.staging.pieces(accumulator)
        for first in cutlass.range_constexpr(0, rows * columns, PIECES_AT_ONCE):
            pieces = range(first, min(first + PIECES_AT_ONCE, rows * columns))
            for piece in cutlass.range_constexpr(first, pieces.stop):
                self.staging.fill(accumulator, piece, Int32(piece))
            cute.arch.fence_proxy("async.shared", space="cta")
            self.staging.sync()
            if self.staging.warp == 0:
                with cute.arch.elect_one():
                    for piece in cutlass.range_constexpr(first, pieces.stop):
                        row, column = first_row + piece // columns, place * columns + piece % columns
                        cute.copy(
                            self.tensor_map,
                            self.source[(None, piece)],
                            self.target[(None, row, column, batch)],
                            cache_policy=self.policy,
                        )
                    cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def finish(self):
        """Waits until this warpgroup's stores have read its shared memory, which may go then; the end of the grid
        waits for the writes."""
        if self.staging.warp == 0:
            with cute.arch.elect_one():
                cute.arch.cp_async_bulk_wait_group(0, read=True)


class ElementStore(DeviceValues):
    """Stores of one warpgroup line by line, for a D of any alignment and strides.

    A warp writes 16 lines of each slot. One barrier for each slot is enough where there are two of them: who fills a
    slot again has passed the barrier of the slot between, which everybody reaches after reading the first. A single
    slot takes a second barrier, before it is filled again.

    Args:
      matrix: D; its contiguous axis is n, or m if `d_is_m_major`.
      tile_columns: columns that the warpgroup accumulates; the last slot may reach beyond them if D is n-major.
      slots: (rows, columns, slots) in shared memory, lines of 128 bytes.
    """

    FIELDS = ("staging", "matrix", "slots_address")

    def __init__(
        self,
        staging: Staging,
        matrix: StridedMatrix,
        tile_columns: int,
        slots: cute.Tensor,
        d_is_m_major: bool,
    ):
        self.staging = staging
        self.tile_columns = tile_columns
        self.matrix = matrix
        self.d_is_m_major = d_is_m_major
        self.element_bytes = matrix.element_bytes
        self.rows, self.columns = cute.size(slots, mode=[0]), cute.size(slots, mode=[1])
        self.slots_address = slots.iterator.toint()
        self.line_elements = LINE_BYTES // self.element_bytes
        if (self.rows if d_is_m_major else self.columns) % self.line_elements:
            raise ValueError(f"slots of {self.rows} x {self.columns} elements are not made of {LINE_BYTES}-byte lines")
        if staging.slot_count > 2 or (d_is_m_major and tile_columns % self.columns):
            raise ValueError("lines leave at most two slots; lines along m, slots that divide the tile")

    @cute.jit
    def store(self, accumulator: cute.Tensor, first_row: Int32, place: Int32, batch: Int32, next_slot: Int32):
        """Stores a warpgroup's part of a tile; returns the ring's next slot.

        The part begins at row `first_row`, counted in slots, and column `place`, counted in parts.
        """
        rows, columns = self.staging.pieces(accumulator)
        slot_bytes = self.rows * self.columns * self.element_bytes
        for row in cutlass.range_constexpr(rows):
            for column in cutlass.range_constexpr(columns):
                if cutlass.const_expr(self.staging.slot_count == 1):
                    self.staging.sync()
                self.staging.fill(accumulator, row * columns + column, next_slot)
                self.staging.sync()
                self.copy_lines(
                    self.slots_address + next_slot * slot_bytes,
                    (first_row + row) * self.rows,
                    place * self.tile_columns + column * self.columns,
                    min(self.columns, self.tile_columns - column * self.columns),
                    batch,
                )
                next_slot = self.staging.following(next_slot)
        return next_slot

    @cute.jit
    def copy_lines(self, slot: Int32, row: Int32, column: Int32, width: int, batch: Int32):
        """This warp's lines of the slot whose first element is D's (row, column), and whose first `width` columns are
        part of the tile."""
        lane = cute.arch.lane_idx()
        lines = self.rows * self.columns // self.line_elements // 4
        for group in cutlass.range(0, lines, LINES_AT_ONCE, unroll=1):
            first = self.staging.warp * lines + group
            words = cute.make_rmem_tensor(LINES_AT_ONCE, Int32)
            for i in cutlass.range_constexpr(LINES_AT_ONCE):
                words[i] = memory.load_shared_word(chunk_address(slot, first + i, lane // 4) + lane % 4 * 4)
            for i in cutlass.range_constexpr(LINES_AT_ONCE):
                self.copy_line(words[i], first + i, row, column, width, batch, lane)

    def copy_line(self, word, line: Int32, row: Int32, column: Int32, width: int, batch: Int32, lane: Int32) -> None:
        """One line, of which this lane holds 4 bytes."""
        if self.d_is_m_major:
            inner, outer = row + line // self.columns * self.line_elements, column + line % self.columns
        else:
            inner, outer = column, row + line
        left = cutlass.select_(outer < self.matrix.outer_size, self.matrix.inner_size - inner, Int32(0))
        if width < self.columns:
            left = cutlass.select_(left < width, left, Int32(width))
        address = self.matrix.address(inner, outer, batch)
        if self.element_bytes == 4:
            memory.store_4_bytes(address + 4 * lane, word, Int32(lane < left))
        else:
            self.store_pairs(address, word, left, lane)

    def store_pairs(self, address, word: Int32, left: Int32, lane: Int32) -> None:
        """One line of 16-bit elements, of which lane i holds 2i and 2i + 1: the first `left`, in 4-byte stores.

        Where the line starts 2 bytes past a multiple of 4, the pairs are those of elements 2i + 1 and 2i + 2, and the
        first and last element go alone."""
        odd = Int32((address & 2) != 0)
        following = cute.arch.shuffle_sync_down(word, 1)
        pair = memory.funnel_shift_right(word, following, odd * 16)
        first = 2 * lane + odd
        whole = Int32(first + 1 < left) * (1 - odd * Int32(lane == 31))
        alone = Int32(first < left) * (1 - whole)
        target = address + 2 * first
        memory.store_4_bytes(target, pair, whole)
        memory.store_2_bytes(target, pair, alone)
        memory.store_2_bytes(address, word, odd * Int32(lane == 0) * Int32(left > 0))

    def finish(self) -> None:
        """Ordinary stores need no waiting for."""
