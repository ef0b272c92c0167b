"""Every example runs on the CPU at its smallest, and its losses agree with those of `lax.dot_general`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jax_clc

ROOT = Path(__file__).parents[2]
PACKAGE_FOLDER = Path(jax_clc.__file__).parents[1]
"""Where the package under test lies, installed or in the source folder."""
NEEDS = {
    "flax_linen_mlp": ("flax", "optax"), "flax_nnx_mlp": ("flax", "optax"), "equinox_layer": ("equinox",),
    "transformer": ("optax",),
}  # fmt: skip
SIZES = {"transformer": ["--steps", "6", "--width", "32", "--layers", "1", "--context", "32", "--batch", "4"]}


def run(name: str, *arguments: str) -> str:
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"example {name} needs {', '.join(missing)}")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(PACKAGE_FOLDER)}
    done = subprocess.run(
        [sys.executable, f"{ROOT}/examples/{name}.py", *SIZES.get(name, ["--steps", "4", "--width", "32"]), *arguments],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NEEDS)
def test_example_runs_and_agrees_with_lax(name) -> None:
    assert "with jax_clc" in run(name)


def test_transformer_writes_both_loss_curves(tmp_path) -> None:
    run("transformer", "--json", str(tmp_path / "losses.json"))
    record = json.loads((tmp_path / "losses.json").read_text())
    assert {name: len(losses) for name, losses in record["losses"].items()} == {"jax_clc": 6, "lax": 6}
