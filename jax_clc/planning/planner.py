"""plan(): from a problem to one kernel for each GPU family, by candidates, constraints and predicted time."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jax_clc.planning import catalog, constraints, cost_model, tuned_choices
from jax_clc.planning.catalog import Kernel
from jax_clc.planning.cost_parameters import parameters, tile_class
from jax_clc.planning.device_model import DeviceModel, reference_devices
from jax_clc.planning.problem import GemmProblem, Operand, dtype_bytes
from jax_clc.planning.report import GemmPlan, KernelChoice
from jax_clc.planning.scratch import scratch_bytes
from jax_clc.schedule.choose import choose_schedule

SPLIT_K_FACTORS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)
K_PARTS = (4, 8, 16, 32, 64)
LONG_K = 32
"""k of so many times m and n at least is worth computing in parts that XLA adds up."""
LEAST_K_OF_A_PART = 2048
MOST_PARTIAL_ELEMENTS = 1 << 22  # of all parts, which should be found in L2
MAX_NAMES_IN_ERROR = 6


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel that fits, how it would be called, and its predicted time in microseconds."""

    kernel: Kernel
    split_k: int
    estimate: cost_model.Estimate

    @property
    def rank(self) -> tuple[float, float, str, int]:
        """Where memory bounds both, the kernel whose mainloop leaves it more time is the safer one."""
        return self.estimate.total_us, self.estimate.mainloop_us, self.kernel.name, self.split_k


def plan(
    problem: GemmProblem,
    *,
    schedule: str = "auto",
    kernel: str | None = None,
    sm_limit: int | None = None,
    devices: Sequence[DeviceModel] | None = None,
) -> GemmPlan:
    """Choose a kernel for each family of `devices` (by default the reference device of every family that ships).

    The same package, tuned tables and arguments give the same plan, on any machine. Where no kernel serves, the plan
    carries a `fallback_reason`. A `schedule` or `kernel` that cannot be honoured raises ValueError, which lists those
    that fit and why the others do not. A missing or damaged manifest raises CatalogError.
    """
    if schedule != "auto" and schedule not in constraints.SCHEDULES:
        raise ValueError(
            f"schedule={schedule!r} does not exist; choose from {', '.join(('auto', *constraints.SCHEDULES))}"
        )
    if sm_limit is not None and sm_limit < 1:
        raise ValueError(f"sm_limit={sm_limit} leaves no SM; give at least 1, or None for no limit")
    every = catalog.kernels(traced=kernel is not None)
    if devices is None:
        shipped = {k.family for k in every}
        devices = [device for device in reference_devices() if device.family in shipped]
    return _plan(problem, schedule, kernel, sm_limit or 0, tuple(devices), every, tuned_choices.tables())


def fingerprint() -> str:
    """A hash of what decides a plan beside its arguments: this version of the package, the kernels that ship, the cost
    model's parameters and the tuned tables in force."""
    return _fingerprint(catalog.directory(), tuned_choices.tables())


@functools.lru_cache(maxsize=8)
def _fingerprint(folder: Path, tables: tuned_choices.Tables) -> str:
    del folder  # of the manifest that is read here
    try:
        kernels = json.dumps(catalog.manifest(), sort_keys=True)
    except catalog.CatalogError:
        kernels = ""  # no plan will be made
    from jax_clc import __version__  # which imports this module

    costs = [parameters(family) for family in catalog.FAMILIES]
    return hashlib.sha256(f"{__version__} {kernels} {costs!r} {tables!r}".encode()).hexdigest()


@functools.lru_cache(maxsize=4096)
def _plan(
    problem: GemmProblem,
    schedule: str,
    kernel: str | None,
    sm_limit: int,
    devices: tuple[DeviceModel, ...],
    every: tuple[Kernel, ...],
    tables: tuned_choices.Tables,
) -> GemmPlan:
    requests = constraints.request_constraints(schedule, kernel, sm_limit)
    pinned = schedule != "auto" or kernel is not None
    if kernel is not None and all(k.name != kernel for k in every):
        fitting = _fitting(problem, every, devices, requests[:-1])
        raise ValueError(_misfit(f"kernel={kernel!r} does not exist", problem, fitting, {}))

    best: GemmPlan | None = None
    best_rank: tuple[int, int, float] | None = None
    ways = [(pads, 1) for pads in _pad_sets(problem)]
    if not pinned and not sm_limit:
        ways += [((), parts) for parts in parts_of_k(problem)]
    for pads, parts in ways:
        padded, rows = _apply_pads(problem, pads)
        called = padded.in_parts_of_k(parts)
        choices: dict[str, KernelChoice] = {}
        unserved: dict[str, str] = {}
        measured, predicted_us = 0, 0.0
        for device in devices:
            checks = (*requests, *constraints.PROBLEM_CONSTRAINTS)
            fits, failures = _split_by_fit(called, _family(every, device), checks)
            if not fits:
                need = constraints.unmet_need(called, checks, failures) if failures else "ships"
                unserved[device.family] = f"no kernel for {device.family} {need}"
                continue
            tuned = None if pinned or sm_limit else _tuned(padded, parts, fits, device, tables)
            choice = tuned or _choose(called, fits, device, schedule, sm_limit)
            choices[device.family] = choice
            measured += tuned is not None
            predicted_us += choice.predicted_us
            if tuned is None:  # a measured time has it all
                predicted_us += _pads_us(problem, pads, device) + cost_model.parts_us(problem, parts, device)
        rank = (-len(choices), -measured, predicted_us)
        if best_rank is None or rank < best_rank:
            best_rank = rank
            best = GemmPlan(padded, choices, None, rows, sm_limit, unserved, parts)
    assert best is not None, "_pad_sets gives the empty set at least"
    if best.choices:
        return best
    if pinned:
        asked = f"kernel={kernel!r}" if kernel is not None else f"schedule={schedule!r}"
        fitting = _fitting(problem, every, devices, constraints.request_constraints("auto", None, sm_limit))
        checks = (*requests, *constraints.PROBLEM_CONSTRAINTS)
        _, failures = _split_by_fit(problem, _asked(every, schedule, kernel, devices), checks)
        raise ValueError(_misfit(f"{asked} does not fit", problem, fitting, failures))
    return GemmPlan(problem, {}, "; ".join(best.unserved.values()) or "no device is asked for", sm_limit=sm_limit)


def candidates(
    problem: GemmProblem, device: DeviceModel, kernels: Iterable[Kernel], sm_limit: int = 0
) -> list[Candidate]:
    """Every way to run the fitting `kernels`, best first."""
    found = []
    for kernel in kernels:
        for split_k in _split_factors(kernel, problem):
            found.append(Candidate(kernel, split_k, cost_model.estimate(
                kernel, problem, device, split_k=split_k, sm_limit=sm_limit)))  # fmt: skip
    return sorted(found, key=lambda candidate: candidate.rank)


def parts_of_k(problem: GemmProblem) -> list[int]:
    """Numbers of parts that few tiles with a long k may be computed in, as a batch that XLA adds up."""
    if problem.batch != 1 or problem.k < LONG_K * max(problem.m, problem.n):
        return []
    return [
        parts for parts in K_PARTS
        if problem.k % parts == 0 and problem.k // parts >= LEAST_K_OF_A_PART
        and parts * problem.m * problem.n <= MOST_PARTIAL_ELEMENTS
    ]  # fmt: skip


def _split_factors(kernel: Kernel, problem: GemmProblem) -> list[int]:
    """1, and for a split-K kernel the factors that leave no part without a K block, and whose product with the number
    of K blocks the kernel can count."""
    if not kernel.split_k:
        return [1]
    k_steps = max(1, -(-problem.k // kernel.cta_tile[2]))
    return [1] + [
        f for f in SPLIT_K_FACTORS
        if f <= k_steps and (f - 1) * -(-k_steps // f) < k_steps and f * k_steps <= constraints.MAX_SIZE
    ]  # fmt: skip


def _tuned(
    whole: GemmProblem, parts: int, fits: Sequence[Kernel], device: DeviceModel, tables: tuned_choices.Tables
) -> KernelChoice | None:
    """The measured choice for this problem, if it is to compute k in so many parts, and its kernel ships and fits."""
    tuned, problem = tables.find(device, whole), whole.in_parts_of_k(parts)
    if tuned is None or tuned.k_parts != parts:
        return None
    kernel = next((k for k in fits if k.name == tuned.kernel), None)
    if kernel is None or tuned.split_k not in _split_factors(kernel, problem):
        return None
    found = cost_model.estimate(
        kernel, problem, device, split_k=tuned.split_k, raster=(tuned.raster_group, tuned.raster_along)
    )
    reason = f"measured best on {tuned.device}: {tuned.measured_us:.1f} us (table {tuned.table})"
    return _choice(Candidate(kernel, tuned.split_k, found), problem, device, reason, tuned.measured_us)


def _choose(
    problem: GemmProblem, fits: Sequence[Kernel], device: DeviceModel, schedule: str, sm_limit: int
) -> KernelChoice:
    ranked = candidates(problem, device, fits, sm_limit)
    best, why = ranked[0], f"schedule {schedule} was asked for"
    if schedule == "auto":
        best, why = _in_its_schedule(best, ranked, sm_limit)
    reason = f"{_reason(best, ranked)}; {why}"
    return _choice(best, problem, device, reason, best.estimate.total_us)


def _in_its_schedule(best: Candidate, ranked: Sequence[Candidate], sm_limit: int) -> tuple[Candidate, str]:
    """The fastest kernel under the schedule that the schedule model takes for it, and that choice in words."""
    alike = {
        c.kernel.schedule: c for c in reversed(ranked) if (c.kernel.body, c.split_k) == (best.kernel.body, best.split_k)
    }
    found = best.estimate
    choice = choose_schedule(
        alike, family=best.kernel.family, tiles=max(1, found.work_items), resident_clusters=found.resident_clusters,
        tile_us=found.tile_us, sm_limit=sm_limit,
    )  # fmt: skip
    return alike[choice.schedule], choice.reason


def _choice(candidate: Candidate, problem: GemmProblem, device: DeviceModel, reason: str, us: float) -> KernelChoice:
    kernel, found = candidate.kernel, candidate.estimate
    clusters = found.work_items
    if kernel.launch_grid == "workers":
        clusters = min(clusters, found.resident_clusters)
    sizes = cost_model.KernelSizes.of(problem, kernel.swapped)
    return KernelChoice(
        kernel=kernel.name,
        schedule=kernel.schedule,
        swapped=kernel.swapped,
        raster_group=found.raster_group,
        raster_along=found.raster_along,
        split_k=candidate.split_k,
        grid=(clusters * kernel.cluster_size, 1, 1),
        cluster=kernel.cluster if kernel.cluster_k == 1 else (*kernel.cluster, kernel.cluster_k),
        waves=found.waves,
        scratch_bytes=scratch_bytes(kernel, sizes.batch, sizes.m, sizes.n, candidate.split_k),
        predicted_us=us,
        device=device.name,
        reason=reason,
    )


def _reason(best: Candidate, ranked: Sequence[Candidate]) -> str:
    """Why this tile: what bounds it, and what the next best would cost."""
    found, own = best.estimate, tile_words(best)
    parts = [f"bound by {found.bound}: mainloop {found.mainloop_us:.1f} us, memory {found.memory_us:.1f} us"]
    other = next((c for c in ranked if tile_words(c) != own), None)
    if other is not None:
        # Tile against tile, each under its fastest schedule: why this schedule is a reason of its own.
        fastest = next(c for c in ranked if tile_words(c) == own)
        parts.append(f"next best tile {tile_words(other)}, {_slower(other, fastest)}")
    return "; ".join(parts)


def tile_words(candidate: Candidate) -> str:
    """`128x256 c2x1`, with what else sets a candidate apart but its schedule."""
    split = f" split-K {candidate.split_k}" if candidate.split_k > 1 else ""
    return tile_class(candidate.kernel) + split + (" swapped" if candidate.kernel.swapped else "")


def _slower(other: Candidate, best: Candidate) -> str:
    percent = 100 * (other.estimate.total_us / best.estimate.total_us - 1)
    if abs(percent) < 0.05:
        return "predicted equal"
    return f"predicted {abs(percent):.1f}% {'slower' if percent > 0 else 'faster'}"


def _pad_sets(problem: GemmProblem) -> list[tuple[Operand, ...]]:
    """Every set of unaligned operands that could be padded, the empty one first."""
    unaligned = [operand for operand in constraints.OPERANDS if problem.misalignment(operand)]
    return [subset for size in range(len(unaligned) + 1) for subset in itertools.combinations(unaligned, size)]


def _apply_pads(problem: GemmProblem, operands: tuple[Operand, ...]) -> tuple[GemmProblem, dict[Operand, int]]:
    rows: dict[Operand, int] = {}
    for operand in operands:
        problem, rows[operand] = problem.padded(operand)
    return problem, rows


def _pads_us(problem: GemmProblem, operands: tuple[Operand, ...], device: DeviceModel) -> float:
    total = 0.0
    for operand in operands:
        outer, contiguous = problem.extents(operand)
        total += cost_model.copy_us(problem.batch * outer * contiguous * dtype_bytes(problem.dtype(operand)), device)
    return total


def _family(every: Iterable[Kernel], device: DeviceModel) -> list[Kernel]:
    return [kernel for kernel in every if kernel.family == device.family]


def _asked(every: Iterable[Kernel], schedule: str, kernel: str | None, devices: Sequence[DeviceModel]) -> list[Kernel]:
    """The kernels that the request names: their reasons are what the caller needs to hear."""
    families = {device.family for device in devices}
    return [
        k for k in every
        if (k.name == kernel if kernel is not None else k.family in families and schedule in ("auto", k.schedule))
    ]  # fmt: skip


def _split_by_fit(
    problem: GemmProblem, kernels: Iterable[Kernel], checks: Sequence[constraints.Constraint]
) -> tuple[list[Kernel], dict[str, tuple[int, str]]]:
    fits, failures = [], {}
    for kernel in kernels:
        failure = constraints.first_failure(kernel, problem, checks)
        if failure is None:
            fits.append(kernel)
        else:
            failures[kernel.name] = failure
    return fits, failures


def _fitting(
    problem: GemmProblem,
    every: Sequence[Kernel],
    devices: Sequence[DeviceModel],
    requests: Sequence[constraints.Constraint],
) -> list[Kernel]:
    """Kernels that fit with or without padding, for the text of an error."""
    names: dict[str, Kernel] = {}
    for pads in _pad_sets(problem):
        called, _ = _apply_pads(problem, pads)
        for device in devices:
            fits, _ = _split_by_fit(called, _family(every, device), (*requests, *constraints.PROBLEM_CONSTRAINTS))
            names.update((kernel.name, kernel) for kernel in fits)
    return [names[name] for name in sorted(names)]


def _misfit(
    headline: str, problem: GemmProblem, fitting: Sequence[Kernel], failures: Mapping[str, tuple[int, str]]
) -> str:
    lines = [f"{headline} for {problem}."]
    schedules = sorted({kernel.schedule for kernel in fitting})
    if fitting:
        lines.append(
            f"Schedules that fit: {', '.join(schedules)}. Kernels that fit: {_names([k.name for k in fitting])}."
        )
    else:
        lines.append("No kernel that ships fits.")
    by_reason: dict[str, list[str]] = {}
    for name, (_, reason) in failures.items():
        by_reason.setdefault(reason, []).append(name)
    lines += [f"Does not fit: {_names(names)}: {reason}." for reason, names in by_reason.items()]
    return "\n".join(lines)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES_IN_ERROR])
    return shown if len(names) <= MAX_NAMES_IN_ERROR else f"{shown} and {len(names) - MAX_NAMES_IN_ERROR} more"
