"""The problems on which every kernel must be exact on a GPU, each with what it is there to catch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jax_clc.planning import GemmProblem, catalog, plan
from jax_clc.planning.catalog import Kernel

SM_LIMITS = (None, 8, 131)
"""Case 11: a limit far below and just below what an H200 has."""


class Sizes(NamedTuple):
    """One problem in the caller's terms; `open_cases` are the faults of others that it stands for."""

    m: int
    n: int
    k: int
    batch: int = 1
    open_cases: tuple[int, ...] = ()


EVERY_KERNEL = (
    Sizes(1, 8, 8),  # one row, one chunk of 16 bytes
    Sizes(256, 256, 256),
    Sizes(16, 104, 56, open_cases=(12, 13)),  # n = 8 mod 16, less than one k step
    Sizes(136, 264, 1152, open_cases=(9, 12)),  # just above a tile in m and n
    Sizes(304, 520, 1000, batch=3),  # tails in every axis, and batch
    Sizes(512, 4096, 1024, open_cases=(6,)),
    Sizes(1664, 1280, 1024, open_cases=(7,)),  # raster groups do not divide the grid
    Sizes(8192, 4096, 64, open_cases=(10,)),  # one k step, many tiles for each worker, a D that L2 cannot hold
    Sizes(16384, 512, 320, open_cases=(8,)),  # an odd number of k steps
    Sizes(248, 264, 16384),  # fewer tiles than workers, long k
    Sizes(4104, 4616, 3200),  # stream-K: shares of less than a tile, tiles cut twice
    Sizes(2056, 2312, 1000),  # stream-K: shares of more than a tile
)
"""What each kernel that ships runs, pinned by name."""

ANY_KERNEL = (
    *(Sizes(size, size, 1024, open_cases=(7,)) for size in (1152, 1280, 1536, 1664, 2560)),
    *(Sizes(256, 256, k, open_cases=(12,)) for k in (24, 40, 56, 1152)),
    *(Sizes(16, n, 512, open_cases=(13,)) for n in (24, 40, 56, 72, 104)),
    *(Sizes(128, 128, k, open_cases=(15,)) for k in (1, 7, 65, 100)),
    *(Sizes(128, n, 128, open_cases=(15,)) for n in (1, 7, 65, 100)),
    *(Sizes(m, 128, 128) for m in (1, 7, 65, 100)),
    *(Sizes(m, 512, 4096) for m in (1, 3, 16, 64, 65, 127, 128)),
    Sizes(1, 1, 1),
    Sizes(1, 1, 4096),
    Sizes(1, 4097, 33),
    Sizes(513, 1, 513),
    Sizes(511, 257, 129, batch=5),
    Sizes(64, 64, 64, batch=300),
    Sizes(130, 514, 66, batch=2),
    Sizes(2050, 2050, 2050),
    Sizes(4097, 511, 1023),
    Sizes(256, 256, 65536),
)
"""What `matmul` must get right by whatever kernel the planner takes, for every pair of majors."""

MAJORS = (("k", "n"), ("k", "k"), ("m", "n"), ("m", "k"))
DTYPES = (("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float16"), ("float16", "float32"))


def problem_of(kernel: Kernel, sizes: Sizes) -> GemmProblem:
    """The caller's problem of these sizes that `kernel` has the dtypes and majors for."""
    a_major, b_major = kernel.a_major, kernel.b_major
    if kernel.swapped:  # its a is the caller's b
        a_major = {"k": "k", "n": "m"}[kernel.b_major]
        b_major = {"k": "k", "m": "n"}[kernel.a_major]
    return GemmProblem.compact(
        sizes.m, sizes.n, sizes.k, batch=sizes.batch, dtype=kernel.a_dtype, out_dtype=kernel.out_dtype,
        a_major=a_major, b_major=b_major,
    )  # fmt: skip


def pinned_cases(family: str) -> Iterator[tuple[GemmProblem, str, int | None]]:
    """(problem, kernel, sm_limit), alike problems next to each other so that their exact results are made once."""
    kernels = [kernel for kernel in catalog.kernels(family) if not kernel.traced]
    for sizes in EVERY_KERNEL:
        alike = sorted(kernels, key=lambda kernel: (str(problem_of(kernel, sizes)), kernel.name))
        for index, kernel in enumerate(alike):
            limited = kernel.schedule in ("static", "dynamic")
            sm_limit = SM_LIMITS[index % len(SM_LIMITS)] if limited else None
            problem = problem_of(kernel, sizes)
            if 1 in (sizes.m, sizes.n) and "k" != problem.a_major:
                continue  # a single row has no second axis to be contiguous along: such operands are k-major
            try:
                made = plan(problem, kernel=kernel.name, sm_limit=sm_limit)
            except ValueError:  # sizes that this kernel's copies cannot take: the planner's tests say which and why
                continue
            if family in made.choices:
                yield problem, kernel.name, sm_limit


def chosen_cases() -> Iterator[GemmProblem]:
    """Every problem of ANY_KERNEL for every pair of majors, dtypes taken in turn."""
    for index, sizes in enumerate(ANY_KERNEL):
        for turn, (a_major, b_major) in enumerate(MAJORS):
            dtype, out_dtype = DTYPES[(index + turn) % len(DTYPES)]
            yield GemmProblem.compact(
                sizes.m, sizes.n, sizes.k, batch=sizes.batch, dtype=dtype, out_dtype=out_dtype,
                a_major=a_major, b_major=b_major,
            )  # fmt: skip
