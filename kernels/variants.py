"""The kernels that ship, as data. Each line is one cubin; each family of lines says why it is there."""

from kernels.variant import Variant
from kernels.variants_sm100 import BLACKWELL

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

VARIANTS: list[Variant] = [*HOPPER, *BLACKWELL]
