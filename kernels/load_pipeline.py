"""The ring of load stages between the producer warp and the consumer warpgroups (Hopper).

Each stage has a full barrier (the producer's arrival and the bytes of its copies) and an empty barrier. With multicast,
a peer's copies land in this CTA's stage and this CTA's copies in the peer's, so a stage is free when all have read
theirs: every consumer warp of every CTA of the cluster arrives at the empty barrier. A peer needs a fence of cluster
scope before the arrival. Where stages are relayed it is not the consumers who wait for that fence, and whose next
multiplications would be late: they arrive at a read barrier of their own CTA, and a warp that does nothing else fences,
and tells all CTAs.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, pipeline

from kernels import barriers
from kernels.branch_free import at_least
from kernels.device_values import DeviceValues


class LoadPipeline(DeviceValues):
    """Barriers of the ring.

    Args:
      storage: `barrier_count` 64-bit barriers in shared memory.
      stages: stages of the ring.
      stage_bytes: bytes that the copies of one stage bring to this CTA, peers' multicasts included; 0 where threads
        write the stages themselves.
      producer_threads: threads that arrive when a stage is full.
      consumer_warps: warps of one CTA that read each stage.
      cluster_size: CTAs of the cluster.
      is_relayed: whether a relay warp hands stages back.
    """

    FIELDS = ("full", "empty", "read")

    def __init__(
        self,
        storage: cute.Pointer,
        stages: int,
        stage_bytes: int,
        producer_threads: int,
        consumer_warps: int,
        cluster_size: int,
        is_relayed: bool,
    ):
        self.full = storage
        self.empty = storage + stages
        self.read = storage + 2 * stages
        self.stages = stages
        self.stage_bytes = stage_bytes
        self.producer_threads = producer_threads
        self.consumer_warps = consumer_warps
        self.cluster_size = cluster_size
        self.is_relayed = is_relayed

    @staticmethod
    def barrier_count(stages: int, is_relayed: bool) -> int:
        return (3 if is_relayed else 2) * stages

    def initialise(self) -> None:
        """One thread; a barrier of the cluster must follow before anyone uses the ring."""
        arrivals = self.cluster_size * (1 if self.is_relayed else self.consumer_warps)
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.full + stage, self.producer_threads)
            cute.arch.mbarrier_init(self.empty + stage, arrivals)
            if self.is_relayed:
                cute.arch.mbarrier_init(self.read + stage, self.consumer_warps)

    def producer_state(self) -> pipeline.PipelineState:
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)

    def consumer_state(self) -> pipeline.PipelineState:
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)

    def consumer_state_at(self, place: Int32) -> pipeline.PipelineState:
        """The state after so many stages, counted modulo twice their number."""
        phase = at_least(place, self.stages)
        return pipeline.PipelineState(self.stages, Int32(0), Int32(place - self.stages * phase), Int32(phase))

    @cute.jit
    def acquire(self, state: pipeline.PipelineState):
        """The producer warp: waits until the stage is free in all CTAs, then announces this CTA's bytes."""
        self.wait_empty(state)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full + state.index, self.stage_bytes)

    def wait_empty(self, state: pipeline.PipelineState) -> None:
        if self.cluster_size == 1:
            cute.arch.mbarrier_wait(self.empty + state.index, state.phase)
        else:  # the consumers of peers too: cluster scope
            barriers.wait(self.empty + state.index, state.phase)

    def commit(self, state: pipeline.PipelineState) -> None:
        """A producer thread that has written its share of the stage: wgmma reads it through the async proxy."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.mbarrier_arrive(self.full + state.index)

    def wait_full(self, state: pipeline.PipelineState) -> None:
        cute.arch.mbarrier_wait(self.full + state.index, state.phase)

    @cute.jit
    def release(self, index: Int32):
        """A consumer warp: this stage has been read."""
        if cutlass.const_expr(self.is_relayed):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(self.read + index)
        else:
            self.hand_back(index)

    @cute.jit
    def relay(self, state: pipeline.PipelineState):
        """The relay warp: hands the stage back when all consumer warps of this CTA have read it."""
        cute.arch.mbarrier_wait(self.read + state.index, state.phase)
        self.hand_back(state.index)

    @cute.jit
    def hand_back(self, index: Int32):
        """Lane r tells CTA r of the cluster."""
        lane = cute.arch.lane_idx()
        if lane < self.cluster_size:
            if cutlass.const_expr(self.cluster_size == 1):
                cute.arch.mbarrier_arrive(self.empty + index)
            else:
                # The multiplications that read the stage, done by now, come before the peer's next copy into it.
                barriers.fence_release_shared()
                barriers.arrive_at(self.empty + index, lane)

    @cute.jit
    def drain(self, state: pipeline.PipelineState):
        """The producer warp, after its last stage: waits until all have been handed back, by peers too. Nothing is on
        its way to this CTA's barriers then: it may exit before its peers, and they before it."""
        state = state.clone()
        for _ in cutlass.range(self.stages, unroll=1):
            self.wait_empty(state)
            state.advance()
