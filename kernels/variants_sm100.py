"""The Blackwell kernels that ship, in families; each family says why it is there.

No Blackwell GPU has run them: the choice follows what is known of the machine (docs/how_a_tile_finds_its_worker.md, and
public numbers for kernels of this kind), and each kernel must win somewhere once one is measured, or go.
"""

from dataclasses import dataclass
from itertools import product

from kernels.variant import Variant

BF16 = ("bfloat16", "bfloat16", "float32", "bfloat16")
BF16_TO_F32 = ("bfloat16", "bfloat16", "float32", "float32")
F16 = ("float16", "float16", "float32", "float16")
F16_TO_F32 = ("float16", "float16", "float32", "float32")

SCHEDULES = ("clc", "static", "nonpersistent")
MAJORS = ("kkn", "knn", "mkn", "mnn")


@dataclass(frozen=True)
class Family:
    """Kernels that are there for one reason."""

    reason: str
    variants: tuple[Variant, ...]


def variant(dtypes, majors, cta_n, cluster, schedule, **facts) -> Variant:
    return Variant("sm_100f", dtypes, majors, (128, cta_n, 64), cluster, schedule, **facts)


def pair(dtypes, majors, cta_n, schedule="clc", cluster=(2, 1)) -> Variant:
    """A two-SM MMA: the pair covers 256 x `cta_n`."""
    return variant(dtypes, majors, cta_n, cluster, schedule, two_sm_mma=True)


def single(dtypes, majors, cta_n, schedule="clc", cluster=(1, 1)) -> Variant:
    """A one-SM MMA: the CTA covers 128 x `cta_n`."""
    return variant(dtypes, majors, cta_n, cluster, schedule, two_sm_mma=False)


FAMILIES = (
    Family(
        "The large tile, 256x256 on a pair: the fewest operand bytes from shared memory for each multiplication, so the"
        " fastest where there are waves to fill. All operand majors, because a product, its gradients and x @ w.T need"
        " each of them; all three schedules, because their comparison is what this project is for.",
        (
            *(pair(BF16, majors, 256, schedule) for majors, schedule in product(MAJORS, ("clc", "static"))),
            *(pair(BF16, majors, 256, "nonpersistent") for majors in ("kkn", "knn")),
        ),
    ),
    Family(
        "256x128 on a pair: half the tile, for problems that the large tile would leave a part of a wave short, and for"
        " n of at most 128. One tile per CTA is left to the two ends.",
        tuple(pair(BF16, majors, 128, schedule) for majors, schedule in product(MAJORS, ("clc", "static"))),
    ),
    Family(
        "128x128 on one SM: small problems, where every SM should have a tile of its own and no partner to wait for.",
        (
            *(single(BF16, majors, 128, schedule) for majors, schedule in product(MAJORS, ("clc", "static"))),
            *(single(BF16, majors, 128, "nonpersistent") for majors in ("kkn", "knn")),
        ),
    ),
    Family(
        "128x64 and 128x32 on one SM: few rows and many weights, as in decoding. Such a product is bound by reading B,"
        " so its columns must be spread over all SMs; rows of A beyond m cost no traffic. And problems smaller still.",
        (
            *(single(BF16, majors, n) for n in (64, 32) for majors in ("kkn", "knn")),
            *(single(BF16, majors, 32, "nonpersistent") for majors in ("kkn", "knn")),
            *(single(F16, majors, 32) for majors in ("kkn", "knn")),
            single(BF16_TO_F32, "knn", 32),
        ),
    ),
    Family(
        "128x256 on one SM: as much accumulator in an SM as the large tile, without the even number of SMs that pairs"
        " need.",
        (single(BF16, "kkn", 256), single(BF16, "kkn", 256, "static"), single(BF16, "knn", 256)),
    ),
    Family(
        "Wider clusters, for shapes whose operands do not stay in L2: a multicast reads each operand tile once for two"
        " or four CTAs. They wait for each other at every stage, so they must earn it; both MMAs, to find out where.",
        (
            pair(BF16, "kkn", 256, cluster=(4, 1)),
            pair(BF16, "kkn", 256, cluster=(2, 2)),
            pair(BF16, "kkn", 256, "static", cluster=(4, 1)),
            pair(BF16, "knn", 256, cluster=(4, 1)),
            pair(BF16, "kkn", 128, cluster=(4, 1)),
            single(BF16, "kkn", 256, cluster=(2, 1)),
            single(BF16, "kkn", 128, cluster=(1, 2)),
            single(BF16, "kkn", 128, cluster=(2, 2)),
            single(BF16, "kkn", 128, cluster=(4, 1)),
        ),
    ),
    Family(
        "float16: the same machine speed, so the tiles of the two ends; static where SMs are to be left to others.",
        (
            *(pair(F16, majors, 256, schedule) for majors, schedule in product(MAJORS, ("clc", "static"))),
            *(single(F16, majors, 128) for majors in MAJORS),
        ),
    ),
    Family(
        "float32 out, for preferred_element_type and gradients that are summed: an epilogue of twice the bytes.",
        (
            *(pair(BF16_TO_F32, majors, 256, schedule) for majors, schedule in product(MAJORS, ("clc", "static"))),
            *(single(BF16_TO_F32, majors, 128) for majors in MAJORS),
            *(pair(F16_TO_F32, majors, 256, schedule) for majors, schedule in product(MAJORS, ("clc", "static"))),
        ),
    ),
)

BLACKWELL: tuple[Variant, ...] = tuple(variant for family in FAMILIES for variant in family.variants)
