"""Measured choices, as data: the tables that ship in `tuned/` and the one that `JAX_CLC_TUNED` points to."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jax_clc.planning import json_fields
from jax_clc.planning.constraints import MAX_RASTER_GROUP
from jax_clc.planning.device_model import REFERENCE_DEVICES, DeviceModel
from jax_clc.planning.json_fields import part, positive, text, whole
from jax_clc.planning.problem import GemmProblem

TUNED_VARIABLE = "JAX_CLC_TUNED"
TABLE_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class TunedChoice:
    """The fastest kernel for one problem, with what was measured where."""

    kernel: str
    raster_group: int
    raster_along: int
    split_k: int
    measured_us: float
    device: str
    table: str
    k_parts: int = 1


Way = tuple[str, int, int, int, int]
"""What tells ways to run one problem apart: kernel, raster group and direction, split-K factor, parts of k."""


def way_of(row: Mapping[str, Any]) -> Way:
    """The way that a row of a table or a sweep is about."""
    return row["kernel"], row["raster_group"], row["raster_along"], row["split_k"], row.get("k_parts", 1)


def table_row(measured: Mapping[str, Any]) -> dict[str, Any]:
    """A measured candidate as the row of a table."""
    names = ("kernel", "raster_group", "raster_along", "split_k", "k_parts", "measured_us")
    return {name: measured[name] for name in names if name != "k_parts" or measured.get(name, 1) > 1}


class Tables:
    """Tuned choices by family and problem. Hashable by identity: the same files give the same object."""

    def __init__(self, choices: Mapping[tuple[str, str], TunedChoice]) -> None:
        self._choices = dict(choices)
        self.times_found = 0

    def find(self, device: DeviceModel, problem: GemmProblem) -> TunedChoice | None:
        """The choice measured for that very problem, or None.

        Only plans for a family's reference device take measured choices: they are what programs are lowered with, on
        whatever machine. A plan for another device (an emulated one, say) is made from the cost model alone.
        """
        if device != REFERENCE_DEVICES.get(device.family):
            return None
        choice = self._choices.get((device.family, problem_key(problem)))
        self.times_found += choice is not None
        return choice

    def __len__(self) -> int:
        return len(self._choices)

    def __repr__(self) -> str:
        """Every choice: what `planner.fingerprint` is made of."""
        return f"Tables({dict(sorted(self._choices.items()))!r})"


def problem_key(problem: GemmProblem) -> str:
    """What a table calls a problem: `bfloat16,bfloat16,bfloat16 kn 1x4096x4096x4096`, strides added unless compact."""
    key = (
        f"{problem.a_dtype},{problem.b_dtype},{problem.out_dtype} {problem.a_major}{problem.b_major} "
        f"{problem.batch}x{problem.m}x{problem.n}x{problem.k}"
    )
    compact = GemmProblem.compact(
        problem.m, problem.n, problem.k, batch=problem.batch, a_major=problem.a_major, b_major=problem.b_major
    )
    for operand in ("a", "b", "d"):
        if problem.strides(operand) != compact.strides(operand):
            key += f" {operand}{problem.strides(operand)[0]}/{problem.strides(operand)[1]}"
    return key


_override: contextvars.ContextVar[Tables | None] = contextvars.ContextVar("tuned choices in force", default=None)


def tables() -> Tables:
    """The shipped tables, overlaid by the file that `JAX_CLC_TUNED` names. Raises ValueError if that cannot be read."""
    forced = _override.get()
    if forced is not None:
        return forced
    shipped = sorted((Path(__file__).resolve().parent / "tuned").glob("choices_*.json"))
    own = os.environ.get(TUNED_VARIABLE)
    return read(tuple(shipped) + ((Path(own),) if own else ()))


@contextlib.contextmanager
def forcing(family: str, problem: GemmProblem, choice: TunedChoice) -> Iterator[Tables]:
    """Plans made inside take `choice` for `problem`; for measuring candidates, on this thread only.

    Gives the table in force, whose `times_found` tells whether the problem was asked for.
    """
    forced = Tables({(family, problem_key(problem)): choice})
    token = _override.set(forced)
    try:
        yield forced
    finally:
        _override.reset(token)


@functools.lru_cache(maxsize=8)
def read(paths: tuple[Path, ...]) -> Tables:
    """The choices of these files, later ones before earlier ones. Raises ValueError, naming the file and the fault."""
    choices: dict[tuple[str, str], TunedChoice] = {}
    for path in paths:
        try:
            content = json_fields.read(path)
            if whole(content, "format", least=1) != TABLE_FORMAT:
                raise ValueError(f"its format is {content['format']}, expected {TABLE_FORMAT}")
            device, family, rows = text(content, "device"), text(content, "family"), part(content, "choices")
            for key in rows:
                choices[family, key] = _choice(rows, key, device, path.name)
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"jax_clc: the table of tuned choices {path} cannot be read: {error}") from error
    return Tables(choices)


def _choice(rows: Mapping[str, Any], key: str, device: str, table: str) -> TunedChoice:
    """A row as a choice. Raises ValueError for what no kernel may be called with: the numbers reach it unchanged.

    The kernel itself need not ship: tables outlive kernels.
    """
    try:
        row = {"k_parts": 1, **part(rows, key)}
        return TunedChoice(
            kernel=text(row, "kernel"),
            raster_group=whole(row, "raster_group", least=1, most=MAX_RASTER_GROUP),
            raster_along=whole(row, "raster_along", least=0, most=1),
            split_k=whole(row, "split_k", least=1),
            measured_us=positive(row, "measured_us"),
            device=device,
            table=table,
            k_parts=whole(row, "k_parts", least=1),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"entry {key!r}: {error}") from error
