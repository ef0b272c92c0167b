"""`jax-clc tune`: measures your shapes on this GPU and writes a table of the fastest kernels.

Point JAX_CLC_TUNED at the table, and every plan for these very shapes takes what was measured. Nothing is ever measured
while a program is being compiled: given the package and the table, plans are the same each time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from jax_clc.cli import problem_arguments
from jax_clc.cli.output_arguments import output_file
from jax_clc.cli.progress import ProgressLine
from jax_clc.planning import tuned_choices


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("tune", help="measure your shapes, write a table", description=__doc__)
    parser.add_argument(
        "sizes", type=problem_arguments.axis_size, nargs="+", metavar="M N K", help="one or more triples"
    )
    problem_arguments.add_type_arguments(parser)
    parser.add_argument("--table", type=output_file, default="jax_clc_tuned.json", metavar="FILE",
                        help="table to write or to add to (default jax_clc_tuned.json)")  # fmt: skip
    parser.add_argument("--candidates", type=int, default=12, metavar="N", help="kernels tried for each shape")
    return parser


def main(args: argparse.Namespace) -> int:
    """Status 1 where a candidate was not exact: it is named and not entered."""
    if len(args.sizes) % 3:
        raise ValueError(f"sizes come as M N K triples; got {len(args.sizes)} numbers")
    import jax

    from jax_clc.bench.device_timer import timer
    from jax_clc.bench.environment import plan_here, running_family
    from jax_clc.bench.sweep import sweep

    family = running_family()
    if family is None:
        device = jax.devices()[0].device_kind
        raise ValueError(f"tune measures kernels, and {device} is no device that kernels are built for")
    table = read_or_start(args.table, jax.devices()[0].device_kind, family)
    sizes = list(zip(args.sizes[::3], args.sizes[1::3], args.sizes[2::3], strict=True))
    line, status = ProgressLine(len(sizes)), 0
    for m, n, k in sizes:
        problem = problem_arguments.problem_of(argparse.Namespace(**{**vars(args), "m": m, "n": n, "k": k}))
        line.start(f"{m} x {n} x {k}")
        found = sweep(problem, family, timer(), most=args.candidates, progress=line.detail)
        line.finish()
        for name, reason in found["inexact"].items():
            status = 1
            print(f"WRONG, not entered: {name}: {reason}")
        if not found["candidates"]:
            continue
        best, present = found["candidates"][0], plan_here(problem)
        way = present.way(family)
        now = next((c["measured_us"] for c in found["candidates"] if tuned_choices.way_of(c) == way), None)
        enter(table, present.problem, best)
        gain = "" if now is None else f", {100 * (now / best['measured_us'] - 1):.1f}% faster than the present choice"
        print(f"{m} x {n} x {k}: {best['measured_us']:.1f} us{gain}\n  {best['kernel']}")
        args.table.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"written: {args.table}\nuse it: export {tuned_choices.TUNED_VARIABLE}={args.table.resolve()}")
    return status


def read_or_start(path: Path, device: str, family: str) -> dict[str, Any]:
    """The table at `path`, or a new one. Raises ValueError for another device's and for what is no such table."""
    if not path.is_file():
        return {"format": tuned_choices.TABLE_FORMAT, "device": device, "family": family, "choices": {}}
    try:
        tuned_choices.read((path,))
    except ValueError as error:
        raise ValueError(f"{error}; give another --table") from None
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if (table["device"], table["family"]) != (device, family):
        raise ValueError(f"{path} holds choices for {table['device']}, not {device}; give another --table")
    return table


def enter(table: dict[str, Any], problem: Any, candidate: dict[str, Any]) -> None:
    """Adds a measured candidate as the choice for `problem`."""
    table["choices"][tuned_choices.problem_key(problem)] = tuned_choices.table_row(candidate)
