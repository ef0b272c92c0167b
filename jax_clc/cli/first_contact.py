"""`jax-clc first-contact`: everything worth knowing about a GPU that no kernel here has run on, in one command.

Checks every schedule exactly, compares their bits, times them against jnp.dot on a quiet device and with SMs held by
other work, and reads off traces how tiles were claimed. Writes one JSON and one picture to send back. Without a CUDA
device it says what it would do.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_clc.cli.progress import ProgressLine

FORMAT = "jax_clc.first_contact"
VERSION = 1
WIDTH = 60


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("first-contact", help="meet a new GPU: check, probe, time", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and samples")
    parser.add_argument("--steps", nargs="+", metavar="STEP", help="only these steps (default: all)")
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")
    parser.add_argument("--family", help="whose steps to list where there is no CUDA device (default: sm_100f)")
    return parser


def main(args: argparse.Namespace) -> int:
    """Status 0 if every step was done and every check passed, 1 if not; 0 too where it says what it would do."""
    from jax_clc.bench.environment import running_family
    from jax_clc.cli import first_contact_steps as steps

    chosen = steps.named(args.steps)
    family = running_family()
    if family is None:
        print(what_it_would_do(steps.Contact.of_family(args.family or "sm_100f", args.quick), chosen))
        return 0
    contact = steps.Contact.of_this_device(args.quick)
    args.output.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=args.output).close()  # a folder that cannot be written is no news for after the steps
    report = run(contact, chosen)
    name = "first_contact_" + re.sub(r"\W+", "_", report["environment"]["device"]).strip("_").lower()
    path = args.output / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(summary(report))
    print(f"\nwritten: {path}")
    try:
        from jax_clc.cli import first_contact_picture

        first_contact_picture.save(report, path.with_suffix(".png"))
        print(f"written: {path.with_suffix('.png')}")
    except RuntimeError as error:
        print(f"no picture: {error}")
    print("Please send both to the project: they are what is not yet known about this GPU.")
    return 0 if report["passed"] else 1


def run(contact: Any, chosen: list[Any]) -> dict[str, Any]:
    """Runs the steps. A step that raises is recorded with its error and the others still run."""
    from jax_clc.bench.environment import environment

    line = ProgressLine(len(chosen))
    report: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "environment": environment(contact.clock.name),
        "family": contact.family,
        "sm_count": contact.sm_count,
        "schedules": list(contact.schedules),
        "quick": contact.quick,
        "steps": {},
    }
    for step in chosen:
        line.start(step.name)
        start = time.monotonic()
        try:
            result = step.run(contact, line.detail)
        except (
            Exception
        ) as error:  # whatever a new GPU does to a step is a finding, and the next steps are still wanted
            result = {"passed": False, "error": f"{type(error).__name__}: {error}"}
        report["steps"][step.name] = result | {"seconds": round(time.monotonic() - start, 1)}
        line.finish()
    report["passed"] = all(result["passed"] for result in report["steps"].values())
    return report


def summary(report: Mapping[str, Any]) -> str:
    """One line for each step, and the device, for a terminal."""
    lines = [f"{report['environment']['device']}, {report['sm_count']} SMs, schedules {', '.join(report['schedules'])}"]
    for name, result in report["steps"].items():
        verdict = "passed" if result["passed"] else "FAILED"
        lines.append(f"  {name:<9} {verdict}  {result.get('error') or result.get('summary', '')}")
    return "\n".join(lines)


def what_it_would_do(contact: Any, chosen: list[Any]) -> str:
    """The steps in words, for a machine that cannot run them."""
    schedules = ", ".join(contact.schedules)
    head = (
        f"There is no CUDA device here. On one of {contact.family}, with the schedules {schedules}, this command would:"
    )
    steps = [f"{number}. {step.name}: {step.promise(contact)}" for number, step in enumerate(chosen, 1)]
    tail = "and write first_contact_<device>.json and .png to send back."
    wrapped = [textwrap.fill(step, WIDTH, subsequent_indent="   ") for step in steps]
    return "\n".join([textwrap.fill(head, WIDTH), *wrapped, textwrap.fill(tail, WIDTH)])
