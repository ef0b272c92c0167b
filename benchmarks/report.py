"""`python -m benchmarks.report --write README.md`: tables and pictures from benchmarks/results/*.json.

The text between the markers is replaced; nothing in it is written by hand but the reasons in `loss_reasons.json`.
`--plots` draws the pictures beside the results files. With `--check` nothing is written, and the
status tells whether the text is what the results give.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import suite
from jax_clc.bench import results
from jax_clc.planning import GemmProblem, plan, reference_devices

HEADLINE, RESULTS, PLAN = "headline", "results", "plan"
"""Names of the blocks that are written; a block stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
SOURCES = Path(__file__).parents[1]
EVEN = 0.995
"""Ratios from here on count as no slower."""
WORST_SHOWN = 2
HEADLINE_HELD = 16
"""SMs held by other work in the headline's comparison."""
REASONS_PATH = Path(__file__).parent / "loss_reasons.json"
"""Why a problem is slower, by its label; `launch` is the chain of small products."""
LOSSES_HEADING, LOSSES_ANCHOR = "Where another is faster", "where-another-is-faster"
NO_RESULTS = "No results yet: run `python -m benchmarks.run --set large` on a GPU, then `python -m benchmarks.report`."


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Results files by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def where(*contents: Mapping[str, Any]) -> str:
    """`NVIDIA H200, jax 0.11.2, 2026-11-29, device time`; the dates of all, the rest of the first."""
    found = contents[0]["environment"]
    clock = {"cupti": "device time", "wall": "wall time"}[found["timer"]]
    dates = " and ".join(sorted({content["environment"]["date"] for content in contents}))
    return f"{found['device']}, jax {found['packages'].get('jax', '?')}, {dates}, {clock}"


def ratios_of(content: Mapping[str, Any] | None, chosen: suite.ProblemSet) -> list[float]:
    """The baseline's time over ours at every problem of the set where both were timed."""
    rows = content["rows"] if content else ()
    return [r for row in rows if (r := results.ratio(row, baseline=chosen.baseline)) is not None]


def summary(found: Mapping[str, Mapping[str, Any]], sets: Mapping[str, suite.ProblemSet]) -> list[str]:
    """One line for each set of the suite that has results: the time of its baseline over ours."""
    lines = [
        "| set | problems | geometric mean | least | goal (mean, least) |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, chosen in sets.items():
        ratios = ratios_of(found.get(name), chosen)
        if not ratios:
            continue
        measured = (
            f"{len(ratios)} of {len(chosen.problems)}" if len(ratios) != len(chosen.problems) else str(len(ratios))
        )
        mean, least = results.geometric_mean(ratios), min(ratios)
        goal = ""
        if chosen.geomean is not None and chosen.least is not None:
            reached = mean >= chosen.geomean and least >= chosen.least
            goal = f"{chosen.geomean}, {chosen.least}: {'reached' if reached else 'missed'}"
        lines.append(f"| {chosen.about} | {measured} | {mean:.3f} | {least:.3f} | {goal} |")
    return lines if len(lines) > 2 else []


class Loss(NamedTuple):
    """A problem on which somebody is faster than ours: the fastest other's time over ours, and who that is."""

    ratio: float
    label: str
    note: str
    peer: str

    @property
    def words(self) -> str:
        """`2050 x 2050 x 2050 kn (jnp.dot padded)`."""
        told = [self.note] if self.note else []
        told += [self.peer] if self.peer != results.BASELINE else []
        return self.label + (f" ({'; '.join(told)})" if told else "")


def losses(found: Mapping[str, Mapping[str, Any]], sets: Mapping[str, suite.ProblemSet]) -> dict[str, list[Loss]]:
    """For each set every problem on which another contestant is faster, worst first; sets without one are left out."""
    behind: dict[str, list[Loss]] = {}
    for name in sets:
        for row in found.get(name, {}).get("rows", ()):
            others = [other for other in row["contestants"] if not other.startswith(results.OURS)]
            ratios = [(r, other) for other in others if (r := results.ratio(row, baseline=other)) is not None]
            if ratios and min(ratios)[0] < EVEN:
                quotient, peer = min(ratios)
                behind.setdefault(name, []).append(Loss(quotient, results.label(row), row.get("note", ""), peer))
    return {name: sorted(found_there) for name, found_there in behind.items()}


def worst_losses(behind: Mapping[str, Sequence[Loss]], problems: int) -> list[str]:
    """The README's share: how many, the worst of each set with the reason, and where the others are."""
    reasons = json.loads(REASONS_PATH.read_text(encoding="utf-8"))
    lines = [
        f"**Slower than another** (ratio to the fastest other below {EVEN}) on {sum(map(len, behind.values()))} of "
        f"{problems} problems: all of them are listed in [docs/benchmarks.md](docs/benchmarks.md#{LOSSES_ANCHOR}). The "
        f"worst {WORST_SHOWN} of each set, with the reason as we read it:",
        "",
        "| set | problem | ratio | why |",
        "| --- | --- | ---: | --- |",
    ]
    for name, behind_there in behind.items():
        for loss in behind_there[:WORST_SHOWN]:
            lines.append(f"| {name} | {loss.words} | {loss.ratio:.3f} | {reasons.get(loss.label, 'not explained')} |")
    return lines


def problem_table(content: Mapping[str, Any], baseline: str = results.BASELINE) -> list[str]:
    """Every problem of one set: microseconds of each contestant, our TFLOP/s, the baseline's time over ours."""
    names = list(dict.fromkeys(name for row in content["rows"] for name in row["contestants"]))
    others = [name for name in names if name != results.OURS]
    ratio = "ratio" if baseline == results.BASELINE else f"ratio to {baseline}"
    lines = [
        f"| m x n x k | ours, us | {' | '.join(f'{name}, us' for name in others)} | ours, TFLOP/s | {ratio} |",
        f"| --- | ---: | {' | '.join('---:' for _ in others)} | ---: | ---: |",
    ]
    for row in content["rows"]:
        own, quotient = results.median_us(row, results.OURS), results.ratio(row, baseline=baseline)
        times = [results.median_us(row, name) for name in others]
        cells = [
            results.label(row) + (f" ({row['note']})" if row.get("note") else ""),
            "-" if own is None else f"{own:.1f}",
            *("-" if us is None else f"{us:.1f}" for us in times),
            "-" if own is None else f"{results.tflops(row, own):.0f}",
            "-" if quotient is None else f"{quotient:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def interference_table(content: Mapping[str, Any]) -> list[str]:
    """Microseconds by SMs held; the last column is the best quiet time in proportion to the free SMs."""
    rows, total = content["rows"], content["sm_count"]
    names = list(rows[0]["contestants"])
    quiet = min(rows[0]["contestants"][name]["median_us"] for name in names) * total / (total - rows[0]["held_sms"])
    lines = [f"| SMs held | {' | '.join(names)} | in proportion |", f"| ---: |{' ---: |' * (len(names) + 1)}"]
    for row in rows:
        times = " | ".join(f"{row['contestants'][name]['median_us']:.0f}" for name in names)
        lines.append(f"| {row['held_sms']} | {times} | {quiet * total / (total - row['held_sms']):.0f} |")
    return lines


def launch_table(content: Mapping[str, Any]) -> list[str]:
    """Microseconds per product, median, one column for each mode."""
    modes = content["modes"]
    names = list(dict.fromkeys(name for mode in modes.values() for name in mode["us_per_product"]))
    lines = [f"| | {' | '.join(modes)} |", f"| --- |{' ---: |' * len(modes)}"]
    for name in names:
        cells = [mode["us_per_product"].get(name) for mode in modes.values()]
        lines.append(f"| {name} | {' | '.join('-' if c is None else f'{c[1]:.2f}' for c in cells)} |")
    return lines


def mlp_table(content: Mapping[str, Any]) -> list[str]:
    """The tensor-parallel MLP on two GPUs: a step's wall time."""
    return [
        f"A tensor-parallel MLP (Llama-3 8B's sizes, 8192 tokens) on two {content['environment']['device']}s, forward "
        "and backward, wall time, median and quartiles, microseconds per step:",
        "",
        f"| {' | '.join(content['mlp'])} |",
        f"|{' ---: |' * len(content['mlp'])}",
        f"| {' | '.join('{median:.0f} ({q1:.0f} to {q3:.0f})'.format(**value) for value in content['mlp'].values())} |",
    ]


def overlap_table(content: Mapping[str, Any]) -> list[str]:
    """Products beside an all-reduce over two GPUs: microseconds, medians."""
    lines = [
        f"An all-reduce of 256 MiB over two {content['environment']['device']}s beside products of 8192 x 8192 x 4096, "
        "device time, microseconds: four times two products and one all-reduce:",
        "",
        "| | one product | one all-reduce | the whole program | all-reduce covered by products |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in content["overlap"].items():
        cells = [
            "-" if not row[key] else format(row[key]["median"], shape)
            for key, shape in (("gemm_us", ".0f"), ("collective_us", ".0f"), ("span_us", ".0f"), ("beside", ".0%"))
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def bench_output(content: Mapping[str, Any]) -> list[str]:
    """The table that `jax-clc bench` printed, from the JSON that it wrote."""
    table = results.table(content["rows"])
    device = content["environment"]["device"]
    return ["", f"`jax-clc bench --quick` on the {device}:", "", "```", *table.splitlines(), "```"]


def headline(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What a reader wants to know first: what is gained, and on how many problems something is lost."""
    sets = suite.load()

    def mean(chosen: suite.ProblemSet) -> str:
        told = f"{chosen.name} {results.geometric_mean(ratios_of(found.get(chosen.name), chosen)):.3f}"
        return told if chosen.baseline == results.BASELINE else f"{told} (its time, not jnp.dot's)"

    timed = [chosen for chosen in sets.values() if ratios_of(found.get(chosen.name), chosen)]
    measured = [found[name] for name in sets if name in found]
    behind = [loss for there in losses(found, sets).values() for loss in there]
    held = next(row for row in found["interference"]["rows"] if row["held_sms"] == HEADLINE_HELD)
    device, problems = measured[0]["environment"]["device"], sum(len(content["rows"]) for content in measured)
    return "\n".join([
        f"`jnp.dot`'s time over ours on an {device}, above 1 ours is faster:",
        "",
        f"- geometric means of each set: {', '.join(map(mean, timed))};",
        f"- with {HEADLINE_HELD} SMs held by other work {results.ratio(held, 'dynamic'):.2f} under `dynamic`, and "
        f"{results.ratio(held, 'static'):.2f} under `static`;",
        f"- on {len(behind)} of {problems} problems another is faster, at worst by the ratio "
        f"{min(loss.ratio for loss in behind):.2f}: [Results](#results) has the worst of each kind, with reasons.",
    ])  # fmt: skip


def readme_block(found: Mapping[str, Mapping[str, Any]], pictures: Sequence[str]) -> str:
    """What stands between the markers of the README."""
    sets = suite.load()
    table = summary(found, sets)
    if not table:
        return NO_RESULTS
    measured = [found[name] for name in sets if name in found]
    lines = [
        f"{where(*measured)}, median of interleaved calls on random normal data, every result first checked for "
        "equality with exact sums. The ratio is the time of jnp.dot, or of whom the set is against, over ours: above 1 "
        "ours is faster.",
        "",
        *table,
    ]
    behind = losses(found, sets)
    if behind:
        lines += ["", *worst_losses(behind, sum(len(content["rows"]) for content in measured))]
    if "interference" in found and found["interference"]["rows"]:
        content = found["interference"]
        lines += [
            "", f"Other work holding SMs for the whole time, {results.label(content['rows'][0])}, microseconds:", "",
            *interference_table(content),
        ]  # fmt: skip
    if "two_gpus" in found:
        lines += ["", *overlap_table(found["two_gpus"])]
    lines += [text for picture in pictures for text in ("", f"![{Path(picture).stem}]({picture})")]
    return "\n".join(lines)


def benchmarks_block(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What stands between the markers of docs/benchmarks.md: every loss, every problem of every set, and the rest."""
    lines: list[str] = []
    sets = suite.load()
    behind = sorted((loss, name) for name, behind_there in losses(found, sets).items() for loss in behind_there)
    if behind:
        lines += [
            f"### {LOSSES_HEADING}", "",
            f"The fastest other's time over ours, where it is below {EVEN}, worst first:", "",
            *(f"- {loss.ratio:.3f} at {loss.words}, {name}" for loss, name in behind), "",
        ]  # fmt: skip
    for name, chosen in sets.items():
        content = found.get(name)
        if content and content["rows"]:
            lines += [f"### {name}: {chosen.about}", "", f"{where(content)}; `{content['command']}`", ""]
            lines += [*problem_table(content, chosen.baseline), "", picture(name), ""]
            failed = [f"- not measured: {f['problem']}: {f['reason'][:200]}" for f in content.get("failed", ())]
            lines += [*failed, ""] if failed else []
    if "two_gpus" in found:
        lines += ["### Two GPUs", "", *mlp_table(found["two_gpus"]), ""]
        lines += [*overlap_table(found["two_gpus"]), "", picture("two_gpus"), ""]
    if "launch" in found:
        lines += ["### A chain of small products", "", f"A {found['launch']['about']}, microseconds per product:", ""]
        lines += [*launch_table(found["launch"]), ""]
        lines += [json.loads(REASONS_PATH.read_text(encoding="utf-8"))["launch"], "", picture("launch"), ""]
    if "bench" in found:
        lines += ["### `jax-clc bench`", *bench_output(found["bench"]), "", picture("bench"), ""]
    missing = [f"{name} ({chosen.about})" for name, chosen in sets.items() if not found.get(name, {}).get("rows")]
    if lines and missing:
        lines += ["### Not measured", "", *(f"- {text}" for text in missing)]
    return "\n".join(lines).strip() or NO_RESULTS


def picture(name: str) -> str:
    """The picture of a results file, for a page of docs/."""
    return f"![{name}](../{(suite.RESULTS_FOLDER / name).relative_to(SOURCES)}.png)"


def draw(found: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """The pictures of all results that are there."""
    from jax_clc.bench import plots

    drawn = []
    for name, chosen in suite.load().items():
        if found.get(name, {}).get("rows"):
            drawn.append(folder / f"{name}.png")
            plots.save_rows(found[name]["rows"], drawn[-1], title=f"{chosen.about}\n{where(found[name])}")
    if found.get("bench", {}).get("rows"):
        drawn.append(folder / "bench.png")
        plots.save_rows(found["bench"]["rows"], drawn[-1], title=f"jax-clc bench\n{where(found['bench'])}")
    if found.get("interference", {}).get("rows"):
        drawn.append(folder / "interference.png")
        plots.save_interference(found["interference"], drawn[-1])
    if "two_gpus" in found:
        from benchmarks import two_gpus

        drawn.append(folder / "two_gpus.png")
        two_gpus.plot(found["two_gpus"], drawn[-1])
    if "launch" in found:
        values = {
            f"{name}, {mode}": quartiles[1]
            for mode, content in found["launch"]["modes"].items()
            for name, quartiles in content["us_per_product"].items()
        }
        drawn.append(folder / "launch.png")
        plots.save_bars(values, drawn[-1], title=found["launch"]["about"], unit="us per product")
    return drawn


def plan_block() -> str:
    """What the README shows of `jax-clc plan`: its output with the kernels that are built here."""
    shown = plan(GemmProblem.compact(4096, 4096, 4096), devices=reference_devices(("sm_90a",)))
    return f"```console\n$ jax-clc plan 4096 4096 4096 --arch sm_90a\n{shown}\n```"


def replace_block(text: str, name: str, block: str) -> str:
    """The text with what is between the markers of that name replaced. Raises ValueError without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the markers {begin} and {end} are not in the text")
    return f"{head}{begin}\n{block}\n{end}{tail}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--write", type=Path, nargs="*", default=[], metavar="FILE", help="README.md docs/benchmarks.md"
    )
    parser.add_argument("--results", type=Path, default=suite.RESULTS_FOLDER)
    parser.add_argument("--plots", action="store_true", help="draw the pictures, too")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a file would change")
    args = parser.parse_args(argv)
    found = load(args.results)
    if args.plots and not args.check:
        for path in draw(found, args.results):
            print(f"drawn: {path}")
    pictures = [f"benchmarks/results/{path.name}" for path in sorted(args.results.glob("*.png"))]
    shown = [p for p in pictures if Path(p).stem in ("large", "interference", "two_gpus")]
    status = 0
    for path in args.write:
        block = readme_block(found, shown) if path.name == "README.md" else benchmarks_block(found)
        old = path.read_text(encoding="utf-8")
        new = replace_block(old, RESULTS, block)
        if path.name == "README.md":
            new = replace_block(new, HEADLINE, headline(found))
        if path.name == "README.md" and not args.check:
            new = replace_block(new, PLAN, plan_block())
        if new != old and args.check:
            print(f"{path} is not what the results give")
            status = 1
        elif new != old:
            path.write_text(new, encoding="utf-8")
            print(f"written: {path}")
    if not args.write and not args.plots:
        print(readme_block(found, shown))
    return status


if __name__ == "__main__":
    sys.exit(main())
