"""What one kernel is: the facts that it is compiled for, and the name made of them."""

from dataclasses import dataclass

SHORT_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "int32": "s32",
}


@dataclass(frozen=True)
class Variant:
    """One kernel to compile.

    Attributes:
      family: compile target, `sm_90a` or `sm_100f`.
      dtypes: NumPy names of (a, b, accumulator, d).
      majors: contiguous axes of a, b and d: `k` or `m`, `k` or `n`, `n` or `m`.
      cta_tile: (m, n, k) elements that one CTA accumulates and takes in one stage.
      cluster: (m, n) CTAs.
      schedule: `nonpersistent`, `static`, `dynamic` or `clc`.
      stages: load stages; 0 takes as many as fit in shared memory.
      pingpong: two consumer warpgroups on a tile each, in turns, instead of both on one.
      two_sm_mma: one MMA over the two CTAs of a pair (Blackwell).
      cluster_k: CTAs of a cluster that compute one tile, a part of k each (Hopper, `nonpersistent`).
      ctas_per_sm: CTAs that an SM holds at once; each has its share of the shared memory and registers (Hopper).
      split_k: k may be cut into `split_k` parts, summed in a fixed order.
      stream_k: workers share out by k tiles what does not fill a round of whole tiles (Hopper, `static` and
        `dynamic`).
      operand_copies: `tma`, or `elements` for operands of any alignment.
      chain_k_tiles: k tiles whose products the tensor core adds up before the sums are added, rounded to nearest, to
        those of the tiles before; 0: all. It truncates, so that short chains are nearer to the exact sum (Hopper).
      output_copies: `tma`, `elements` for a result of any alignment, or `registers` for 16 bytes of a row at a time
        that skip shared memory (Hopper).
      record_stages: work records that may wait for slow readers (Blackwell, `clc`).
      traced: it writes down who computed which tile when (see kernels/tile_trace.py); never for products.
    """

    family: str
    dtypes: tuple[str, str, str, str]
    majors: str
    cta_tile: tuple[int, int, int]
    cluster: tuple[int, int]
    schedule: str
    stages: int = 0
    pingpong: bool = False
    two_sm_mma: bool = False
    cluster_k: int = 1
    ctas_per_sm: int = 1
    split_k: bool = False
    stream_k: bool = False
    operand_copies: str = "tma"
    output_copies: str = "tma"
    chain_k_tiles: int = 0
    record_stages: int = 3
    traced: bool = False

    def name(self, stages: int) -> str:
        """The kernel's name, made of its facts."""
        parts = [
            self.family.rstrip("af").replace("_", ""),
            *(SHORT_DTYPES[dtype] for dtype in self.dtypes),
            self.majors,
            "x".join(map(str, self.cta_tile)),
            *(["2sm"] if self.two_sm_mma else []),
            *(["pingpong"] if self.pingpong else []),
            f"c{self.cluster[0]}x{self.cluster[1]}" + (f"x{self.cluster_k}" if self.cluster_k > 1 else ""),
            f"s{stages}" + (f"r{self.record_stages}" if self.record_stages != 3 else ""),
            *([f"{self.ctas_per_sm}persm"] if self.ctas_per_sm > 1 else []),
            *([f"chains{self.chain_k_tiles}"] if self.chain_k_tiles else []),
            *(["splitk"] if self.split_k else []),
            *(["streamk"] if self.stream_k else []),
            *(["elements"] if self.operand_copies == "elements" else []),
            *([f"{self.output_copies.rstrip('s')}store"] if self.output_copies != self.operand_copies else []),
            self.schedule,
            *(["traced"] if self.traced else []),
        ]
        return "_".join(parts)
