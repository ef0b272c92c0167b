"""Hopper GEMM kernel: D[m, n, l] = sum over k of A[m, k, l] B[n, k, l], warp-specialised.

One warp loads A and B tiles by TMA into a ring of stages, multicast to the CTAs of the cluster that share them.
Consumer warpgroups multiply with wgmma, accumulating in registers: two on halves of one tile, or three on thirds
(cooperative), or two on a tile each, in turns, so that the epilogue of one runs under the mainloop of the other
(ping-pong); one alone on tiles of 64 rows, which wgmma cannot halve. All walk the tiles that the tile scheduler hands
out. Operands or results that TMA cannot address are copied by threads instead (`element_copies`); results of short
tiles leave from the registers (`register_store`).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup
from cutlass.memory import SmemAllocator

from kernels import epilogue, split_k, stream_k, tile_scheduler_sm90, tile_trace
from kernels.cluster_k import ClusterSums, wait_for_exchange
from kernels.element_copies import ElementLoad, StridedMatrix
from kernels.gemm_sm90_shape import WARPGROUP_THREADS, WARPGROUP_WARPS, WGMMA_ROWS, KernelShape
from kernels.load_pipeline import LoadPipeline
from kernels.parameters import describe_parameters
from kernels.raster import tiles_along
from kernels.register_store import RegisterStore
from kernels.split_k import PartialSums
from kernels.stream_k import CutSums
from kernels.tile_scheduler import WorkGrid, cluster_rank, launched_cluster
from kernels.tma_copies import OperandSlabs, OperandTiles, coordinates, store_tensor_map
from kernels.turns import Turns
from kernels.variant import Variant

LOAD_WARP, SCHEDULER_WARP, PREFETCH_WARP, RELAY_WARP = 0, 1, 2, 3
EPILOGUE_BARRIER = 1  # named barriers: one for each consumer warpgroup; `Turns` has 3 and 4
START_BARRIER = 5


class Kernel(KernelShape):
    """The traceable kernel of one variant."""

    def __init__(self, variant: Variant):
        super().__init__(variant)
        self.entry = self

    @cute.jit
    def __call__(self, tensors: tuple, pointers: tuple, any_int32: Int32, any_int64: Int64, stream):
        arguments, infos = self.kernel_arguments(tensors, pointers, any_int32, any_int64)
        self.parameters = describe_parameters(Kernel.kernel, arguments, infos, l2_promotion=self.l2_promotion)
        self.kernel(arguments).launch(
            grid=(1, 1, 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster_size, 1, 1),
            min_blocks_per_mp=1,  # more would make the DSL ask a driver
            stream=stream,
        )

    def kernel_arguments(self, tensors, pointers, any_int32: Int32, any_int64: Int64) -> tuple[dict, dict]:
        """The kernel's arguments by their names in the manifest, in order, and the TMA infos of the tensor maps."""
        infos = {}
        if not self.loads_elements:
            infos["a"] = self.a_tiles.load_tensor_map(tensors[0])
            infos["b"] = self.b_tiles.load_tensor_map(tensors[1])
        if not (self.stores_elements or self.stores_registers):
            infos["d"] = store_tensor_map(tensors[2], self.slot_layout(1), self.slot_shape)
        arguments = {f"tensor_map_{operand}": info.atom for operand, info in infos.items()}
        by_pointer = [operand for operand in "abd" if operand not in infos]
        arguments |= {operand: pointers["abd".index(operand)] for operand in by_pointer}
        if self.uses_scratch:
            arguments["scratch"] = pointers[3]
        arguments |= {f"{operand}_{axis}": any_int64 for operand in by_pointer for axis in ("outer", "batch")}
        sizes = ["m", "n", "k", "l", "raster_group", "raster_along", *(["split_k"] if self.variant.split_k else [])]
        return arguments | {size: any_int32 for size in sizes}, infos

    @cute.kernel
    def kernel(self, arguments: dict):
        m, n, k, batches = (arguments[name] for name in "mnkl")
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == LOAD_WARP:
            for name in ("tensor_map_a", "tensor_map_b", "tensor_map_d"):
                if cutlass.const_expr(name in arguments):
                    cute.nvgpu.cpasync.prefetch_descriptor(arguments[name])

        shared = SmemAllocator()
        stages = shared.allocate_array(cutlass.Uint8, self.stages * self.stage_bytes, byte_alignment=1024)
        stages_a = self.tensor_at(stages, self.a_dtype, self.a_tiles.layout(self.stages))
        after_a = stages + self.stages * self.a_tiles.bytes
        stages_b = self.tensor_at(after_a, self.b_dtype, self.b_tiles.layout(self.stages))
        slots = None
        if cutlass.const_expr(self.store_slots > 0):
            slot_bytes = self.slot_shape[0] * self.slot_shape[1] * self.d_dtype.width // 8
            slot_count = self.consumers * self.store_slots
            slots = shared.allocate_array(cutlass.Uint8, slot_count * slot_bytes, byte_alignment=1024)
            slots = self.tensor_at(slots, self.d_dtype, self.slot_layout(slot_count))
        last_slots = None
        if cutlass.const_expr(self.stores_last_through_stages):
            last_slots = self.tensor_at(stages, self.d_dtype, self.slot_layout(self.tile_pieces))
        slots = slots, last_slots
        exchange = stages
        if cutlass.const_expr(self.exchange_is_apart):
            exchange = shared.allocate_array(cutlass.Uint8, self.exchange_bytes, byte_alignment=16)
        exchange = exchange, shared.allocate_array(Int64, 1)
        flags = shared.allocate_array(Int32, self.consumers)
        ring = LoadPipeline(
            shared.allocate_array(Int64, LoadPipeline.barrier_count(self.stages, self.is_relayed)),
            self.stages,
            self.stage_bytes,
            WARPGROUP_THREADS if self.loads_elements else 1,
            WARPGROUP_WARPS * self.warpgroups,
            self.sharing_ctas,
            self.is_relayed,
        )
        k_tiles = (k + self.tile_k - 1) // self.tile_k
        parts = Int32(1)
        if cutlass.const_expr(self.variant.split_k):
            tiles = tiles_along(m, self.tile_m, self.cluster_m) * tiles_along(n, self.tile_n, self.cluster_n) * batches
            places = tiles * (self.sharing_ctas * self.warpgroups * self.slices)
            parts = split_k.parts_that_fit(arguments["split_k"], k_tiles, places)
        raster = arguments["raster_group"], arguments["raster_along"]
        grid = WorkGrid(m, n, batches, self.variant.cta_tile, self.cluster, *raster, parts)
        if cutlass.const_expr(self.prefetches):
            if warp == PREFETCH_WARP:
                self.prefetch(grid, k_tiles, stages_a, stages_b, arguments)
        scratch = arguments["scratch"] if self.uses_scratch else None
        scheduler = self.make_scheduler(shared, grid, scratch, k_tiles)
        number = Int32(0)
        if cutlass.const_expr(self.variant.schedule == "dynamic"):
            if (warp == SCHEDULER_WARP) & (cluster_rank(self.cluster) == 0):
                number = scheduler.ask_for_initial_work()
        if warp == LOAD_WARP:
            with cute.arch.elect_one():
                ring.initialise()
                if cutlass.const_expr(self.variant.cluster_k > 1):
                    ClusterSums.expect(exchange[1], self.exchange_bytes)
                scheduler.initialize_barriers()
            cute.arch.mbarrier_init_fence()
        self.arrive_at_start(warp)

        if warp < WARPGROUP_WARPS:
            if cutlass.const_expr(self.loads_elements):
                cute.arch.setmaxregister_increase(self.producer_registers)
                self.wait_for_start()
                self.load_elements(scheduler, ring, k_tiles, stages_a, stages_b, arguments)
            else:
                if cutlass.const_expr(self.hands_over_registers):
                    cute.arch.setmaxregister_decrease(self.producer_registers)
                if warp == LOAD_WARP:
                    self.load(scheduler, ring, k_tiles, stages_a, stages_b, arguments)
                elif cutlass.const_expr(self.is_relayed) and warp == RELAY_WARP:
                    self.relay(scheduler, ring, k_tiles)
                elif cutlass.const_expr(self.variant.schedule != "dynamic"):
                    self.wait_for_start()
                elif (warp == SCHEDULER_WARP) & (cluster_rank(self.cluster) == 0):
                    self.schedule(scheduler, number)
                else:
                    self.wait_for_start()
            if cutlass.const_expr(self.variant.cluster_k > 1):
                wait_for_exchange(self.exchange_is_apart)
            self.finish(scheduler)
        else:
            if cutlass.const_expr(self.loads_elements):
                cute.arch.setmaxregister_decrease(self.consumer_registers)
            elif cutlass.const_expr(self.hands_over_registers):
                cute.arch.setmaxregister_increase(self.consumer_registers)
            self.multiply(scheduler, ring, k_tiles, stages_a, stages_b, slots, exchange, flags, scratch, arguments)
            self.finish(scheduler)

    def make_scheduler(self, shared: SmemAllocator, grid: WorkGrid, scratch, k_tiles: Int32):
        """The variant's scheduler. Its counter, if any, comes first in the scratch."""
        counter = cute.recast_ptr(scratch, dtype=Int32) if self.variant.schedule == "dynamic" else None
        readers = WARPGROUP_WARPS * self.warpgroups + 1 + self.is_relayed
        arguments = (
            self.variant.schedule,
            grid,
            self.cluster_size,
            readers,
            lambda size: shared.allocate_array(Int64, size // 8, byte_alignment=16),
            counter,
        )
        if self.variant.stream_k:
            return stream_k.make_scheduler(*arguments, k_tiles, self.stages)
        scheduler = tile_scheduler_sm90.make_scheduler(*arguments)
        if self.variant.traced:
            storing_warps = (WARPGROUP_WARPS, WARPGROUP_WARPS * self.consumers)
            scheduler = tile_trace.TracedScheduler(scheduler, scratch, LOAD_WARP, SCHEDULER_WARP, storing_warps)
        return scheduler

    @cute.jit
    def schedule(self, scheduler, number: Int32):
        """The scheduler warp of the cluster's first CTA: asks for a tile when the one before has been started."""
        scheduler = scheduler.clone()
        initial = scheduler.take_initial_work(number)
        self.wait_for_start()
        scheduler.send_initial_work(initial)
        work = scheduler.initial_work()
        while work.is_valid:
            scheduler.advance_to_next_work()
            work = scheduler.fetch_next_work()
        if cutlass.const_expr(self.variant.pingpong):
            scheduler.end_for_the_other_warpgroup()

    def finish(self, scheduler) -> None:
        """Peers that send each other claims leave together. Others have waited for all that may still come, stages
        handed back (`LoadPipeline.drain`) or the sums of a tile that they share."""
        if not self.drains and self.variant.cluster_k == 1:
            scheduler.finish()

    def k_range(self, work, grid: WorkGrid, k_tiles: Int32) -> tuple[Int32, Int32]:
        """First k tile of a work tile, and their number."""
        if self.variant.stream_k:
            return work.first_k, work.k_count
        first, count = Int32(0), k_tiles
        if self.variant.split_k:
            first = work.split * k_tiles // grid.split_k
            count = (work.split + 1) * k_tiles // grid.split_k - first
        if self.variant.cluster_k > 1:
            rank, parts = cluster_rank(self.cluster), self.variant.cluster_k
            begin, end = rank * count // parts, (rank + 1) * count // parts
            # A part without k tiles takes one past the end, which TMA fills with zeros.
            first = cutlass.select_(begin < end, first + begin, k_tiles)
            count = cutlass.select_(begin < end, end - begin, Int32(1))
        return first, count

    def place_in_cluster(self, rank: Int32) -> tuple[Int32, Int32]:
        """Where a CTA stands: (along m, along n)."""
        return rank % self.cluster_m, rank // self.cluster_m % self.cluster_n

    def slabs(self, stages_a, stages_b, arguments: dict) -> tuple[OperandSlabs, OperandSlabs]:
        """This CTA's copies of A, and of B."""
        m, n, k, batches = (arguments[name] for name in "mnkl")
        place_m, place_n = self.place_in_cluster(cluster_rank(self.cluster))
        # CTA rank is m + cluster_m * n: A is shared along n, B along m.
        mask_a = cutlass.Int16(sum(1 << (self.cluster_m * i) for i in range(self.cluster_n)) << place_m)
        mask_b = cutlass.Int16(((1 << self.cluster_m) - 1) << (place_n * self.cluster_m))
        return (
            OperandSlabs(
                self.a_tiles, arguments["tensor_map_a"], stages_a, self.stages, (m, k, batches), place_n, mask_a
            ),
            OperandSlabs(
                self.b_tiles, arguments["tensor_map_b"], stages_b, self.stages, (n, k, batches), place_m, mask_b
            ),
        )

    @cute.jit
    def prefetch(self, grid: WorkGrid, k_tiles, stages_a, stages_b, arguments):
        """The prefetch warp: this CTA's first k tile, into L2, while the load warp initialises the barriers."""
        slabs_a, slabs_b = self.slabs(stages_a, stages_b, arguments)
        work = grid.only_work_tile(launched_cluster(self.cluster))
        first_k, _ = self.k_range(work, grid, k_tiles)
        slab_a = slabs_a.slab(work.tile_m, first_k, work.batch)
        slab_b = slabs_b.slab(work.tile_n, first_k, work.batch)
        slabs_a.prefetch(slab_a)
        slabs_b.prefetch(slab_b)

    @cute.jit
    def load(self, scheduler, ring: LoadPipeline, k_tiles, stages_a, stages_b, arguments):
        """The load warp: every k tile of every work tile, into the next free stage of this CTA and its peers."""
        scheduler = scheduler.clone()
        rank = cluster_rank(self.cluster)
        slabs_a, slabs_b = self.slabs(stages_a, stages_b, arguments)
        state = ring.producer_state()
        if cutlass.const_expr(self.variant.schedule == "dynamic"):
            self.wait_for_start()
            work = scheduler.initial_work()
        else:
            # No peer is asked where the first tile is: it is found while they come together.
            work = scheduler.initial_work().found_here()
            self.wait_for_start()
        while work.is_valid:
            if cutlass.const_expr(self.variant.schedule == "dynamic"):
                if rank == 0:
                    scheduler.note_work_started()
            first_k, count = self.k_range(work, scheduler.grid, k_tiles)
            for k_tile in cutlass.range(first_k, first_k + count, unroll=1):
                ring.acquire(state)
                full = ring.full + state.index
                slab_a = slabs_a.slab(work.tile_m, k_tile, work.batch)
                slab_b = slabs_b.slab(work.tile_n, k_tile, work.batch)
                slabs_a.copy(slab_a, state.index, full)
                slabs_b.copy(slab_b, state.index, full)
                state.advance()
            work = scheduler.fetch_next_work()
        if cutlass.const_expr(self.drains):
            ring.drain(state)

    @cute.jit
    def relay(self, scheduler, ring: LoadPipeline, k_tiles):
        """The relay warp follows the consumers of this CTA through their tiles."""
        self.wait_for_start()
        scheduler = scheduler.clone()
        state = ring.consumer_state()
        work = scheduler.initial_work()
        while work.is_valid:
            _, count = self.k_range(work, scheduler.grid, k_tiles)
            for _ in cutlass.range(0, count, unroll=1):
                ring.relay(state)
                state.advance()
            work = scheduler.fetch_next_work()

    @cute.jit
    def load_elements(self, scheduler, ring: LoadPipeline, k_tiles, stages_a, stages_b, arguments):
        """The producer warpgroup where TMA cannot address the operands: its threads copy them."""
        scheduler = scheduler.clone()
        m, n, k, batches = (arguments[name] for name in "mnkl")
        thread = cute.arch.thread_idx()[0]
        load_a = self.element_load("a", self.a_tiles, arguments, m, k, batches, thread)
        load_b = self.element_load("b", self.b_tiles, arguments, n, k, batches, thread)
        base_a, base_b = stages_a.iterator.toint(), stages_b.iterator.toint()
        state = ring.producer_state()
        work = scheduler.initial_work()
        while work.is_valid:
            first_k, count = self.k_range(work, scheduler.grid, k_tiles)
            for k_tile in cutlass.range(first_k, first_k + count, unroll=1):
                ring.wait_empty(state)
                start = k_tile * self.tile_k
                load_a.load(base_a + state.index * self.a_tiles.bytes, work.tile_m * self.tile_m, start, work.batch)
                load_b.load(base_b + state.index * self.b_tiles.bytes, work.tile_n * self.tile_n, start, work.batch)
                ring.commit(state)
                state.advance()
            work = scheduler.fetch_next_work()

    def element_load(self, operand: str, tiles: OperandTiles, arguments: dict, rows, k, batches, thread) -> ElementLoad:
        inner, outer = (rows, k) if tiles.is_mn_major else (k, rows)
        matrix = self.strided_matrix(operand, tiles.dtype, arguments, inner, outer, batches)
        return ElementLoad(matrix, tiles.rows * self.tile_k // 64, not tiles.is_mn_major, thread)

    def strided_matrix(self, operand: str, dtype, arguments: dict, inner, outer, batches) -> StridedMatrix:
        strides = arguments[f"{operand}_outer"], arguments[f"{operand}_batch"]
        return StridedMatrix(arguments[operand], dtype.width // 8, inner, outer, batches, *strides)

    @cute.jit
    def multiply(
        self, scheduler, ring: LoadPipeline, k_tiles, stages_a, stages_b, slots, exchange, flags, scratch, arguments
    ):
        """The consumer warpgroups: mainloop and epilogue of their part of every tile, or of every other tile."""
        scheduler = scheduler.clone()
        thread = cute.arch.thread_idx()[0] % WARPGROUP_THREADS
        warpgroup_index = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARPGROUP_THREADS) - 1
        part = warpgroup_index if self.warpgroups > 1 else Int32(0)
        tiled_mma = self.tiled_mma(self.wg_n)
        own = tiled_mma.get_slice(0)
        operand_a = tiled_mma.make_fragment_A(own.partition_A(self.part(stages_a, self.wg_m, part)))
        # A tile whose columns end within a swizzle line lies in shared memory with the whole line.
        lying = self.tiled_mma(self.b_tiles.rows)
        stages_b = self.part(stages_b, self.b_tiles.rows, Int32(0))
        operand_b = lying.make_fragment_B(lying.get_slice(0).partition_B(stages_b))
        accumulator = cute.make_rmem_tensor(tiled_mma.partition_shape_C((self.wg_m, self.wg_n)), Float32)
        own_slots = None
        if cutlass.const_expr(self.store_slots > 0):
            own_slots = cute.local_tile(slots[0], (*self.slot_shape, self.store_slots), (0, 0, warpgroup_index))
        # What is stored, here or by the CTA that adds up this slice of the tile.
        slice_n = self.wg_n // self.slices
        slice_mma = self.tiled_mma(slice_n)
        total = accumulator
        if cutlass.const_expr(self.variant.cluster_k > 1):
            total = cute.make_rmem_tensor(slice_mma.partition_shape_C((self.wg_m, slice_n)), Float32)
        barrier = EPILOGUE_BARRIER + warpgroup_index
        store = self.make_store(own_slots, self.store_slots, slice_mma, thread, barrier, arguments)
        last_store = None
        if cutlass.const_expr(self.stores_last_through_stages):
            last_store = self.make_store(slots[1], self.tile_pieces, slice_mma, thread, barrier, arguments)
        row_blocks = self.wg_m // WGMMA_ROWS  # what a store counts rows in
        partial = None
        if cutlass.const_expr(self.variant.split_k):
            sharer = part
            if self.variant.cluster_k > 1:
                sharer = sharer * self.slices + cluster_rank(self.cluster)
            partial = PartialSums(
                scratch + self.facts["scratch"]["counter_bytes"] - split_k.COUNTER_BYTES,
                scheduler.grid,
                sharer,
                self.warpgroups * self.slices,
                flags + warpgroup_index,
                self.values // self.slices,
                thread,
            )

        if cutlass.const_expr(self.variant.stream_k):
            partial = CutSums(
                scratch + self.claim_counter_bytes,
                k_tiles,
                cluster_rank(self.cluster) * self.warpgroups + part,
                self.warpgroups,
                self.cluster_size,
                flags + warpgroup_index,
                self.values,
                thread,
            )

        sums, first_slice, holds = None, Int32(0), True
        if cutlass.const_expr(self.variant.cluster_k > 1):
            first_slice = cluster_rank(self.cluster)
            holds = first_slice < self.slices
            place = warpgroup_index * WARPGROUP_THREADS + thread
            sums = ClusterSums(
                exchange[0].toint(),
                self.exchange_is_apart,
                exchange[1],
                self.variant.cluster_k,
                self.slices,
                self.values,
                self.consumers * WARPGROUP_THREADS,
                first_slice,
                place,
            )

        next_slot = Int32(0)
        self.wait_for_start()
        state = ring.consumer_state()
        turns = Turns(warpgroup_index)
        if cutlass.const_expr(self.variant.pingpong):
            turns.start()
        if cutlass.const_expr(self.variant.pingpong):
            if warpgroup_index == 1:  # the first tile is warpgroup 0's
                state.advance(k_tiles)
                scheduler.skip_work()
        work = scheduler.initial_work()
        while work.is_valid:
            _, count = self.k_range(work, scheduler.grid, k_tiles)
            if cutlass.const_expr(self.variant.stream_k):  # the other warpgroup's piece may be of any length
                state = ring.consumer_state_at(work.ring_place)
            if cutlass.const_expr(self.variant.pingpong):
                turns.wait()
            if cutlass.const_expr(self.variant.chain_k_tiles > 0):
                state = self.mainloop_in_chains(tiled_mma, accumulator, operand_a, operand_b, ring, state, count, turns)
            else:
                state, last = self.mainloop(tiled_mma, accumulator, operand_a, operand_b, ring, state, count, turns)
            following = work
            if cutlass.const_expr(self.fetches_early):
                following = scheduler.fetch_next_work()
            if cutlass.const_expr(self.variant.chain_k_tiles == 0):
                warpgroup.wait_group(0)
                ring.release(last)
            if cutlass.const_expr(self.variant.cluster_k > 1):
                sums.meet(accumulator, total)
            if holds:
                stores = True
                if cutlass.const_expr(self.variant.split_k):
                    stores = scheduler.grid.split_k == 1
                    if scheduler.grid.split_k > 1:
                        stores = partial.meet(total, work, store.staging.sync) == 1
                if cutlass.const_expr(self.variant.stream_k):
                    is_part = cute.arch.vote_any_sync(work.share != stream_k.WHOLE)
                    stores = not is_part
                    if is_part:
                        stores = partial.meet(total, work, store.staging.sync) == 1
                if stores:
                    first_row = (work.tile_m * self.warpgroups + part) * row_blocks
                    piece = work.tile_n * self.slices + first_slice
                    if cutlass.const_expr(not self.stores_last_through_stages):
                        next_slot = store.store(total, first_row, piece, work.batch, next_slot)
                    elif self.frees_stages(scheduler, count):
                        store.staging.sync()  # all warps have read the last stage
                        last_store.store_without_waiting(total, first_row, piece, work.batch)
                    else:
                        next_slot = store.store(total, first_row, piece, work.batch, next_slot)
            if cutlass.const_expr(self.variant.pingpong):
                state.advance(k_tiles)
                scheduler.skip_work()
            if cutlass.const_expr(not self.fetches_early):
                following = scheduler.fetch_next_work()
            work = following
        store.finish()

    def frees_stages(self, scheduler, count: Int32):
        """Whether nothing is loaded after this tile, which has filled every stage: the other warpgroup, which had the
        tile before, has read all that it will."""
        return cute.arch.vote_any_sync(scheduler.has_last_work() & (count >= self.stages))

    def make_store(self, slots: cute.Tensor | None, slot_count: int, tiled_mma, thread, barrier_id, arguments: dict):
        """The warpgroup's way out: from its registers, or through its slots by TMA, or line by line for a D that TMA
        cannot address."""
        m, n, batches = (arguments[name] for name in "mnl")
        if self.stores_registers:
            matrix = self.strided_matrix("d", self.d_dtype, arguments, n, m, batches)
            return RegisterStore(matrix, self.d_dtype, self.wg_n, thread)
        staging = epilogue.Staging(slots, slot_count, self.d_dtype, self.d_is_m_major, tiled_mma, thread, barrier_id)
        if self.stores_elements:
            inner, outer = (m, n) if self.d_is_m_major else (n, m)
            matrix = self.strided_matrix("d", self.d_dtype, arguments, inner, outer, batches)
            return epilogue.ElementStore(staging, matrix, self.wg_n // self.slices, slots, self.d_is_m_major)
        return epilogue.TmaStore(
            staging,
            arguments["tensor_map_d"],
            coordinates((m, n, batches), self.d_is_m_major),
            slots,
            epilogue.store_policy(m, n, batches, self.d_dtype),
        )

    @cute.jit
    def mainloop(self, tiled_mma, accumulator, operand_a, operand_b, ring: LoadPipeline, state, k_tiles, turns):
        """One tile: wgmma over all k tiles, one group in flight while the next is issued. The last one still is at the
        end: returns the ring's state, and the stage to release after it."""
        # The first k tile starts the sums itself (scale-d false): no zeros are written.
        tiled_mma.set(warpgroup.Field.ACCUMULATE, False)
        previous = state.index
        ring.wait_full(state)
        warpgroup.fence()
        self.multiply_stage(tiled_mma, accumulator, operand_a, operand_b, state.index)
        state.advance()
        for _ in cutlass.range(1, k_tiles, unroll=1):
            ring.wait_full(state)
            tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
            self.multiply_stage(tiled_mma, accumulator, operand_a, operand_b, state.index)
            warpgroup.wait_group(1)
            ring.release(previous)
            previous = state.index
            state.advance()
        if cutlass.const_expr(self.variant.pingpong):
            turns.pass_on()
        return state, previous

    @cute.jit
    def mainloop_in_chains(self, tiled_mma, accumulator, operand_a, operand_b, ring, state, k_tiles, turns):
        """The same in chains of k tiles, whose sums are added up outside of the tensor core."""
        chain = cute.make_rmem_tensor(accumulator.shape, Float32)
        accumulator.fill(0.0)
        longest = self.variant.chain_k_tiles
        for start in cutlass.range(0, k_tiles, longest, unroll=1):
            count = cutlass.select_(k_tiles - start < longest, k_tiles - start, Int32(longest))
            state, last = self.mainloop(tiled_mma, chain, operand_a, operand_b, ring, state, count, turns)
            warpgroup.wait_group(0)
            ring.release(last)
            for i in cutlass.range_constexpr(self.values):
                accumulator[i] = accumulator[i] + chain[i]
        return state

    def multiply_stage(self, tiled_mma, accumulator, operand_a, operand_b, stage) -> None:
        """One group of wgmmas: a whole stage."""
        for block in range(cute.size(operand_a, mode=[2])):
            coordinate = (None, None, block, stage)
            cute.gemm(tiled_mma, accumulator, operand_a[coordinate], operand_b[coordinate], accumulator)
            tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    @cute.jit
    def arrive_at_start(self, warp: Int32):
        """By every warp. Barriers are initialised before anyone signals them, which peers may do once all have come to
        `wait_for_start`; what needs no peer is done in between.

        Where no peer does, the load warp, which has initialised them, goes on at once: its first copies are on their
        way before the other warps have come together.
        """
        if cutlass.const_expr(self.sharing_ctas > 1):
            cute.arch.cluster_arrive_relaxed()
        if cutlass.const_expr(self.exchange_is_apart):
            cute.arch.cluster_arrive_relaxed()  # the barrier that `ClusterSums.meet` waits at
        if cutlass.const_expr(self.loads_elements):
            cute.arch.sync_threads()
        elif cutlass.const_expr(self.sharing_ctas == 1):
            if warp == LOAD_WARP:
                cute.arch.sync_warp()
                cute.arch.barrier_arrive(barrier_id=START_BARRIER, number_of_threads=self.threads)
            else:
                cute.arch.barrier(barrier_id=START_BARRIER, number_of_threads=self.threads)

    def wait_for_start(self) -> None:
        """By every warp, before it uses a barrier that a peer signals."""
        if self.sharing_ctas > 1:
            cute.arch.cluster_wait()
