"""What a Hopper kernel is before it does anything: its facts, its tiles, and what lies where in a CTA's memory."""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr

from kernels import epilogue, split_k, tile_scheduler_sm90, tile_trace
from kernels.cluster_k import ClusterSums, slices_of
from kernels.register_store import QUAD_COLUMNS, RegisterStore
from kernels.stream_k import CutSums
from kernels.tma_copies import OperandTiles
from kernels.variant import Variant

SHARED_MEMORY_BYTES = 232448  # what one CTA may take of an SM
SM_SHARED_MEMORY_BYTES = 233472  # what all CTAs of an SM take together, with
RESERVED_BYTES = 1024  # of the system's in each
BARRIER_BYTES = 1024
WARPGROUP_THREADS = 128
WARPGROUP_WARPS = 4
WGMMA_ROWS = 64
DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16, "float32": cutlass.Float32}
MOST_STAGES = 12  # enough to cover the memory's latency with the narrowest tiles
MOST_CHAINED_VALUES = 64  # sums of a thread that there is room for twice
MOST_PREFETCHED_BYTES = 20480  # of a first stage, into L2 while the barriers are initialised
FEW_ACCUMULATORS = 32  # of a thread: so few registers need not be moved from the producers to the consumers


def consumer_warpgroups(variant: Variant) -> int:
    """Two, or as many as a tile of another height has parts of the 64 rows of a wgmma: one or three."""
    parts = variant.cta_tile[0] // WGMMA_ROWS
    return parts if parts in (1, 3) and not variant.pingpong else 2


class KernelShape:
    """The constants of one variant, and the layouts that follow from them.

    Attributes:
      a_tiles, b_tiles: how operand tiles lie in a stage and get there.
      consumers: consumer warpgroups of a CTA; `warpgroups`: those that share a tile.
      wg_m, wg_n: rows and columns that a warpgroup accumulates, `values` of them in a thread.
      stages, stage_bytes: the ring of load stages.
      store_slots, slot_shape: the staging of results; no slots where they leave from the registers.
      tile_pieces: slots that a warpgroup's part of a tile fills.
      stores_last_through_stages: whether a CTA's last tile has a slot for each of its pieces where the stages lie.
      is_relayed: whether a warp of its own tells peers which stages have been read.
      drains: whether CTAs of a cluster leave each for itself, when all their stages have been handed back.
      slices: parts of a tile's columns that CTAs add up where they share it by k.
      parameters, facts: for the manifest; see `compile.make_kernel`.
    """

    def __init__(self, variant: Variant):
        self.variant = variant
        self.a_dtype, self.b_dtype, _, self.d_dtype = (DTYPES[name] for name in variant.dtypes)
        self.tile_m, self.tile_n, self.tile_k = variant.cta_tile
        self.cluster_m, self.cluster_n = variant.cluster
        self.sharing_ctas = self.cluster_m * self.cluster_n  # that multicast to one another
        self.cluster = (self.cluster_m, self.cluster_n, variant.cluster_k)
        self.cluster_size = math.prod(self.cluster)
        a_major, b_major, d_major = variant.majors
        self.a_tiles = OperandTiles("a", self.a_dtype, a_major != "k", self.tile_m, self.tile_k, self.cluster_n)
        self.b_tiles = OperandTiles("b", self.b_dtype, b_major != "k", self.tile_n, self.tile_k, self.cluster_m)
        self.d_is_m_major = d_major == "m"
        self.loads_elements = variant.operand_copies == "elements"
        self.stores_elements = variant.output_copies == "elements"
        self.stores_registers = variant.output_copies == "registers"
        self.consumers = consumer_warpgroups(variant)
        self.threads = WARPGROUP_THREADS * (1 + self.consumers)
        self.warpgroups = 1 if variant.pingpong else self.consumers  # that share a tile: each has some of its rows
        self.wg_m, self.wg_n = self.tile_m // self.warpgroups, self.tile_n
        self.values = self.wg_m * self.wg_n // WARPGROUP_THREADS  # accumulators of a thread
        self.stage_bytes = self.a_tiles.bytes + self.b_tiles.bytes
        self.check()
        # Where CTAs share a tile by parts of k, each adds up and stores a slice of the columns.
        self.slices = slices_of(self.wg_n, variant.cluster_k) if variant.cluster_k > 1 else 1
        # Staging slots of each consumer warpgroup: one is filled while the other is read, where there is room for two.
        self.store_slots = 1 if self.stores_elements and self.consumers == 3 else 2
        if self.stores_registers:
            self.store_slots = 0
        self.slot_shape, self.stages, spare_bytes = self.share_out_shared_memory()
        threads = self.consumers * WARPGROUP_THREADS
        self.exchange_bytes = ClusterSums.exchange_bytes(variant.cluster_k, self.slices, self.values, threads)
        if variant.cluster_k > 1 and self.exchange_bytes > self.stages * self.stage_bytes:
            raise ValueError(f"{variant}: {self.exchange_bytes} bytes of sums do not fit where the stages lie")
        # Where there is room beside the stages, nobody waits until all have read their last stage.
        self.exchange_is_apart = variant.cluster_k > 1 and self.exchange_bytes <= spare_bytes
        self.producer_registers, self.consumer_registers = self.share_out_registers()
        # Handing registers over takes 0.1 us of every CTA: seen where a whole launch takes 2.6.
        self.hands_over_registers = self.loads_elements or (self.consumers > 1 and self.values > FEW_ACCUMULATORS)
        self.uses_scratch = variant.split_k or variant.stream_k or variant.schedule == "dynamic" or variant.traced
        # Claimed tiles: the record is read while the last wgmmas run, since its latency shows between short tiles.
        # Ping-pong hides it behind the other warpgroup. A trace takes the fetch for the end of a tile.
        self.fetches_early = variant.schedule == "dynamic" and not (variant.pingpong or variant.traced)
        # Whole tiles are claimed where k is short, and rows of 256 bytes are read by one CTA at once: fetched whole,
        # k = 128 takes 2% less. Where a CTA comes back for the second half later, as at k = 512, it takes 3% more.
        claims_whole_tiles = variant.schedule == "dynamic" and not variant.stream_k
        self.l2_promotion = "256B" if claims_whole_tiles else "128B"
        # Ping-pong in a known order: nothing hides a CTA's last store, and the stages are free by then.
        in_known_order = variant.pingpong and variant.schedule == "static"
        self.tile_pieces = -(-self.wg_m * self.wg_n // math.prod(self.slot_shape))
        slot_bytes = math.prod(self.slot_shape) * self.d_dtype.width // 8
        by_tma = not (self.stores_elements or self.stores_registers)
        fits = self.tile_pieces * slot_bytes <= self.stages * self.stage_bytes
        self.stores_last_through_stages = by_tma and in_known_order and fits
        # Ping-pong's multiplications follow each other without a gap, in which consumers could wait for a fence.
        self.is_relayed = variant.pingpong and self.sharing_ctas > 1
        # All that a peer does to a CTA at its end is to hand stages back, but where claims are sent about.
        self.drains = self.sharing_ctas > 1 and variant.schedule != "dynamic"
        # A small product's first stage is on its way from memory before there is a barrier to announce it at: 3% to 10%
        # of 256^3 and 512^3, 1.6% of thin products. A longer prefetch is in the way of the copy.
        is_short = self.stage_bytes <= MOST_PREFETCHED_BYTES and not self.loads_elements
        self.prefetches = variant.schedule == "nonpersistent" and is_short
        self.claim_counter_bytes = tile_scheduler_sm90.COUNTER_BYTES if variant.schedule == "dynamic" else 0
        self.parameters: list[dict] = []
        self.facts = self.scratch_facts()

    def check(self) -> None:
        """Raises ValueError for a variant that this kernel cannot be."""
        variant = self.variant
        if self.loads_elements and self.cluster_size > 1:
            raise ValueError(f"{variant}: element copies cannot multicast")
        if variant.pingpong and (variant.split_k or variant.schedule == "nonpersistent"):
            raise ValueError(f"{variant}: ping-pong takes turns over many whole tiles of a worker")
        if variant.stream_k and (variant.split_k or variant.schedule == "nonpersistent" or variant.chain_k_tiles):
            raise ValueError(f"{variant}: stream-K is for workers that live on, and cuts k by itself")
        if variant.stream_k and variant.traced:
            raise ValueError(f"{variant}: a trace has one row for each tile, not for its parts")
        if self.consumers == 3 and self.loads_elements:
            raise ValueError(f"{variant}: producers of elements leave no registers for three warpgroups")
        plain = variant.schedule == "nonpersistent" and self.sharing_ctas == 1 and self.tile_m <= 128
        if variant.cluster_k > 1 and (not plain or self.loads_elements):
            raise ValueError(f"{variant}: cluster_k is for one tile of TMA operands in each cluster")
        if self.stores_registers and (variant.split_k or variant.stream_k or variant.cluster_k > 1):
            raise ValueError(f"{variant}: stores from registers are of tiles that one CTA computes whole")
        if self.stores_registers and (self.d_is_m_major or self.d_dtype.width != 16 or self.tile_n % QUAD_COLUMNS):
            raise ValueError(f"{variant}: stores from registers are of {QUAD_COLUMNS} 16-bit columns of an n-major D")
        if variant.chain_k_tiles and (variant.pingpong or self.values > MOST_CHAINED_VALUES):
            raise ValueError(f"{variant}: no registers for two sets of {self.values} sums")
        if variant.ctas_per_sm > 1 and self.values > FEW_ACCUMULATORS:
            raise ValueError(f"{variant}: {self.values} accumulators of a thread leave no registers for another CTA")

    def share_out_registers(self) -> tuple[int, int]:
        """Registers of a producer's thread and of a consumer's, after they are handed over."""
        if self.loads_elements:  # the producers hold what they load in registers
            return 232, 136
        if self.consumers == 3:  # four warpgroups share 512 registers a lane
            return 32, 160
        # An accumulator of 160 registers and more leaves too few for everything else at 232, and 24 are too few for a
        # scheduler warp that cuts shares.
        cuts_shares = self.variant.stream_k and self.variant.schedule == "dynamic"
        return (24, 240) if self.values >= 160 and not cuts_shares else (40, 232)

    def share_out_shared_memory(self) -> tuple[tuple[int, int], int, int]:
        """(Rows, columns) of a staging slot, stages, and bytes left: slots are halved where that makes room for a
        stage."""
        shape = epilogue.slot_shape(self.wg_n // self.slices, self.d_dtype.width // 8, self.stores_elements)
        ctas = self.variant.ctas_per_sm
        bytes_ = SHARED_MEMORY_BYTES if ctas == 1 else SM_SHARED_MEMORY_BYTES // ctas - RESERVED_BYTES
        choices = []
        for columns in (shape[1], shape[1] // 2):
            slots = self.consumers * self.store_slots * shape[0] * columns * self.d_dtype.width // 8
            room = bytes_ - BARRIER_BYTES - slots
            choices.append(((shape[0], columns), room // self.stage_bytes, room))
        whole, halved = choices
        may_halve = not self.stores_elements and shape[1] >= 32
        slot, most, room = halved if may_halve and halved[1] > whole[1] else whole
        stages = self.variant.stages or min(most, MOST_STAGES)
        if stages < 2 or stages > most:
            raise ValueError(f"{self.variant}: {stages} stages of {self.stage_bytes} bytes do not fit, {most} would")
        return slot, stages, room - stages * self.stage_bytes

    def scratch_facts(self) -> dict:
        """Manifest fields of the scratch that the launcher provides: counters first, then partial sums."""
        counters = self.claim_counter_bytes + (split_k.COUNTER_BYTES if self.variant.split_k else 0)
        scratch = {
            "counter_bytes": counters,
            "partial_bytes_per_element": 4 if self.variant.split_k else 0,
            "zeroed_bytes": counters,
        }
        if self.variant.stream_k:
            scratch["counter_bytes"] = counters + CutSums.scratch_bytes(self.variant.cta_tile, self.warpgroups)
            scratch["zeroed_bytes"] = counters + CutSums.counter_bytes(self.warpgroups)
        if self.variant.traced:
            scratch = tile_trace.SCRATCH_FACTS
        records = tile_scheduler_sm90.RECORD_STAGES if self.variant.schedule == "dynamic" else 0
        return {
            "scratch": scratch,
            "record_stages": records,
            "cluster_k": self.variant.cluster_k,
            "ctas_per_sm": self.variant.ctas_per_sm,
        }

    def arguments(self) -> tuple:
        """Stand-ins for what `__call__` takes: types, majors and alignments without memory."""

        def operand(dtype, contiguous_first: bool):
            sizes = [cute.sym_int(), cute.sym_int(), cute.sym_int()]
            sizes[0 if contiguous_first else 1] = cute.sym_int(divisibility=128 // dtype.width)
            order = (0, 1, 2) if contiguous_first else (1, 0, 2)
            return make_fake_compact_tensor(dtype, tuple(sizes), stride_order=order, assumed_align=16)

        tensors = (
            operand(self.a_dtype, self.a_tiles.is_mn_major),
            operand(self.b_dtype, self.b_tiles.is_mn_major),
            operand(self.d_dtype, self.d_is_m_major),
        )
        d_alignment = RegisterStore.ACCESS_BYTES if self.stores_registers else self.d_dtype.width // 8
        pointers = tuple(
            make_ptr(dtype, 16, cute.AddressSpace.gmem, assumed_align=alignment)
            for dtype, alignment in (
                (self.a_dtype, self.a_dtype.width // 8),
                (self.b_dtype, self.b_dtype.width // 8),
                (self.d_dtype, d_alignment),
                (cutlass.Uint8, 16),
            )
        )
        return (tensors, pointers, Int32(1), Int64(1), make_fake_stream())

    def tiled_mma(self, columns: int) -> cute.TiledMma:
        """A warpgroup's MMA over `columns` of its part of the tile."""
        majors = [
            OperandMajorMode.MN if tiles.is_mn_major else OperandMajorMode.K for tiles in (self.a_tiles, self.b_tiles)
        ]
        shape = (WGMMA_ROWS, columns, 16)
        op = warpgroup.MmaF16BF16Op(self.a_dtype, Float32, shape, warpgroup.OperandSource.SMEM, *majors)
        return cute.make_tiled_mma(cute.make_mma_atom(op), (1, 1, 1))

    def slot_layout(self, slots: int) -> cute.ComposedLayout:
        return epilogue.slot_layout(self.d_dtype, self.d_is_m_major, self.slot_shape, slots)

    def part(self, stages: cute.Tensor, rows: int, index: Int32) -> cute.Tensor:
        """Rows index * rows to (index + 1) * rows of every stage."""
        return cute.local_tile(stages, (rows, self.tile_k, self.stages), (index, 0, 0))

    def tensor_at(self, bytes_: cute.Pointer, dtype, layout: cute.ComposedLayout) -> cute.Tensor:
        """The swizzled tensor that begins at `bytes_`, a multiple of 1024."""
        return cute.make_tensor(cute.recast_ptr(bytes_, layout.inner, dtype=dtype), layout.outer)
