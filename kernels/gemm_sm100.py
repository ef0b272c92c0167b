"""The Blackwell GEMM kernel (compute capabilities 10.0 and 10.3): D[l] = A[l] B[l], one body for every schedule.

Seven warps. Warps 0 to 3 are the epilogue, warp 4 issues MMAs, warp 5 loads, warp 6 of the cluster's first CTA asks for
work. They walk the same sequence of tiles and meet only at barriers in shared memory:

    load -- operand ring --> MMA -- two accumulators in tensor memory --> epilogue -- output ring --> TMA store

With a one-SM MMA a CTA computes its tile alone. With a two-SM MMA the CTAs of ranks 2i and 2i + 1 are a pair: each
holds its own rows of A and half the columns of B, the even one (the leader) issues each MMA for both, and each has its
own rows of the accumulator in its own tensor memory.

Operands travel as wide as the cluster allows: CTAs in one row of the cluster share their tile of A, those in one column
share B; each loads its part and multicasts it.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import SmemAllocator
from cutlass.utils import blackwell_helpers as sm100

from kernels import barriers, parameters, tile_trace
from kernels.gemm_sm100_shape import ACCUMULATORS, EPILOGUE_WARPS, K_BLOCK, OUTPUT_STAGES, WARP, KernelShape
from kernels.tile_scheduler import WorkGrid, cluster_rank
from kernels.tile_scheduler_sm100 import make_scheduler
from kernels.work_pipeline import Ring, WorkPipeline

MMA_WARP = EPILOGUE_WARPS
LOAD_WARP = MMA_WARP + 1
SCHEDULER_WARP = LOAD_WARP + 1
THREADS = (SCHEDULER_WARP + 1) * WARP

MMA_K = 16  # elements of k in one tcgen05.mma of kind f16
TENSOR_MEMORY_BARRIER = 1  # named barrier of the MMA and epilogue warps, used once


class Kernel(KernelShape):
    """One variant, traceable: see `compile.make_kernel`."""

    @cute.jit
    def entry(
        self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, scratch: cute.Pointer, raster_group: Int32,
        raster_along: Int32, stream,
    ):  # fmt: skip
        """Makes the tensor maps and launches: traced to compile the kernel, never run.

        Args:
          a, b, d: (m, k, l), (n, k, l) and (m, n, l).
        """
        tiled_mma = self.tiled_mma()
        cluster_shape = self.cluster_layout(tiled_mma).shape
        a_layout, b_layout = self.operand_layouts(tiled_mma)
        warp_rows = self.subtile[0] // EPILOGUE_WARPS
        infos = {
            "a": cute.nvgpu.make_tiled_tma_atom_A(
                sm100.cluster_shape_to_tma_atom_A(self.cluster, tiled_mma.thr_id),
                a, cute.slice_(a_layout, (None, None, None, 0)), self.mma_tile, tiled_mma, cluster_shape,
            ),
            "b": cute.nvgpu.make_tiled_tma_atom_B(
                sm100.cluster_shape_to_tma_atom_B(self.cluster, tiled_mma.thr_id),
                b, cute.slice_(b_layout, (None, None, None, 0)), self.mma_tile, tiled_mma, cluster_shape,
            ),
            "d": cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(),
                d, cute.select(self.output_layout(warp_rows, 1), mode=[0, 1]), (warp_rows, self.subtile[1]),
            ),
        }  # fmt: skip
        arguments = {f"tensor_map_{operand}": info.atom for operand, info in infos.items()}
        if cutlass.const_expr(self.variant.traced):
            arguments["scratch"] = scratch
        arguments |= {"m": Int32(a.shape[0]), "n": Int32(b.shape[0]), "k": Int32(a.shape[1]), "l": Int32(a.shape[2])}
        arguments |= {"raster_group": raster_group, "raster_along": raster_along}
        sharers = {"a": self.cluster[1], "b": self.cluster[0] // self.pair}
        self.parameters = parameters.describe_parameters(self.kernel, arguments, infos, sharers)
        self.kernel(arguments).launch(
            grid=(1, 1, 1), block=(THREADS, 1, 1), cluster=(self.cluster_size, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, arguments: dict):
        tensor_map_a, tensor_map_b, tensor_map_d = (arguments[f"tensor_map_{operand}"] for operand in "abd")
        m, n, k, l = (arguments[name] for name in "mnkl")  # noqa: E741 - the manifest's name for the number of matrices
        raster_group, raster_along = arguments["raster_group"], arguments["raster_along"]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == LOAD_WARP:
            cpasync.prefetch_descriptor(tensor_map_a)
            cpasync.prefetch_descriptor(tensor_map_b)
            cpasync.prefetch_descriptor(tensor_map_d)

        storage = SmemAllocator().allocate(self.storage())
        grid = WorkGrid(m, n, l, self.cta_tile, self.cluster, raster_group, raster_along)
        scheduler = make_scheduler(
            self.variant.schedule,
            grid,
            WorkPipeline(
                self.work_shape,
                storage.records.data_ptr(),
                storage.work_full.data_ptr(),
                storage.work_empty.data_ptr(),
                storage.throttle.data_ptr(),
            ),
        )
        if cutlass.const_expr(self.variant.traced):
            scheduler = tile_trace.TracedScheduler(
                scheduler, arguments["scratch"], LOAD_WARP, SCHEDULER_WARP, (0, EPILOGUE_WARPS)
            )
        self.initialize_barriers(warp, storage, scheduler)

        k_blocks = cute.ceil_div(k, K_BLOCK)
        if warp == LOAD_WARP:
            self.load(storage, scheduler, tensor_map_a, tensor_map_b, (m, n, k, l), k_blocks)
        if warp <= MMA_WARP:
            self.allocate_tensor_memory(warp, storage)
            if warp == MMA_WARP:
                self.multiply(storage, scheduler, k_blocks)
            else:
                self.store(storage, scheduler, tensor_map_d, (m, n, k, l), warp)
        if warp == SCHEDULER_WARP:
            self.schedule(scheduler)

        # All work done, all reads of tensor memory too. In a cluster no CTA may leave, or give tensor memory back,
        # while a peer can still signal it, write into it or multiply into it.
        scheduler.finish()
        if cutlass.const_expr(self.cluster_size == 1):
            cute.arch.barrier()
        if warp == MMA_WARP:
            barriers.tensor_memory_fence_after_sync()
            address = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tensor_memory.data_ptr())
            cute.arch.dealloc_tmem(address, self.tensor_memory_columns, is_two_cta=self.pair == 2)

    def is_leader(self):
        """Whether this CTA issues the MMAs of its pair; always so without pairs.

        Asked of the CTA's index, not of its rank in the cluster: the assembler knows the one to be the same in all
        lanes, and where it does not know it, it wraps each MMA in a loop over lanes (seen with rank in a (4, 1)
        cluster).
        """
        return cute.arch.block_idx()[0] % self.pair == 0

    @cute.jit
    def initialize_barriers(self, warp, storage, scheduler):
        """Barriers, by one thread; then known to the whole cluster before anybody signals anybody."""
        if warp == LOAD_WARP:
            if cute.arch.lane_idx() == 0:
                # MMAs that read a stage which this CTA helps to fill: those of its row of the cluster, which share its
                # part of A, and of its column, which share its part of B (its own is both): one commit each.
                row, column = self.cluster[1], self.cluster[0] // self.pair
                for stage in cutlass.range_constexpr(self.stages):
                    # One arrival that expects the bytes of all copies: the CTA's own; in a pair the leader's, for both.
                    cute.arch.mbarrier_init(storage.operands_full.data_ptr() + stage, 1)
                    cute.arch.mbarrier_init(storage.operands_empty.data_ptr() + stage, row + column - 1)
                for stage in cutlass.range_constexpr(ACCUMULATORS):
                    # One commit, which a two-SM MMA multicasts to both CTAs of the pair.
                    cute.arch.mbarrier_init(storage.accumulator_full.data_ptr() + stage, 1)
                    # One lane of each epilogue warp of the CTAs that the MMA covers; waited for in the leader.
                    cute.arch.mbarrier_init(storage.accumulator_empty.data_ptr() + stage, EPILOGUE_WARPS * self.pair)
                scheduler.initialize_barriers()
                cute.arch.mbarrier_init_fence()  # .release.cluster, so that the arrival below may be relaxed
        if cutlass.const_expr(self.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.barrier()

    @cute.jit
    def schedule(self, scheduler):
        """The scheduler warp: ask, read that record, ask again. Only the cluster's first CTA has one at work."""
        scheduler = scheduler.clone()
        if cluster_rank(self.cluster) == 0:
            work = scheduler.initial_work()
            while work.is_valid:
                scheduler.advance_to_next_work()
                work = scheduler.fetch_next_work()

    @cute.jit
    def load(self, storage, scheduler, tensor_map_a, tensor_map_b, sizes, k_blocks):
        """The load warp: fills operand stages with TMA copies, each multicast to the CTAs that share it."""
        scheduler = scheduler.clone()
        m, n, k, batches = sizes
        tiled_mma = self.tiled_mma()
        cluster_layout = self.cluster_layout(tiled_mma)
        rank = cluster_rank(self.cluster)
        place = cluster_layout.get_flat_coord(rank)  # (in the pair, pair along m, along n, 0)
        a_layout, b_layout = self.operand_layouts(tiled_mma)
        shared_a = storage.a.get_tensor(a_layout.outer, swizzle=a_layout.inner)
        shared_b = storage.b.get_tensor(b_layout.outer, swizzle=b_layout.inner)

        a = coordinates((m, k, batches), contiguous_mode=1 if self.a_major == OperandMajorMode.K else 0)
        b = coordinates((n, k, batches), contiguous_mode=1 if self.b_major == OperandMajorMode.K else 0)
        cta_mma = tiled_mma.get_slice(place[0])
        part_a = cta_mma.partition_A(cute.local_tile(a, (self.mma_tile[0], K_BLOCK), (None, None, None)))
        part_b = cta_mma.partition_B(cute.local_tile(b, (self.mma_tile[1], K_BLOCK), (None, None, None)))
        to_a, from_a = cpasync.tma_partition(
            tensor_map_a, place[2], cute.make_layout(self.cluster[1]),
            cute.group_modes(shared_a, 0, 3), cute.group_modes(part_a, 0, 3),
        )  # fmt: skip
        to_b, from_b = cpasync.tma_partition(
            tensor_map_b, place[1], cute.make_layout(self.cluster[0] // self.pair),
            cute.group_modes(shared_b, 0, 3), cute.group_modes(part_b, 0, 3),
        )  # fmt: skip
        mask_a = mask_b = None
        if cutlass.const_expr(self.cluster[1] > 1):
            mask_a = cpasync.create_tma_multicast_mask(cluster_layout, place, mcast_mode=2)
        if cutlass.const_expr(self.cluster[0] > self.pair):
            mask_b = cpasync.create_tma_multicast_mask(cluster_layout, place, mcast_mode=1)

        full, empty = storage.operands_full.data_ptr(), storage.operands_empty.data_ptr()
        is_leader = self.is_leader()
        ring = Ring(self.stages)
        work = scheduler.initial_work()
        while work.is_valid:
            if rank == 0:
                scheduler.note_work_started()
            tile_a = from_a[(None, work.tile_m // self.pair, None, work.batch)]
            tile_b = from_b[(None, work.tile_n, None, work.batch)]
            for block in cutlass.range(k_blocks, unroll=1):
                # All MMAs that read this stage anywhere in the cluster have completed. Both they and the copies are
                # asynchronous; the commits come from other CTAs.
                barriers.wait(empty + ring.index, ring.parity ^ 1)
                if is_leader and cute.arch.lane_idx() == 0:
                    # Of a pair the leader expects both CTAs' bytes: their copies complete on its barrier alone.
                    barriers.expect(full + ring.index, self.stage_bytes * self.pair)
                cute.copy(
                    tensor_map_a, tile_a[(None, block)], to_a[(None, ring.index)],
                    tma_bar_ptr=full + ring.index, mcast_mask=mask_a,
                )  # fmt: skip
                cute.copy(
                    tensor_map_b, tile_b[(None, block)], to_b[(None, ring.index)],
                    tma_bar_ptr=full + ring.index, mcast_mask=mask_b,
                )  # fmt: skip
                ring.advance()
            work = scheduler.fetch_next_work()
        # Commits are asynchronous too: stay until the last one on each of this CTA's stages has arrived.
        for _ in cutlass.range(self.stages, unroll=1):
            barriers.wait(empty + ring.index, ring.parity ^ 1)
            ring.advance()

    @cute.jit
    def allocate_tensor_memory(self, warp, storage):
        """Allocates both accumulators, by the MMA warp (of a pair by both CTAs' together), for it and the epilogue."""
        if warp == MMA_WARP:
            holder = storage.tensor_memory.data_ptr()
            cute.arch.alloc_tmem(self.tensor_memory_columns, holder, is_two_cta=self.pair == 2)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=self.pair == 2)
        # The address that the allocation wrote to shared memory, and the allocation itself, from the MMA warp to all.
        barriers.tensor_memory_fence_before_sync()
        cute.arch.barrier(barrier_id=TENSOR_MEMORY_BARRIER, number_of_threads=(EPILOGUE_WARPS + 1) * WARP)
        barriers.tensor_memory_fence_after_sync()

    @cute.jit
    def multiply(self, storage, scheduler, k_blocks):
        """The MMA warp: one thread issues, of a pair the leader's."""
        scheduler = scheduler.clone()
        tiled_mma = self.tiled_mma()
        shape = cute.append(tiled_mma.partition_shape_C(self.mma_tile[:2]), ACCUMULATORS)
        accumulators = cute.make_tensor(
            cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tensor_memory.data_ptr()),
            tiled_mma.make_fragment_C(shape).layout,
        )
        cluster_layout = self.cluster_layout(tiled_mma)
        rank = cluster_rank(self.cluster)
        a_layout, b_layout = self.operand_layouts(tiled_mma)
        a = tiled_mma.make_fragment_A(storage.a.get_tensor(a_layout.outer, swizzle=a_layout.inner))
        b = tiled_mma.make_fragment_B(storage.b.get_tensor(b_layout.outer, swizzle=b_layout.inner))
        free_mask = pair_mask = None
        if cutlass.const_expr(self.cluster_size > 1):
            # All CTAs that fill a part of this stage: the row's and the column's, both CTAs of each pair.
            place = cluster_layout.get_flat_coord(rank)
            free_mask = cutlass.Int16(0)
            for member in cutlass.range_constexpr(self.pair):
                for mode in cutlass.range_constexpr(1, 3):
                    free_mask |= cpasync.create_tma_multicast_mask(cluster_layout, (member, *place[1:]), mode)
        if cutlass.const_expr(self.pair == 2):
            pair_mask = cutlass.Int16(3 << rank)

        full, empty = storage.operands_full.data_ptr(), storage.operands_empty.data_ptr()
        done, drained = storage.accumulator_full.data_ptr(), storage.accumulator_empty.data_ptr()
        ring = Ring(self.stages)
        target = Ring(ACCUMULATORS)
        if self.is_leader():
            work = scheduler.initial_work()
            while work.is_valid:
                accumulator = accumulators[(None, None, None, target.index)]
                # The epilogue warps of both CTAs have read the tile before last. Relaxed wait and fence: the form that
                # the ISA gives for tensor memory.
                barriers.wait(drained + target.index, target.parity ^ 1, fence="tensor")
                for block in cutlass.range(k_blocks, unroll=1):
                    barriers.wait(full + ring.index, ring.parity, fence="both")
                    for step in cutlass.range_constexpr(K_BLOCK // MMA_K):
                        # The first MMA of a tile overwrites the accumulator.
                        tiled_mma.set(tcgen05.Field.ACCUMULATE, step > 0 or block > 0)
                        stage = (None, None, step, ring.index)
                        cute.gemm(tiled_mma, accumulator, a[stage], b[stage], accumulator)
                    # A commit tracks the MMAs of its own thread: the elected lane, always the same, issues both.
                    with cute.arch.elect_one():
                        tcgen05.commit(empty + ring.index, free_mask, self.cta_group)
                    ring.advance()
                with cute.arch.elect_one():
                    tcgen05.commit(done + target.index, pair_mask, self.cta_group)
                target.advance()
                work = scheduler.fetch_next_work()

    @cute.jit
    def store(self, storage, scheduler, tensor_map_d, sizes, warp):
        """An epilogue warp: its 32 rows of each tile, in subtiles of 128 bytes by row, from tensor memory through
        registers and its own part of the output ring to global memory. The four warps never meet.

        The ring and its count of outstanding stores go on from tile to tile.
        """
        scheduler = scheduler.clone()
        m, n, _, batches = sizes
        lane = cute.arch.lane_idx()
        thread = warp * WARP + lane  # of the CTA's rows, this thread's
        columns = self.subtile[1]
        sums = cute.make_rmem_tensor(columns, self.accumulator_dtype)
        results = cute.make_rmem_tensor(columns, self.d_dtype)
        d_layout = self.output_layout(self.subtile[0], OUTPUT_STAGES)
        shared_d = storage.d.get_tensor(d_layout.outer, swizzle=d_layout.inner)
        tensor_memory = storage.tensor_memory.data_ptr().load()

        # Shared -> global memory: this warp's rows.
        box = (self.subtile[0] // EPILOGUE_WARPS, columns)
        own_rows = cute.flat_divide(shared_d, box)[(None, None, warp, 0, None)]
        boxes = cute.local_tile(coordinates((m, n, batches), contiguous_mode=1), box, (None, None, None))
        stored, output = cpasync.tma_partition(
            tensor_map_d, 0, cute.make_layout(1), cute.group_modes(own_rows, 0, 2), cute.group_modes(boxes, 0, 2)
        )

        done, drained = storage.accumulator_full.data_ptr(), storage.accumulator_empty.data_ptr()
        leader = cluster_rank(self.cluster) // self.pair * self.pair
        subtiles = self.cta_tile[1] // columns
        accumulator = Ring(ACCUMULATORS)
        ring = Ring(OUTPUT_STAGES)
        work = scheduler.initial_work()
        while work.is_valid:
            barriers.wait(done + accumulator.index, accumulator.parity, fence="tensor")
            for subtile in cutlass.range_constexpr(subtiles):
                column = accumulator.index * self.cta_tile[1] + subtile * columns
                row = barriers.load_tensor_memory_row(tensor_memory + (warp * WARP << 16) + column, columns)
                if cutlass.const_expr(subtile == subtiles - 1):
                    # The whole accumulator is in registers: back to the MMA warp, before the last subtile is stored.
                    barriers.tensor_memory_fence_before_sync()
                    cute.arch.sync_warp()
                    if lane == 0:
                        barriers.arrive_at(drained + accumulator.index, leader)
                for i in cutlass.range_constexpr(columns):
                    sums[i] = row[i]
                results.store(sums.load().to(self.d_dtype))
                # The stage's last store has read it: all bulk groups but the newest OUTPUT_STAGES - 1 are done reading.
                # Groups belong to the thread that stores, the elected lane, always the same; the others wait for it.
                with cute.arch.elect_one():
                    cute.arch.cp_async_bulk_wait_group(OUTPUT_STAGES - 1, read=True)
                cute.arch.sync_warp()
                # 16 bytes at a time: the swizzle spreads the rows of eight threads over all banks.
                cute.autovec_copy(results, shared_d[(thread, None, ring.index)])
                # Each lane's writes, made through the generic proxy, to the copy engine; then all lanes' to the lane
                # that starts the copy.
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    place = (None, work.tile_m * EPILOGUE_WARPS + warp, work.tile_n * subtiles + subtile, work.batch)
                    cute.copy(tensor_map_d, stored[(None, ring.index)], output[place])
                    cute.arch.cp_async_bulk_commit_group()
                ring.advance()
            accumulator.advance()
            work = scheduler.fetch_next_work()
        # Shared memory must outlive the stores' reads; the end of the grid makes the written results visible.
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0, read=True)


def coordinates(shape, contiguous_mode):
    """A tensor whose elements are TMA coordinates, contiguous axis first, of a (rows, columns, batch) operand."""
    first, second = (0, 1) if contiguous_mode == 0 else (1, 0)
    identity = cute.make_identity_tensor(shape)
    return cute.make_tensor(
        identity.iterator, cute.make_layout(shape, stride=(cute.E(first), cute.E(second), cute.E(2)))
    )
