"""One problem from start to row: make the contestants, check each exactly, then race them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax_clc.bench import contestants as field
from jax_clc.bench import results
from jax_clc.bench.check import ExactCheck
from jax_clc.bench.contestants import NotApplicable
from jax_clc.bench.device_timer import Timer
from jax_clc.bench.environment import plan_here, running_family
from jax_clc.bench.operands import Product, random_sets, sets_beyond_l2
from jax_clc.bench.race import Effort, race
from jax_clc.planning import GemmProblem

Progress = Callable[[str], None]


def measure(
    problem: GemmProblem,
    timer: Timer,
    *,
    effort: Effort | None = None,
    peers: Sequence[str] = (results.BASELINE,),
    requests: Mapping[str, Mapping[str, Any]] | None = None,
    note: str = "",
    progress: Progress = lambda text: None,
    before_race: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """A results row. `requests` maps a contestant of ours to its arguments of `matmul` (schedule, kernel, sm_limit).
    `before_race` is called when all is compiled and checked.

    A contestant that cannot run is skipped with its reason; one that runs and is not exact raises Inexact.
    """
    requests = requests or {results.OURS: {}}
    check = ExactCheck(problem)
    ready: dict[str, Product] = {}
    skipped: dict[str, str] = {}

    def enter(name: str, make: Callable[..., Product], **request: Any) -> None:
        progress(f"{name}: compile and check")
        try:
            product = make(problem, **request)
        except (NotApplicable, ValueError) as error:
            skipped[name] = str(error)
            return
        check(name, product)
        ready[name] = product

    for name, request in requests.items():
        enter(name, field.ours, **request)
    makers = {"jnp.dot": field.jnp_dot, "jnp.dot padded": field.jnp_dot_padded}
    for name in peers:
        if name != "pallas":
            enter(name, makers[name])

    sets = random_sets(problem, sets_beyond_l2(problem))
    if "pallas" in peers:
        progress("pallas: choose a configuration")
        enter("pallas", functools.partial(best_pallas, sets=sets, timer=timer))
    if not ready:
        raise NotApplicable(f"nothing runs {problem}: {'; '.join(f'{k}: {v}' for k, v in skipped.items())}")
    before_race()
    timings = race(ready, sets, timer, effort, lambda share: progress(f"time {share:4.0%}"))
    kernels = {name: kernel_here(problem, request) for name, request in requests.items() if name in ready}
    return results.row(problem, timings, input_sets=len(sets), kernels=kernels, note=note, skipped=skipped)


def kernel_here(problem: GemmProblem, request: Mapping[str, Any]) -> str | None:
    """The kernel that the default device runs for a request; None where none does."""
    family = running_family()
    choice = None if family is None else plan_here(problem, **request).choices.get(family)
    return None if choice is None else choice.kernel


def best_pallas(problem: GemmProblem, sets: Sequence[tuple[Any, ...]], timer: Timer) -> Product:
    """The fastest of Pallas' configurations on this problem, found by a short race among those that compile."""
    runnable: dict[str, Product] = {}
    errors: list[str] = []
    for name, product in field.pallas_configurations(problem):
        try:
            product(*sets[0]).block_until_ready()
        except Exception as error:  # a peer's compile-time limits, such as shared memory, differ by configuration
            errors.append(f"{name}: {type(error).__name__}")
            continue
        runnable[name] = product
    if not runnable:
        raise NotApplicable(f"no configuration runs: {'; '.join(errors)}")
    timings = race(runnable, sets, timer, dataclasses.replace(Effort.quick(), samples=5))
    return runnable[min(timings, key=lambda name: timings[name].median_us)]
