"""Traced builds, one for each schedule of a family, alike in all else: for pictures, not for products."""

from kernels.variant import Variant

BF16 = ("bfloat16", "bfloat16", "float32", "bfloat16")

TRACED = [
    *(
        Variant("sm_90a", BF16, "knn", (128, 256, 64), (2, 1), schedule, traced=True)
        for schedule in ("nonpersistent", "static", "dynamic")
    ),
    *(
        Variant("sm_100f", BF16, "knn", (128, 256, 64), (2, 1), schedule, two_sm_mma=True, traced=True)
        for schedule in ("nonpersistent", "static", "clc")
    ),
]
