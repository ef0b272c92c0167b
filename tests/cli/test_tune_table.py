"""The table that tune writes is the one that plans are made from."""

import json

import pytest

from jax_clc.cli import tune
from jax_clc.planning import GemmProblem, plan


def test_what_tune_enters_is_what_the_planner_takes(tmp_path, monkeypatch, catalog_folder):
    path, problem = tmp_path / "own.json", GemmProblem.compact(8190, 512, 512)
    called = plan(problem).problem
    name = "sm90_bf16_bf16_f32_bf16_knn_64x128x64_c1x1_s4_dynamic"
    table = tune.read_or_start(path, "NVIDIA H200", "sm_90a")
    candidate = {
        "kernel": name,
        "raster_group": 2,
        "raster_along": 1,
        "split_k": 1,
        "measured_us": 9.5,
        "spread_us": 0.1,
    }
    tune.enter(table, called, candidate)
    path.write_text(json.dumps(table))
    monkeypatch.setenv("JAX_CLC_TUNED", str(path))
    choice = plan(problem).choices["sm_90a"]
    assert (choice.kernel, choice.raster_group, choice.raster_along, choice.predicted_us) == (name, 2, 1, 9.5)
    assert tune.read_or_start(path, "NVIDIA H200", "sm_90a") == table


KIND = '"device": "NVIDIA H200", "family": "sm_90a"'


@pytest.mark.parametrize(("text", "fault"), [
    ("[]", "expected"), ('{"format": 1}', "'device'"), (f'{{"format": 1, {KIND}}}', "'choices'"),
    ('{"format": 2, "choices": {}}', "its format is 2, expected 1"), ('{"choices": {}}', "'format'"),
    ("tiles", "Expecting value"), ("", "Expecting value"), (b"\xff", "cannot be read"),
    (f'{{"format": 1, {KIND}, "choices": {{"a problem": {{"kernel": 5}}}}}}', "a problem"),
])  # fmt: skip
def test_a_file_that_is_no_table_is_refused_before_anything_is_measured(tmp_path, text, fault):
    path = tmp_path / "own.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=fault) as refused:
        tune.read_or_start(path, "NVIDIA H200", "sm_90a")
    assert str(path) in str(refused.value)


def test_a_table_of_another_device_is_not_added_to(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(tune.read_or_start(path, "NVIDIA H200", "sm_90a")))
    with pytest.raises(ValueError, match="holds choices for NVIDIA H200, not NVIDIA B200"):
        tune.read_or_start(path, "NVIDIA B200", "sm_100f")
