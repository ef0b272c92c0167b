"""`jax-clc demo`: multiplies two matrices with `jax_clc.matmul` under jit, checks the result, says what ran.

Without a GPU the same program runs on the CPU and says what it did instead.
"""

from __future__ import annotations

import argparse
import time

from jax_clc.cli.problem_arguments import positive
from jax_clc.planning import GemmProblem


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("demo", help="multiply two matrices, check, say what ran", description=__doc__)
    parser.add_argument(
        "--size", type=positive, metavar="N", help="rows and columns (default 4096, without a GPU 512)"
    )
    return parser


def main(args: argparse.Namespace) -> int:
    """Status 0 if the result is exact."""
    import jax

    import jax_clc
    from jax_clc.bench.check import Inexact, check_exact
    from jax_clc.bench.environment import plan_here, running_family

    family = running_family()
    size = args.size or (512 if family is None else 4096)
    problem = GemmProblem.compact(size, size, size)
    product = jax.jit(jax_clc.matmul)
    try:
        check_exact("jax_clc.matmul", problem, product)
    except Inexact as error:
        print(f"WRONG: {error}")
        return 1

    print(f"jax.jit(jax_clc.matmul) on {jax.devices()[0].device_kind}")
    a = jax.random.normal(jax.random.key(0), (size, size), "bfloat16")
    jax.block_until_ready(product(a, a))
    start = time.perf_counter()
    jax.block_until_ready(product(a, a))
    wall_us = (time.perf_counter() - start) * 1e6
    made = plan_here(problem)
    here = None if family is None else made.choices.get(family)
    if here is not None:
        print(f"ran: kernel {here.kernel}")
    elif family is None:
        print("ran: lax.dot_general, as this is no device that kernels are built for")
    else:
        print(f"ran: lax.dot_general, as {made.fallback_reason or made.unserved.get(family)}")
    print(f"result: exact ({size} x {size} sums of integers, compared for equality)")
    print(f"wall time of one call: {wall_us:.0f} us")
    print(f"\nThe plan, for any device this program may be moved to:\n\n{made}")
    return 0
