"""Twins of kernels, each with one rule broken on purpose, for the emulated device to find.

A fault replaces one function of the kernel sources while a twin is traced, in its own process; nothing that ships knows
of it. `TWINS` are of the CLC kernel, their rules numbered as in docs/how_a_tile_finds_its_worker.md; `HOPPER_TWINS` of
the static ping-pong kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Twin:
    """A fault.

    Attributes:
      rule: the broken rule's number.
      break_it: puts the fault in.
      errors: names of the error classes that would name it right.
      cluster: the smallest cluster in which it can be seen.
    """

    rule: int
    break_it: Callable[[], None]
    errors: tuple[str, ...]
    cluster: tuple[int, int] = (2, 1)


def expect_half_the_record():
    from kernels import barriers

    expect_at = barriers.expect_at
    barriers.expect_at = lambda barrier, rank, size_bytes: expect_at(barrier, rank, size_bytes // 2)


def expect_in_first_cta_only():
    from kernels import barriers

    expect_at = barriers.expect_at
    barriers.expect_at = lambda barrier, rank, size_bytes: expect_at(barrier, 0, size_bytes)


def ask_with_every_lane():
    from kernels import tile_scheduler_sm100 as scheduler

    def ask(self):
        scheduler.request_cancellation(self.pipeline.record(), self.pipeline.full + self.pipeline.index)

    scheduler.ClcScheduler.ask = ask


def decode_without_looking():
    from cutlass import Int32
    from cutlass.cutlass_dsl import dsl_user_op

    from kernels import barriers
    from kernels import tile_scheduler_sm100 as scheduler

    @dsl_user_op
    def decode_record(record, *, loc=None, ip=None):
        text = (
            "{\n.reg .b128 record;\n.reg .pred granted;\n.reg .b32 first;\n"
            "ld.shared.b128 record, [$1];\n"
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 granted, record;\n"
            "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 first, record;\n"
            f"selp.b32 $0, first, {scheduler.REFUSED}, granted;\n}}"
        )
        return [Int32(barriers.assemble(text, [record], result=Int32, loc=loc, ip=ip))]

    scheduler.decode_record = decode_record


def forget_own_place():
    from kernels import tile_scheduler

    work_tile = tile_scheduler.WorkGrid.work_tile

    def first_ctas_tile(self, linear):
        work = work_tile(self, linear)
        work.tile_m, work.tile_n = work.tile_m - self.cta_m, work.tile_n - self.cta_n
        return work

    tile_scheduler.WorkGrid.work_tile = first_ctas_tile


def ask_after_refusal():
    from kernels import gemm_sm100

    schedule = gemm_sm100.Kernel.schedule

    def ask_once_more(self, scheduler):
        schedule(self, scheduler)
        if_first_cta(self, scheduler.pipeline_ask)

    from cutlass import cute

    from kernels.tile_scheduler import cluster_rank

    @cute.jit
    def if_first_cta(self, ask):
        if cluster_rank(self.cluster) == 0:
            ask()

    from kernels import tile_scheduler_sm100

    tile_scheduler_sm100.ClcScheduler.pipeline_ask = tile_scheduler_sm100.ClcScheduler.ask
    gemm_sm100.Kernel.schedule = ask_once_more


def two_requests_at_once():
    from kernels import tile_scheduler_sm100 as scheduler

    advance = scheduler.ClcScheduler.advance_to_next_work

    def ask_twice(self):
        advance(self)
        self.ask()

    scheduler.ClcScheduler.advance_to_next_work = ask_twice


def release_without_proxy_fence():
    """A release fence of the right scope, but of the generic proxy alone."""
    from cutlass.cutlass_dsl import dsl_user_op

    from kernels import barriers

    @dsl_user_op
    def fence(*, loc=None, ip=None):
        barriers.assemble("fence.release.sync_restrict::shared::cta.cluster;", [], loc=loc, ip=ip)

    barriers.fence_reads_before_async_writes_release = fence


def release_without_fence():
    from kernels import barriers

    barriers.fence_reads_before_async_writes_release = lambda: None


def release_before_reading():
    from cutlass import Int32, cute

    from kernels import barriers, work_pipeline

    @cute.jit
    def read(self, decode, words):
        values = [Int32(0)] * words
        if cute.arch.lane_idx() == 0:
            barriers.wait(self.full + self.index, self.parity)
            barriers.fence_reads_before_async_writes_release()
            barriers.arrive_at(self.empty + self.index, 0)
            values = decode(self.record())
        self.advance()
        return [cute.arch.shuffle_sync(value, 0) for value in values]

    work_pipeline.WorkPipeline.read = read


def leave_with_a_request_in_flight():
    from cutlass import Boolean

    from kernels import tile_scheduler_sm100 as scheduler

    def fetch_next_work(self):
        work = self.initial_work()
        work.is_valid = Boolean(False)
        return work

    scheduler.ClcScheduler.fetch_next_work = fetch_next_work


def count_one_reader_too_many():
    _change_reader_count(1)


def count_one_reader_too_few():
    _change_reader_count(-1)


def _change_reader_count(by: int):
    from kernels import gemm_sm100_shape

    shape = gemm_sm100_shape.WorkPipelineShape
    gemm_sm100_shape.WorkPipelineShape = lambda stages, size, readers: shape(stages, size, readers + by)


def leave_without_the_cluster():
    """The warps of a CTA still meet before it exits, but not those of the cluster."""
    from cutlass import cute

    from kernels import tile_scheduler_sm100 as scheduler

    scheduler.leave_cluster_together = lambda cluster: cute.arch.barrier()


def release_records_in_cta_scope():
    from cutlass.cutlass_dsl import dsl_user_op

    from kernels import barriers

    @dsl_user_op
    def arrive_at(barrier, rank, *, loc=None, ip=None):
        barriers.assemble(
            "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, $0, $1;\n"
            "mbarrier.arrive.release.cta.shared::cluster.b64 _, [remote];\n}",
            [barrier, rank],
            loc=loc,
            ip=ip,
        )

    barriers.arrive_at = arrive_at


def use_sums_before_they_have_come():
    from kernels import barriers

    barriers.WAIT_FOR_TENSOR_LOAD = ""


def multiply_without_fence_after_the_wait():
    from kernels import barriers

    wait = barriers.wait
    weaker = {"tensor": None, "both": "shared", "shared": "shared", None: None}
    barriers.wait = lambda barrier, parity, fence="shared": wait(barrier, parity, weaker[fence])


def hand_back_accumulator_without_fence():
    from kernels import barriers

    barriers.tensor_memory_fence_before_sync = lambda: None


def leave_without_draining():
    from kernels.load_pipeline import LoadPipeline

    LoadPipeline.drain = lambda self, state: None


def relay_without_fence():
    from kernels import barriers

    barriers.fence_release_shared = lambda: None


def store_through_stages_in_use():
    from kernels.gemm_sm90 import Kernel

    Kernel.frees_stages = lambda self, scheduler, count: True


def store_through_stages_of_the_tile_before():
    from kernels.gemm_sm90 import Kernel

    Kernel.frees_stages = lambda self, scheduler, count: scheduler.has_last_work()


_OVERWRITTEN = ("DataRace", "BufferReusedInFlight", "ClcRecordNotComplete", "ClcRecordUnread")

TWINS: dict[str, Twin] = {
    "expect_half_the_record": Twin(3, expect_half_the_record, ("Deadlock",)),
    "expect_in_first_cta_only": Twin(3, expect_in_first_cta_only, ("BarrierOverArrival",)),
    "ask_with_every_lane": Twin(4, ask_with_every_lane, _OVERWRITTEN),
    "decode_without_looking": Twin(5, decode_without_looking, ("ClcRefusedRecordDecoded",), (1, 1)),
    "forget_own_place": Twin(6, forget_own_place, ("OutputNeverWritten", "OutputWrittenTwice")),
    "ask_after_refusal": Twin(7, ask_after_refusal, ("ClcRequestAfterRefusal",), (1, 1)),
    "two_requests_at_once": Twin(7, two_requests_at_once, _OVERWRITTEN, (1, 1)),
    "release_without_proxy_fence": Twin(8, release_without_proxy_fence, ("MissingProxyFence",), (1, 1)),
    "release_without_fence": Twin(8, release_without_fence, ("DataRace", "MissingProxyFence"), (1, 1)),
    "release_before_reading": Twin(8, release_before_reading, _OVERWRITTEN),
    "leave_with_a_request_in_flight": Twin(
        9,
        leave_with_a_request_in_flight,
        ("ClcRequestInFlightAtExit", "ClcRecordUnread", "AsyncInFlightAtExit"),
        (1, 1),
    ),
    "count_one_reader_too_many": Twin(12, count_one_reader_too_many, ("Deadlock",), (1, 1)),
    "count_one_reader_too_few": Twin(
        12, count_one_reader_too_few, ("BarrierOverArrival", "BarrierPhaseAliased", "DataRace"), (1, 1)
    ),
    "leave_without_the_cluster": Twin(
        15, leave_without_the_cluster, ("RemoteAccessToExitedCta", "AsyncInFlightAtExit")
    ),
    "release_records_in_cta_scope": Twin(16, release_records_in_cta_scope, ("DataRace",)),
    "use_sums_before_they_have_come": Twin(17, use_sums_before_they_have_come, ("TensorMemoryNotReady",), (1, 1)),
    "multiply_without_fence_after_the_wait": Twin(
        17, multiply_without_fence_after_the_wait, ("TensorMemoryNotReady",), (1, 1)
    ),
    "hand_back_accumulator_without_fence": Twin(
        17, hand_back_accumulator_without_fence, ("TensorMemoryNotReady",), (1, 1)
    ),
}

HOPPER_TWINS: dict[str, tuple[Callable[[], None], int, tuple[str, ...]]] = {  # k tiles with which it can be seen
    "leave_without_draining": (leave_without_draining, 6, ("RemoteAccessToExitedCta",)),
    "relay_without_fence": (relay_without_fence, 6, ("BufferReusedInFlight",)),
    "store_through_stages_in_use": (store_through_stages_in_use, 6, ("DataRace", "BufferReusedInFlight")),
    "store_through_stages_of_the_tile_before": (
        store_through_stages_of_the_tile_before, 3, ("DataRace", "BufferReusedInFlight")
    ),
}  # fmt: skip
