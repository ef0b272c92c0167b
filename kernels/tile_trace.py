"""Tile traces: which CTA computed which tile, on which SM, from when to when. See docs/design.md, section 7.7.

Traced kernels are builds of their own: the kernels that serve products carry none of this. A row belongs to one CTA
tile, which is computed once, so rows need no lock; only the end of a tile that several warpgroups store is a maximum.
"""

from cutlass import Boolean, Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from kernels import raster
from kernels.device_values import DeviceValues
from kernels.tile_scheduler import WorkGrid, WorkTile, cluster_rank

ROW_BYTES = 48
ROWS_OFFSET = 128  # bytes of scratch before the rows: the work counter of `dynamic`
MOST_ROWS = 1 << 16  # CTA tiles of the largest product that can be traced: 3 MiB
SCRATCH_BYTES = ROWS_OFFSET + MOST_ROWS * ROW_BYTES
PLACE, START, END, ASKED, ANSWERED = 0, 16, 24, 32, 40  # byte offsets in a row; PLACE is SM and cluster


class TileTrace(DeviceValues):
    """Writes rows. Every method is for one thread of the CTA, but `ended`, which any number may call.

    Args:
      scratch: address of the scratch buffer, all of which was cleared before the launch.
      grid: the problem's tiles.
      launched_cluster: linear index of this cluster in the launch grid.
    """

    FIELDS = ("rows", "grid", "rank", "launched_cluster")

    def __init__(self, scratch: Int64, grid: WorkGrid, launched_cluster: Int32):
        self.rows = Int64(scratch) + ROWS_OFFSET
        self.grid = grid
        self.rank = Int32(cluster_rank(grid.cluster))
        self.launched_cluster = Int32(launched_cluster)

    def started(self, work: WorkTile) -> None:
        """By the load warp, as it takes the tile."""
        write_place(self.row(work) + PLACE, self.launched_cluster)
        write_time(self.row(work) + START)

    def ended(self, work: WorkTile) -> None:
        """By each warpgroup that stores a part of the tile, after its last store was issued."""
        write_latest_time(self.row(work) + END)

    def requested(self, work: WorkTile, asked: Int64) -> None:
        """By the scheduler warp, when the record that names `work` has been read; `asked` is `now()` at the request."""
        write_value(self.row(work) + ASKED, asked, work.is_valid)
        write_value(self.row(work) + ANSWERED, now(), work.is_valid)

    def row(self, work: WorkTile) -> Int64:
        """Address of the row of this CTA's tile. Tiles past the last share it; the host refuses such a trace."""
        grid = self.grid
        linear = raster.linear_index(
            work.tile_m // grid.cluster[0], work.tile_n // grid.cluster[1], work.split * grid.batches + work.batch,
            grid.tiles_m, grid.tiles_n, grid.raster_group, grid.raster_along,
        )  # fmt: skip
        row = linear * (grid.cluster[0] * grid.cluster[1]) + self.rank
        beyond = row - (MOST_ROWS - 1)
        row = row - (beyond & ~(beyond >> 31))
        return self.rows + Int64(row) * ROW_BYTES


@dsl_user_op
def now(*, loc=None, ip=None) -> Int64:
    """Nanoseconds of the device's global clock."""
    return Int64(_assemble("mov.u64 $0, %globaltimer;", [], ["=l"], Int64.mlir_type, loc, ip))


@dsl_user_op
def write_place(address: Int64, cluster: Int32, *, loc=None, ip=None) -> None:
    """Stores the number of this SM and `cluster`, as two 64-bit words."""
    _assemble(
        "{\n.reg .b32 sm;\n.reg .b64 wide_sm, wide_cluster;\n"
        "mov.u32 sm, %smid;\ncvt.u64.u32 wide_sm, sm;\ncvt.u64.u32 wide_cluster, $1;\n"
        "st.global.v2.b64 [$0], {wide_sm, wide_cluster};\n}",
        [address, cluster], ["l", "r"], None, loc, ip,
    )  # fmt: skip


@dsl_user_op
def write_time(address: Int64, *, loc=None, ip=None) -> None:
    """Stores the time."""
    _assemble("{\n.reg .b64 time;\nmov.u64 time, %globaltimer;\nst.global.b64 [$0], time;\n}", [address], ["l"], None,
              loc, ip)  # fmt: skip


@dsl_user_op
def write_latest_time(address: Int64, *, loc=None, ip=None) -> None:
    """Stores the time if it is later than what is there."""
    _assemble("{\n.reg .b64 time;\nmov.u64 time, %globaltimer;\nred.relaxed.gpu.global.max.u64 [$0], time;\n}",
              [address], ["l"], None, loc, ip)  # fmt: skip


@dsl_user_op
def write_value(address: Int64, value: Int64, condition: Boolean, *, loc=None, ip=None) -> None:
    """Stores a 64-bit word where `condition` holds."""
    _assemble("{\n.reg .pred p;\nsetp.ne.b32 p, $2, 0;\n@p st.global.b64 [$0], $1;\n}",
              [address, value, Int32(condition)], ["l", "l", "r"], None, loc, ip)  # fmt: skip


def _assemble(text: str, operands: list, constraints: list[str], result, loc, ip):
    return llvm.inline_asm(
        result,
        [operand.ir_value(loc=loc, ip=ip) for operand in operands],
        text,
        ",".join([*constraints, "~{memory}"]),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
