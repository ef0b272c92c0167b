"""The `clc` tile scheduler: tiles claimed at run time by Cluster Launch Control.

The protocol, with pictures: docs/how_a_tile_finds_its_worker.md.

The grid holds one cluster for every cluster tile. A cluster that runs computes the tile of its own grid position, and
then asks the hardware to cancel the launch of one that has not started: if granted, it computes that one's tile in its
place. Every grid position is launched or granted, never both, never neither.

A refusal says nothing about the rest of the grid: the cluster leaves, and the hardware launches what nobody was
granted.
"""

import cutlass.cute as cute
from cutlass import Int32
from cutlass.cutlass_dsl import dsl_user_op

from kernels import barriers
from kernels.device_values import DeviceValues
from kernels.tile_scheduler import SCHEDULERS, WorkGrid, WorkTile, launched_cluster, leave_cluster_together
from kernels.work_pipeline import WorkPipeline

REFUSED = -1


class ClcScheduler(DeviceValues):
    """Claims tiles from the hardware's queue of clusters not yet launched. `advance_to_next_work` is the only place
    that asks, called by the scheduler warp of the first CTA alone, and only after the record before has been read: so
    at most one request is in flight, none after a refusal has been seen, and none at exit."""

    FIELDS = ("grid", "pipeline")

    def __init__(self, grid: WorkGrid, pipeline: WorkPipeline):
        self.grid = grid
        self.pipeline = pipeline

    def initialize_barriers(self) -> None:
        self.pipeline.initialize_barriers()

    def initial_work(self) -> WorkTile:
        return self.grid.work_tile(launched_cluster(self.grid.cluster))

    def note_work_started(self) -> None:
        self.pipeline.note_work_started()

    def advance_to_next_work(self) -> None:
        self.pipeline.acquire()
        self.ask()

    @cute.jit
    def ask(self):
        if cute.arch.lane_idx() == 0:
            request_cancellation(self.pipeline.record(), self.pipeline.full + self.pipeline.index)

    def fetch_next_work(self) -> WorkTile:
        (first_cta,) = self.pipeline.read(decode_record, 1)
        # The record names the granted cluster's first CTA; a CTA's own place in the cluster is added by the grid.
        is_granted = first_cta != REFUSED
        work = self.grid.work_tile(first_cta // (self.grid.cluster[0] * self.grid.cluster[1]))
        work.is_valid = is_granted
        return work

    def finish(self) -> None:
        leave_cluster_together(self.grid.cluster)


def make_scheduler(schedule: str, grid: WorkGrid, pipeline: WorkPipeline):
    """The scheduler of a Blackwell kernel: `nonpersistent`, `static` or `clc`. Only `clc` uses the pipeline."""
    if schedule == "clc":
        return ClcScheduler(grid, pipeline)
    return SCHEDULERS[schedule](grid)


@dsl_user_op
def request_cancellation(record: cute.Pointer, barrier: cute.Pointer, *, loc=None, ip=None) -> None:
    """Asks for one cluster; the answer goes to `record`, with 16 bytes on `barrier`, in every CTA of this one."""
    barriers.assemble(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
        ".multicast::cluster::all.b128 [$0], [$1];",
        [record, barrier],
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def decode_record(record: cute.Pointer, *, loc=None, ip=None) -> list[Int32]:
    """Rank in the grid of the granted cluster's first CTA, or REFUSED.

    The coordinates of a refused record are undefined, so they are decoded under the predicate, in one assembly block:
    a branch written in the DSL may be turned into a select, with the decode before it.
    """
    first_cta = Int32(
        barriers.assemble(
            "{\n"
            ".reg .b128 record;\n"
            ".reg .pred granted;\n"
            "ld.shared.b128 record, [$1];\n"
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 granted, record;\n"
            f"mov.b32 $0, {REFUSED};\n"
            "@granted clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 $0, record;\n"
            "}",
            [record],
            result=Int32,
            loc=loc,
            ip=ip,
        )
    )
    return [first_cta]
