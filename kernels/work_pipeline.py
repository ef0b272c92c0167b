"""The work record pipeline: how the next tile's name travels from one asking thread to every warp of a cluster.

A record is 16 bytes in shared memory, at the same place in every CTA of the cluster, written by an asynchronous
operation that completes 16 bytes on the barrier beside it. Both dynamic schedules use it: `clc`, where the hardware
writes the record in answer to clusterlaunchcontrol.try_cancel, and `dynamic`, where the asking thread stores it; pieces
of work of stream-K take two such operations and 32 bytes.

Per stage there are two barriers:

- full, in every CTA: 1 arrival (the scheduler warp's, which expects the record's bytes) and those bytes. It says that
  this CTA's copy of the record is complete.
- empty, used in the first CTA only: 1 arrival for each reading warp of the cluster, the scheduler warp among them.
  It says that nobody will read the record again.

One lane of a warp reads and hands the result to the others by a shuffle: so a reader is one thread, and its wait, its
read, its fence and its arrival are in program order.

Depth buffers records for readers that lag (the epilogue is two tiles behind the load warp); it does not allow several
requests at once. There is one request at a time: the scheduler warp asks, reads that record, then asks again.
"""

from dataclasses import dataclass

from cutlass import Int32, cute

from kernels import barriers
from kernels.tile_scheduler import DeviceValues

RECORD_BYTES = 16


class Ring(DeviceValues):
    """A position in a ring of `stages` buffers: the index, and the parity of the phase in which it is used."""

    FIELDS = ("index", "parity")

    def __init__(self, stages: int):
        self.stages = stages
        self.index = Int32(0)
        self.parity = Int32(0)

    def advance(self) -> None:
        following = self.index + 1
        wraps = Int32(following == self.stages)
        self.index = following * (1 - wraps)
        self.parity = self.parity ^ wraps


@dataclass(frozen=True)
class WorkPipelineShape:
    """Compile-time facts of a work pipeline.

    Attributes:
      stages: records that may wait to be read.
      cluster_size: CTAs that get a copy of each record.
      reading_warps: warps of the whole cluster that read each record: the scheduler warp of the first CTA, and every
        other warp that follows the tile sequence. A miscount is a deadlock (too many) or a race (too few).
      record_bytes: of one record, a multiple of 16.
    """

    stages: int
    cluster_size: int
    reading_warps: int
    record_bytes: int = RECORD_BYTES


class WorkPipeline(Ring):
    """One warp's view of the pipeline: where it reads next, and the barriers.

    Args:
      shape: the compile-time facts.
      records: `stages` records, 16-byte aligned.
      full, empty: `stages` mbarriers each.
      throttle: one mbarrier.
    """

    FIELDS = ("index", "parity", "throttle_parity")

    def __init__(self, shape: WorkPipelineShape, records, full, empty, throttle):
        super().__init__(shape.stages)
        self.shape = shape
        self.records = records
        self.full = full
        self.empty = empty
        self.throttle = throttle
        self.throttle_parity = Int32(0)

    def initialize_barriers(self) -> None:
        """By one thread, before the start-up fence and cluster barrier."""
        for stage in range(self.shape.stages):
            cute.arch.mbarrier_init(self.full + stage, 1)
            cute.arch.mbarrier_init(self.empty + stage, self.shape.reading_warps)
        # One arrival: the load warp of the first CTA, once for each tile that it starts.
        cute.arch.mbarrier_init(self.throttle, 1)

    @cute.jit
    def note_work_started(self) -> None:
        """By the load warp of the first CTA: it has started a tile, so the next one may be asked for.

        Phase t of the throttle barrier completes when tile t is started. The load warp can only start tile t + 1 after
        request t, which comes after the scheduler warp has seen phase t: so the barrier is never a phase ahead of its
        waiter, and parities cannot be confused.
        """
        if cute.arch.lane_idx() == 0:
            barriers.arrive(self.throttle)

    @cute.jit
    def acquire(self) -> None:
        """By the scheduler warp: wait until the next stage may be written and asking is due; expect the record."""
        # Throttle: a scheduler that runs ahead hoards tiles that idle workers could take. Carries no data.
        barriers.wait(self.throttle, self.throttle_parity, fence=None)
        self.throttle_parity = self.throttle_parity ^ 1
        # The first use of each stage waits for the parity before the first phase, which passes at once.
        barriers.wait(self.empty + self.index, self.parity ^ 1, fence=None)
        # Readers in any CTA of the cluster have read the last record through the generic proxy; the coming one is
        # written through the async proxy. Their release fence and this one make the order.
        barriers.fence_reads_before_async_writes_acquire()
        # One arrival and one record in every CTA, by as many lanes. Expecting may come after completing: byte counts
        # are signed, and no phase ends before its arrival.
        lane = cute.arch.lane_idx()
        if lane < self.shape.cluster_size:
            barriers.expect_at(self.full + self.index, lane, self.shape.record_bytes)

    def record(self) -> cute.Pointer:
        """The record of the present stage in this CTA."""
        return self.records + self.index * self.shape.record_bytes

    @cute.jit
    def read(self, decode, words: int) -> list[Int32]:
        """By every reading warp: the next record's content, the same for all lanes; releases the stage.

        Args:
          decode: from the record's address to a list of `words` 32-bit values; run by one lane.
        """
        values = [Int32(0)] * words
        if cute.arch.lane_idx() == 0:
            # The record and its completion come from another CTA's request: cluster scope.
            barriers.wait(self.full + self.index, self.parity)
            values = decode(self.record())
            # Read, fence, release, in this order: the release lets the next record overwrite this one.
            barriers.fence_reads_before_async_writes_release()
            barriers.arrive_at(self.empty + self.index, 0)
        self.advance()
        return [cute.arch.shuffle_sync(value, 0) for value in values]
