"""Measures many ways to run one problem: every candidate is forced through the planner, checked, and raced."""

from __future__ import annotations

import collections
import fnmatch
import functools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

import jax_clc
from jax_clc.bench.check import ExactCheck, Inexact
from jax_clc.bench.contestants import NotApplicable
from jax_clc.bench.device_timer import Timer
from jax_clc.bench.measure import Progress
from jax_clc.bench.operands import Product, on_stored, random_sets, sets_beyond_l2
from jax_clc.bench.race import Effort, race
from jax_clc.planning import GemmProblem, catalog, constraints, cost_model, planner
from jax_clc.planning.device_model import REFERENCE_DEVICES, DeviceModel
from jax_clc.planning.tuned_choices import TunedChoice, Way, forcing

RASTERS = ((8, 0), (8, 1), (16, 0), (4, 1))
IN_EVERY_RASTER = 6
"""So many of the best candidates are tried in all of `RASTERS`, where there is more than one wave."""
SPLITS_EACH = 2
"""Split-K factors of one kernel that are tried, the best by the model."""
IN_PARTS = 4
"""Ways to compute k in parts that XLA adds up, where there are few tiles."""
COMPILE_THREADS = max(1, min(8, (os.cpu_count() or 1) - 1))


def candidate_choices(
    problem: GemmProblem,
    family: str,
    most: int,
    rasters: Sequence[tuple[int, int]] = RASTERS,
    patterns: Sequence[str] = (),
) -> list[TunedChoice]:
    """Ways to run `problem`, after padding, on `family`: the `most` best by the model, each with its best raster.

    The best of them are added with the other `rasters`, the best in parts of k, and what `auto` takes. Kernels that
    store element by element are left out where others fit, which are never slower. With `patterns` it is the kernels
    whose names match one of them, in all `rasters`, and what `auto` takes. `measured_us` holds the prediction.
    """
    device = REFERENCE_DEVICES[family]
    found: dict[Way, TunedChoice] = {}

    def enter(way: Way, us: float) -> None:
        kernel, group, along, split_k, parts = way
        found.setdefault(way, TunedChoice(kernel, group, along, split_k, us, device.name, "sweep", parts))

    def add(candidate: planner.Candidate, raster: tuple[int, int], parts: int = 1) -> None:
        us = candidate.estimate.total_us + cost_model.parts_us(problem, parts, device)
        enter((candidate.kernel.name, *raster, candidate.split_k, parts), us)

    ranked = _ranked(problem, device)
    if patterns:
        ranked = [one for one in ranked if any(fnmatch.fnmatch(one.kernel.name, pattern) for pattern in patterns)]
    for place, candidate in enumerate(ranked[:most]):
        own = (candidate.estimate.raster_group, candidate.estimate.raster_along)
        others = rasters if (patterns or place < IN_EVERY_RASTER) and candidate.estimate.waves > 1 else ()
        for raster in dict.fromkeys([own, *others]):
            add(candidate, raster)
    in_parts = [
        (candidate.estimate.total_us + cost_model.parts_us(problem, parts, device), parts, place, candidate)
        for parts in (() if patterns else planner.parts_of_k(problem))
        for place, candidate in enumerate(_ranked(problem.in_parts_of_k(parts), device)[:IN_PARTS])
    ]
    for _, parts, _, candidate in sorted(in_parts)[:IN_PARTS]:
        add(candidate, (candidate.estimate.raster_group, candidate.estimate.raster_along), parts)
    made = planner.plan(problem, devices=[device])
    if family in made.choices:
        enter(made.way(family), made.choices[family].predicted_us)
    return list(found.values())


def chosen(problem: GemmProblem, family: str, ways: Mapping[Way, float]) -> list[TunedChoice]:
    """These ways, and what `auto` takes, with the times expected of them."""
    device = REFERENCE_DEVICES[family]
    made = planner.plan(problem, devices=[device])
    found = {made.way(family): made.choices[family].predicted_us, **ways}
    return [TunedChoice(*way[:4], us, device.name, "sweep", way[4]) for way, us in found.items()]


def _ranked(called: GemmProblem, device: DeviceModel) -> list[planner.Candidate]:
    """Candidates for the problem as a kernel is called, best first, without those of `candidate_choices` left out."""
    fits = [
        kernel for kernel in catalog.kernels(device.family)
        if constraints.first_failure(kernel, called, constraints.PROBLEM_CONSTRAINTS) is None
    ]  # fmt: skip
    fits = [kernel for kernel in fits if "d" in kernel.aligned_operands] or fits
    splits: collections.Counter[str] = collections.Counter()
    ranked = []
    for candidate in planner.candidates(called, device, fits):
        splits[candidate.kernel.name] += 1
        if splits[candidate.kernel.name] <= SPLITS_EACH:
            ranked.append(candidate)
    return ranked


def forced(
    problem: GemmProblem, called: GemmProblem, family: str, choice: TunedChoice, operands: Sequence[jax.Array]
) -> Product:
    """`matmul` compiled with that choice. `called` is the problem after padding, which is what the planner looks up.

    Raises NotApplicable where lowering asked for another problem, so that the choice was not taken.
    """
    product = functools.partial(jax_clc.matmul, preferred_element_type=problem.out_dtype)
    with forcing(family, called, choice) as table:
        lowered = jax.jit(on_stored(problem, product)).lower(*operands)
    if not table.times_found or choice.kernel not in lowered.as_text():
        raise NotApplicable(f"{choice.kernel} was not taken: the program was not lowered for {called}")
    return lowered.compile()


def sweep(
    problem: GemmProblem,
    family: str,
    timer: Timer,
    *,
    most: int = 12,
    rasters: Sequence[tuple[int, int]] = RASTERS,
    patterns: Sequence[str] = (),
    ways: Mapping[Way, float] | None = None,
    effort: Effort | None = None,
    peers: dict[str, Product] | None = None,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Times of all `candidate_choices` on this device, or of these `ways` and what `auto` takes, fastest first, and of
    `peers` beside them. The ways come with the microseconds that are expected of them.

    Candidates that are not exact are named with the difference, and not timed.
    """
    called = planner.plan(problem, devices=[REFERENCE_DEVICES[family]]).problem
    choices = chosen(called, family, ways) if ways else candidate_choices(called, family, most, rasters, patterns)
    if not choices:
        raise NotApplicable(f"no kernel for {family} fits {called}")
    sets = random_sets(problem, sets_beyond_l2(problem))
    ready: dict[str, Product] = {}
    by_name: dict[str, TunedChoice] = {}
    wrong: dict[str, str] = {}
    progress(f"compile {len(choices)} candidates")
    with ThreadPoolExecutor(COMPILE_THREADS) as threads:
        compiled = [threads.submit(forced, problem, called, family, choice, sets[0]) for choice in choices]
    check = ExactCheck(problem)
    for index, (choice, product) in enumerate(zip(choices, compiled, strict=True)):
        name = f"{choice.kernel} {choice.raster_group}/{choice.raster_along} {choice.split_k} {choice.k_parts}"
        progress(f"check {index + 1} of {len(choices)}")
        try:
            check(name, product.result())
        except (Inexact, jax.errors.JaxRuntimeError) as error:
            wrong[name] = str(error)[:500]
            continue
        ready[name], by_name[name] = product.result(), choice
    timings = race({**ready, **(peers or {})}, sets, timer, effort, lambda share: progress(f"time {share:4.0%}"))
    measured = [
        {
            "kernel": by_name[name].kernel, "raster_group": by_name[name].raster_group,
            "raster_along": by_name[name].raster_along, "split_k": by_name[name].split_k,
            "k_parts": by_name[name].k_parts,
            "predicted_us": round(by_name[name].measured_us, 2), "measured_us": round(timings[name].median_us, 2),
            "spread_us": round(timings[name].q3_us - timings[name].q1_us, 2),
        }
        for name in ready
    ]  # fmt: skip
    return {
        "candidates": sorted(measured, key=lambda row: row["measured_us"]),
        "peers": {name: round(timings[name].median_us, 2) for name in peers or {}},
        "inexact": wrong,
    }
