"""What a problem asks of a kernel: the checks, each with its reason in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jax_clc.planning.catalog import Kernel
from jax_clc.planning.problem import GemmProblem, Operand, dtype_bytes, short_dtype

SCHEDULES = ("nonpersistent", "static", "dynamic", "clc")
SM_LIMIT_SCHEDULES = ("static", "dynamic")
OPERANDS: tuple[Operand, ...] = ("a", "b", "d")
SIZE_MARGIN = 2**16
MAX_SIZE = 2**31 - SIZE_MARGIN
"""The largest size, and number of cluster tiles, that kernels are called with; cpp/kernel_spec.h has the same.

Kernels count in 32 bits, and beyond both: sizes are rounded up to whole cluster tiles, and each worker counts on past
the last tile, by two rounds of all workers at most (ping-pong). The margin is no smaller than any cluster tile, which
the extension checks, and larger than two rounds of all CTAs that any device holds."""

MAX_RASTER_GROUP = 2**15
"""The widest panel of the raster that a table or a call may ask for; cpp/gemm_attributes.h has the same. Panels that
pay are far narrower, for L2 must hold their operand: more is a mistake. The launcher cuts a panel to the tiles that
there are, so that its product with the length of the walk is no more than their number."""

MAX_STRIDE_BYTES = 2**40


@dataclasses.dataclass(frozen=True)
class Constraint:
    """One check. `violation` says why a kernel fails it (None: it holds); `need` completes "no kernel ..."."""

    violation: Callable[[Kernel, GemmProblem], str | None]
    need: Callable[[GemmProblem], str]


def kernel_operand(kernel: Kernel, operand: Operand) -> Operand:
    """The kernel's name for the caller's operand."""
    if kernel.swapped and operand != "d":
        return "b" if operand == "a" else "a"
    return operand


def _dtypes(kernel: Kernel, problem: GemmProblem) -> str | None:
    wanted = (problem.a_dtype, problem.b_dtype, problem.accumulator_dtype, problem.out_dtype)
    a, b = (kernel.b_dtype, kernel.a_dtype) if kernel.swapped else (kernel.a_dtype, kernel.b_dtype)
    if (a, b, kernel.accumulator_dtype, kernel.out_dtype) == wanted:
        return None
    asked = _types(problem.a_dtype, problem.b_dtype, problem.out_dtype)
    return f"it computes {_types(a, b, kernel.out_dtype)}, not {asked}"


def _types(a: str, b: str, out: str) -> str:
    return f"{short_dtype(a)} x {short_dtype(b)} -> {short_dtype(out)}"


def _epilogue(kernel: Kernel, problem: GemmProblem) -> str | None:
    return None if kernel.epilogue == problem.epilogue else f"its epilogue is {kernel.epilogue}, not {problem.epilogue}"


def kernel_majors(problem: GemmProblem, swapped: bool) -> tuple[str, str]:
    """The majors that a kernel's a and b must have: under `swapped` the caller's b is a, and its n the kernel's m."""
    if not swapped:
        return problem.a_major, problem.b_major
    return ("k" if problem.b_major == "k" else "m", "k" if problem.a_major == "k" else "n")


def _majors(kernel: Kernel, problem: GemmProblem) -> str | None:
    wanted = kernel_majors(problem, kernel.swapped)
    if (kernel.a_major, kernel.b_major) == wanted:
        return None
    transposed = " (computing D transposed)" if kernel.swapped else ""
    return (
        f"its operands are {kernel.a_major}-major and {kernel.b_major}-major{transposed}; "
        f"this product needs {wanted[0]}-major and {wanted[1]}-major"
    )


def _too_large(problem: GemmProblem) -> str | None:
    """The first size beyond the limit, and the limit, in words."""
    for name in ("batch", "m", "n", "k"):
        if getattr(problem, name) > MAX_SIZE:
            return f"{name} = {getattr(problem, name)}, beyond the limit of {MAX_SIZE}"
    return None


def _sizes(kernel: Kernel, problem: GemmProblem) -> str | None:
    return _too_large(problem)


def _tiles(kernel: Kernel, problem: GemmProblem) -> str | None:
    m, n = (problem.n, problem.m) if kernel.swapped else (problem.m, problem.n)
    tile_m, tile_n = kernel.cluster_tile
    tiles = problem.batch * -(-m // tile_m) * -(-n // tile_n)
    return None if tiles <= MAX_SIZE else f"it would compute {tiles} tiles, beyond the limit of {MAX_SIZE}"


def _strides(kernel: Kernel, problem: GemmProblem) -> str | None:
    for operand in OPERANDS:
        if kernel_operand(kernel, operand) in kernel.aligned_operands:
            size = max(problem.strides(operand)) * dtype_bytes(problem.dtype(operand))
            if size >= MAX_STRIDE_BYTES:
                return f"{operand}'s stride of {size} bytes is beyond the copy engine's 2^40"
    return None


def _alignment(kernel: Kernel, problem: GemmProblem) -> str | None:
    for operand in OPERANDS:
        reason = problem.misalignment(operand)
        if reason is not None and kernel_operand(kernel, operand) in kernel.aligned_operands:
            return f"{reason}, and it moves {operand} 16 bytes at a time"
    return None


PROBLEM_CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(_dtypes, lambda p: f"computes {_types(p.a_dtype, p.b_dtype, p.out_dtype)}"),
    Constraint(_epilogue, lambda p: f"of these dtypes has the epilogue {p.epilogue}"),
    Constraint(_majors, lambda p: f"of these dtypes takes a {p.a_major}-major a with a {p.b_major}-major b"),
    Constraint(_sizes, lambda p: f"takes {_too_large(p)}"),
    Constraint(_tiles, lambda p: f"counts all tiles of {p.sizes_text} within the limit of {MAX_SIZE}"),
    Constraint(_strides, lambda p: f"takes strides as long as those of {p.sizes_text}"),
    Constraint(_alignment, lambda p: "takes operands of this alignment"),
)
"""In the order in which they are told: the first that fails is the reason."""


def request_constraints(schedule: str, kernel_name: str | None, sm_limit: int) -> tuple[Constraint, ...]:
    """What the caller asked for, as checks of the same kind. The pinned kernel, if any, comes last."""

    def limit(kernel: Kernel, problem: GemmProblem) -> str | None:
        if kernel.schedule not in SM_LIMIT_SCHEDULES:
            return f"a {kernel.schedule} grid has one cluster for each tile, so sm_limit={sm_limit} cannot bound it"
        if kernel.cluster_size > sm_limit:
            return f"its clusters take {kernel.cluster_size} SMs, more than sm_limit={sm_limit}"
        return None

    def pinned_schedule(kernel: Kernel, problem: GemmProblem) -> str | None:
        return None if kernel.schedule == schedule else f"its schedule is {kernel.schedule}, not {schedule}"

    def pinned_kernel(kernel: Kernel, problem: GemmProblem) -> str | None:
        return None if kernel.name == kernel_name else f"kernel={kernel_name!r} is asked for"

    checks: list[Constraint] = []
    if sm_limit:
        checks.append(Constraint(limit, lambda p: f"keeps to sm_limit={sm_limit}"))
    if schedule != "auto":
        checks.append(Constraint(pinned_schedule, lambda p: f"has the schedule {schedule}"))
    if kernel_name is not None:
        checks.append(Constraint(pinned_kernel, lambda p: f"is called {kernel_name}"))
    return tuple(checks)


def first_failure(kernel: Kernel, problem: GemmProblem, constraints: Sequence[Constraint]) -> tuple[int, str] | None:
    """(how many held before, the reason) of the first constraint that does not hold; None if all do."""
    for position, constraint in enumerate(constraints):
        reason = constraint.violation(kernel, problem)
        if reason is not None:
            return position, reason
    return None


def unmet_need(problem: GemmProblem, constraints: Sequence[Constraint], failures: Mapping[str, tuple[int, str]]) -> str:
    """What none of the failing kernels does: the constraint that stopped those that came furthest."""
    furthest = max(position for position, _ in failures.values())
    return constraints[furthest].need(problem)
