"""`jax-clc verify`: the kernels' PTX on the emulated device, under hostile conditions. No GPU is needed.

Each case multiplies integers whose product is exact and demands equality, every output element stored once, and no
rule of the memory model broken. Representative kernels run at more seeds than the rest.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path

from jax_clc.cli.problem_arguments import not_negative, positive
from jax_clc.cli.progress import ProgressLine
from jax_clc.emulator import verification
from jax_clc.emulator.verification import Case, Outcome
from jax_clc.emulator.workers import worker_pool
from jax_clc.planning import catalog


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("verify", help="run the kernels' PTX on the emulated device", description=__doc__)
    parser.add_argument("--arch", help="only kernels of this family, architecture or compute capability")
    parser.add_argument(
        "--kernel", action="append", metavar="PATTERN", help="only kernels whose name matches; may be repeated"
    )
    parser.add_argument("--shape", metavar="MxNxK[xL[xSPLIT]]", help="only this shape, in the kernel's own terms")
    parser.add_argument("--seed", type=not_negative, help="only this seed")
    parser.add_argument(
        "--seeds", type=positive, default=3, help="seeds for each kernel, one at least for each shape (default 3)"
    )
    parser.add_argument(
        "--representative-seeds", type=positive, default=50, help="seeds for representative kernels (default 50)"
    )
    parser.add_argument(
        "--sm-count", type=positive, default=verification.SM_COUNT, help="SMs of the emulated device (default 8)"
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--sass", action="store_true", help="report on the machine code instead (needs nvdisasm)")
    return parser


def main(args: argparse.Namespace) -> int:
    """Status 0: everything passed; 1: something failed."""
    if args.sass:
        from jax_clc.cli import sass_report

        return sass_report.main([])
    kernels = catalog.kernels(args.arch)
    if args.kernel:
        kernels = tuple(k for k in kernels if any(fnmatch.fnmatch(k.name, pattern) for pattern in args.kernel))
    if not kernels:
        raise ValueError(f"no kernel matches {args.kernel or args.arch}; `jax-clc info --kernels` names them")
    entries = {kernel.name: kernel.entry for kernel in kernels}
    chosen = verification.representatives(list(entries.values()))
    cases = wanted_cases(args, entries, chosen)
    outcomes = run_all(cases, entries, catalog.directory(), args.jobs)
    print(table(outcomes, chosen))
    failures = [o for o in outcomes if o.fault is not None]
    for outcome in failures[:20]:
        print(
            f"\n{outcome.case.kernel} {outcome.case.shape} seed {outcome.case.seed}: {outcome.fault}\n  "
            f"{outcome.case.command}"
        )
    if len(failures) > 20:
        print(f"\nand {len(failures) - 20} more failures")
    print(f"\n{len(outcomes) - len(failures)} of {len(outcomes)} cases passed on the emulated device")
    return 1 if failures else 0


def wanted_cases(args: argparse.Namespace, entries: dict, chosen: set[str]) -> list[Case]:
    """The cases that the command line asks for."""
    if args.shape is None:
        seeds = max(args.seeds, args.seed + 1) if args.seed is not None else args.seeds
        cases = verification.cases_of(
            entries.values(), seeds=seeds, representative_seeds=max(args.representative_seeds, seeds), chosen=chosen,
            sm_count=args.sm_count,
        )  # fmt: skip
        return [c for c in cases if args.seed is None or c.seed == args.seed]
    problem = verification.parse_shape(args.shape)
    whole = [name for name, entry in entries.items() if not entry.get("split_k")]
    if problem.split_k > 1 and whole:
        raise ValueError(f"shape {args.shape!r} splits k in {problem.split_k} parts, which {whole[0]} does not do")
    seeds = [args.seed] if args.seed is not None else range(args.seeds)
    return [Case(name, problem, seed, args.sm_count) for name in entries for seed in seeds]


def run_all(cases: Sequence[Case], entries: dict, folder: Path, jobs: int) -> list[Outcome]:
    """Run all cases, a kernel's together so that it is translated once in a process; in the order of `cases`."""
    progress = ProgressLine(len(cases))
    batches: dict[str, list[Case]] = {}
    for case in cases:
        batches.setdefault(case.kernel, []).append(case)
    pieces = [(batch[i : i + 10], entries[name]) for name, batch in batches.items() for i in range(0, len(batch), 10)]
    outcomes: dict[Case, Outcome] = {}

    def note(found: list[Outcome]) -> None:
        for outcome in found:
            outcomes[outcome.case] = outcome
            progress.start(f"{outcome.case.kernel} seed {outcome.case.seed}")
            progress.finish()

    if jobs <= 1 or len(pieces) == 1:
        for batch, entry in pieces:
            for case in batch:
                note([verification.run_case(case, entry, folder)])
    else:
        with worker_pool(jobs) as pool:
            for future in as_completed([pool.submit(run_batch, batch, dict(entry), folder) for batch, entry in pieces]):
                note(future.result())
    return [outcomes[case] for case in cases]


def run_batch(cases: Sequence[Case], entry: dict, folder: Path) -> list[Outcome]:
    """Some cases of one kernel, in a process of the pool."""
    return [verification.run_case(case, entry, folder) for case in cases]


def table(outcomes: Sequence[Outcome], chosen: set[str]) -> str:
    """Kernel x what was checked. `*` marks representatives."""
    rows = [("kernel", "shapes", "seeds", "instructions", "per s", "verdict")]
    for name in dict.fromkeys(o.case.kernel for o in outcomes):
        mine = [o for o in outcomes if o.case.kernel == name]
        instructions, seconds = sum(o.instructions for o in mine), sum(o.seconds for o in mine)
        failed = sum(o.fault is not None for o in mine)
        rows.append((
            name + (" *" if name in chosen else ""), str(len({o.case.shape for o in mine})),
            str(len({o.case.seed for o in mine})),
            str(instructions), f"{instructions / max(seconds, 1e-9):.0f}",
            "passed" if not failed else f"{failed} FAILED",
        ))  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if i in (0, 5) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
