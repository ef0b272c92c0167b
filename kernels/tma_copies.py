"""Operand tiles in shared memory, and the TMA copies that fill them (Hopper)."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync, warpgroup


@dataclass(frozen=True)
class OperandTiles:
    """How the tiles of A or B lie in shared memory and get there.

    Attributes:
      operand: `a` or `b`.
      is_mn_major: whether the contiguous axis is m or n, not k.
      rows, k: elements of a tile.
      sharers: CTAs of the cluster that need the same tile. Each loads a slab of rows and multicasts it to all of them.
    """

    operand: str
    dtype: type
    is_mn_major: bool
    rows: int
    k: int
    sharers: int

    @property
    def bytes(self) -> int:
        return self.rows * self.k * self.dtype.width // 8

    @property
    def slab_rows(self) -> int:
        return self.rows // self.sharers

    def layout(self, stages: int) -> cute.ComposedLayout:
        """Shared-memory layout (rows, k, stages)."""
        return self._layout(self.rows, stages)

    def _layout(self, rows: int, stages: int) -> cute.ComposedLayout:
        """Layout of `rows` of the tile's rows, with the widest swizzle that the whole tile allows."""
        contiguous_bytes = (self.rows if self.is_mn_major else self.k) * self.dtype.width // 8
        width = next(width for width in (128, 64, 32) if contiguous_bytes % width == 0)
        if self.is_mn_major and rows * self.dtype.width // 8 % width:
            raise ValueError(f"slabs of {rows} rows of {self.operand} cut its {width}-byte swizzle")
        kind = getattr(warpgroup.SmemLayoutAtomKind, f"{'MN' if self.is_mn_major else 'K'}_SW{width}")
        atom = warpgroup.make_smem_layout_atom(kind, self.dtype)
        return cute.tile_to_shape(atom, (rows, self.k, stages), order=(1, 0, 2) if self.is_mn_major else (0, 1, 2))

    def load_tensor_map(self, tensor: cute.Tensor) -> cpasync.TmaInfo:
        """TMA load of one slab: the box of the tensor map is what one CTA's copy brings."""
        layout = cute.slice_(self._layout(self.slab_rows, 1), (None, None, 0))
        multicasts = self.sharers > 1
        op = cpasync.CopyBulkTensorTileG2SMulticastOp() if multicasts else cpasync.CopyBulkTensorTileG2SOp()
        return cpasync.make_tiled_tma_atom(op, tensor, layout, (self.slab_rows, self.k))

    def partition(self, tensor_map: cute.CopyAtom, stages: cute.Tensor, stage_count: int, sizes: tuple, place: Int32):
        """(slabs in global memory by (slab, k tile, batch), the slab of every stage that the CTA at `place` loads)."""
        boxes = cute.local_tile(coordinates(sizes, self.is_mn_major), (self.slab_rows, self.k), (None, None, None))
        slab = cute.local_tile(stages, (self.slab_rows, self.k, stage_count), (place, 0, 0))
        target, source = cpasync.tma_partition(
            tensor_map, 0, cute.make_layout(1), cute.group_modes(slab, 0, 2), cute.group_modes(boxes, 0, 2)
        )
        return source, target

    def copy(self, tensor_map: cute.CopyAtom, source, target, barrier: cute.Pointer, mask) -> None:
        """One slab, to this CTA, or to all CTAs in `mask` where the tile is shared."""
        if self.sharers > 1:
            cute.copy(tensor_map, source, target, tma_bar_ptr=barrier, mcast_mask=mask)
        else:
            cute.copy(tensor_map, source, target, tma_bar_ptr=barrier)


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
