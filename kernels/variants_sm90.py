"""The Hopper kernels that ship, and why. Tiles are (m, n); a stage takes 64 of k: one 128-byte line of the swizzle.

Where a problem is computed transposed (majors `..m`), a is the caller's b, and m its n.
"""

from kernels.variant import Variant

BF16 = ("bfloat16", "bfloat16", "float32", "bfloat16")
BF16_TO_F32 = ("bfloat16", "bfloat16", "float32", "float32")
F16 = ("float16", "float16", "float32", "float16")
F16_TO_F32 = ("float16", "float16", "float32", "float32")
ALL_DTYPES = (BF16, F16, BF16_TO_F32, F16_TO_F32)
MAJORS = ("kkn", "knn", "mkn", "mnn")
TRANSPOSED = ("kkm", "mkm")  # the caller's a is row-major, as activations are


def hopper(dtypes, majors, cta_tile, cluster=(1, 1), schedule="static", **facts) -> Variant:
    return Variant("sm_90a", dtypes, majors, (*cta_tile, 64), cluster, schedule, **facts)


def turns(dtypes, majors, schedule="static", width=192, **facts) -> Variant:
    """Ping-pong, in clusters that share the wider operand."""
    return hopper(dtypes, majors, (128, width), (2, 1), schedule, pingpong=True, **facts)


# Large aligned problems, in whole tiles: what fills its rounds of workers, or has too few of them to be cut. 128x256
# takes the fewest operand bytes for each multiplication; ping-pong hides the epilogue, which counts where k is short.
LARGE = [
    *(hopper(BF16, majors, (128, 256), (2, 1)) for majors in MAJORS),
    *(turns(BF16, majors) for majors in MAJORS),
    *(turns(BF16, majors, width=128) for majors in MAJORS),
    hopper(BF16, "knn", (256, 128), (2, 1)),  # batches with 128 columns of D, where reading A is most of the work
    *(turns(F16, majors, width=128) for majors in ("kkn", "knn")),
    *(hopper(F16, majors, (128, 256), (2, 1)) for majors in MAJORS),
    *(hopper(BF16_TO_F32, majors, (128, 256), (2, 1)) for majors in MAJORS),
    *(hopper(F16_TO_F32, majors, (128, 256), (2, 1)) for majors in MAJORS),
]

# Large aligned problems, the last round cut by k tiles. Ping-pong hides the meetings of the parts; narrow tiles keep
# what workers at different k read in L2. Under the power limit the shapes lie within 2% of each other, and which is
# first changes with the problem.
STREAM_K = [
    *(
        turns(BF16, majors, schedule, width=128, stream_k=True)
        for majors in MAJORS
        for schedule in ("static", "dynamic")
    ),
    *(turns(BF16, majors, schedule, stream_k=True) for majors in MAJORS for schedule in ("static", "dynamic")),
    *(turns(BF16, majors, width=144, stream_k=True) for majors in ("kkn", *TRANSPOSED)),
    *(hopper(BF16, majors, (64, 256), (2, 1), "dynamic", pingpong=True, stream_k=True) for majors in MAJORS),
    *(turns(F16, majors, "dynamic", width=128, stream_k=True) for majors in MAJORS),
    *(turns(BF16_TO_F32, majors, "dynamic", stream_k=True) for majors in MAJORS),
]

# Tiles claimed at run time, whole: short k, where the output is most of the work.
DYNAMIC = [*(hopper(BF16, majors, (128, 256), (2, 1), "dynamic") for majors in MAJORS)]

# One cluster for each tile: the same body without persistence, to compare with; and one CTA, which takes 0.8 us less
# than a cluster does: what a single wave of 128x256 tiles computes.
NONPERSISTENT = [
    *(hopper(BF16, majors, (128, 256), (1, 1), "nonpersistent") for majors in ("kkn", "knn")),
    hopper(BF16, "kkn", (128, 256), (2, 1), "nonpersistent"),
    hopper(BF16, "knn", (128, 256), (2, 1), "nonpersistent"),
    hopper(BF16, "kkn", (128, 128), (1, 1), "nonpersistent"),
]

# Small problems take as long as one tile does, start and end included: small tiles, and no more stages than k fills.
# 128x64 also comes for operands whose rows lie along k, under THIN.
SMALL = [
    # Short tiles: latency is all, so results leave from the registers.
    *(
        hopper(BF16, majors, (64, width), (1, 1), "nonpersistent", stages=4, output_copies="registers")
        for width in (64, 32)
        for majors in MAJORS
    ),
    *(hopper(BF16, majors, (128, 64), (1, 1), "nonpersistent", stages=6) for majors in ("mkn", "mnn")),
]

# Few tiles and long k: parts of k are separate work. Wide tiles read less; clusters add their parts up on chip first,
# so that fewer sums meet in global memory; 128x64 is for parts that XLA adds up. Results of 32 bits show where the
# tensor core truncates: chains of k tiles.
LONG_K = [
    *(hopper(BF16_TO_F32, majors, (128, 64), (1, 2), "nonpersistent", chain_k_tiles=4) for majors in ("kkn", "knn")),
    *(
        hopper(dtypes, majors, tile, (1, 1), "nonpersistent", cluster_k=4, split_k=True)
        for dtypes, tiles in ((BF16, ((128, 128), (64, 64))), (F16, ((128, 128),)))
        for tile in tiles
        for majors in MAJORS
    ),
    *(
        hopper(dtypes, majors, (128, 128), (1, 1), "nonpersistent", cluster_k=2, split_k=True, chain_k_tiles=2)
        for dtypes in (BF16_TO_F32, F16_TO_F32)
        for majors in MAJORS
    ),
]

# Thin problems are bound by the copy of the wide operand: many stages, a narrow tile, and enough CTAs to fill the
# memory's bandwidth: by parts of k in a cluster where n is short, by two CTAs on an SM, of which one copies while the
# other starts or stores; by 256 rows where n is so long that narrower tiles would leave a second, emptier wave.
THIN = [
    *(
        hopper(dtypes, majors, (64, 16), (1, 1), "nonpersistent", cluster_k=2, ctas_per_sm=2)
        for dtypes in (BF16, F16)
        for majors in TRANSPOSED
    ),
    *(hopper(BF16, majors, (128, width), (1, 1), "nonpersistent") for majors in TRANSPOSED for width in (16, 64)),
    *(hopper(BF16, majors, (256, 16), (1, 1), "nonpersistent") for majors in TRANSPOSED),
    *(
        hopper(dtypes, majors, (128, 64), (1, 1), "nonpersistent", cluster_k=2)
        for dtypes in (BF16, F16)
        for majors in TRANSPOSED
    ),
    *(hopper(BF16, majors, (64, 128), (1, 1), "nonpersistent", cluster_k=2) for majors in TRANSPOSED),
    *(hopper(BF16, majors, (128, 128), (1, 1), "nonpersistent", cluster_k=2) for majors in ("kkn", "knn")),
]

# What TMA cannot address. `elements`: operands of any alignment, for pointers that turn out unaligned at run time, so
# there is one for all dtypes and majors. `elementstore`: padded operands, a result of any alignment; 192x176 tiles fill
# other last waves than 128x256: 132 of them, one for each SM, make 2050 x 2050.
UNALIGNED = [
    *(
        hopper(dtypes, majors, (128, 128), operand_copies="elements", output_copies="elements")
        for dtypes in ALL_DTYPES
        for majors in MAJORS
    ),
    *(turns(dtypes, majors, output_copies="elements") for dtypes in (BF16, F16) for majors in MAJORS),
    *(hopper(BF16, majors, (192, 176), (1, 2), output_copies="elements") for majors in ("kkn", "knn")),
]

HOPPER = [*LARGE, *STREAM_K, *DYNAMIC, *NONPERSISTENT, *SMALL, *LONG_K, *THIN, *UNALIGNED]
