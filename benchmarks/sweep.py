"""`python -m benchmarks.sweep`: every likely kernel on every problem of the suite, once: what `auto` is judged by.

Writes benchmarks/results/sweep.json, from which `python -m benchmarks.fit` fits the cost model and makes the table of
measured choices that ships. With dozens of contestants jnp.dot took a median of 6% longer than in the sets
(docs/notes/hopper_kernels.md): `--finalists N` races the N fastest of earlier sweeps again as the sets are run, and its
result decides.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import fit, suite
from benchmarks.run import EFFORT, write
from jax_clc.bench import contestants, results
from jax_clc.bench.contestants import NotApplicable
from jax_clc.bench.device_timer import timer
from jax_clc.bench.environment import environment, plan_here
from jax_clc.bench.race import Effort
from jax_clc.bench.sweep import RASTERS, sweep
from jax_clc.cli.problem_arguments import positive
from jax_clc.cli.progress import ProgressLine
from jax_clc.planning.tuned_choices import problem_key, way_of


def main(argv: list[str] | None = None) -> int:
    sets = suite.load()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", action="append", choices=list(sets), dest="names", help="repeatable; default: all")
    parser.add_argument("--problem", action="append", default=[], help="only problems whose label holds it; repeatable")
    parser.add_argument("--candidates", type=int, default=12, help="kernels for each problem, by prediction")
    parser.add_argument(
        "--kernel", action="append", default=[], help="only kernels named so, as in a shell; repeatable"
    )
    parser.add_argument("--raster", action="append", default=[], help="GROUP/ALONG to try with them; repeatable")
    parser.add_argument(
        "--finalists", type=positive, default=0, metavar="N", help="race the N fastest of earlier sweeps instead"
    )
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--peers", action="store_true", help="time jnp.dot beside them, which takes XLA a search each")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no problem after this many seconds")
    parser.add_argument("--out", type=Path, help="default: sweep.json, or sweep_finals.json, in benchmarks/results")
    args = parser.parse_args(argv)
    if args.finalists and (args.kernel or args.raster):
        parser.error("--finalists are the ways of earlier sweeps: --kernel and --raster choose others")
    out = args.out or suite.RESULTS_FOLDER / f"sweep{'_finals' if args.finalists else ''}.json"

    family = suite.require_device(parser)
    rasters = [(int(group), int(along)) for group, along in (raster.split("/") for raster in args.raster)] or RASTERS
    problems = [
        (name, data)
        for name in args.names or sets
        for data in sets[name].problems
        if not args.problem or any(part in results.label(data) for part in args.problem)
    ]
    clock, start = timer(), time.monotonic()
    content: dict[str, Any] = {
        "format": results.RESULTS_FORMAT,
        "set": "sweep",
        "command": f"python -m benchmarks.sweep {' '.join(sys.argv[1:])}".strip(),
        "environment": environment(clock.name),
        "family": family,
        "rows": [],
        "failed": [],
    }
    line = ProgressLine(len(problems))
    effort = EFFORT if args.finalists else Effort(samples=args.samples, sample_us=1500.0, warmup_us=150_000.0)
    earlier = fit.rows_by_problem(fit.committed()) if args.finalists else {}
    for name, data in problems:
        line.start(f"{name} {results.label(data)}")
        problem = results.problem_of(data)
        try:
            if time.monotonic() - start > args.budget_s:
                raise NotApplicable("time budget spent")
            ways = None
            if args.finalists:
                ways = fit.finalists(earlier.get(problem_key(plan_here(problem).problem), ()), args.finalists)
                if not ways:
                    raise NotApplicable("no earlier sweep has a kernel for it that ships")
            peers = {results.BASELINE: contestants.jnp_dot(problem)} if args.peers else {}
            found = sweep(
                problem, family, clock, most=args.candidates, rasters=rasters, patterns=args.kernel, effort=effort,
                ways=ways, peers=peers, progress=line.detail,
            )  # fmt: skip
        except (NotApplicable, RuntimeError) as error:
            content["failed"].append({"set": name, "problem": results.label(data), "reason": str(error)[:1000]})
            print(f"FAILED {results.label(data)}: {str(error)[:300]}", flush=True)
            continue
        finally:
            line.finish()
        chosen = plan_here(problem)
        kernel, group, along, split_k, k_parts = chosen.way(family)
        content["rows"].append({
            "set": name, **data, "key": problem_key(chosen.problem), "is_final": bool(args.finalists), **found,
            "auto": {"kernel": kernel, "raster_group": group, "raster_along": along, "split_k": split_k,
                     "k_parts": k_parts},
        })  # fmt: skip
        write(out, content)
    write(out, content)
    print(table(content))
    return 1 if content["failed"] else 0


def auto_loss(row: dict[str, Any]) -> float | None:
    """What `auto` loses against the best candidate, as a share; None if its choice was not among those measured."""
    own = next((c for c in row["candidates"] if way_of(c) == way_of(row["auto"])), None)
    return None if own is None else own["measured_us"] / row["candidates"][0]["measured_us"] - 1


def table(content: dict[str, Any]) -> str:
    """For each problem the best candidate, jnp.dot over it, and what `auto` loses."""
    lines = [f"{'problem':<28} {'best us':>8} {'ratio':>5} {'auto +%':>7}"]
    losses = []
    for row in content["rows"]:
        best, baseline, loss = row["candidates"][0], row["peers"].get(results.BASELINE), auto_loss(row)
        ratio = f"{baseline / best['measured_us']:5.2f}" if baseline else f"{'-':>5}"
        cell = f"{'-':>7}" if loss is None else f"{100 * loss:7.1f}"
        losses += [] if loss is None else [loss]
        lines.append(f"{results.label(row):<28} {best['measured_us']:8.1f} {ratio} {cell}")
        lines.append(f"  {best['kernel']} {best['raster_group']}/{best['raster_along']} x{best['split_k']}")
    if losses:
        within = sum(loss <= 0.03 for loss in losses) / len(losses)
        lines.append(f"auto within 3% of the best on {100 * within:.0f}% of {len(losses)} problems")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
