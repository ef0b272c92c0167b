"""Operand tiles in shared memory, and the TMA copies that fill them (Hopper)."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync, warpgroup

from kernels.device_values import DeviceValues

SWIZZLE_BYTES = 128


@dataclass(frozen=True)
class OperandTiles:
    """How the tiles of A or B lie in shared memory and get there.

    Attributes:
      operand: `a` or `b`.
      is_mn_major: whether the contiguous axis is m or n, not k.
      tile_rows, k: elements of a tile.
      sharers: CTAs of the cluster that need the same tile. Each loads a slab and multicasts it to all of them: a part
        of the rows, or of k where a part of the rows would cut the swizzle.
    """

    operand: str
    dtype: type
    is_mn_major: bool
    tile_rows: int
    k: int
    sharers: int

    @property
    def rows(self) -> int:
        """Rows of the tile as it lies in shared memory: a longer contiguous axis ends with a whole swizzle line."""
        line = SWIZZLE_BYTES * 8 // self.dtype.width
        return -(-self.tile_rows // line) * line if self.is_mn_major and self.tile_rows > line else self.tile_rows

    @property
    def bytes(self) -> int:
        return self.rows * self.k * self.dtype.width // 8

    @property
    def swizzle_bytes(self) -> int:
        """The widest swizzle that the tile allows."""
        contiguous_bytes = (self.rows if self.is_mn_major else self.k) * self.dtype.width // 8
        return next(width for width in (128, 64, 32) if contiguous_bytes % width == 0)

    @property
    def cuts_k(self) -> bool:
        """Whether the sharers' slabs are parts of k."""
        line = self.swizzle_bytes * 8 // self.dtype.width
        return self.sharers > 1 and self.is_mn_major and self.rows // self.sharers % line != 0

    @property
    def slab(self) -> tuple[int, int]:
        """(rows, k) of what one CTA loads."""
        return (self.rows, self.k // self.sharers) if self.cuts_k else (self.rows // self.sharers, self.k)

    def layout(self, stages: int) -> cute.ComposedLayout:
        """Shared-memory layout (rows, k, stages)."""
        return cute.tile_to_shape(self._swizzle_atom(), (self.rows, self.k, stages), order=(*self._order(), 2))

    def _swizzle_atom(self) -> cute.ComposedLayout:
        kind = getattr(warpgroup.SmemLayoutAtomKind, f"{'MN' if self.is_mn_major else 'K'}_SW{self.swizzle_bytes}")
        return warpgroup.make_smem_layout_atom(kind, self.dtype)

    def _order(self) -> tuple[int, int]:
        return (1, 0) if self.is_mn_major else (0, 1)

    def load_tensor_map(self, tensor: cute.Tensor) -> cpasync.TmaInfo:
        """TMA load of one slab: the box of the tensor map is what one CTA's copy brings."""
        layout = cute.tile_to_shape(self._swizzle_atom(), self.slab, order=self._order())
        multicasts = self.sharers > 1
        op = cpasync.CopyBulkTensorTileG2SMulticastOp() if multicasts else cpasync.CopyBulkTensorTileG2SOp()
        return cpasync.make_tiled_tma_atom(op, tensor, layout, self.slab)

    def boxes(self, sizes: tuple) -> cute.Tensor:
        """Coordinates of all slabs in global memory: (rows, k) of a slab, then slabs along rows, k and batch."""
        boxes = cute.local_tile(coordinates(sizes, self.is_mn_major), self.slab, (None, None, None))
        if self.rows != self.tile_rows:
            if self.slab[0] != self.rows:
                raise ValueError(f"slabs of rows of {self.operand} would end beyond its tile of {self.tile_rows} rows")
            stride = boxes.layout.stride  # boxes as long as the tile lies, one tile apart
            stride = (*stride[:2], cute.ScaledBasis(self.tile_rows, 0), *stride[3:])
            boxes = cute.make_tensor(boxes.iterator, cute.make_layout(boxes.layout.shape, stride=stride))
        return boxes


class OperandSlabs(DeviceValues):
    """One CTA's copies of A or B: its slab of every tile, into its part of every stage, for all CTAs that need it.

    Args:
      tiles: the operand's.
      tensor_map: made by `tiles.load_tensor_map`.
      stages: (rows, k, `stage_count`) in shared memory.
      sizes: (rows, k, batches) of the operand.
      place: of this CTA among the sharers.
      mask: of the sharers among the CTAs of the cluster.
    """

    def __init__(
        self, tiles: OperandTiles, tensor_map: cute.CopyAtom, stages: cute.Tensor, stage_count: int, sizes, place, mask
    ):
        self.tiles = tiles
        self.tensor_map = tensor_map
        self.place = place
        self.mask = mask
        slab = cute.local_tile(stages, (*tiles.slab, stage_count), (0, place, 0) if tiles.cuts_k else (place, 0, 0))
        self.target, self.source = cpasync.tma_partition(
            tensor_map,
            0,
            cute.make_layout(1),
            cute.group_modes(slab, 0, 2),
            cute.group_modes(tiles.boxes(sizes), 0, 2),
        )

    def slab(self, tile: Int32, k_tile: Int32, batch: Int32) -> cute.Tensor:
        """This CTA's slab of a tile, in global memory."""
        if self.tiles.cuts_k:
            return self.source[(None, tile, k_tile * self.tiles.sharers + self.place, batch)]
        return self.source[(None, tile * self.tiles.sharers + self.place, k_tile, batch)]

    def prefetch(self, slab: cute.Tensor) -> None:
        """Into L2."""
        cute.prefetch(self.tensor_map, slab)

    def copy(self, slab: cute.Tensor, stage: Int32, barrier: cute.Pointer) -> None:
        """Into a stage of every sharer, completing its bytes on the barrier there."""
        target = self.target[(None, stage)]
        if self.tiles.sharers > 1:
            cute.copy(self.tensor_map, slab, target, tma_bar_ptr=barrier, mcast_mask=self.mask)
        else:
            cute.copy(self.tensor_map, slab, target, tma_bar_ptr=barrier)


def store_tensor_map(tensor: cute.Tensor, slot_layout: cute.ComposedLayout, slot_shape: tuple) -> cpasync.TmaInfo:
    """TMA store of one staging slot of D."""
    layout = cute.slice_(slot_layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), tensor, layout, slot_shape)


def coordinates(sizes: tuple, first_mode_contiguous: bool) -> cute.Tensor:
    """Coordinate tensor of an operand (rows, columns, batch), as its tensor map counts: contiguous axis first."""
    rows, columns, batches = sizes
    if first_mode_contiguous:
        return cute.make_identity_tensor((rows, columns, batches))
    identity = cute.make_identity_tensor((columns, rows, batches))
    return cute.make_tensor(identity.iterator, cute.select(identity.layout, [1, 0, 2]))
