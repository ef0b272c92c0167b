"""What a Blackwell kernel is before it does anything: its facts, its tiles, and what lies where in a CTA's memory."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr
from cutlass.utils import LayoutEnum
from cutlass.utils import blackwell_helpers as sm100

from kernels import tile_trace
from kernels.variant import Variant
from kernels.work_pipeline import RECORD_BYTES, WorkPipelineShape

WARP = 32
EPILOGUE_WARPS = 4  # tensor memory has 128 lanes; warp w of four may read lanes 32 w to 32 w + 31

K_BLOCK = 64  # elements of k in a stage: 128 bytes, one row of the 128-byte swizzle
ACCUMULATORS = 2
ROW_BYTES = 128  # of an output subtile, if the tile is that wide: one row of the 128-byte swizzle
OUTPUT_STAGES = 2
SHARED_MEMORY_BYTES = 232_448  # what one CTA may have: 227 KiB
BARRIER_BYTES = 1024  # more than barriers and records take

DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16, "float32": cutlass.Float32}


class KernelShape:
    """The constants of one variant, and the layouts that follow from them.

    Attributes:
      pair: CTAs that one MMA covers, 1 or 2.
      mma_tile: (m, n, k) that they accumulate together, and take in one stage.
      subtile: (rows, columns) that the epilogue stores at once, of a CTA's tile.
      stages, stage_bytes: the operand ring of one CTA.
      tensor_memory_columns: what both accumulators take.
      parameters, facts: for the manifest; see `compile.make_kernel`.
    """

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
        self.mma_tile = (self.cta_tile[0] * self.pair, self.cta_tile[1], self.cta_tile[2])
        self.check()
        self.subtile = (self.cta_tile[0], min(ROW_BYTES * 8 // self.d_dtype.width, self.cta_tile[1]))
        # A CTA holds its rows of A; of B all columns, or half of them when a pair shares them.
        self.stage_bytes = (self.cta_tile[0] + self.cta_tile[1] // self.pair) * K_BLOCK * self.a_dtype.width // 8
        output_bytes = OUTPUT_STAGES * self.subtile[0] * self.subtile[1] * self.d_dtype.width // 8
        self.stages = variant.stages or (SHARED_MEMORY_BYTES - BARRIER_BYTES - output_bytes) // self.stage_bytes
        # Readers of a work record: in every CTA the load warp and the epilogue warps; the MMA warps that issue, one in
        # each pair; the scheduler warp, in the first CTA.
        readers = self.cluster_size * (1 + EPILOGUE_WARPS) + self.cluster_size // self.pair + 1
        self.work_shape = WorkPipelineShape(variant.record_stages, self.cluster_size, readers)
        self.tensor_memory_columns = ACCUMULATORS * self.cta_tile[1]
        self.parameters: list[dict] = []
        # What the manifest cannot see in the variant.
        self.facts = {
            "tensor_memory_columns": self.tensor_memory_columns,
            "record_stages": variant.record_stages if variant.schedule == "clc" else 0,
        }
        if variant.traced:
            self.facts["scratch"] = tile_trace.SCRATCH_FACTS

    def check(self) -> None:
        """Raises ValueError for a variant that this kernel cannot be."""
        variant = self.variant
        m, n, k = self.cta_tile
        if (m, k) != (128, K_BLOCK) or n not in (32, 64, 128, 256):
            raise ValueError(f"CTA tile {self.cta_tile}: this kernel has 128x{{32, 64, 128, 256}}x64")
        if self.pair == 2 and n < 128:
            raise ValueError(f"CTA tile {self.cta_tile}: a pair that shares so few columns of B gains nothing")
        if self.cluster[0] % self.pair:
            raise ValueError(f"a two-SM MMA needs an even cluster along m, not {self.cluster}")
        if variant.majors[2] != "n" or variant.pingpong or variant.split_k or variant.operand_copies != "tma":
            raise ValueError(f"{variant}: d must be n-major, without ping-pong and split-K, copied by TMA")

    def arguments(self):
        """Fake operands of free sizes, for `cute.compile(kernel.entry, *kernel.arguments())`."""

        def operand(dtype, contiguous_mode):
            sizes = [cute.sym_int(), cute.sym_int(), cute.sym_int()]
            sizes[contiguous_mode] = cute.sym_int(divisibility=128 // dtype.width)
            order = (0, 1, 2) if contiguous_mode == 0 else (1, 0, 2)
            return make_fake_compact_tensor(dtype, tuple(sizes), stride_order=order, assumed_align=16)

        return (
            operand(self.a_dtype, 1 if self.a_major == OperandMajorMode.K else 0),
            operand(self.b_dtype, 1 if self.b_major == OperandMajorMode.K else 0),
            operand(self.d_dtype, 1),
            make_ptr(cutlass.Uint8, 16, cute.AddressSpace.gmem, assumed_align=16),
            Int32(1),
            Int32(0),
            make_fake_stream(),
        )

    # What the operands look like in shared memory: constants, made anew wherever they are needed.

    def tiled_mma(self):
        return sm100.make_trivial_tiled_mma(
            self.a_dtype, self.b_dtype, self.a_major, self.b_major,
            self.accumulator_dtype, self.cta_group, self.mma_tile[:2],
        )  # fmt: skip

    def cluster_layout(self, tiled_mma):
        """From (place in the pair, pair along m, CTA along n, 0) to the rank in the cluster."""
        return cute.tiled_divide(cute.make_layout((*self.cluster, 1)), (tiled_mma.thr_id.shape,))

    def operand_layouts(self, tiled_mma):
        return (
            sm100.make_smem_layout_a(tiled_mma, self.mma_tile, self.a_dtype, self.stages),
            sm100.make_smem_layout_b(tiled_mma, self.mma_tile, self.b_dtype, self.stages),
        )

    def output_layout(self, rows, stages):
        return sm100.make_smem_layout_epi(self.d_dtype, LayoutEnum.ROW_MAJOR, (rows, self.subtile[1]), stages)

    def storage(self):
        """All shared memory of a CTA. Buffers start at 1024 bytes, where the 128-byte swizzle's pattern starts."""
        a_layout, b_layout = self.operand_layouts(self.tiled_mma())
        d_layout = self.output_layout(self.subtile[0], OUTPUT_STAGES)
        struct, barrier = cute.struct, cutlass.Int64

        @struct
        class Storage:
            a: struct.Align[struct.MemRange[self.a_dtype, cute.cosize(a_layout)], 1024]
            b: struct.Align[struct.MemRange[self.b_dtype, cute.cosize(b_layout)], 1024]
            d: struct.Align[struct.MemRange[self.d_dtype, cute.cosize(d_layout)], 1024]
            records: struct.Align[struct.MemRange[cutlass.Int8, RECORD_BYTES * self.work_shape.stages], RECORD_BYTES]
            work_full: struct.MemRange[barrier, self.work_shape.stages]
            work_empty: struct.MemRange[barrier, self.work_shape.stages]
            throttle: struct.MemRange[barrier, 1]
            operands_full: struct.MemRange[barrier, self.stages]
            operands_empty: struct.MemRange[barrier, self.stages]
            accumulator_full: struct.MemRange[barrier, ACCUMULATORS]
            accumulator_empty: struct.MemRange[barrier, ACCUMULATORS]
            tensor_memory: struct.MemRange[Int32, 1]

        return Storage
