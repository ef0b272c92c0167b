"""`python -m benchmarks.interference`: every schedule and jnp.dot while other work holds s SMs for the whole time."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax

from benchmarks import suite
from benchmarks.run import EFFORT, write
from benchmarks.sm_clock import SmClock
from jax_clc.bench import contestants, results
from jax_clc.bench.check import ExactCheck, Inexact
from jax_clc.bench.device_timer import TimerError, timer
from jax_clc.bench.environment import environment
from jax_clc.bench.measure import kernel_here
from jax_clc.bench.operands import random_sets
from jax_clc.bench.race import Effort, race
from jax_clc.bench.sm_holder import HolderError, SmHolder
from jax_clc.cli.progress import ProgressLine

PROBLEM = {"m": 8192, "n": 8192, "k": 4096, "batch": 1, "majors": "kn"}
HELD_SMS = (0, 1, 4, 8, 16, 32, 66)
SCHEDULES = ("nonpersistent", "static", "dynamic", "clc")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held", type=int, nargs="+", default=HELD_SMS, metavar="S")
    parser.add_argument("--majors", default="kn", choices=("kn", "kk", "mn", "mk"))
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--out", type=Path, default=suite.RESULTS_FOLDER / "interference.json")
    args = parser.parse_args(argv)

    suite.require_device(parser)
    data = {**PROBLEM, "majors": args.majors}
    problem = results.problem_of(data)
    clock = timer()
    ready, kernels, skipped = {}, {}, {}
    requests: dict[str, dict[str, Any]] = {schedule: {"schedule": schedule} for schedule in SCHEDULES}
    for name, request in requests.items():
        try:
            ready[name] = contestants.ours(problem, **request)
            kernels[name] = kernel_here(problem, request)
        except (contestants.NotApplicable, ValueError) as error:
            skipped[name] = str(error)[:300]
    ready[results.BASELINE] = contestants.jnp_dot(problem)
    check = ExactCheck(problem)
    for name in list(ready):
        try:
            check(name, ready[name])
        except Inexact as error:
            skipped[name] = f"not exact: {error}"
            del ready[name]
            print(f"FAILED {name}: {error}")
    operand_sets = random_sets(problem, 2)
    content: dict[str, Any] = {
        "format": results.RESULTS_FORMAT, "set": "interference", "environment": environment(clock.name),
        "about": "other work holds s SMs with all their shared memory for the whole time",
        "command": f"python -m benchmarks.interference {' '.join(sys.argv[1:])}".strip(),
        "sm_count": getattr(jax.devices()[0], "core_count", 132), "rows": [], "failed": [],
    }  # fmt: skip
    # Everything is compiled, loaded and warm before the first SM is held: loading may wait for the whole device.
    race(ready, operand_sets, clock, Effort.quick())
    holder, line, effort = SmHolder(), ProgressLine(len(args.held)), dataclasses.replace(EFFORT, samples=args.samples)
    for held in args.held:
        line.start(f"{held} SMs held")
        try:
            with SmClock() as sm_clock, holder.holding(held):
                sm_clock.begin()
                timings = race(ready, operand_sets, clock, effort, lambda share: line.detail(f"{share:4.0%}"))
        except (HolderError, TimerError) as error:
            content["failed"].append({"held_sms": held, "reason": str(error)})
            print(f"FAILED with {held} SMs held: {error}")
            continue
        row = results.row(problem, timings, input_sets=2, kernels=kernels, skipped=skipped)
        content["rows"].append({**row, "held_sms": held, "sm_clock_mhz": sm_clock.quartiles_mhz()})
        line.finish()
        write(args.out, content)
    print(table(content))
    return 1 if content["failed"] else 0


def table(content: dict[str, Any]) -> str:
    """Microseconds by SMs held, one column for each contestant, the proportional time last."""
    rows = content["rows"]
    if not rows:
        return "nothing measured"
    names = list(rows[0]["contestants"])
    lines = [f"{'held':>4} " + " ".join(f"{name[:9]:>9}" for name in names)]
    for row in rows:
        cells = [f"{row['contestants'][name]['median_us']:9.1f}" for name in names]
        lines.append(f"{row['held_sms']:4d} " + " ".join(cells))
    return "\n".join([f"{results.label(rows[0])}, device us, SMs held by other work of {content['sm_count']}", *lines])


if __name__ == "__main__":
    sys.exit(main())
