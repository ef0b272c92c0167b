"""The Hopper kernels that ship, and why."""

from kernels.variant import Variant

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
    hopper(BF16, "kkn", (128, 256), (1, 2)),
    hopper(BF16, "kkn", (256, 128), (2, 1)),
    hopper(BF16, "kkn", (256, 128), (1, 2)),
    hopper(BF16, "kkn", (128, 192), (2, 1), pingpong=True),
    hopper(BF16, "kkn", (128, 192), (1, 2), pingpong=True),
    hopper(BF16, "kkn", (128, 160), (2, 1), pingpong=True),
    hopper(BF16, "kkn", (128, 128), (2, 1), pingpong=True),
    hopper(BF16, "kkn", (192, 128), (2, 1), pingpong=True),
    hopper(BF16, "kkn", (256, 192), (2, 1)),
    hopper(BF16, "kkn", (256, 160), (2, 1)),
    hopper(BF16, "knn", (128, 256), (2, 1)),
    hopper(BF16, "knn", (256, 128), (2, 1)),
    hopper(BF16, "mkn", (128, 256), (1, 2)),
    hopper(BF16, "mnn", (128, 256), (2, 1)),
    hopper(BF16, "kkm", (256, 128), (1, 1)),
    hopper(BF16, "kkn", (128, 128), (1, 1), "nonpersistent"),
    hopper(BF16, "kkn", (64, 256), (1, 1)),
    hopper(BF16_TO_F32, "kkn", (128, 256), (2, 1)),
    hopper(BF16, "kkn", (128, 256), (2, 1), "dynamic"),
    hopper(BF16, "kkn", (128, 192), (2, 1), "dynamic", pingpong=True),
    hopper(BF16, "kkn", (128, 128), (1, 1), split_k=True),
    hopper(BF16, "kkn", (64, 128), (1, 1), split_k=True),
    hopper(BF16, "kkn", (128, 128), (1, 1), operand_copies="elements", output_copies="elements"),
    hopper(BF16, "mnn", (128, 128), (1, 1), operand_copies="elements", output_copies="elements"),
    hopper(BF16_TO_F32, "kkm", (128, 128), (1, 1), operand_copies="elements", output_copies="elements"),
    hopper(BF16, "kkn", (128, 192), (2, 1), output_copies="elements", pingpong=True),
    hopper(F16, "kkn", (128, 160), (2, 1), pingpong=True),
    # Tile traces: one of each schedule, alike in all else.
    hopper(BF16, "knn", (128, 256), (2, 1), "nonpersistent", traced=True),
    hopper(BF16, "knn", (128, 256), (2, 1), "static", traced=True),
    hopper(BF16, "knn", (128, 256), (2, 1), "dynamic", traced=True),
]
