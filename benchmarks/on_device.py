"""`python -m benchmarks.on_device STEP... --out FOLDER`: steps on a GPU machine, each in its own process with a limit.

A step that hangs or fails costs its own limit and nothing more. Each leaves its results file in FOLDER as soon as it
has measured anything; the end of every step's output is repeated last, so that the tail of a log tells the story.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

PYTHON = sys.executable
STEPS: dict[str, tuple[list[str], int]] = {
    "info": ([PYTHON, "-m", "jax_clc", "info"], 60),
    "demo": ([PYTHON, "-m", "jax_clc", "demo"], 90),
    "bench": ([PYTHON, "-m", "jax_clc", "bench", "--json", "{out}/bench.json", "--png", "{out}/bench.png"], 150),
    "quick": ([PYTHON, "-m", "benchmarks.run", "--set", "large", "--quick", "--only", "4096 x 4096 x 4096",
               "--schedule", "static", "--schedule", "dynamic", "--out", "{out}/quick.json"], 120),
    "launch": ([PYTHON, "-m", "benchmarks.launch", "--out", "{out}/launch.json"], 200),
    "interference": ([PYTHON, "-m", "benchmarks.interference", "--out", "{out}/interference.json"], 200),
    "endurance": ([PYTHON, "-m", "benchmarks.endurance", "--out", "{out}/endurance.json"], 240),
    "timeline": ([PYTHON, "-m", "jax_clc", "timeline", "--device", "--held", "16",
                  "--json", "{out}/timeline_held_16.json"], 90),
    "first_contact": ([PYTHON, "-m", "jax_clc", "first-contact", "--quick", "--output", "{out}"], 240),
    "sweep": ([PYTHON, "-m", "benchmarks.sweep", "--budget-s", "480", "--out", "{out}/sweep.json"], 560),
    **{
        name: ([PYTHON, "-m", "benchmarks.run", "--set", name, "--budget-s", str(limit - 40),
                "--out", f"{{out}}/{name}.json"], limit)
        for name, limit in {
            "large": 280, "llm": 400, "unaligned": 150, "thin": 200, "small": 90, "batched": 120, "f16": 90,
            "f32_out": 90, "pallas": 240,
        }.items()
    },
}  # fmt: skip
"""name -> (command, seconds it may take)."""
TAIL_LINES = 34


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=list(STEPS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--budget-s", type=float, default=570, help="begin no step after this many seconds")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    environment = {"PYTHONUNBUFFERED": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.6", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    begun, story, status = time.monotonic(), [], 0
    for name in args.steps:
        command, limit = STEPS[name]
        left = args.budget_s - (time.monotonic() - begun)
        if left < 15:
            story.append(f"== {name}: not begun, the time is spent")
            continue
        started = time.monotonic()
        code, output = run([part.format(out=args.out) for part in command], min(limit, left), environment)
        (args.out / "log.txt").open("a", encoding="utf-8").write(f"== {name}\n{output}\n")
        tail = "\n".join(output.strip().splitlines()[-TAIL_LINES:])
        story.append(f"== {name}: status {code}, {time.monotonic() - started:.0f} s\n{tail}")
        status = status or code
    print("\n".join(story))
    return status


def run(command: list[str], limit_s: float, environment: dict[str, str]) -> tuple[int, str]:
    """(exit status, output) of a command; 124 if it was stopped at its limit, with what it had said."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return 124, output + f"\nstopped after {limit_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
