"""`jax-clc bench`: checks exactness first, then times against jnp.dot, interleaved, on random data.

On a CUDA device times are device times from CUPTI; elsewhere wall times of what runs instead of the kernels.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from jax_clc.cli import problem_arguments
from jax_clc.cli.output_arguments import output_file, picture_file
from jax_clc.cli.progress import ProgressLine

DEFAULT_SIZES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096))
DEFAULT_SIZES_WITHOUT_GPU = ((256, 256, 256), (512, 512, 512))
MAX_REASON = 2000  # characters: an allocator that is out of memory may list all that it holds


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("bench", help="check, then time against jnp.dot", description=__doc__)
    parser.add_argument(
        "sizes", type=problem_arguments.axis_size, nargs="*", metavar="M N K",
        help="one or more triples (default: a few sizes)",
    )  # fmt: skip
    problem_arguments.add_type_arguments(parser)
    problem_arguments.add_choice_arguments(parser)
    parser.add_argument("--peers", nargs="*", default=["jnp.dot"], choices=("jnp.dot", "jnp.dot padded", "pallas"))
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--timer", default="auto", choices=("auto", "cupti", "wall"))
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results")
    parser.add_argument("--png", type=picture_file, metavar="FILE", help="draw the results (needs matplotlib)")
    return parser


def main(args: argparse.Namespace) -> int:
    """Status 1 if a result is not exact; 2 if a problem could not be measured, or if ours ran none as requested.

    What fails leaves out its own problem alone: the others are measured, printed and written.
    """
    if len(args.sizes) % 3:
        raise ValueError(f"sizes come as M N K triples; got {len(args.sizes)} numbers")
    from jax_clc.bench import results
    from jax_clc.bench.device_timer import timer
    from jax_clc.bench.environment import environment, running_family

    family = running_family()
    clock = timer(args.timer)
    sizes = list(zip(args.sizes[::3], args.sizes[1::3], args.sizes[2::3], strict=True))
    sizes = sizes or list(DEFAULT_SIZES if family else DEFAULT_SIZES_WITHOUT_GPU)
    rows, failed, exact = measured(args, sizes, clock)
    found = environment(clock.name)
    what = "device time" if clock.name == "cupti" else "wall time"
    print(f"{found['device']}, jax {found['packages'].get('jax')}")
    if rows:
        if family is None:
            print("no device that kernels are built for: both columns are\nlax.dot_general")
        print(f"median {what} of interleaved calls, each exact;\nratio above 1: ours is faster\n")
        print(results.table(rows))
    for row in rows:
        for name, reason in row["skipped"].items():
            print(f"\n{results.label(row)}: {name} did not run: {reason}")
    for failure in failed:
        print(f"\nnot measured: {failure['problem']}: {failure['reason']}")
    content = {"format": results.RESULTS_FORMAT, "set": "bench", "environment": found, "rows": rows, "failed": failed}
    if args.json:
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"written: {args.json}")
    if args.png and rows:
        from jax_clc.bench import plots

        plots.save_rows(rows, args.png, title=f"{found['device']}: {what}")
        print(f"written: {args.png}")
    if not exact:
        return 1
    return 0 if not failed and any(results.OURS in row["contestants"] for row in rows) else 2


def measured(
    args: argparse.Namespace, sizes: list[tuple[int, int, int]], clock: Any
) -> tuple[list[dict[str, Any]], list[dict[str, str]], bool]:
    """The rows of the problems that were measured, the others with the reason, and whether all results were exact."""
    from jax_clc.bench import results
    from jax_clc.bench.check import Inexact
    from jax_clc.bench.measure import measure
    from jax_clc.bench.race import Effort

    requests = {results.OURS: {"schedule": args.schedule, "kernel": args.kernel, "sm_limit": args.sm_limit}}
    effort = Effort.quick() if args.quick else Effort()
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    exact = True
    line = ProgressLine(len(sizes))
    for m, n, k in sizes:
        problem = problem_arguments.problem_of(argparse.Namespace(**{**vars(args), "m": m, "n": n, "k": k}))
        line.start(f"{m} x {n} x {k}")
        try:
            rows.append(
                measure(problem, clock, effort=effort, peers=args.peers, requests=requests, progress=line.detail)
            )
        except (RuntimeError, ValueError) as error:
            wrong = isinstance(error, Inexact)
            exact = exact and not wrong
            reason = f"{'WRONG: ' if wrong else ''}{error}"[:MAX_REASON]
            failed.append({"problem": results.label(results.facts(problem)), "reason": reason})
        line.finish()
    return rows, failed, exact
