"""Contestants timed in turns, call by call on the same operands: the one timing core of the CLI and of benchmarks/."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax_clc.bench.device_timer import Sample, Timer
from jax_clc.bench.operands import Product

MAX_CALLS_PER_SAMPLE = 32
SETTLED = 0.005
"""Two stretches of warming up whose rounds differ by less than this share show that the clocks have settled."""
MAX_WARMUPS = 6


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure. A sample is a few calls in a row, so that launch gaps do not let the device cool down; all
    contestants in turn warm it up, in stretches of `warmup_us`."""

    samples: int = 15
    sample_us: float = 2000.0
    warmup_us: float = 20_000.0

    @classmethod
    def quick(cls) -> Effort:
        return cls(samples=7, sample_us=500.0, warmup_us=3000.0)


@dataclasses.dataclass(frozen=True)
class Timing:
    """One contestant on one problem: microseconds per call, median and quartiles over the samples."""

    median_us: float
    q1_us: float
    q3_us: float
    wall_us: float
    samples: int
    calls_per_sample: int
    activities: tuple[tuple[str, float], ...]
    """(name, microseconds) of what one call put on the device, in order, in the median sample; empty for wall time."""

    def as_json(self) -> dict[str, Any]:
        rounded = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(self).items()
        }
        return rounded | {"activities": [[name[:120], round(us, 3)] for name, us in self.activities]}


def race(
    contestants: Mapping[str, Product],
    operand_sets: Sequence[tuple[jax.Array, ...]],
    timer: Timer,
    effort: Effort | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Timing]:
    """Times jitted functions of one operand set against each other.

    In every round each contestant runs one sample, and the order turns with the round, so that a change of clocks or
    temperature meets all alike. Successive calls take successive operand sets. `progress` is told the share done.
    """
    effort = effort or Effort()
    turn = {name: 0 for name in contestants}

    def work(name: str, calls: int) -> Callable[[], None]:
        def run() -> None:
            product, result = contestants[name], None
            for _ in range(calls):
                result = product(*operand_sets[turn[name] % len(operand_sets)])
                turn[name] += 1
            jax.block_until_ready(result)

        return run

    estimates = {}
    for name in contestants:
        work(name, 2)()
        start = time.perf_counter()
        work(name, 3)()
        estimates[name] = (time.perf_counter() - start) * 1e6 / 3
    calls = max(1, min(MAX_CALLS_PER_SAMPLE, round(effort.sample_us / min(estimates.values()))))
    warm_up([work(name, calls) for name in contestants], effort.warmup_us)

    names = list(contestants)
    with timer.session() as session:
        for turned in range(effort.samples):
            for position in range(len(names)):
                name = names[(position + turned) % len(names)]
                session.sample(name, work(name, calls))
            if progress:
                progress((turned + 1) / effort.samples)
    by_name: dict[str, list[Sample]] = {name: [] for name in names}
    for sample in session.samples:
        by_name[sample.key].append(sample)
    return {name: summarise(samples, calls) for name, samples in by_name.items()}


def warm_up(works: Sequence[Callable[[], None]], stretch_us: float) -> int:
    """Runs all of `works` in turns, in stretches of that many microseconds or one round, until one takes as long a
    round as the one before it: a large product brings the GPU to its power limit, and the clock falls for a while.
    Returns the number of stretches, `MAX_WARMUPS` at most."""
    before = float("inf")
    for stretch in range(1, MAX_WARMUPS + 1):
        start, rounds, elapsed_us = time.perf_counter(), 0, 0.0
        while rounds == 0 or elapsed_us < stretch_us:
            for work in works:
                work()
            rounds += 1
            elapsed_us = (time.perf_counter() - start) * 1e6
        round_us = elapsed_us / rounds
        if abs(round_us - before) <= SETTLED * round_us:
            return stretch
        before = round_us
    return MAX_WARMUPS


def summarise(samples: Sequence[Sample], calls: int) -> Timing:
    """Median and quartiles per call, and what the median sample's first call did on the device."""
    ordered = sorted(samples, key=lambda sample: sample.device_us)
    times = [sample.device_us / calls for sample in ordered]
    q1, median, q3 = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    activities = ordered[len(ordered) // 2].activities
    per_call = activities[: len(activities) // calls]
    return Timing(
        median_us=median,
        q1_us=q1,
        q3_us=q3,
        wall_us=statistics.median(sample.wall_us / calls for sample in samples),
        samples=len(samples),
        calls_per_sample=calls,
        activities=tuple((a.name, (a.end_ns - a.start_ns) / 1e3) for a in per_call),
    )
