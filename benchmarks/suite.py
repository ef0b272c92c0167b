"""The suite as data: `suite.json`, one set of problems per question, with what each set must reach."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_clc.bench import results

SUITE_PATH = Path(__file__).parent / "suite.json"
RESULTS_FOLDER = Path(__file__).parent / "results"
SUITE_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class ProblemSet:
    """Problems that answer one question.

    Attributes:
      peers: who is timed beside ours.
      baseline: the peer whose time over ours is the set's ratio.
      geomean, least: the ratios to reach, if any.
    """

    name: str
    about: str
    problems: tuple[Mapping[str, Any], ...]
    peers: tuple[str, ...] = (results.BASELINE,)
    baseline: str = results.BASELINE
    geomean: float | None = None
    least: float | None = None


def require_device(parser: argparse.ArgumentParser) -> str:
    """The kernel family of JAX's default device. Leaves with status 2 where there is none, before results are touched:
    those in `results/` are of a GPU, and a CPU's times must not take their place."""
    import jax

    from jax_clc.bench.environment import running_family

    family = running_family()
    if family is None:
        kind = jax.devices()[0].device_kind
        parser.exit(2, f"{parser.prog}: this measures kernels, and {kind} is no device that kernels are built for\n")
    return family


def load() -> dict[str, ProblemSet]:
    """Every set, by name, in the suite's order."""
    content = json.loads(SUITE_PATH.read_text(encoding="utf-8"))
    assert content["format"] == SUITE_FORMAT, f"{SUITE_PATH} has format {content['format']}, not {SUITE_FORMAT}"
    return {
        name: ProblemSet(
            name, data["about"], tuple(data["problems"]), tuple(data.get("peers", (results.BASELINE,))),
            data.get("baseline", results.BASELINE), data.get("geomean"), data.get("least"),
        )
        for name, data in content["sets"].items()
    }  # fmt: skip
