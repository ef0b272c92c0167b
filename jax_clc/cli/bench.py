"""`jax-clc bench`: checks exactness first, then times against jnp.dot, interleaved, on random normal data.

On a CUDA device times are device times from CUPTI; elsewhere wall times of what runs instead of the kernels.
"""

from __future__ import annotations

import argparse
import json

from jax_clc.cli import problem_arguments
from jax_clc.cli.output_arguments import output_file, picture_file
from jax_clc.cli.progress import ProgressLine

DEFAULT_SIZES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096))
DEFAULT_SIZES_WITHOUT_GPU = ((256, 256, 256), (512, 512, 512))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("bench", help="check, then time against jnp.dot", description=__doc__)
    parser.add_argument(
        "sizes", type=int, nargs="*", metavar="M N K", help="one or more triples (default: a few sizes)"
    )
    problem_arguments.add_type_arguments(parser)
    problem_arguments.add_choice_arguments(parser)
    parser.add_argument("--peers", nargs="*", default=["jnp.dot"], choices=("jnp.dot", "jnp.dot padded", "pallas"))
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--timer", default="auto", choices=("auto", "cupti", "wall"))
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results")
    parser.add_argument("--png", type=picture_file, metavar="FILE", help="draw the results (needs matplotlib)")
    return parser


def main(args: argparse.Namespace) -> int:
    """Status 1 if a result is not exact: nothing is timed then; 2 if ours ran none of the problems as requested."""
    if len(args.sizes) % 3:
        raise ValueError(f"sizes come as M N K triples; got {len(args.sizes)} numbers")
    from jax_clc.bench import results
    from jax_clc.bench.check import Inexact
    from jax_clc.bench.contestants import NotApplicable
    from jax_clc.bench.device_timer import timer
    from jax_clc.bench.environment import environment, running_family
    from jax_clc.bench.measure import measure
    from jax_clc.bench.race import Effort

    family = running_family()
    clock = timer(args.timer)
    sizes = list(zip(args.sizes[::3], args.sizes[1::3], args.sizes[2::3], strict=True))
    sizes = sizes or list(DEFAULT_SIZES if family else DEFAULT_SIZES_WITHOUT_GPU)
    request = {"schedule": args.schedule, "kernel": args.kernel, "sm_limit": args.sm_limit}
    line = ProgressLine(len(sizes))
    rows = []
    for m, n, k in sizes:
        problem = problem_arguments.problem_of(argparse.Namespace(**{**vars(args), "m": m, "n": n, "k": k}))
        line.start(f"{m} x {n} x {k}")
        try:
            rows.append(measure(
                problem, clock, effort=Effort.quick() if args.quick else Effort(), peers=args.peers,
                requests={results.OURS: request}, progress=line.detail,
            ))  # fmt: skip
        except Inexact as error:
            print(f"\nWRONG, nothing timed: {error}")
            return 1
        except NotApplicable as error:
            print(f"\nskipped: {error}")
        line.finish()
    found = environment(clock.name)
    what = "device time" if clock.name == "cupti" else "wall time"
    print(f"{found['device']}, jax {found['packages'].get('jax')}")
    if family is None:
        print("no device that kernels are built for: both columns are\nlax.dot_general")
    print(f"median {what} of interleaved calls, each exact;\nratio above 1: ours is faster\n")
    print(results.table(rows))
    for row in rows:
        for name, reason in row["skipped"].items():
            print(f"\n{results.label(row)}: {name} did not run: {reason}")
    content = {"format": results.RESULTS_FORMAT, "set": "bench", "environment": found, "rows": rows}
    if args.json:
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"written: {args.json}")
    if args.png:
        from jax_clc.bench import plots

        plots.save_rows(rows, args.png, title=f"{found['device']}: {what}")
        print(f"written: {args.png}")
    return 0 if any(results.OURS in row["contestants"] for row in rows) else 2
