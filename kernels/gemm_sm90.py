"""Hopper GEMM kernel: D[m, n, l] = sum over k of A[m, k, l] B[n, k, l], warp-specialised, TMA in and out.

One warp loads A and B tiles into a ring of stages, multicast to the CTAs of the cluster that share them. Two consumer
warpgroups multiply with wgmma, accumulating in registers: on halves of one tile (cooperative), or on a tile each, in
turns, so that the epilogue of one runs under the mainloop of the other (ping-pong). All walk the tiles that the tile
scheduler hands out.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.memory import SmemAllocator

from kernels import epilogue
from kernels.device_values import DeviceValues
from kernels.load_pipeline import LoadPipeline
from kernels.parameters import describe_parameters
from kernels.tile_scheduler import SCHEDULERS, WorkGrid, cluster_rank
from kernels.variant import Variant

SHARED_MEMORY_BYTES = 232448  # what one CTA may take of an SM
BARRIER_BYTES = 1024
WARPGROUP_THREADS = 128
WARPGROUP_WARPS = 4
DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16, "float32": cutlass.Float32}
STORE_SLOTS = 2  # staging slots of each consumer warpgroup: one is filled while the other is read
EPILOGUE_BARRIER = 1  # named barriers: one for each consumer warpgroup
TURN_BARRIER = 3  # named barriers of ping-pong: one for each consumer warpgroup


class Turns(DeviceValues):
    """Ping-pong: which consumer warpgroup takes this tile, and when it may use the tensor cores.

    The turns matter for more than speed. A stage's full barrier names its phase by parity alone, so a warpgroup may wait
    for its tile's stages only when the other has seen all of the tile before filled.
    """

    FIELDS = ("warpgroup_index", "tile_of")

    def __init__(self, warpgroup_index: Int32):
        self.warpgroup_index = warpgroup_index
        self.tile_of = Int32(0)  # the warpgroup that takes the present tile

    def is_mine(self) -> Boolean:
        return self.tile_of == self.warpgroup_index

    def next_tile(self) -> None:
        self.tile_of = 1 - self.tile_of

    @cute.jit
    def start(self):
        """Warpgroup 1 opens the first turn of warpgroup 0."""
        if self.warpgroup_index == 1:
            self.pass_on()

    def wait(self) -> None:
        barrier = TURN_BARRIER + self.warpgroup_index
        cute.arch.barrier(barrier_id=barrier, number_of_threads=2 * WARPGROUP_THREADS)

    def pass_on(self) -> None:
        barrier = TURN_BARRIER + 1 - self.warpgroup_index
        cute.arch.barrier_arrive(barrier_id=barrier, number_of_threads=2 * WARPGROUP_THREADS)


class Kernel:
    """The traceable kernel of one variant."""

    def __init__(self, variant: Variant):
        self.variant = variant
        self.a_dtype, self.b_dtype, _, self.d_dtype = (DTYPES[name] for name in variant.dtypes)
        self.tile_m, self.tile_n, self.tile_k = variant.cta_tile
        self.cluster_m, self.cluster_n = variant.cluster
        self.cluster_size = self.cluster_m * self.cluster_n
        self.consumers = 2
        self.threads = WARPGROUP_THREADS * (1 + self.consumers)
        # Warpgroups of a cooperative kernel split the tile by rows, and 64-row tiles, which wgmma cannot cut, by columns.
        split = (1, 1) if variant.pingpong else (2, 1) if self.tile_m >= 128 else (1, 2)
        self.split_m, self.split_n = split
        self.wg_m, self.wg_n = self.tile_m // self.split_m, self.tile_n // self.split_n
        self.slot_shape = epilogue.slot_shape(self.wg_n, self.d_dtype.width // 8)
        self.stage_bytes = (self.tile_m + self.tile_n) * self.tile_k * self.a_dtype.width // 8
        slot_bytes = self.slot_shape[0] * self.slot_shape[1] * self.d_dtype.width // 8
        self.store_slots = STORE_SLOTS * self.consumers
        left = SHARED_MEMORY_BYTES - BARRIER_BYTES - self.store_slots * slot_bytes
        self.stages = variant.stages or left // self.stage_bytes
        if self.stages < 2 or self.stages * self.stage_bytes > left:
            raise ValueError(f"{variant}: {self.stages} stages of {self.stage_bytes} bytes do not fit in {left} bytes")
        # An accumulator of 192 registers leaves 40 for everything else at 232: too few without spills.
        heavy = self.wg_m * self.wg_n // WARPGROUP_THREADS >= 192
        self.producer_registers, self.consumer_registers = (24, 240) if heavy else (40, 232)
        self.consumer_warps = WARPGROUP_WARPS * (1 if variant.pingpong else self.consumers)
        self.entry = self
        self.parameters: list[dict] = []
        self.facts: dict = {}

    def arguments(self) -> tuple:
        """Stand-ins for what `__call__` takes: types, majors and alignments without memory."""

        def operand(dtype, contiguous_first: bool):
            sizes = [cute.sym_int(), cute.sym_int(), cute.sym_int()]
            sizes[0 if contiguous_first else 1] = cute.sym_int(divisibility=128 // dtype.width)
            order = (0, 1, 2) if contiguous_first else (1, 0, 2)
            return make_fake_compact_tensor(dtype, tuple(sizes), stride_order=order, assumed_align=16)

        a_major, b_major, d_major = self.variant.majors
        tensors = (
            operand(self.a_dtype, a_major == "m"),
            operand(self.b_dtype, b_major == "n"),
            operand(self.d_dtype, d_major == "m"),
        )
        return (*tensors, *(Int32(1) for _ in range(6)), make_fake_stream())

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        m: Int32,
        n: Int32,
        k: Int32,
        l: Int32,
        raster_group: Int32,
        raster_along: Int32,
        stream,
    ):
        infos = {
            "a": self.load_tensor_map("a", a),
            "b": self.load_tensor_map("b", b),
            "d": self.store_tensor_map(d),
        }
        arguments = (*(infos[operand].atom for operand in "abd"), m, n, k, l, raster_group, raster_along)
        self.parameters = describe_parameters(Kernel.kernel, arguments, infos)
        self.kernel(*arguments).launch(
            grid=(1, 1, 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster_size, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tensor_map_a: cute.CopyAtom,
        tensor_map_b: cute.CopyAtom,
        tensor_map_d: cute.CopyAtom,
        m: Int32,
        n: Int32,
        k: Int32,
        l: Int32,
        raster_group: Int32,
        raster_along: Int32,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            for tensor_map in (tensor_map_a, tensor_map_b, tensor_map_d):
                cpasync.prefetch_descriptor(tensor_map)

        shared = SmemAllocator()
        stages_a = self.allocate(shared, self.a_dtype, self.operand_layout("a", self.stages))
        stages_b = self.allocate(shared, self.b_dtype, self.operand_layout("b", self.stages))
        slots = self.allocate(shared, self.d_dtype, self.slot_layout(self.store_slots))
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        ring = LoadPipeline(barriers, self.stages, self.stage_bytes, self.consumer_warps, self.cluster_size)
        if warp == 0:
            with cute.arch.elect_one():
                ring.initialise()
            cute.arch.mbarrier_init_fence()
        self.cluster_sync()

        grid = WorkGrid(m, n, l, self.variant.cta_tile, self.variant.cluster, raster_group, raster_along)
        scheduler = SCHEDULERS[self.variant.schedule](grid)
        k_tiles = (k + self.tile_k - 1) // self.tile_k

        if warp < WARPGROUP_WARPS:
            cute.arch.setmaxregister_decrease(self.producer_registers)
            if warp == 0:
                copies = (
                    *self.load_partition("a", tensor_map_a, stages_a, (m, k, l)),
                    *self.load_partition("b", tensor_map_b, stages_b, (n, k, l)),
                )
                self.load(scheduler, ring, k_tiles, *copies)
            scheduler.finish()
        else:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            self.multiply(scheduler, ring, k_tiles, stages_a, stages_b, tensor_map_d, slots, (m, n, l))
            scheduler.finish()

    @cute.jit
    def load(self, scheduler, ring: LoadPipeline, k_tiles, map_a, source_a, target_a, map_b, source_b, target_b):
        """The producer warp: every k tile of every work tile, A and B into the next free stage of this CTA and its peers."""
        rank = cluster_rank(self.variant.cluster)
        place_m, place_n = rank % self.cluster_m, rank // self.cluster_m
        # CTA rank is m + cluster_m * n: A is shared along n, B along m.
        mask_a = cutlass.Int16(sum(1 << (self.cluster_m * i) for i in range(self.cluster_n)) << place_m)
        mask_b = cutlass.Int16(((1 << self.cluster_m) - 1) << (place_n * self.cluster_m))
        state = ring.producer_state()
        work = scheduler.initial_work()
        while work.is_valid:
            rows_a = source_a[(None, work.tile_m * self.cluster_n + place_n, None, work.batch)]
            rows_b = source_b[(None, work.tile_n * self.cluster_m + place_m, None, work.batch)]
            for k_tile in cutlass.range(k_tiles, unroll=1):
                ring.acquire(state)
                full = ring.full + state.index
                self.copy_in(map_a, rows_a[(None, k_tile)], target_a[(None, state.index)], full, mask_a, self.cluster_n)
                self.copy_in(map_b, rows_b[(None, k_tile)], target_b[(None, state.index)], full, mask_b, self.cluster_m)
                state.advance()
            work = scheduler.fetch_next_work()

    def copy_in(self, tensor_map, source, target, barrier, mask, sharers: int) -> None:
        if sharers > 1:
            cute.copy(tensor_map, source, target, tma_bar_ptr=barrier, mcast_mask=mask)
        else:
            cute.copy(tensor_map, source, target, tma_bar_ptr=barrier)

    @cute.jit
    def multiply(self, scheduler, ring: LoadPipeline, k_tiles, stages_a, stages_b, tensor_map_d, slots, sizes_d):
        """The consumer warpgroups: mainloop and epilogue of their part of every tile, or of every other tile."""
        thread = cute.arch.thread_idx()[0] % WARPGROUP_THREADS
        warpgroup_index = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARPGROUP_THREADS) - 1
        part_m, part_n = warpgroup_index % self.split_m, warpgroup_index // self.split_m % self.split_n
        tiled_mma = self.tiled_mma()
        slice_mma = tiled_mma.get_slice(0)
        operand_a = tiled_mma.make_fragment_A(slice_mma.partition_A(self.part(stages_a, self.wg_m, part_m)))
        operand_b = tiled_mma.make_fragment_B(slice_mma.partition_B(self.part(stages_b, self.wg_n, part_n)))
        accumulator = cute.make_rmem_tensor(tiled_mma.partition_shape_C((self.wg_m, self.wg_n)), Float32)
        own_slots = cute.local_tile(slots, (*self.slot_shape, STORE_SLOTS), (0, 0, warpgroup_index))
        store = epilogue.WarpgroupStore(
            tensor_map_d,
            self.coordinates(sizes_d, self.variant.majors[2] == "m"),
            own_slots,
            STORE_SLOTS,
            self.d_dtype,
            self.variant.majors[2] == "m",
            tiled_mma,
            thread,
            EPILOGUE_BARRIER + warpgroup_index,
        )
        slot_rows, slot_columns = self.wg_m // self.slot_shape[0], self.wg_n // self.slot_shape[1]

        next_slot = Int32(0)
        state = ring.consumer_state()
        turns = Turns(warpgroup_index)
        if cutlass.const_expr(self.variant.pingpong):
            turns.start()
        work = scheduler.initial_work()
        while work.is_valid:
            mine = True
            if cutlass.const_expr(self.variant.pingpong):
                mine = turns.is_mine()
            if mine:
                if cutlass.const_expr(self.variant.pingpong):
                    turns.wait()
                state = self.mainloop(tiled_mma, accumulator, operand_a, operand_b, ring, state, k_tiles, turns)
                first_row = (work.tile_m * self.split_m + part_m) * slot_rows
                first_column = (work.tile_n * self.split_n + part_n) * slot_columns
                next_slot = store.store(accumulator, first_row, first_column, work.batch, next_slot)
            else:
                state.advance(k_tiles)
            turns.next_tile()
            work = scheduler.fetch_next_work()
        store.finish()

    @cute.jit
    def mainloop(self, tiled_mma, accumulator, operand_a, operand_b, ring: LoadPipeline, state, k_tiles, turns):
        """One tile: wgmma over all k tiles, one group in flight while the next is issued; returns the ring's state."""
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
        warpgroup.wait_group(0)
        ring.release(previous)
        return state

    def multiply_stage(self, tiled_mma, accumulator, operand_a, operand_b, stage) -> None:
        """One group of wgmmas: a whole stage."""
        for block in range(cute.size(operand_a, mode=[2])):
            coordinate = (None, None, block, stage)
            cute.gemm(tiled_mma, accumulator, operand_a[coordinate], operand_b[coordinate], accumulator)
            tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    def tiled_mma(self) -> cute.TiledMma:
        """One warpgroup's MMA over its part of the tile."""
        majors = [OperandMajorMode.MN if self.is_mn_major(operand) else OperandMajorMode.K for operand in "ab"]
        op = warpgroup.MmaF16BF16Op(
            self.a_dtype, Float32, (64, self.wg_n, 16), warpgroup.OperandSource.SMEM, *majors
        )
        return cute.make_tiled_mma(cute.make_mma_atom(op), (1, 1, 1))

    def cluster_sync(self) -> None:
        """All threads of the cluster: barriers are initialised before anyone signals them."""
        if self.cluster_size > 1:
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def is_mn_major(self, operand: str) -> bool:
        return self.variant.majors["ab".index(operand)] != "k"

    def operand_layout(self, operand: str, stages: int) -> cute.ComposedLayout:
        """Shared-memory layout (rows, k, stages) of the tiles of A or B."""
        rows, dtype = (self.tile_m, self.a_dtype) if operand == "a" else (self.tile_n, self.b_dtype)
        return self.swizzled_layout(operand, dtype, rows, stages, rows)

    def slab_rows(self, operand: str) -> int:
        """Rows of the slab that one CTA loads; the CTAs of the cluster that share the operand load a slab each."""
        return self.tile_m // self.cluster_n if operand == "a" else self.tile_n // self.cluster_m

    def swizzled_layout(self, operand: str, dtype, rows: int, stages: int, swizzle_rows: int) -> cute.ComposedLayout:
        """Layout of `rows` rows with the widest swizzle that `swizzle_rows` rows allow."""
        mn_major = self.is_mn_major(operand)
        contiguous_bytes = (swizzle_rows if mn_major else self.tile_k) * dtype.width // 8
        width = next(width for width in (128, 64, 32) if contiguous_bytes % width == 0)
        if mn_major and rows * dtype.width // 8 % width:
            raise ValueError(f"{self.variant}: slabs of {rows} rows of {operand} cut its {width}-byte swizzle")
        kind = getattr(warpgroup.SmemLayoutAtomKind, f"{'MN' if mn_major else 'K'}_SW{width}")
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        return cute.tile_to_shape(atom, (rows, self.tile_k, stages), order=(1, 0, 2) if mn_major else (0, 1, 2))

    def load_tensor_map(self, operand: str, tensor: cute.Tensor) -> cpasync.TmaInfo:
        """TMA load of one slab of a tile of A or B: the box of the tensor map is what one CTA's copy brings."""
        rows, tile_rows, dtype, sharers = (
            (self.slab_rows("a"), self.tile_m, self.a_dtype, self.cluster_n)
            if operand == "a"
            else (self.slab_rows("b"), self.tile_n, self.b_dtype, self.cluster_m)
        )
        layout = cute.slice_(self.swizzled_layout(operand, dtype, rows, 1, tile_rows), (None, None, 0))
        op = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
        return cpasync.make_tiled_tma_atom(op, tensor, layout, (rows, self.tile_k))

    def slot_layout(self, slots: int) -> cute.ComposedLayout:
        return epilogue.slot_layout(self.d_dtype, self.variant.majors[2] == "m", self.slot_shape, slots)

    def store_tensor_map(self, tensor: cute.Tensor) -> cpasync.TmaInfo:
        """TMA store of one staging slot of D."""
        layout = cute.slice_(self.slot_layout(1), (None, None, 0))
        return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), tensor, layout, self.slot_shape)

    def load_partition(self, operand: str, tensor_map: cute.CopyAtom, stages: cute.Tensor, sizes: tuple):
        """(tensor map, slabs in global memory by (slab, k tile, batch), this CTA's slab of every stage)."""
        rows = self.slab_rows(operand)
        rank = cluster_rank(self.variant.cluster)
        place = rank // self.cluster_m if operand == "a" else rank % self.cluster_m
        slabs = cute.local_tile(
            self.coordinates(sizes, self.is_mn_major(operand)), (rows, self.tile_k), (None, None, None)
        )
        target, source = cpasync.tma_partition(
            tensor_map,
            0,
            cute.make_layout(1),
            cute.group_modes(self.part(stages, rows, place), 0, 2),
            cute.group_modes(slabs, 0, 2),
        )
        return tensor_map, source, target

    def part(self, stages: cute.Tensor, rows: int, index: Int32) -> cute.Tensor:
        """Rows index * rows to (index + 1) * rows of every stage."""
        return cute.local_tile(stages, (rows, self.tile_k, self.stages), (index, 0, 0))

    def coordinates(self, sizes: tuple, first_mode_contiguous: bool) -> cute.Tensor:
        """Coordinate tensor of an operand, as its tensor map counts: contiguous axis first."""
        rows, columns, batches = sizes
        if first_mode_contiguous:
            return cute.make_identity_tensor((rows, columns, batches))
        identity = cute.make_identity_tensor((columns, rows, batches))
        return cute.make_tensor(identity.iterator, cute.select(identity.layout, [1, 0, 2]))

    def allocate(self, shared: SmemAllocator, dtype, layout: cute.ComposedLayout) -> cute.Tensor:
        return shared.allocate_tensor(dtype, layout.outer, byte_alignment=1024, swizzle=layout.inner)
