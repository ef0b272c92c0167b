"""GemmPlan: what was chosen, the attributes it lowers to, and how it reads in a terminal."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_clc.planning.problem import GemmProblem, Operand

ABI = 1
WIDTH = 60


@dataclasses.dataclass(frozen=True)
class KernelChoice:
    """One family's kernel for a problem, with its launch on the device it was planned for."""

    kernel: str
    schedule: str
    swapped: bool
    raster_group: int
    raster_along: int
    split_k: int
    grid: tuple[int, int, int]
    cluster: tuple[int, ...]
    """CTAs of a cluster along m and n, and along k where they share a tile's k."""
    waves: float
    scratch_bytes: int
    predicted_us: float
    device: str
    reason: str


@dataclasses.dataclass(frozen=True)
class GemmPlan:
    """How one product runs: a kernel for each GPU family, or the reason why `lax.dot_general` runs it.

    `problem` is the product after padding: where `pads` names an operand, its strides are those of the padded copy.
    `pads` maps an operand to the row length in elements that the caller gives it first (`a`, `b`: copied into rows of
    that length; `d`: the result has such rows and is sliced after). `k_parts` above 1: the kernel is called for so many
    parts of k, as a batch, and XLA adds up.
    """

    problem: GemmProblem
    choices: Mapping[str, KernelChoice]
    fallback_reason: str | None = None
    pads: Mapping[Operand, int] = dataclasses.field(default_factory=dict)
    sm_limit: int = 0
    unserved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Families that no kernel of this plan serves, with the reason."""
    k_parts: int = 1

    @property
    def called(self) -> GemmProblem:
        """The product as the kernel is called."""
        return self.problem.in_parts_of_k(self.k_parts)

    def way(self, family: str) -> tuple[str, int, int, int, int]:
        """What the plan has a family do, as `tuned_choices.Way`."""
        choice = self.choices[family]
        return choice.kernel, choice.raster_group, choice.raster_along, choice.split_k, self.k_parts

    @property
    def scratch_bytes(self) -> int:
        """Size of the custom call's scratch result: enough for whichever family runs it."""
        return max((choice.scratch_bytes for choice in self.choices.values()), default=0)

    def attributes(self) -> dict[str, Any]:
        """The attributes of the `jax_clc.gemm.v1` custom call. Raises ValueError where no kernel serves."""
        if self.fallback_reason is not None:
            raise ValueError(f"no kernel serves {self.problem}: {self.fallback_reason}")
        problem, choices = self.called, list(self.choices.values())
        return {
            "abi": np.int64(ABI),
            "l": np.int64(problem.batch),
            "m": np.int64(problem.m),
            "n": np.int64(problem.n),
            "k": np.int64(problem.k),
            "a_major": problem.a_major,
            "b_major": problem.b_major,
            "a_strides": np.array(problem.a_strides, np.int64),
            "b_strides": np.array(problem.b_strides, np.int64),
            "d_strides": np.array(problem.d_strides, np.int64),
            "kernels": ",".join(choice.kernel for choice in choices),
            "swapped": np.array([choice.swapped for choice in choices], np.int64),
            "raster_group": np.array([choice.raster_group for choice in choices], np.int64),
            "raster_along": np.array([choice.raster_along for choice in choices], np.int64),
            "split_k": np.array([choice.split_k for choice in choices], np.int64),
            "sm_limit": np.int64(self.sm_limit),
        }

    def __str__(self) -> str:
        lines = [self.problem.sizes_text, self.problem.types_text]
        if self.fallback_reason is not None:
            return "\n".join([*lines, *_field("runs", "lax.dot_general"), *_field("why", self.fallback_reason)])
        for operand, row in self.pads.items():
            what = "the result is written in" if operand == "d" else f"{operand} is first copied to"
            lines += _field("pad", f"{what} rows of {row} elements")
        if self.k_parts > 1:
            lines += _field("parts", f"k in {self.k_parts} parts, a batch of float32 results that XLA adds up in order")
        if self.sm_limit:
            lines += _field("SM limit", str(self.sm_limit))
        for family, choice in self.choices.items():
            lines += ["", f"{family} (predicted for {choice.device})", *_choice_lines(choice, self.problem)]
        for family, reason in self.unserved.items():
            lines += ["", family, *_field("kernel", "none"), *_field("why", reason)]
        return "\n".join(lines)


def _choice_lines(choice: KernelChoice, problem: GemmProblem) -> list[str]:
    ctas, cluster_size = choice.grid[0], math.prod(choice.cluster)
    clusters = f"{_count(ctas // cluster_size, 'cluster')} of {'x'.join(map(str, choice.cluster))}"
    grid = _count(ctas, "CTA") if cluster_size == 1 else f"{_count(ctas, 'CTA')} in {clusters}"
    direction = "m" if choice.raster_along == 0 else "n"
    lines = _name_lines(choice.kernel)
    lines += _field("schedule", choice.schedule)
    lines += _field("grid", grid)
    lines += _field("waves", f"{choice.waves:.2f}")
    lines += _field("raster", f"along {direction} in groups of {choice.raster_group}")
    if choice.split_k > 1:
        lines += _field("split-K", f"{choice.split_k} parts, summed in fixed order")
    if choice.swapped:
        lines += _field("operands", "swapped: it computes D transposed")
    lines += _field("scratch", f"{choice.scratch_bytes:,} bytes")
    rate = f", {problem.flops / choice.predicted_us / 1e6:.0f} TFLOP/s" if problem.flops else ""
    lines += _field("time", f"{choice.predicted_us:.1f} us predicted{rate}")
    return lines + _field("why", choice.reason)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _name_lines(name: str) -> list[str]:
    """A kernel's name on lines of its own, broken after an underscore where it is too long for one."""
    lines = [""]
    for part in name.replace("_", "_ ").split(" "):
        if len(lines[-1]) + len(part) > WIDTH - 4:
            lines.append("")
        lines[-1] += part
    return [f"  {lines[0]}", *(f"    {line}" for line in lines[1:])]


def _field(name: str, text: str) -> list[str]:
    label = f"  {name:<10}"
    return textwrap.wrap(
        text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label),
        break_long_words=True, break_on_hyphens=False,
    )  # fmt: skip
