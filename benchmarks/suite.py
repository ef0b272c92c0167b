"""The suite as data: `suite.json`, one set of problems per question, with what each set must reach."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUITE_PATH = Path(__file__).parent / "suite.json"
RESULTS_FOLDER = Path(__file__).parent / "results"
SUITE_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class ProblemSet:
    """Problems that answer one question. `geomean` and `least` are the ratios to reach against jnp.dot, if any."""

    name: str
    about: str
    problems: tuple[Mapping[str, Any], ...]
    peers: tuple[str, ...] = ("jnp.dot",)
    geomean: float | None = None
    least: float | None = None


def load() -> dict[str, ProblemSet]:
    """Every set, by name, in the suite's order."""
    content = json.loads(SUITE_PATH.read_text(encoding="utf-8"))
    assert content["format"] == SUITE_FORMAT, f"{SUITE_PATH} has format {content['format']}, not {SUITE_FORMAT}"
    return {
        name: ProblemSet(
            name, data["about"], tuple(data["problems"]), tuple(data.get("peers", ("jnp.dot",))),
            data.get("geomean"), data.get("least"),
        )
        for name, data in content["sets"].items()
    }  # fmt: skip
