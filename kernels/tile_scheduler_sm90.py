"""The `dynamic` tile scheduler: tiles claimed at run time from a counter in global memory (Hopper).

One atomic for each tile, the first one too: a first tile fixed by grid position would wait for its cluster to become
resident when other work holds SMs. The claimed tile travels as a work record, like an answer of Cluster Launch
Control: the scheduler warp of the first CTA stores it into every CTA of the cluster, each store completing its bytes on
the barrier there. Throttle, depth and release are the work pipeline's.

A record has room for the tile's coordinates beside its number. So the raster's divisions are done once, by a warp that
has time, ahead of need; not by every reader between two of its tiles.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int8, Int32
from cutlass.cutlass_dsl import dsl_user_op

from kernels import barriers
from kernels import memory_access as memory
from kernels.device_values import DeviceValues
from kernels.tile_scheduler import SCHEDULERS, WorkGrid, WorkTile, leave_cluster_together
from kernels.work_pipeline import RECORD_BYTES, WorkPipeline, WorkPipelineShape

COUNTER_BYTES = 16  # zeroed before each launch
RECORD_WORDS = 4  # a cluster tile: its number, tile_m, tile_n, batch
RECORD_STAGES = 3  # records that may wait for the slowest reader, an epilogue


class DynamicScheduler(DeviceValues):
    """Claims tile numbers in order; a number past the end says that all work is handed out.

    Args:
      counter: the next tile's number, in global memory.
    """

    FIELDS = ("grid", "pipeline", "counter")

    def __init__(self, grid: WorkGrid, pipeline: WorkPipeline, counter: cute.Pointer):
        self.grid = grid
        self.pipeline = pipeline
        self.counter = counter

    def initialize_barriers(self) -> None:
        self.pipeline.initialize_barriers()

    @cute.jit
    def ask_for_initial_work(self) -> Int32:
        """By the scheduler warp, first of all: the claim goes out to memory and back while barriers are initialised.
        The number is lane 0's; whoever uses it waits for it."""
        number = Int32(0)
        if cute.arch.lane_idx() == 0:
            number = self.add_to_counter()
        return number

    def take_initial_work(self, number: Int32) -> list[Int32]:
        """By the scheduler warp, before the peers have come together: what `send_initial_work` sends. `number` is what
        `ask_for_initial_work` returned."""
        return self.record_of(cute.arch.shuffle_sync(number, 0))

    def send_initial_work(self, words: list[Int32]) -> None:
        """By the scheduler warp: the first claim waits for no tile to be started, so the throttle is opened by hand."""
        self.pipeline.note_work_started()
        self.pipeline.acquire()
        self.send(words)

    def initial_work(self) -> WorkTile:
        return self.fetch_next_work()

    def note_work_started(self) -> None:
        self.pipeline.note_work_started()

    def advance_to_next_work(self) -> None:
        self.pipeline.acquire()
        self.send(self.claim())

    def claim(self) -> list[Int32]:
        """Takes a number; returns the words of its record."""
        return self.record_of(self.take_number())

    def record_of(self, number: Int32) -> list[Int32]:
        tile_m, tile_n, batch, _ = self.grid.place(number)  # k is not cut
        return [number, tile_m, tile_n, batch]

    @cute.jit
    def take_number(self, condition=True) -> Int32:
        """The next number, the same for all lanes: lane 0 takes it, where `condition` holds."""
        number = Int32(0)
        takes = cute.arch.lane_idx() == 0
        if cutlass.const_expr(condition is not True):
            takes = takes & condition
        if takes:
            number = self.add_to_counter()
        return cute.arch.shuffle_sync(number, 0)

    def add_to_counter(self) -> Int32:
        # The number alone is handed over, no data: relaxed.
        return cute.arch.atomic_add(self.counter, Int32(1), sem="relaxed", scope="gpu")

    @cute.jit
    def send(self, words: list[Int32]):
        """Lane r sends the record to CTA r, four words at a time."""
        lane = cute.arch.lane_idx()
        if lane < self.pipeline.shape.cluster_size:
            full = self.pipeline.full + self.pipeline.index
            for first in cutlass.range_constexpr(0, len(words), RECORD_WORDS):
                record = self.pipeline.record() + first * 4
                send_record(record, full, lane, *words[first : first + RECORD_WORDS])

    def fetch_next_work(self) -> WorkTile:
        work = self.grid.own_tile(*self.pipeline.read(read_record, RECORD_WORDS), Int32(0))
        # The same for all lanes anyhow. The vote tells the assembler, which otherwise may take the loop over tiles for
        # a divergent one, and serialise its wgmmas.
        work.is_valid = cute.arch.vote_any_sync(work.is_valid)
        return work

    def skip_work(self) -> None:
        """Ping-pong: the next record is the other warpgroup's; not even read, so it has no reader here."""
        self.pipeline.advance()

    def end_for_the_other_warpgroup(self) -> None:
        """Ping-pong, by the scheduler warp: the record that ended the sequence went to one warpgroup; one more for the
        other. No tile is started before it, so the throttle is opened by hand."""
        self.pipeline.note_work_started()
        self.advance_to_next_work()
        self.fetch_next_work()

    def finish(self) -> None:
        leave_cluster_together(self.grid.cluster)


def make_scheduler(schedule: str, grid: WorkGrid, cluster_size: int, readers_per_cta: int, storage, counter):
    """The scheduler of a Hopper kernel: `nonpersistent`, `static` or `dynamic`.

    Args:
      readers_per_cta: warps of a CTA that follow the tile sequence, the scheduler warp not counted.
      storage: function from bytes to shared memory, used by `dynamic` alone.
    """
    if schedule != "dynamic":
        return SCHEDULERS[schedule](grid)
    return DynamicScheduler(grid, make_pipeline(cluster_size, readers_per_cta, storage), counter)


def make_pipeline(cluster_size: int, readers_per_cta: int, storage, record_bytes: int = RECORD_BYTES) -> WorkPipeline:
    """The pipeline of a scheduler's records; arguments as for `make_scheduler`."""
    shape = WorkPipelineShape(RECORD_STAGES, cluster_size, cluster_size * readers_per_cta + 1, record_bytes)
    records = cute.recast_ptr(storage(RECORD_STAGES * record_bytes), dtype=Int8)  # counted in bytes
    full, empty, throttle = storage(8 * RECORD_STAGES), storage(8 * RECORD_STAGES), storage(8)
    return WorkPipeline(shape, records, full, empty, throttle)


@dsl_user_op
def send_record(record: cute.Pointer, barrier: cute.Pointer, rank: Int32, *words: Int32, loc=None, ip=None) -> None:
    """Store four words of a record into the CTA of `rank`, completing them on its barrier."""
    barriers.assemble(
        "{\n"
        ".reg .b32 target, signal;\n"
        "mapa.shared::cluster.u32 target, $0, $2;\n"
        "mapa.shared::cluster.u32 signal, $1, $2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [target], {$3, $4, $5, $6}, [signal];\n"
        "}",
        [record, barrier, rank, *words],
        loc=loc,
        ip=ip,
    )


def read_record(record: cute.Pointer) -> list[Int32]:
    """Four words of a record."""
    return memory.load_shared_16_bytes(record.toint())
