"""Mutants: a kernel's PTX changed at one place, to see whether the emulated device notices.

    python -m jax_clc.emulator.mutants KERNEL [--seeds 30] [--out docs/mutants]

Each mutant is one fault of synchronisation: a wait, arrive, fence, commit or barrier deleted, expected bytes halved, a
parity flipped, a scope dropped to `.cta`. It is caught when a run ends in an error, a deadlock or a wrong result.
Initialisation (mbarrier.init and its fence) is not mutated.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from jax_clc.cli.problem_arguments import positive
from jax_clc.emulator.errors import Deadlock, EmulatorError
from jax_clc.emulator.kernel_run import Problem, exact_operands, read_ptx, reference, run_kernel
from jax_clc.emulator.mutant_evidence import Witness
from jax_clc.emulator.options import Hostility
from jax_clc.emulator.workers import worker_pool

CUBINS = Path(__file__).parents[1] / "cubins"
HOSTILITY = Hostility(idle_instructions=200_000, clc_refusals=0.1)
"""A mutant that polls for ever is given up sooner than a kernel would be."""


@dataclass(frozen=True)
class Mutant:
    """One change. `changes`: (line counted from 1, its new text); `line` and `original` name the place in reports."""

    kind: str
    line: int
    original: str
    changes: tuple[tuple[int, str], ...]

    def apply(self, ptx: str) -> str:
        """The mutant's text; line numbers stay those of the original."""
        lines = ptx.splitlines()
        for line, text in self.changes:
            lines[line - 1] = text
        return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: `outcome` is an error's name, `wrong result` or `survived`; `seed` the one that told."""

    mutant: Mutant
    outcome: str
    seed: int
    message: str = ""
    reason: str = ""

    @property
    def caught(self) -> bool:
        return self.outcome != "survived"


# Kinds of lines. A guard (`@%p1`) before the instruction stays where the instruction does.
_GUARD = r"^(?P<guard>\s*(?:@!?%?\w+\s+)?)"
_WAIT_BARRIER = re.compile(_GUARD + r"mbarrier\.(?:try|test)_wait\S*\s+(?P<done>[%\w|]+),\s*(?P<rest>.*)$")
_PARITY = re.compile(
    _GUARD + r"(?P<op>mbarrier\.(?:try|test)_wait\.parity\S*\s+[%\w|]+,\s*\[[^\]]*\],\s*)"
    r"(?P<parity>[%\w]+)(?P<rest>.*)$"
)
_EXPECT = re.compile(_GUARD + r"(?P<op>mbarrier\.(?:arrive\.)?expect_tx\S*\s+.*,\s*)(?P<count>[%\w]+)\s*;\s*$")
_DELETIONS: dict[str, re.Pattern[str]] = {
    "wait": re.compile(
        _GUARD + r"(?:wgmma\.wait_group|cp\.async\.bulk\.wait_group|cp\.async\.wait_(?:group|all)|tcgen05\.wait::\w+)\b"
    ),
    "arrive": re.compile(_GUARD + r"mbarrier\.(?:arrive|arrive_drop|expect_tx)\b"),
    "fence": re.compile(_GUARD + r"(?:fence\.(?!mbarrier_init)|wgmma\.fence|tcgen05\.fence)"),
    "commit": re.compile(
        _GUARD + r"(?:wgmma\.commit_group|cp\.async\.bulk\.commit_group|cp\.async\.commit_group|tcgen05\.commit)\b"
    ),
    "barrier": re.compile(_GUARD + r"(?:bar\.(?!warp)|barrier\.(?!cluster\.wait))"),
}
_CLUSTER_ARRIVE = re.compile(r"barrier\.cluster\.arrive")
_CLUSTER_WAIT = re.compile(r"barrier\.cluster\.wait")
_SCOPED = re.compile(_GUARD + r"(?:mbarrier\.(?:arrive|try_wait|test_wait)|fence\.(?!mbarrier_init|proxy\.async\.))")
KINDS = ("wait", "arrive", "fence", "commit", "barrier", "expect", "parity", "scope")


def mutants(ptx: str) -> Iterator[Mutant]:
    """All single changes of a module's text, in its order."""
    lines = ptx.splitlines()
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0]

        def change(kind: str, changed: str, number: int = number, line: str = line) -> Mutant:
            return Mutant(kind, number, line.strip(), ((number, changed),))

        found = _WAIT_BARRIER.match(code)
        if found:
            yield change("wait", f"{found['guard']}setp.eq.b32 {found['done']}, 0, 0;")
        for kind, pattern in _DELETIONS.items():
            if pattern.match(code):
                if kind == "barrier" and _CLUSTER_ARRIVE.search(code):
                    continue
                yield change(kind, "")
        found = _EXPECT.match(code)
        if found:
            half = f"{{ .reg .b32 halved; shr.u32 halved, {found['count']}, 1; {found['guard']}{found['op']}halved; }}"
            yield change("expect", half)
        found = _PARITY.match(code)
        if found:
            flip = f".reg .b32 flipped; xor.b32 flipped, {found['parity']}, 1;"
            yield change("parity", f"{{ {flip} {found['guard']}{found['op']}flipped{found['rest']} }}")
        if _SCOPED.match(code) and re.search(r"\.(?:relaxed|acquire|release|acq_rel|sc)\.(?:cluster|gpu)\b", code):
            dropped = re.sub(r"(\.(?:relaxed|acquire|release|acq_rel|sc))\.(?:cluster|gpu)\b", r"\1.cta", code)
            yield change("scope", dropped)
    yield from _cluster_barriers(lines)


def _cluster_barriers(lines: list[str]) -> Iterator[Mutant]:
    """Arrive and wait of the cluster barrier go together: where they are neighbours, both are deleted."""
    for number, line in enumerate(lines, 1):
        if not _CLUSTER_ARRIVE.search(line):
            continue
        near = range(number, min(number + 4, len(lines)))
        following = next((i for i in near if _CLUSTER_WAIT.search(lines[i])), None)
        if following is not None:
            both = f"{line.strip()} {lines[following].strip()}"
            yield Mutant("barrier", number, both, ((number, ""), (following + 1, "")))


def judge(entry: dict, ptx: str, mutant: Mutant, seeds: int) -> Verdict:
    """Runs a mutant under one seed after the other until something notices it."""
    text = mutant.apply(ptx)
    problems, sm_count = problems_for(entry)
    for seed in range(seeds):
        problem = problems[seed % 2]
        a, b = exact_operands(entry, problem, seed)
        try:
            result = run_kernel(entry, text, problem, a, b, sm_count=sm_count, seed=seed, hostility=HOSTILITY)
        except Deadlock as error:
            return Verdict(mutant, "Deadlock", seed, str(error).splitlines()[0])
        except EmulatorError as error:
            return Verdict(mutant, type(error).__name__, seed, str(error)[:300])
        if not np.array_equal(result.d.astype(np.float64), reference(entry, a, b).astype(np.float64)):
            return Verdict(mutant, "wrong result", seed)
    return Verdict(mutant, "survived", seeds)


def problems_for(entry: dict) -> tuple[list[Problem], int]:
    """Two problems, and the SMs for one worker. Both have tails and several tiles, more than there are work records;
    one has more K blocks than stages, the other a single one, so that loads run far ahead of the tiles. Stream-K has
    three workers, and so many K blocks that a tile is cut twice."""
    tile_m = entry["cta_tile"][0] * entry["cluster"][0]
    tile_n = entry["cta_tile"][1] * entry["cluster"][1]
    k = entry["cta_tile"][2] * (entry["stages"] + 1) - 24
    size = entry["cluster"][0] * entry["cluster"][1]
    if entry.get("stream_k"):
        few, many, n = 4 * tile_m - 24, 13 * tile_m - 24, tile_n - 40
        k, short = 48 * entry["cta_tile"][2] - 24, entry["cta_tile"][2] - 24
        return [Problem(m=few, n=n, k=k), Problem(m=many, n=n, k=short)], 3 * size
    columns = 2 + entry.get("record_stages", 0)
    m, n = 2 * tile_m - 24, columns * tile_n - 40
    return [Problem(m=m, n=n, k=k), Problem(m=m, n=n, k=entry["cta_tile"][2] - 24)], size


def _judge_packed(task: tuple) -> Verdict:
    return judge(*task)


def load(name: str, cubins: Path) -> tuple[dict, str]:
    """Manifest entry and PTX of a kernel."""
    if not (cubins / "manifest.json").is_file():
        raise SystemExit(f"no manifest.json in {cubins}")
    manifest = json.loads((cubins / "manifest.json").read_text())
    entry = next((e for e in manifest["kernels"] if e["name"] == name), None)
    if entry is None:
        raise SystemExit(f"no kernel {name} in {cubins / 'manifest.json'}")
    return entry, read_ptx(entry, cubins)


def run(entry: dict, ptx: str, seeds: int, processes: int, kinds: tuple[str, ...] = KINDS) -> list[Verdict]:
    """All mutants of one kernel of the manifest."""
    clean = judge(entry, ptx, Mutant("none", 0, "", ()), 4)
    if clean.caught:
        raise SystemExit(f"the kernel itself fails: {clean.outcome} {clean.message}")
    tasks = [(entry, ptx, m, seeds) for m in mutants(ptx) if m.kind in kinds]
    verdicts = []
    with worker_pool(processes) as pool:
        for number, verdict in enumerate(pool.map(_judge_packed, tasks), 1):
            verdicts.append(verdict)
            print(
                f"\r{number}/{len(tasks)} {sum(v.caught for v in verdicts)} caught", end="", file=sys.stderr, flush=True
            )
    print(file=sys.stderr)
    return verdicts


def evidence_of(entry: dict, ptx: str, seeds: int = 6) -> dict[int, str]:
    """What clean runs show of the lines that a mutant may change without effect, by line."""
    problems, sm_count = problems_for(entry)
    witness = Witness()
    for seed in range(seeds):
        problem = problems[seed % 2]
        a, b = exact_operands(entry, problem, seed)
        run_kernel(entry, ptx, problem, a, b, sm_count=sm_count, seed=seed, hostility=HOSTILITY, referee=witness)
    return witness.harmless()


# Reports


def explain(
    name: str, ptx: str, verdicts: list[Verdict], reasons: list[dict], evidence: Mapping[int, str] | None = None
) -> list[Verdict]:
    """Adds the reason why a surviving mutant is equivalent: the device's own evidence, or one written down. A written
    reason has regular expressions for the `kernel`, the `text` changed and, where that does not tell enough, the
    `context`, four lines before and twenty-four after."""
    out, lines = [], ptx.splitlines()
    for verdict in verdicts:
        mutant = verdict.mutant
        if not verdict.caught:
            context = "\n".join(lines[max(mutant.line - 5, 0) : mutant.line + 24])
            written = (
                r["reason"]
                for r in reasons
                if r["kind"] == mutant.kind
                and re.search(r["kernel"], name)
                and re.search(r["text"], mutant.original)
                and re.search(r.get("context", ""), context)
            )
            shown = evidence.get(mutant.line, "") if evidence and mutant.kind in ("scope", "fence") else ""
            verdict = replace(verdict, reason=shown or next(written, ""))
        out.append(verdict)
    return out


def table(name: str, verdicts: list[Verdict], seeds: int) -> str:
    """The report of one kernel as Markdown."""
    lines = [f"## {name}", "", f"At most {seeds} seeds for each mutant.", ""]
    lines += ["| class | mutants | error | deadlock | wrong result | equivalent | not caught | caught of the rest |"]
    lines += ["|---" * 8 + "|"]
    for kind in KINDS:
        mine = [v for v in verdicts if v.mutant.kind == kind]
        if not mine:
            continue
        deadlocks = sum(v.outcome == "Deadlock" for v in mine)
        wrong = sum(v.outcome == "wrong result" for v in mine)
        equivalent = sum(bool(v.reason) for v in mine)
        missed = sum(not v.caught and not v.reason for v in mine)
        caught = len(mine) - equivalent - missed
        share = f"{100 * caught / (caught + missed):.0f}%" if caught + missed else "-"
        numbers = (len(mine), caught - deadlocks - wrong, deadlocks, wrong, equivalent, missed)
        lines.append(f"| {kind} | {' | '.join(map(str, numbers))} | {share} |")
    survivors = [v for v in verdicts if not v.caught]
    if survivors:
        lines += ["", "Those that ran to the right result, and why they are no fault:", ""]
        lines += [
            f"- {v.mutant.kind}, PTX line {v.mutant.line}: `{v.mutant.original}`: {v.reason or '**not explained**'}"
            for v in survivors
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", help="name in the manifest")
    parser.add_argument("--seeds", type=positive, default=30)
    parser.add_argument("--processes", type=positive, default=2)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--cubins", type=Path, default=CUBINS, help="folder of the manifest")
    parser.add_argument("--out", type=Path, help="folder for the report; its reasons.json explains survivors")
    options = parser.parse_args()
    entry, ptx = load(options.kernel, options.cubins)
    verdicts = run(entry, ptx, options.seeds, options.processes, tuple(options.kinds))
    reasons = []
    if options.out and (options.out / "reasons.json").exists():
        reasons = json.loads((options.out / "reasons.json").read_text())
    verdicts = explain(options.kernel, ptx, verdicts, reasons, evidence_of(entry, ptx))
    text = table(options.kernel, verdicts, options.seeds)
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{options.kernel}.md").write_text(text)
        data = {"kernel": options.kernel, "seeds": options.seeds, "verdicts": [asdict(v) for v in verdicts]}
        (options.out / f"{options.kernel}.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
