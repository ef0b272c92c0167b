"""The kernels that ship, as data. Each line is one cubin; each family of lines says why it is there."""

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
      split_k: k may be cut into `split_k` parts, summed in a fixed order.
      operand_copies: `tma`, or `elements` for operands of any alignment.
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
    split_k: bool = False
    operand_copies: str = "tma"

    def name(self, stages: int) -> str:
        """The kernel's name, made of its facts."""
        parts = [
            self.family.rstrip("af").replace("_", ""),
            *(SHORT_DTYPES[dtype] for dtype in self.dtypes),
            self.majors,
            "x".join(map(str, self.cta_tile)),
            *(["2sm"] if self.two_sm_mma else []),
            *(["pingpong"] if self.pingpong else []),
            f"c{self.cluster[0]}x{self.cluster[1]}",
            f"s{stages}",
            *(["splitk"] if self.split_k else []),
            *(["elements"] if self.operand_copies == "elements" else []),
            self.schedule,
        ]
        return "_".join(parts)


BF16 = ("bfloat16", "bfloat16", "float32", "bfloat16")
BF16_TO_F32 = ("bfloat16", "bfloat16", "float32", "float32")
F16 = ("float16", "float16", "float32", "float16")
F16_TO_F32 = ("float16", "float16", "float32", "float32")


def hopper(dtypes, majors, cta_tile, cluster, schedule="static", **facts) -> Variant:
    return Variant("sm_90a", dtypes, majors, (*cta_tile, 64), cluster, schedule, **facts)


# Each family of lines says what it is for. Tiles are (m, n), the stage's k is 64: one 128-byte row of the swizzle.
HOPPER = [
    # Large aligned problems: the two tiles with the fewest operand bytes for each multiplication.
    hopper(BF16, "kkn", (128, 256), (2, 1)),
    hopper(BF16, "kkn", (256, 128), (2, 1)),
    hopper(BF16, "kkn", (128, 192), (2, 1), pingpong=True),
    hopper(BF16, "knn", (128, 256), (2, 1)),
    hopper(BF16, "mkn", (128, 256), (1, 2)),
    hopper(BF16, "mnn", (128, 256), (2, 1)),
    hopper(BF16, "kkm", (256, 128), (1, 1)),
    hopper(BF16, "kkn", (128, 128), (1, 1), "nonpersistent"),
    hopper(BF16, "kkn", (64, 256), (1, 1)),
    hopper(BF16_TO_F32, "kkn", (128, 256), (2, 1)),
    hopper(F16, "kkn", (128, 160), (2, 1), pingpong=True),
]

VARIANTS: list[Variant] = [*HOPPER]
