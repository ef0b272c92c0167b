"""`python -m benchmarks.run --set NAME`: one set of the suite, checked, timed, written to results/NAME.json."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import suite
from benchmarks.sm_clock import SmClock
from jax_clc.bench import results
from jax_clc.bench.check import Inexact
from jax_clc.bench.contestants import NotApplicable
from jax_clc.bench.device_timer import timer
from jax_clc.bench.environment import environment
from jax_clc.bench.measure import measure
from jax_clc.bench.race import Effort
from jax_clc.cli.progress import ProgressLine

EFFORT = Effort(samples=31, warmup_us=1_000_000.0)
"""At the power limit samples of one kernel differ by 2 to 4%: their median needs many of them, and a stretch of warming
up is long. The limit takes hold only after a while of work, as it does in training."""


def write(path: Path, content: dict[str, Any]) -> None:
    """A results file, complete at every moment: a run that is cut short leaves what it has measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def main(argv: list[str] | None = None) -> int:
    """Status 1 if a result was not exact; that problem is not timed, the others are."""
    sets = suite.load()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", required=True, choices=list(sets), dest="name")
    parser.add_argument("--out", type=Path, help="results file (default benchmarks/results/NAME.json)")
    parser.add_argument("--schedule", action="append", metavar="S", help="race these schedules too; repeatable")
    parser.add_argument("--peers", nargs="*", help="instead of the set's own")
    parser.add_argument("--only", metavar="TEXT", help="problems whose label or note contains this")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no problem after this many seconds")
    args = parser.parse_args(argv)

    suite.require_device(parser)
    chosen = sets[args.name]
    problems = [p for p in chosen.problems if not args.only or args.only in f"{results.label(p)} {p.get('note', '')}"]
    requests: dict[str, dict[str, Any]] = {results.OURS: {}}
    requests |= {f"jax_clc {schedule}": {"schedule": schedule} for schedule in args.schedule or ()}
    clock = timer()
    content: dict[str, Any] = {
        "format": results.RESULTS_FORMAT, "set": chosen.name, "about": chosen.about,
        "command": f"python -m benchmarks.run {' '.join(sys.argv[1:])}", "environment": environment(clock.name),
        "rows": [], "failed": [],
    }  # fmt: skip
    out = args.out or suite.RESULTS_FOLDER / f"{chosen.name}.json"
    line, start = ProgressLine(len(problems)), time.monotonic()
    for data in problems:
        if time.monotonic() - start > args.budget_s:
            content["failed"].append({"problem": results.label(data), "reason": "time budget spent"})
            continue
        line.start(results.label(data))
        try:
            with SmClock() as sm_clock:
                row = measure(
                    results.problem_of(data), clock, effort=Effort.quick() if args.quick else EFFORT,
                    peers=chosen.peers if args.peers is None else args.peers, requests=requests,
                    note=data.get("note", ""), progress=line.detail, before_race=sm_clock.begin,
                )  # fmt: skip
            content["rows"].append(row | {"sm_clock_mhz": sm_clock.quartiles_mhz()})
        except (Inexact, NotApplicable, RuntimeError) as error:
            print(f"\nFAILED {results.label(data)}: {error}", flush=True)
            content["failed"].append({"problem": results.label(data), "reason": str(error)[:2000]})
        line.finish()
        write(out, content)
    write(out, content)
    print(f"{chosen.about}; {content['environment']['device']}, {clock.name} time")
    print(results.table(content["rows"]))
    for failure in content["failed"]:
        print(f"not measured: {failure['problem']}: {failure['reason'][:200]}")
    return 1 if content["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
