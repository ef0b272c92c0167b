"""Evidence of a run on a GPU: with JAX_CLC_EVIDENCE=FILE, what ran, on what, when, as JSON to commit."""

from __future__ import annotations

import collections
import datetime
import json
import os
from pathlib import Path

import pytest

EVIDENCE_VARIABLE = "JAX_CLC_EVIDENCE"


class Evidence:
    """Collects outcomes and writes the file at the end, failures by name."""

    def __init__(self, path: Path):
        self.path = path
        self.outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.failures: list[str] = []
        self.properties: dict[str, object] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            self.outcomes[report.nodeid.split("[")[0]][report.outcome] += 1
            self.properties.update({name: json.loads(value) for name, value in report.user_properties})
            if report.failed:
                self.failures.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        from jax_clc.bench.environment import environment

        totals: collections.Counter[str] = sum(self.outcomes.values(), collections.Counter())
        record = {
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "environment": environment("none: nothing was timed"),
            "totals": totals,
            "tests": self.outcomes,
            "failures": self.failures,
            **self.properties,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(EVIDENCE_VARIABLE)
    if path and not hasattr(config, "workerinput"):  # with pytest-xdist the controller hears of every test
        config.pluginmanager.register(Evidence(Path(path)), "jax_clc_evidence")
