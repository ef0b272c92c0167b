"""Epilogue: one consumer warpgroup's accumulators, through shared memory, to global memory by TMA.

Every warpgroup has its own ring of staging slots and its own named barrier, so warpgroups never wait for one another
here. The ring goes on from tile to tile: the last stores of a tile are read from shared memory while the warpgroup is
already in the mainloop of its next tile.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

from kernels.device_values import DeviceValues

WARPGROUP_THREADS = 128


def slot_shape(tile_n: int, element_bytes: int) -> tuple[int, int]:
    """(rows, columns) of one store: 64 rows by as many columns as a 128-byte row of the swizzle holds and tile_n divides."""
    columns = 128 // element_bytes
    while tile_n % columns:
        columns //= 2
    return 64, columns


def slot_layout(dtype, d_is_m_major: bool, shape: tuple[int, int], slots: int) -> cute.ComposedLayout:
    """Shared-memory layout (rows, columns, slots) of the staging ring, swizzled as the store's tensor map expects."""
    contiguous_bytes = (shape[0] if d_is_m_major else shape[1]) * dtype.width // 8
    widths = {128: "SW128", 64: "SW64", 32: "SW32"}
    width = next(width for bytes_, width in widths.items() if contiguous_bytes % bytes_ == 0)
    kind = getattr(warpgroup.SmemLayoutAtomKind, f"{'MN' if d_is_m_major else 'K'}_{width}")
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(atom, (*shape, slots), order=(1, 0, 2) if d_is_m_major else (0, 1, 2))


class WarpgroupStore(DeviceValues):
    """Stores of one warpgroup's tile of D.

    Args:
      tensor_map: TMA store atom of D with a box of one slot.
      coordinates: D's coordinate tensor (m, n, l).
      slots: staging slots of this warpgroup, (rows, columns, slots) in shared memory.
      tiled_mma: the warpgroup's tiled MMA, whose accumulator layout decides who holds what.
      thread: thread index in the warpgroup.
      barrier_id: named barrier of this warpgroup.
    """

    FIELDS = ("tensor_map", "barrier_id", "is_storing_warp", "store_source", "store_target", "slot_target")

    def __init__(self, tensor_map, coordinates, slots, slot_count: int, dtype, d_is_m_major, tiled_mma, thread, barrier_id):
        self.tensor_map = tensor_map
        self.dtype = dtype
        self.slot_count = slot_count
        self.barrier_id = barrier_id
        self.is_storing_warp = cute.arch.make_warp_uniform(thread // 32) == 0
        shape = (cute.size(slots, mode=[0]), cute.size(slots, mode=[1]))
        boxes = cute.local_tile(coordinates, shape, (None, None, None))
        self.store_source, self.store_target = cpasync.tma_partition(
            tensor_map, 0, cute.make_layout(1), cute.group_modes(slots, 0, 2), cute.group_modes(boxes, 0, 2)
        )
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

    @cute.jit
    def store(self, accumulator: cute.Tensor, first_row: Int32, first_column: Int32, batch: Int32, next_slot: Int32):
        """Stores the tile whose upper left slot is (first_row, first_column), in slots; returns the ring's next slot."""
        source = self.tiled_copy.retile(accumulator)
        rounded = cute.make_rmem_tensor(cute.make_layout(self.fragment_shape).shape, self.dtype)
        size = cute.size(rounded)
        rows = cute.size(accumulator, mode=[1])
        columns = cute.size(accumulator) // (rows * size)
        for row in cutlass.range_constexpr(rows):
            for column in cutlass.range_constexpr(columns):
                if self.is_storing_warp:
                    cute.arch.cp_async_bulk_wait_group(self.slot_count - 1, read=True)
                self.sync()
                for i in cutlass.range_constexpr(size):
                    rounded[i] = source[(row * columns + column) * size + i].to(self.dtype)
                cute.copy(self.tiled_copy, rounded, self.slot_target[(None, None, None, next_slot)])
                cute.arch.fence_proxy("async.shared", space="cta")
                self.sync()
                if self.is_storing_warp:
                    cute.copy(
                        self.tensor_map,
                        self.store_source[(None, next_slot)],
                        self.store_target[(None, first_row + row, first_column + column, batch)],
                    )
                    cute.arch.cp_async_bulk_commit_group()
                next_slot = next_slot + 1
                next_slot = cutlass.select_(next_slot == self.slot_count, Int32(0), next_slot)
        return next_slot

    def sync(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier_id, number_of_threads=WARPGROUP_THREADS)

    @cute.jit
    def finish(self):
        """Waits for this warpgroup's stores; its shared memory may go then."""
        if self.is_storing_warp:
            cute.arch.cp_async_bulk_wait_group(0, read=False)
