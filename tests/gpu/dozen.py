"""A dozen products, one of each kind of kernel, to run under a checker of memory and barriers:

    compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 python tests/gpu/dozen.py
    compute-sanitizer --tool synccheck --report-api-errors no --error-exitcode 9 python tests/gpu/dozen.py

The loader asks the driver for one parameter more than a kernel has, to learn that there is none: an API error.

References are made on the host, so that the checker watches our kernels and little else.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from cases import Sizes, problem_of

import jax_clc
from jax_clc.bench.environment import running_family
from jax_clc.bench.operands import on_stored, stored_shapes
from jax_clc.planning import catalog
from jax_clc.planning.catalog import Kernel

SIZES = (Sizes(304, 520, 136, batch=2), Sizes(1, 264, 72), Sizes(2304, 1032, 200))
MANY_TILES = Sizes(2056, 2312, 1000)  # more than workers: some are cut, or follow one another; each fills all stages
KERNELS = 12


def kinds(family: str) -> list[Kernel]:
    """Kernels that differ in more than dtypes and majors, those with the rarest traits first."""
    found: dict[tuple[object, ...], Kernel] = {}
    for kernel in catalog.kernels(family):
        if not kernel.traced and kernel.a_dtype == "bfloat16":
            traits = (kernel.schedule, kernel.pingpong, kernel.split_k, kernel.stream_k, kernel.cluster,
                      kernel.cta_tile[0], kernel.swapped, kernel.aligned_operands,
                      kernel.entry["output_copies"])  # fmt: skip
            found.setdefault(traits, kernel)
    counts = {trait: sum(trait == traits for traits in found) for trait in found}
    chosen: list[Kernel] = []
    seen: set[object] = set()
    for traits, kernel in sorted(found.items(), key=lambda item: (counts[item[0]], item[1].name)):
        if not set(enumerate(traits)) <= seen:  # it shows a trait that none before it has shown
            seen |= set(enumerate(traits))
            chosen.append(kernel)
    chosen += [kernel for kernel in found.values() if kernel not in chosen]
    return chosen[:KERNELS]


def main() -> int:
    family = running_family()
    if family is None:
        print("no GPU that kernels ship for")
        return 2
    failed, ran = [], 0
    for number, kernel in enumerate(kinds(family)):
        problem = problem_of(kernel, MANY_TILES if kernel.pingpong else SIZES[number % len(SIZES)])
        rng = np.random.default_rng(number)
        a, b = (rng.integers(-3, 4, shape).astype(problem.a_dtype) for shape in stored_shapes(problem))
        product = on_stored(problem, lambda a, b, k=kernel, p=problem: jax_clc.matmul(
            a, b, kernel=k.name, preferred_element_type=p.out_dtype))  # fmt: skip
        try:
            result = np.asarray(jax.jit(product)(a, b), np.float32)
        except ValueError as error:
            print(f"NOT RUN {kernel.name}: {str(error).splitlines()[0]}")
            continue
        reference = on_stored(problem, jnp.matmul)
        with jax.default_device(jax.devices("cpu")[0]):
            expected = np.asarray(
                reference(a.astype(np.float32), b.astype(np.float32)).astype(problem.out_dtype), np.float32
            )
        ran += 1
        right = np.array_equal(result, expected)
        print("exact" if right else "WRONG", kernel.name, str(problem).splitlines()[0], flush=True)
        failed += [] if right else [kernel.name]
    print(f"{ran} kernels ran, {len(failed)} wrong")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
