"""The command line over the synthetic catalog of tests/planning, as a function from arguments to status and output."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "planning"))

import synthetic_manifest

from jax_clc import cli


@pytest.fixture
def catalog_folder(tmp_path, monkeypatch):
    folder = synthetic_manifest.write(tmp_path / "cubins")
    monkeypatch.setenv("JAX_CLC_CUBINS", str(folder))
    monkeypatch.delenv("JAX_CLC_TUNED", raising=False)
    return folder


@pytest.fixture
def jax_clc_command(capsys, catalog_folder):
    def run(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
