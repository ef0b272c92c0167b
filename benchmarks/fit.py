"""`python -m benchmarks.fit`: the cost model's parameters and the table of measured choices, from sweeps.

Reads benchmarks/results/sweep*.json, writes jax_clc/planning/tuned/cost_FAMILY.json and choices_DEVICE.json, and prints
what the fit is worth: how far predictions are off, and what choosing by them loses against the best measured. Sweeps of
kernels as they were before a change are in benchmarks/results/earlier: within 2%, near enough for the cost model, which
learns there of kernels that newer sweeps left out, but nothing to choose by.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import suite
from jax_clc.bench.results import problem_of
from jax_clc.planning import catalog, cost_model, planner
from jax_clc.planning.catalog import Kernel
from jax_clc.planning.cost_parameters import CostParameters, parameters, tile_class
from jax_clc.planning.device_model import REFERENCE_DEVICES
from jax_clc.planning.problem import GemmProblem
from jax_clc.planning.tuned_choices import TABLE_FORMAT, Way, table_row, way_of

TUNED_FOLDER = Path(planner.__file__).parent / "tuned"
STEPS = (1.3, 1 / 1.3, 1.1, 1 / 1.1, 1.03, 1 / 1.03)
SCALAR_PARAMETERS = (
    "launch_us",
    "memset_us",
    "epilogue_fixed_us",
    "sm_store_bytes_per_us",
    "cta_start_us",
    "split_k_us",
    "split_k_sync_us",
    "stream_k_us",
    "cluster_k_us",
    "element_store_us",
    "element_copy_share_of_l2",
    "memory_efficiency",
    "l2_efficiency",
    "unhidden_share",
)
DYNAMIC_TIE = 0.005
"""A dynamic kernel this close to the best measured is entered instead: it keeps its pace when SMs are taken away."""
NARROW_TILE_LOSS = 0.01
"""What a persistent kernel is taken to lose for each time that it reads the operand bytes of a 128 x 256 tile over
again. Sweeps load a GPU for minutes, under its power limit; at 1980 MHz 128 x 128 tiles lose 5% against 128 x 256 at
8192^3 (docs/notes/hopper_kernels.md)."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One candidate of one problem."""

    problem: GemmProblem
    kernel: Kernel
    raster: tuple[int, int]
    split_k: int
    k_parts: int
    us: float


def committed(paths: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """The sweeps of these files, by default of benchmarks/results/sweep*.json."""
    return read(paths or sorted(suite.RESULTS_FOLDER.glob("sweep*.json")))


def earlier() -> list[dict[str, Any]]:
    """Sweeps of kernels as they were before a change."""
    return read(sorted((suite.RESULTS_FOLDER / "earlier").glob("sweep*.json")))


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def rows_by_problem(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in (row for content in sweeps for row in content["rows"]):
        rows.setdefault(row["key"], []).append(row)
    return rows


def without_finals(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A problem's rows but for races of finalists, which have few candidates and another clock."""
    return [row for row in rows if not row.get("is_final")]


def shipping() -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in catalog.kernels()}


def typical_us(rows: Sequence[Mapping[str, Any]]) -> dict[Way, float]:
    """Times of one problem's candidates, of kernels that still ship: means over its sweeps. GPUs of one kind differ,
    and not every sweep had every candidate, so times are compared over what all of them measured. A sweep without the
    candidate that most have is left out: nothing says how fast its GPU was."""
    kernels = shipping()
    times = [{way_of(c): c["measured_us"] for c in row["candidates"] if c["kernel"] in kernels} for row in rows]
    times = [row for row in times if row]
    if not times:
        return {}
    ((yardstick, _),) = collections.Counter(way for row in times for way in row).most_common(1)
    times = [row for row in times if yardstick in row]
    common = set.intersection(*map(set, times))
    scales = [statistics.geometric_mean(row[way] for way in common) for row in times]
    scale = statistics.geometric_mean(scales)
    shares: dict[Way, list[float]] = {}
    for row, own in zip(times, scales, strict=True):
        for way, us in row.items():
            shares.setdefault(way, []).append(us / own)
    return {way: scale * statistics.geometric_mean(found) for way, found in shares.items()}


def narrow_tile_factor(kernel: Kernel) -> float:
    """See NARROW_TILE_LOSS."""
    if kernel.launch_grid != "workers":
        return 1.0
    m, n, _ = kernel.cta_tile
    return 1 + NARROW_TILE_LOSS * ((m + n) / (m * n) / ((128 + 256) / (128 * 256)) - 1)


def measurements(sweeps: Sequence[Mapping[str, Any]], family: str) -> dict[str, list[Measured]]:
    """Candidates by problem key, with what narrow tiles are taken to lose. Races of finalists count too, for what no
    sweep had: their times are brought to the sweeps' by the candidates that they share."""
    kernels, found = shipping(), {}
    for key, rows in rows_by_problem(sweeps).items():
        called = planner.plan(problem_of(rows[0]), devices=[REFERENCE_DEVICES[family]]).problem
        found[key] = [
            Measured(called, kernels[name], (group, along), split_k, parts, us * narrow_tile_factor(kernels[name]))
            for (name, group, along, split_k, parts), us in typical_us(rows).items()
        ]
    return {key: group for key, group in found.items() if group}


def predicted_us(one: Measured, costs: CostParameters) -> float:
    device = REFERENCE_DEVICES[one.kernel.family]
    called = one.problem.in_parts_of_k(one.k_parts)
    found = cost_model.estimate(one.kernel, called, device, split_k=one.split_k, raster=one.raster, costs=costs)
    return found.total_us + cost_model.parts_us(one.problem, one.k_parts, device, costs)


def loss(groups: Mapping[str, Sequence[Measured]], costs: CostParameters) -> float:
    """Mean regret of choosing by prediction, plus a little of the mean error, so that ties are settled by truth."""
    errors, regrets = [], []
    for group in groups.values():
        predictions = [predicted_us(one, costs) for one in group]
        errors += [abs(math.log(p / one.us)) for p, one in zip(predictions, group, strict=True)]
        chosen = min(zip(predictions, group, strict=True), key=lambda pair: pair[0])[1]
        regrets.append(chosen.us / min(one.us for one in group) - 1)
    return statistics.fmean(regrets) + 0.3 * statistics.fmean(errors)


def fit(groups: Mapping[str, Sequence[Measured]], start: CostParameters, rounds: int = 4) -> CostParameters:
    """Coordinate search over the parameters and the efficiency of each tile class that was measured."""
    classes = sorted({tile_class(one.kernel): one.kernel for group in groups.values() for one in group}.items())
    costs = dataclasses.replace(
        start, tile_efficiency={**{name: start.mma_efficiency(kernel) for name, kernel in classes}}
    )
    best = loss(groups, costs)

    def with_scalar(name: str, factor: float) -> CostParameters:
        value = getattr(costs, name)
        return dataclasses.replace(costs, **{name: value * factor if value else 0.02})

    def with_class(name: str, factor: float) -> CostParameters:
        efficiency = {**costs.tile_efficiency, name: min(1.4, costs.tile_efficiency[name] * factor)}
        return dataclasses.replace(costs, tile_efficiency=efficiency)

    moves: list[Callable[[float], CostParameters]] = [
        *(lambda factor, name=name: with_scalar(name, factor) for name in SCALAR_PARAMETERS),
        *(lambda factor, name=name: with_class(name, factor) for name, _ in classes),
    ]
    for _ in range(rounds):
        before = best
        for move in moves:
            for factor in STEPS:
                tried = move(factor)
                value = loss(groups, tried)
                if value < best - 1e-9:
                    costs, best = tried, value
        if best > before - 1e-5:
            break
    return costs


def finals_of(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A problem's races of finalists of which some kernel still ships."""
    return [row for row in rows if row.get("is_final") and typical_us([row])]


def finalists(rows: Sequence[Mapping[str, Any]], count: int) -> dict[Way, float]:
    """The fastest way in each of the `count` fastest tile shapes of a problem's sweeps, and their times: rasters and
    schedules of one shape lie closer together than shapes do, and keep their order from clock to clock."""
    kernels, best = shipping(), {}
    for way, us in sorted(typical_us(without_finals(rows)).items(), key=lambda item: item[1]):
        best.setdefault(tile_class(kernels[way[0]]), (way, us))
    return dict(list(best.values())[:count])


def table(sweeps: Sequence[Mapping[str, Any]], family: str) -> dict[str, Any]:
    """The choices that ship: for each problem measured, the kernel that still ships and is fastest over its sweeps."""
    rows = rows_by_problem(sweeps)
    choices = {key: table_row(best) for key, own in rows.items() if (best := best_of(own)) is not None}
    found = sweeps[0]["environment"]
    return {
        "format": TABLE_FORMAT, "device": found["device"], "family": family, "date": found["date"],
        "command": sweeps[0]["command"], "choices": choices,
    }  # fmt: skip


def best_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The best candidate of a problem's sweeps. None if none ships. A dynamic kernel is taken where it is tied.

    One sweep's luck does not decide: what fewer than half of them have must be faster than all that more have by what
    lies between the quartiles of its samples. Where the finalists of sweeps were raced by themselves, as the sets are,
    those races decide, and narrow tiles are taken to lose nothing: the clock was that of the sets.
    """
    finals = finals_of(rows)
    rows = finals or without_finals(rows)
    found = collections.Counter(way_of(candidate) for row in rows for candidate in row["candidates"])
    typical = typical_us(rows)
    common = {way: us for way, us in typical.items() if 2 * found[way] >= len(rows)}
    if common:
        limit = min(common.values())
        typical = common | {way: us for way, us in typical.items() if us * (1 + spread_of(rows, way)) < limit}
    if not typical:
        return None
    kernels = shipping()
    weighed = {way: us * (1.0 if finals else narrow_tile_factor(kernels[way[0]])) for way, us in typical.items()}
    least = min(weighed.values())
    tied = {way: us for way, us in weighed.items() if us <= least * (1 + DYNAMIC_TIE)}
    dynamic = {way: us for way, us in tied.items() if "dynamic" in way[0]}
    way = min(dynamic or tied, key=weighed.__getitem__)
    return {
        "kernel": way[0], "raster_group": way[1], "raster_along": way[2], "split_k": way[3], "k_parts": way[4],
        "measured_us": round(typical[way], 2),
    }  # fmt: skip


def spread_of(rows: Sequence[Mapping[str, Any]], way: Way) -> float:
    """What lies between the quartiles of a candidate's samples, as a share of its time: the most of all sweeps."""
    found = [candidate for row in rows for candidate in row["candidates"] if way_of(candidate) == way]
    return max(candidate.get("spread_us", math.inf) / candidate["measured_us"] for candidate in found)


def newcomers(rows: Sequence[Mapping[str, Any]]) -> list[Way]:
    """Ways that no final has raced, and that sweeps found faster, beyond their spread, than the one that won there."""
    finals, sweeps, best = finals_of(rows), without_finals(rows), best_of(rows)
    if not finals or best is None:
        return []
    swept, raced = typical_us(sweeps), {way for row in finals for way in typical_us([row])}
    limit = swept.get(way_of(best), 0.0)
    return [way for way, us in swept.items() if way not in raced and us * (1 + spread_of(sweeps, way)) < limit]


def describe(name: str, groups: Mapping[str, Sequence[Measured]], costs: CostParameters) -> str:
    """One line: typical error of a prediction, and how often the choice is within 3% of the best."""
    errors = [abs(math.log(predicted_us(one, costs) / one.us)) for group in groups.values() for one in group]
    regrets = []
    for group in groups.values():
        chosen = min(group, key=lambda one: predicted_us(one, costs))
        regrets.append(chosen.us / min(one.us for one in group) - 1)
    within = sum(regret <= 0.03 for regret in regrets)
    return (
        f"{name:<8} median error {100 * statistics.median(errors):.1f}%, chosen within 3% of the best on {within} of "
        f"{len(regrets)} problems, worst {100 * max(regrets):.0f}% slower"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs="*", help="default: benchmarks/results/sweep*.json")
    parser.add_argument("--dry-run", action="store_true", help="print only")
    args = parser.parse_args(argv)
    sweeps = committed(args.sweeps)
    measured = [*sweeps, *([] if args.sweeps else earlier())]
    if not sweeps:
        print("no sweep to fit to: run `python -m benchmarks.sweep` on a GPU")
        return 2
    for family in sorted({content["family"] for content in sweeps}):
        own = [content for content in sweeps if content["family"] == family]
        groups = measurements([content for content in measured if content["family"] == family], family)
        if not groups:
            print(f"{family}: no sweep but finals: nothing to fit to")
            return 2
        for key, rows in rows_by_problem(own).items():
            for way in newcomers(rows):
                print(f"worth another final: {key}: {' '.join(map(str, way))}")
        # The search ends in the next valley: the shipped parameters are another place to start.
        found = [fit(groups, start) for start in (CostParameters(), parameters(family))]
        fitted = min(found, key=partial(loss, groups))
        print(f"{family}, {sum(map(len, groups.values()))} measurements")
        print(describe("defaults", groups, CostParameters()))
        print(describe("fitted", groups, fitted))
        rounded = {
            name: {k: round(v, 4) for k, v in value.items()} if isinstance(value, Mapping) else float(f"{value:.4g}")
            for name, value in dataclasses.asdict(fitted).items()
        }
        device = own[0]["environment"]["device"]
        cost = {"family": family, "device": device, "command": "python -m benchmarks.fit", "parameters": rounded}
        choices = table(own, family)
        print(f"{len(choices['choices'])} measured choices")
        if not args.dry_run:
            slug = device.lower().replace("nvidia ", "").replace(" ", "_")
            for name, content in ((f"cost_{family}", cost), (f"choices_{slug}", choices)):
                path = TUNED_FOLDER / f"{name}.json"
                path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
                print(f"written: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
