"""`python -m benchmarks.endurance`: the same products again and again while SMs are held; every bit equal each time.

Results are compared on the device, against the first, which is checked for exactness. The loop alternates between two
operand sets, so that no result can be left over from the repeat before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import suite
from benchmarks.run import write
from jax_clc.bench import contestants, results
from jax_clc.bench.check import ExactCheck, Inexact
from jax_clc.bench.environment import environment
from jax_clc.bench.measure import kernel_here
from jax_clc.bench.operands import Product, random_sets
from jax_clc.bench.sm_holder import SmHolder
from jax_clc.cli.progress import ProgressLine
from jax_clc.planning import GemmProblem

SHAPES = (
    (2048, 2048, 2048, "kn"), (1920, 2176, 1024, "kk"), (4096, 1024, 512, "kn"), (1024, 4096, 512, "mn"),
    (1152, 1152, 1024, "kn"), (1280, 1280, 1024, "kn"), (1536, 1536, 1024, "kn"), (1664, 1664, 1024, "kn"),
    (2560, 2560, 256, "kn"), (16384, 512, 448, "kn"), (16, 4096, 4096, "kn"), (64, 8192, 1024, "kk"),
    (128, 4096, 2048, "kn"), (512, 512, 16384, "kn"), (1000, 1000, 1000, "kn"), (1025, 1032, 520, "mk"),
    (3000, 1016, 264, "kn"), (640, 10240, 64, "kn"), (10240, 640, 128, "kk"), (1, 8192, 512, "kn"),
)  # fmt: skip
SCHEDULES = ("static", "dynamic", "nonpersistent", "clc")
REPEATS, HELD_SMS = 2000, 16


def repeater(product: Product, sets: list[tuple[jax.Array, jax.Array]], repeats: int) -> Callable[[], int]:
    """A function that gives how many repeats had other bits than the first product of the same operands.

    One program, counting on the device.
    """
    a, b = (jnp.stack(operand) for operand in zip(*sets, strict=True))
    first = jnp.stack([product(*operands) for operands in sets])

    @jax.jit
    def run(a: jax.Array, b: jax.Array, first: jax.Array) -> jax.Array:
        def repeat(i: jax.Array, count: jax.Array) -> jax.Array:
            turn = i % len(sets)
            result = product(a[turn], b[turn])
            same = jax.lax.bitcast_convert_type(result, jnp.uint16) == jax.lax.bitcast_convert_type(
                first[turn], jnp.uint16
            )
            return count + jnp.where(jnp.all(same), 0, 1)

        return jax.lax.fori_loop(0, repeats, repeat, 0)

    return lambda: int(run(a, b, first))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--held", type=int, default=HELD_SMS, metavar="S", help="SMs held by other work meanwhile")
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=SCHEDULES)
    parser.add_argument("--out", type=Path, default=suite.RESULTS_FOLDER / "endurance.json")
    args = parser.parse_args(argv)
    suite.require_device(parser)
    content: dict[str, Any] = {
        "format": results.RESULTS_FORMAT, "set": "endurance", "environment": environment("wall"), "rows": [],
        "command": f"python -m benchmarks.endurance {' '.join(sys.argv[1:])}".strip(), "repeats": args.repeats,
        "held_sms": args.held,
    }  # fmt: skip
    holder = SmHolder() if args.held else None
    line, status = ProgressLine(len(SHAPES)), 0
    for m, n, k, majors in SHAPES:
        problem = GemmProblem.compact(m, n, k, a_major=majors[0], b_major=majors[1])
        data = {"m": m, "n": n, "k": k, "majors": majors}
        line.start(results.label(data))
        sets, check = random_sets(problem, 2), ExactCheck(problem)
        for schedule in args.schedules:
            line.detail(schedule)
            try:
                product = contestants.ours(problem, schedule=schedule)
                check(schedule, product)
            except (contestants.NotApplicable, ValueError):
                continue
            except Inexact as error:
                print(f"FAILED {error}")
                status = 1
                continue
            count_differing = repeater(product, sets, args.repeats)
            started = time.monotonic()
            # First on the quiet device: so everything is compiled and loaded before SMs are held.
            count = count_differing()
            if holder is not None:
                with holder.holding(args.held):
                    count += count_differing()
            kernel = kernel_here(problem, {"schedule": schedule})
            content["rows"].append({**data, "schedule": schedule, "kernel": kernel, "differing": count})
            if count:
                print(f"FAILED {results.label(data)} {schedule}: {count} of {args.repeats} repeats differ ({kernel})")
                status = 1
            line.detail(f"{schedule} {time.monotonic() - started:.1f} s")
        line.finish()
        write(args.out, content)
    wrong = sum(row["differing"] != 0 for row in content["rows"])
    print(
        f"{len(content['rows'])} shapes and schedules, {args.repeats} repeats each on the quiet device and with "
        f"{args.held} SMs held by other work: {wrong} with a repeat that differs"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
