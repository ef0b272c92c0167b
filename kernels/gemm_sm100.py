"""The Blackwell GEMM kernel (sm_100f: compute capabilities 10.0 and 10.3): D[l] = A[l] B[l], one body for every schedule.

Seven warps. Warps 0 to 3 are the epilogue, warp 4 issues MMAs, warp 5 loads, warp 6 of the cluster's first CTA asks for
work. They walk the same sequence of tiles and meet only at barriers in shared memory:

    load ---- operand ring ----> MMA ---- two accumulators in tensor memory ----> epilogue ---- output ring ----> TMA store
      ^                           ^                                                  ^
      +---------------------------+---------- work records <- scheduler -------------+

With a one-SM MMA a CTA computes its tile alone. With a two-SM MMA the CTAs of ranks 2i and 2i+1 form a pair: each holds
its rows of A and half the columns of B, the even one (the leader) issues one MMA for both, and each keeps its own rows
of the accumulator in its own tensor memory.

Operands travel as wide as the cluster allows: CTAs in a row of the cluster share their tile of A, CTAs in a column share
B, and each loads its part and multicasts it.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.utils import LayoutEnum, SmemAllocator
from cutlass.utils import blackwell_helpers as sm100

from kernels import barriers, parameters
from kernels.tile_scheduler import DeviceValues, WorkGrid, cluster_rank
from kernels.tile_scheduler_sm100 import SCHEDULERS, ClcScheduler
from kernels.variants import Variant
from kernels.work_pipeline import RECORD_BYTES, WorkPipeline, WorkPipelineShape

WARP = 32
EPILOGUE_WARPS = 4  # tensor memory has 128 lanes; warp w of four may read lanes 32 w to 32 w + 31
MMA_WARP = 4
LOAD_WARP = 5
SCHEDULER_WARP = 6
WARPS = 7

K_BLOCK = 64  # elements: 128 bytes, one row of the 128-byte swizzle
MMA_K = 16  # elements of k in one tcgen05.mma of kind f16
ACCUMULATORS = 2
TENSOR_MEMORY_COLUMNS = 512
SWIZZLE_BYTES = 128
SHARED_MEMORY_BYTES = 232_448  # what one CTA may have: 227 KiB
BARRIER_BYTES = 1024  # more than barriers and records take
EPILOGUE_BARRIER = 1  # named barrier: MMA and epilogue warps, once, when tensor memory has been allocated

DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16, "float32": cutlass.Float32}


class Ring(DeviceValues):
    """A position in a ring of `stages` buffers: index, and the parity of the phase in which it is used."""

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


class Kernel:
    """One variant, traceable: see `compile.make_kernel`."""

    def __init__(self, variant: Variant):
        self.variant = variant
        self.a_dtype, self.b_dtype, self.accumulator_dtype, self.d_dtype = (DTYPES[name] for name in variant.dtypes)
        self.a_major = OperandMajorMode.K if variant.majors[0] == "k" else OperandMajorMode.MN
        self.b_major = OperandMajorMode.K if variant.majors[1] == "k" else OperandMajorMode.MN
        self.pair = 2 if variant.two_sm_mma else 1  # CTAs that one MMA covers
        self.cta_group = tcgen05.CtaGroup.TWO if variant.two_sm_mma else tcgen05.CtaGroup.ONE
        self.cluster = variant.cluster
        self.cluster_size = variant.cluster[0] * variant.cluster[1]
        self.cta_tile = variant.cta_tile
        self.mma_tile = (variant.cta_tile[0] * self.pair, variant.cta_tile[1], variant.cta_tile[2])
        self._check(variant)
        # An epilogue subtile is 32 rows of 128 bytes in each of the four warps: one tcgen05.ld, one TMA store.
        self.subtile = (self.cta_tile[0], SWIZZLE_BYTES * 8 // self.d_dtype.width)
        self.output_stages = 2
        output_bytes = self.output_stages * self.subtile[0] * SWIZZLE_BYTES
        # A CTA holds its rows of A; of B all columns, or half of them when a pair shares them.
        self.stage_bytes = (self.cta_tile[0] + self.cta_tile[1] // self.pair) * K_BLOCK * self.a_dtype.width // 8
        self.stages = variant.stages or (SHARED_MEMORY_BYTES - BARRIER_BYTES - output_bytes) // self.stage_bytes
        # Readers of a work record: in every CTA the load warp and the epilogue warps; the MMA warp where it issues (in
        # the leaders); and the scheduler warp of the first CTA.
        self.work_shape = WorkPipelineShape(
            stages=variant.record_stages,
            cluster_size=self.cluster_size,
            reading_warps=self.cluster_size * (1 + EPILOGUE_WARPS) + self.cluster_size // self.pair + 1,
        )
        self.parameters: list[dict] = []
        self.facts: dict[str, object] = {}

    def _check(self, variant: Variant) -> None:
        m, n, k = variant.cta_tile
        if (m, k) != (128, K_BLOCK) or n not in (128, 256):
            raise ValueError(f"CTA tile {variant.cta_tile}: this kernel has 128x128x64 and 128x256x64")
        if variant.cluster[0] % self.pair:
            raise ValueError(f"a two-SM MMA needs an even cluster along m, not {variant.cluster}")
        if ACCUMULATORS * n > TENSOR_MEMORY_COLUMNS:
            raise ValueError(f"two accumulators of {n} columns do not fit in tensor memory")

    def arguments(self):
        """Fake operands of free sizes, for `cute.compile(self.entry, *self.arguments())`."""

        def operand(dtype, contiguous_first):
            sizes = (cute.sym_int(divisibility=8), cute.sym_int(), cute.sym_int())
            if contiguous_first:
                return make_fake_compact_tensor(dtype, sizes, stride_order=(0, 1, 2), assumed_align=16)
            sizes = (sizes[1], sizes[0], sizes[2])
            return make_fake_compact_tensor(dtype, sizes, stride_order=(1, 0, 2), assumed_align=16)

        return (
            operand(self.a_dtype, self.a_major == OperandMajorMode.MN),
            operand(self.b_dtype, self.b_major == OperandMajorMode.MN),
            operand(self.d_dtype, self.variant.majors[2] == "m"),
            Int32(1),
            Int32(0),
            make_fake_stream(),
        )

    # What the operands look like in shared memory. Made anew wherever needed: it is all constant.

    def _tiled_mma(self):
        return sm100.make_trivial_tiled_mma(
            self.a_dtype,
            self.b_dtype,
            self.a_major,
            self.b_major,
            self.accumulator_dtype,
            self.cta_group,
            self.mma_tile[:2],
        )

    def _cluster_layout(self, tiled_mma):
        """CTA rank in the cluster from (place in the pair, pair along m, n, 1)."""
        return cute.tiled_divide(cute.make_layout((*self.cluster, 1)), (tiled_mma.thr_id.shape,))

    def _output_layout(self, rows, stages):
        return sm100.make_smem_layout_epi(self.d_dtype, LayoutEnum.ROW_MAJOR, (rows, self.subtile[1]), stages)

    @cute.jit
    def entry(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, raster_group: Int32, raster_along: Int32, stream):
        """Makes the tensor maps and launches: traced to compile the kernel, never run."""
        tiled_mma = self._tiled_mma()
        cluster_layout = self._cluster_layout(tiled_mma)
        a_layout = sm100.make_smem_layout_a(tiled_mma, self.mma_tile, self.a_dtype, 1)
        b_layout = sm100.make_smem_layout_b(tiled_mma, self.mma_tile, self.b_dtype, 1)
        map_a = cute.nvgpu.make_tiled_tma_atom_A(
            sm100.cluster_shape_to_tma_atom_A(self.cluster, tiled_mma.thr_id),
            a,
            cute.slice_(a_layout, (None, None, None, 0)),
            self.mma_tile,
            tiled_mma,
            cluster_layout.shape,
        )
        map_b = cute.nvgpu.make_tiled_tma_atom_B(
            sm100.cluster_shape_to_tma_atom_B(self.cluster, tiled_mma.thr_id),
            b,
            cute.slice_(b_layout, (None, None, None, 0)),
            self.mma_tile,
            tiled_mma,
            cluster_layout.shape,
        )
        warp_rows = self.subtile[0] // EPILOGUE_WARPS
        map_d = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            d,
            cute.select(self._output_layout(warp_rows, 1), mode=[0, 1]),
            (warp_rows, self.subtile[1]),
        )
        m, k, batches = a.shape
        arguments = (map_a.atom, map_b.atom, map_d.atom, m, b.shape[0], k, batches, raster_group, raster_along)
        arguments = tuple(Int32(x) if not isinstance(x, (cute.CopyAtom, Int32)) else x for x in arguments)
        self.parameters = parameters.describe_parameters(
            self.kernel, arguments, {"a": map_a, "b": map_b, "d": map_d}
        )
        self.kernel(*arguments).launch(
            grid=(1, 1, 1), block=(WARPS * WARP, 1, 1), cluster=(self.cluster_size, 1, 1), stream=stream
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
        l: Int32,  # noqa: E741 - the manifest's name for the batch size
        raster_group: Int32,
        raster_along: Int32,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank = cluster_rank(self.cluster)
        is_first_cta = rank == 0
        is_leader = rank % self.pair == 0

        if warp == LOAD_WARP:
            cpasync.prefetch_descriptor(tensor_map_a)
            cpasync.prefetch_descriptor(tensor_map_b)
            cpasync.prefetch_descriptor(tensor_map_d)

        # Shared memory: all of it in one structure, whose size the launcher must ask for.
        tiled_mma = self._tiled_mma()
        cluster_layout = self._cluster_layout(tiled_mma)
        a_layout = sm100.make_smem_layout_a(tiled_mma, self.mma_tile, self.a_dtype, self.stages)
        b_layout = sm100.make_smem_layout_b(tiled_mma, self.mma_tile, self.b_dtype, self.stages)
        d_layout = self._output_layout(self.subtile[0], self.output_stages)
        storage = SmemAllocator().allocate(self._storage())
        shared_a = storage.a.get_tensor(a_layout.outer, swizzle=a_layout.inner)
        shared_b = storage.b.get_tensor(b_layout.outer, swizzle=b_layout.inner)
        shared_d = storage.d.get_tensor(d_layout.outer, swizzle=d_layout.inner)
        operands_full = storage.operands_full.data_ptr()
        operands_empty = storage.operands_empty.data_ptr()
        accumulator_full = storage.accumulator_full.data_ptr()
        accumulator_empty = storage.accumulator_empty.data_ptr()

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

        # Barriers, by one thread, then made known to the whole cluster before anybody signals anybody.
        if warp == LOAD_WARP:
            if cute.arch.lane_idx() == 0:
                # MMAs that read a stage which this CTA helps to fill: those of its row, which share its part of A, and
                # of its column, which share its part of B (its own is both): one commit each.
                row, column = cute.size(cluster_layout, mode=[2]), cute.size(cluster_layout, mode=[1])
                for stage in cutlass.range_constexpr(self.stages):
                    # One arrival that expects the bytes of all copies: the CTA's own, of a pair the leader's for both.
                    cute.arch.mbarrier_init(operands_full + stage, 1)
                    cute.arch.mbarrier_init(operands_empty + stage, row + column - 1)
                for stage in cutlass.range_constexpr(ACCUMULATORS):
                    # One commit, which a two-SM MMA multicasts to both CTAs of the pair.
                    cute.arch.mbarrier_init(accumulator_full + stage, 1)
                    # One lane of each epilogue warp of the CTAs that the MMA covers; waited for in the leader.
                    cute.arch.mbarrier_init(accumulator_empty + stage, EPILOGUE_WARPS * self.pair)
                scheduler.initialize_barriers()
                cute.arch.mbarrier_init_fence()
        self._synchronize_cluster()

        k_blocks = cute.ceil_div(k, K_BLOCK)
        if warp == LOAD_WARP:
            self._load(
                scheduler, rank, tiled_mma, cluster_layout, (m, n, k, l), k_blocks, (tensor_map_a, tensor_map_b),
                (shared_a, shared_b), operands_full, operands_empty,
            )
        if warp == MMA_WARP:
            allocate_tensor_memory(storage.tensor_memory.data_ptr(), self.tensor_memory_columns, self.cta_group)
        if warp <= MMA_WARP:
            # The address that the allocation left in shared memory, and with it tensor memory, to those who use it.
            barriers.tensor_memory_fence_before_sync()
            cute.arch.barrier(barrier_id=TENSOR_MEMORY_BARRIER, number_of_threads=(EPILOGUE_WARPS + 1) * WARP)
            barriers.tensor_memory_fence_after_sync()
