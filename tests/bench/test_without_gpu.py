"""Without a GPU a benchmark says so, measures nothing and leaves the committed results alone."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="benchmarks/ is in the source folder only")

from benchmarks import suite  # noqa: E402
from jax_clc.bench import environment  # noqa: E402


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("arguments", [
    ("run", "--set", "small"), ("interference",), ("endurance",), ("sweep",), ("launch", "--here"),
])  # fmt: skip
def test_a_benchmark_without_a_device_touches_no_result(arguments, monkeypatch, capsys):
    monkeypatch.setattr(environment, "running_family", lambda: None)
    before = contents(suite.RESULTS_FOLDER)
    name, *rest = arguments
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"benchmarks.{name}").main(rest)
    assert stopped.value.code == 2
    assert "is no device that kernels are built for" in capsys.readouterr().err
    assert contents(suite.RESULTS_FOLDER) == before


def test_every_set_can_be_run_as_a_step():
    from benchmarks import on_device

    assert set(suite.load()) <= set(on_device.STEPS)
