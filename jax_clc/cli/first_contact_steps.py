"""The steps of `jax-clc first-contact`. Each gives plain data with `passed` and a `summary`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax_clc.planning import GemmProblem, catalog, plan, reference_devices
from jax_clc.planning.catalog import Kernel

Progress = Callable[[str], None]

# (m, n, k, batch, majors): one-sized axes, tails in each axis, few and many tiles, both majors, batches.
EXACT_SHAPES = (
    (1, 8, 8, 1, "kn"), (8, 1, 16, 1, "kn"), (64, 64, 64, 1, "kn"), (128, 256, 64, 1, "kn"), (256, 256, 128, 1, "kk"),
    (129, 264, 72, 1, "kn"), (136, 257, 520, 1, "kk"), (384, 512, 1152, 1, "mn"), (1000, 1000, 1000, 1, "kn"),
    (1160, 1288, 264, 1, "mk"), (2560, 1664, 1024, 1, "kn"), (4096, 256, 1024, 1, "kn"), (16, 4096, 512, 1, "kn"),
    (512, 512, 8192, 1, "kk"), (4096, 4096, 64, 1, "kn"), (200, 328, 136, 5, "kn"), (512, 512, 256, 16, "mn"),
    (8192, 4096, 128, 1, "kn"), (3000, 3000, 200, 3, "kk"), (16384, 2048, 72, 1, "kn"),
)  # fmt: skip
DTYPES = (("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "float32"))
RACE_SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 4096), (8192, 8192, 512), (8192, 8192, 256),
    (4096, 14336, 4096), (2048, 2048, 8192), (1024, 6144, 4096),
)  # fmt: skip
QUICK_EXACT, QUICK_RACE = 7, 3
HELD_SHAPE = (8192, 8192, 4096)
TRACED_SHAPE = (4096, 8192, 4096)
HELD_PARTS = (32, 8, 4, 2)
"""Shares of the SMs that are held, as 1 in ...: 4, 16, 33 and 66 of an H200's 132."""


@dataclasses.dataclass(frozen=True)
class Contact:
    """What the steps are run on: a family's kernels, and the device and its clock where there is one."""

    family: str
    schedules: tuple[str, ...]
    quick: bool
    sm_count: int | None = None
    clock: Any = None

    @classmethod
    def of_family(cls, family: str, quick: bool) -> Contact:
        """Without a device. Raises ValueError for a family that no kernel is built for."""
        kernels = catalog.kernels(catalog.family_of(family))
        return cls(family, tuple(dict.fromkeys(kernel.schedule for kernel in kernels)), quick)

    @classmethod
    def of_this_device(cls, quick: bool) -> Contact:
        """JAX's default device, which must be one that kernels are built for."""
        from jax_clc import native
        from jax_clc.bench.device_timer import timer
        from jax_clc.bench.environment import running_family

        family = running_family()
        assert family is not None
        known = cls.of_family(family, quick)
        return dataclasses.replace(known, sm_count=native.devices()[0].sm_count, clock=timer())

    @property
    def exact_shapes(self) -> Sequence[tuple[int, int, int, int, str]]:
        return EXACT_SHAPES[:: len(EXACT_SHAPES) // QUICK_EXACT] if self.quick else EXACT_SHAPES

    @property
    def held_sms(self) -> Sequence[int]:
        """How many SMs are held, none first."""
        assert self.sm_count is not None
        return (0, *(self.sm_count // part for part in HELD_PARTS))

    @property
    def race_shapes(self) -> Sequence[tuple[int, int, int]]:
        return RACE_SHAPES[:QUICK_RACE] if self.quick else RACE_SHAPES


@dataclasses.dataclass(frozen=True)
class Step:
    """`promise` says in words what `run` does."""

    name: str
    promise: Callable[[Contact], str]
    run: Callable[[Contact, Progress], dict[str, Any]]


def siblings(kernel: Kernel, every: Sequence[Kernel]) -> dict[str, Kernel]:
    """schedule -> the kernel that differs from `kernel` in its schedule alone, itself among them."""
    alike = [other for other in every if other.body == kernel.body]
    return {other.schedule: other for other in sorted(alike, key=lambda other: other.stages)}


def requests_of(contact: Contact, problem: GemmProblem) -> dict[str, dict[str, str]]:
    """contestant -> arguments of `matmul`: the kernel that `auto` takes, under each schedule it comes in."""
    every = catalog.kernels(contact.family)
    chosen = plan(problem, devices=reference_devices((contact.family,))).choices.get(contact.family)
    if chosen is None:
        return {}
    kernel = next(kernel for kernel in every if kernel.name == chosen.kernel)
    return {schedule: {"kernel": other.name} for schedule, other in siblings(kernel, every).items()}


def exact(contact: Contact, progress: Progress) -> dict[str, Any]:
    """Every schedule on integer operands, into poisoned memory, compared for equality with the exact sums."""
    from jax_clc.bench.check import Inexact, check_exact
    from jax_clc.bench.contestants import NotApplicable, ours

    passed, failures, unserved = 0, [], []
    cases = list(itertools.product(contact.exact_shapes, DTYPES, contact.schedules))
    for index, ((m, n, k, batch, majors), (dtype, out_dtype), schedule) in enumerate(cases):
        problem = GemmProblem.compact(
            m, n, k, batch=batch, dtype=dtype, out_dtype=out_dtype, a_major=majors[0], b_major=majors[1]
        )
        label = f"{schedule} {batch}x {m}x{n}x{k} {majors} {dtype}>{out_dtype}"
        progress(f"{index + 1}/{len(cases)} {label}")
        try:
            check_exact(schedule, problem, ours(problem, schedule=schedule))
            passed += 1
        except (NotApplicable, ValueError) as error:
            unserved.append(f"{label}: {error}".splitlines()[0])
        except (Inexact, RuntimeError) as error:
            failures.append(f"{label}: {error}")
    return {
        "passed": not failures and passed > 0,
        "summary": f"{passed} of {len(cases)} cases exact, {len(failures)} wrong, {len(unserved)} without a kernel",
        "exact": passed,
        "failures": failures,
        "unserved": unserved,
    }


def bits(contact: Contact, progress: Progress) -> dict[str, Any]:
    """One kernel under its schedules on the same random operands, and each twice: equal bits."""
    import jax.numpy as jnp

    from jax_clc.bench.contestants import ours
    from jax_clc.bench.operands import random_sets

    differing, compared = [], 0
    for m, n, k in contact.race_shapes:
        problem = GemmProblem.compact(m, n, k)
        operands = random_sets(problem, 1)[0]
        reference = None
        for schedule, request in requests_of(contact, problem).items():
            progress(f"{schedule} {m}x{n}x{k}")
            product = ours(problem, **request)
            for result in (product(*operands), product(*operands)):
                reference = result if reference is None else reference
                compared += 1
                if not bool(jnp.array_equal(result, reference, equal_nan=True)):
                    differing.append(f"{schedule} {m}x{n}x{k}")
    return {
        "passed": not differing and compared > 0,
        "summary": f"{compared} results, {len(differing)} with other bits",
        "differing": differing,
    }


def race(contact: Contact, progress: Progress) -> dict[str, Any]:
    """The schedules of one kernel and jnp.dot, interleaved, on a quiet device."""
    from jax_clc.bench import results
    from jax_clc.bench.measure import measure
    from jax_clc.bench.race import Effort

    rows = []
    for m, n, k in contact.race_shapes:
        problem = GemmProblem.compact(m, n, k)
        requests = {results.OURS: {}, **requests_of(contact, problem)}
        effort = Effort.quick() if contact.quick else Effort()
        tell = functools.partial(_tell, progress, f"{m}x{n}x{k}")
        rows.append(measure(problem, contact.clock, effort=effort, requests=requests, progress=tell))
    ratios = [ratio for row in rows if (ratio := results.ratio(row)) is not None]
    return {
        "passed": True,
        "summary": f"auto against jnp.dot: geometric mean {results.geometric_mean(ratios):.3f} of {len(ratios)} shapes",
        "rows": rows,
    }


def held(contact: Contact, progress: Progress) -> dict[str, Any]:
    """The schedules of one kernel and jnp.dot while other work holds a part of the SMs for the whole time."""
    from jax_clc.bench import contestants, results
    from jax_clc.bench.check import check_exact
    from jax_clc.bench.operands import random_sets
    from jax_clc.bench.race import Effort, race
    from jax_clc.bench.sm_holder import SmHolder

    problem = GemmProblem.compact(*HELD_SHAPE)
    requests = requests_of(contact, problem)
    ready = {name: contestants.ours(problem, **request) for name, request in requests.items()}
    ready[results.BASELINE] = contestants.jnp_dot(problem)
    for name, product in ready.items():
        check_exact(name, problem, product)
    operands = random_sets(problem, 2)
    # Everything is compiled, loaded and warm before the first SM is held: loading may wait for the whole device.
    race(ready, operands, contact.clock, Effort.quick())
    holder, rows = SmHolder(), []
    kernels = {name: request["kernel"] for name, request in requests.items()}
    for sms in contact.held_sms:
        progress(f"{sms} SMs held")
        effort = Effort(samples=7 if contact.quick else 15, warmup_us=5000.0)
        with holder.holding(sms):
            timings = race(ready, operands, contact.clock, effort)
        rows.append({**results.row(problem, timings, input_sets=2, kernels=kernels), "held_sms": sms})
    most = {name: _slowdown(rows, name) for name in ready}
    return {
        "passed": True,
        "summary": f"{rows[-1]['held_sms']} SMs held: "
        + ", ".join(f"{name} x{ratio:.2f}" for name, ratio in most.items()),
        "rows": rows,
    }


def tiles(contact: Contact, progress: Progress) -> dict[str, Any]:
    """The traced schedules, quiet and with one SM in eight held: who got which tile when, and how it was claimed."""
    from jax_clc.cli import traced_runs
    from jax_clc.schedule import trace as trace_format
    from jax_clc.schedule.claims import claims

    found: dict[str, dict[str, Any]] = {}
    assert contact.sm_count is not None
    for name, sms in (("quiet", 0), ("held", contact.sm_count // 8)):
        progress(f"{sms} SMs held")
        traces = traced_runs.on_device(TRACED_SHAPE, None, sms)
        found[name] = {
            "held_sms": sms,
            "claims": [dataclasses.asdict(claims(trace)) for trace in traces],
            "traces": trace_format.to_json(traces),
        }
    asked = [entry for case in found.values() for entry in case["claims"] if entry["latency"]]
    latencies = [f"{entry['schedule']} {entry['latency']['median']:.2f} us" for entry in asked]
    return {"passed": True, "summary": f"median request: {', '.join(latencies)} (quiet, held)", **found}


def _slowdown(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    first, last = (row["contestants"][name]["median_us"] for row in (rows[0], rows[-1]))
    return last / first


def _tell(progress: Progress, subject: str, text: str) -> None:
    progress(f"{subject} {text}")


STEPS = (
    Step(
        "exact",
        lambda contact: (
            f"check {len(contact.exact_shapes)} shapes x {len(DTYPES)} dtypes x {len(contact.schedules)} schedules on "
            "integers, for equality with the exact sums"
        ),
        exact,
    ),
    Step(
        "bits",
        lambda contact: f"compare the schedules' bits on {len(contact.race_shapes)} shapes of random numbers",
        bits,
    ),
    Step(
        "race",
        lambda contact: (
            f"time the schedules and jnp.dot on {len(contact.race_shapes)} shapes, interleaved, device quiet"
        ),
        race,
    ),
    Step(
        "held",
        lambda contact: (
            f"time them again at {' x '.join(map(str, HELD_SHAPE))} while other work holds part of the SMs, "
            f"from 1 in {HELD_PARTS[0]} to 1 in {HELD_PARTS[-1]}"
        ),
        held,
    ),
    Step(
        "tiles",
        lambda contact: (
            f"trace every tile at {' x '.join(map(str, TRACED_SHAPE))}, quiet and with one SM in eight held: launches, "
            "grants, refusals before the end, order, latency of requests"
        ),
        tiles,
    ),
)


def named(names: Sequence[str] | None) -> list[Step]:
    """The steps of these names, in their order; all for None. Raises ValueError for an unknown name."""
    known = {step.name for step in STEPS}
    if unknown := set(names or ()) - known:
        raise ValueError(
            f"no step {', '.join(sorted(unknown))}; the steps are {', '.join(step.name for step in STEPS)}"
        )
    return [step for step in STEPS if names is None or step.name in names]
