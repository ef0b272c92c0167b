"""One problem measured: its row as plain data, and the ratios that tables and plots show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from jax_clc.bench.race import Timing
from jax_clc.planning import GemmProblem
from jax_clc.planning.problem import short_dtype

RESULTS_FORMAT = 1
OURS, BASELINE = "jax_clc", "jnp.dot"


def facts(problem: GemmProblem) -> dict[str, Any]:
    """What a row says of its problem; `problem_of` reads it."""
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch,
        "majors": problem.a_major + problem.b_major, "dtype": problem.a_dtype, "out_dtype": problem.out_dtype,
    }  # fmt: skip


def row(
    problem: GemmProblem,
    timings: Mapping[str, Timing],
    *,
    input_sets: int,
    kernels: Mapping[str, str | None],
    note: str = "",
    skipped: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A row of a results file. `kernels` says what ran for each contestant of ours, `skipped` why one did not run."""
    return {
        **facts(problem),
        "note": note, "input_sets": input_sets, "kernels": dict(kernels), "checked": "exact on integers",
        "contestants": {name: timing.as_json() for name, timing in timings.items()},
        "skipped": dict(skipped or {}),
    }  # fmt: skip


def problem_of(data: Mapping[str, Any]) -> GemmProblem:
    """The problem of a suite line or a results row."""
    majors = data.get("majors", "kn")
    return GemmProblem.compact(
        data["m"], data["n"], data["k"], batch=data.get("batch", 1), dtype=data.get("dtype", "bfloat16"),
        out_dtype=data.get("out_dtype"), a_major=majors[0], b_major=majors[1],
    )  # fmt: skip


def label(data: Mapping[str, Any]) -> str:
    """`16x 1024 x 1024 x 1024 kn`, with dtypes where they are not bf16 throughout."""
    sizes = " x ".join(str(data[axis]) for axis in "mnk")
    batch = f"{data['batch']}x " if data.get("batch", 1) != 1 else ""
    dtype, out = data.get("dtype", "bfloat16"), data.get("out_dtype") or data.get("dtype", "bfloat16")
    types = "" if (dtype, out) == ("bfloat16", "bfloat16") else f" {short_dtype(dtype)}>{short_dtype(out)}"
    return f"{batch}{sizes} {data.get('majors', 'kn')}{types}"


def median_us(data: Mapping[str, Any], contestant: str) -> float | None:
    """A contestant's time, None if it did not run."""
    found = data["contestants"].get(contestant)
    return None if found is None else found["median_us"]


def ratio(data: Mapping[str, Any], contestant: str = OURS, baseline: str = BASELINE) -> float | None:
    """The baseline's time over the contestant's: above 1 the contestant is faster."""
    own, other = median_us(data, contestant), median_us(data, baseline)
    return None if own is None or other is None else other / own


def tflops(data: Mapping[str, Any], microseconds: float) -> float:
    return 2 * data["batch"] * data["m"] * data["n"] * data["k"] / microseconds / 1e6


def geometric_mean(values: Iterable[float]) -> float:
    """Of at least one positive value."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows for a terminal of 60 columns: times of ours and of jnp.dot, our rate, the ratio."""
    rows = list(rows)
    width = max([len("m x n x k"), *(len(label(row)) for row in rows)])
    lines = [f"{'m x n x k':<{width}} {'ours us':>8} {'jnp us':>8} {'TF/s':>5} {'ratio':>5}"]
    for row_ in rows:
        own, other, quotient = median_us(row_, OURS), median_us(row_, BASELINE), ratio(row_)
        cells = [
            f"{own:8.1f}" if own is not None else f"{'-':>8}",
            f"{other:8.1f}" if other is not None else f"{'-':>8}",
            f"{tflops(row_, own):5.0f}" if own else f"{'-':>5}",
            f"{quotient:5.2f}" if quotient is not None else f"{'-':>5}",
        ]
        lines.append(f"{label(row_):<{width}} {' '.join(cells)}")
    ratios = [quotient for row_ in rows if (quotient := ratio(row_)) is not None]
    if ratios:
        lines.append(f"geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}, of {len(ratios)}")
    return "\n".join(lines)
