"""Tile traces: which CTA computed which tile, on which SM, from when to when. See docs/design.md, section 7.7.

A traced kernel is a build of its own whose tile scheduler is wrapped: what a warp asks of its scheduler tells when it
takes a tile and when it is done with one. The kernels that serve products carry none of this.

Rows lie in the scratch buffer, one for each CTA tile. A tile is computed once, so rows need no lock; only the end of a
tile that several warps store is a maximum.
"""

from cutlass import Boolean, Int32, Int64, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from kernels import raster
from kernels.device_values import DeviceValues
from kernels.tile_scheduler import WorkTile, cluster_rank, launched_cluster

ROW_BYTES = 48
ROWS_OFFSET = 128  # bytes of scratch before the rows: the work counter of `dynamic`
MOST_ROWS = 1 << 16  # CTA tiles of the largest product that can be traced: 3 MiB
SCRATCH_BYTES = ROWS_OFFSET + MOST_ROWS * ROW_BYTES
SCRATCH_FACTS = {"counter_bytes": SCRATCH_BYTES, "partial_bytes_per_element": 0, "zeroed_bytes": SCRATCH_BYTES}
PLACE, START, END, ASKED, ANSWERED = 0, 16, 24, 32, 40  # byte offsets in a row; PLACE is SM and cluster


class TracedScheduler(DeviceValues):
    """A tile scheduler that writes down what passes through it. One lane of a warp writes.

    Args:
      scheduler: the one that hands out the work.
      scratch: the scratch buffer, all of which was cleared before the launch.
      load_warp, scheduler_warp: their indices in the CTA.
      storing_warps: (first, number) of the warps that store tiles.
    """

    FIELDS = ("scheduler", "rows", "work", "asked")

    def __init__(self, scheduler, scratch: cute.Pointer, load_warp: int, scheduler_warp: int, storing_warps: tuple):
        self.scheduler = scheduler
        self.rows = Int64(scratch.toint()) + ROWS_OFFSET
        zero = Int32(0)
        self.work = WorkTile(zero, zero, zero, zero, Boolean(False))
        self.asked = Int64(0)
        self.asks = hasattr(scheduler, "pipeline")  # tiles are claimed at run time, by records
        self.load_warp, self.scheduler_warp, self.storing_warps = load_warp, scheduler_warp, storing_warps

    @property
    def grid(self):
        return self.scheduler.grid

    def initialize_barriers(self) -> None:
        self.scheduler.initialize_barriers()

    def ask_for_initial_work(self) -> Int32:
        return self.scheduler.ask_for_initial_work()

    def take_initial_work(self, number: Int32) -> list[Int32]:
        self.asked = now()  # for the first tile: when the wait for the answer begins
        return self.scheduler.take_initial_work(number)

    def send_initial_work(self, words: list[Int32]) -> None:
        self.scheduler.send_initial_work(words)

    def initial_work(self) -> WorkTile:
        return self.taken(self.scheduler.initial_work())

    def note_work_started(self) -> None:
        self.scheduler.note_work_started()

    def advance_to_next_work(self) -> None:
        self.asked = now()
        self.scheduler.advance_to_next_work()

    def fetch_next_work(self) -> WorkTile:
        first, count = self.storing_warps
        warp = cute.arch.warp_idx()
        stores = (warp >= first) & (warp < first + count)
        write_latest_time(self.row(self.work) + END, self.writes(stores & self.work.is_valid))
        return self.taken(self.scheduler.fetch_next_work())

    def finish(self) -> None:
        self.scheduler.finish()

    def taken(self, work: WorkTile) -> WorkTile:
        """Notes the tile that this warp has just been given."""
        row, warp = self.row(work), cute.arch.warp_idx()
        loads = self.writes((warp == self.load_warp) & work.is_valid)
        write_place(row + PLACE, launched_cluster(self.grid.cluster), loads)
        write_value(row + START, now(), loads)
        if self.asks:
            asks = self.writes((warp == self.scheduler_warp) & work.is_valid & (self.asked != 0))
            write_value(row + ASKED, self.asked, asks)
            write_value(row + ANSWERED, now(), asks)
        self.work = work
        return work

    def writes(self, condition: Boolean) -> Int32:
        """1 in one lane of the warp if `condition` holds, else 0."""
        return Int32(condition & (cute.arch.lane_idx() == 0))

    def row(self, work: WorkTile) -> Int64:
        """Address of the row of this CTA's tile. Tiles past the last share it; the host refuses such a trace."""
        grid = self.grid
        linear = raster.linear_index(
            work.tile_m // grid.cluster[0], work.tile_n // grid.cluster[1], work.split * grid.batches + work.batch,
            grid.tiles_m, grid.tiles_n, grid.raster_group, grid.raster_along,
        )  # fmt: skip
        row = linear * (grid.cluster[0] * grid.cluster[1]) + cluster_rank(grid.cluster)
        beyond = row - (MOST_ROWS - 1)
        return self.rows + Int64(row - (beyond & ~(beyond >> 31))) * ROW_BYTES


@dsl_user_op
def now(*, loc=None, ip=None) -> Int64:
    """Nanoseconds of the device's global clock."""
    return Int64(assemble("mov.u64 $0, %globaltimer;", [], ["=l"], Int64.mlir_type, loc, ip))


@dsl_user_op
def write_place(address: Int64, cluster: Int32, condition: Int32, *, loc=None, ip=None) -> None:
    """Stores the number of this SM and `cluster`, as two 64-bit words, where `condition` is not 0."""
    assemble(
        "{\n.reg .pred p;\n.reg .b32 sm;\n.reg .b64 wide_sm, wide_cluster;\n"
        "mov.u32 sm, %smid;\ncvt.u64.u32 wide_sm, sm;\ncvt.u64.u32 wide_cluster, $1;\nsetp.ne.b32 p, $2, 0;\n"
        "@p st.global.v2.b64 [$0], {wide_sm, wide_cluster};\n}",
        [address, cluster, condition], ["l", "r", "r"], None, loc, ip,
    )  # fmt: skip


@dsl_user_op
def write_value(address: Int64, value: Int64, condition: Int32, *, loc=None, ip=None) -> None:
    """Stores a 64-bit word where `condition` is not 0."""
    assemble(
        "{\n.reg .pred p;\nsetp.ne.b32 p, $2, 0;\n@p st.global.b64 [$0], $1;\n}",
        [address, value, condition], ["l", "l", "r"], None, loc, ip,
    )  # fmt: skip


@dsl_user_op
def write_latest_time(address: Int64, condition: Int32, *, loc=None, ip=None) -> None:
    """Stores the time, if it is later than what is there, where `condition` is not 0."""
    assemble(
        "{\n.reg .pred p;\n.reg .b64 time;\nsetp.ne.b32 p, $1, 0;\nmov.u64 time, %globaltimer;\n"
        "@p red.relaxed.gpu.global.max.u64 [$0], time;\n}",
        [address, condition], ["l", "r"], None, loc, ip,
    )  # fmt: skip


def assemble(text: str, operands: list, constraints: list[str], result, loc, ip):
    """One volatile block of inline assembly on 32- and 64-bit values."""
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
