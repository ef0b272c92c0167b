"""The suite holds what was promised; the tables are made from the results, and only from them."""

import json
from pathlib import Path

import pytest

benchmarks = pytest.importorskip("benchmarks", reason="benchmarks/ is in the source folder only")

from benchmarks import report, suite, sweep  # noqa: E402
from jax_clc.bench import results  # noqa: E402

ROOT = Path(__file__).parent.parent.parent


def test_every_problem_of_the_suite_is_one():
    for chosen in suite.load().values():
        for data in chosen.problems:
            assert results.problem_of(data).flops > 0


def test_the_sets_are_as_large_as_promised():
    sets = suite.load()
    large = sets["large"].problems
    assert len(large) >= 16
    assert all(min(p["m"], p["n"], p["k"]) >= 2048 for p in large)
    assert {p["majors"] for p in large} >= {"kn", "kk"}
    assert len(sets["llm"].problems) >= 24
    assert {p["note"].split()[0] for p in sets["llm"].problems} == {"8B", "70B"}
    assert all(results.problem_of(p).misalignment("a") or results.problem_of(p).misalignment("b")
               for p in sets["unaligned"].problems)  # fmt: skip


def test_a_layers_gradients_are_the_products_of_its_shapes():
    problems = suite.load()["llm"].problems
    for forward, inputs, weights in zip(problems[::3], problems[1::3], problems[2::3], strict=True):
        tokens, out, into = forward["m"], forward["n"], forward["k"]
        assert (inputs["m"], inputs["n"], inputs["k"], inputs["majors"]) == (tokens, into, out, "kk")
        assert (weights["m"], weights["n"], weights["k"], weights["majors"]) == (into, out, tokens, "mn")


def _results(ratio):
    timing = {"q1_us": 1.0, "q3_us": 1.0, "wall_us": 1.0, "samples": 3, "calls_per_sample": 1, "activities": []}
    row = {
        "m": 4096, "n": 4096, "k": 4160, "batch": 1, "majors": "kn", "dtype": "bfloat16", "out_dtype": "bfloat16",
        "contestants": {"jax_clc": {**timing, "median_us": 100.0}, "jnp.dot": {**timing, "median_us": 100.0 * ratio}},
    }  # fmt: skip
    environment = {"device": "NVIDIA H200", "packages": {"jax": "0.11.2"}, "date": "2026-01-01", "timer": "cupti"}
    return {"rows": [row], "environment": environment, "command": "c", "set": "large", "failed": []}


def test_the_readme_says_that_there_are_no_results_until_there_are():
    assert report.readme_block({}, []) == report.NO_RESULTS


def test_the_readme_shows_means_and_names_losses():
    block = report.readme_block({"large": _results(0.9)}, ["benchmarks/results/large.png"])
    assert "| 1 of 20 | 0.900 | 0.900 | 1.01, 0.95: missed |" in block
    assert "| large | 4096 x 4096 x 4160 kn | 0.900 | not explained |" in block
    assert "![large](benchmarks/results/large.png)" in block
    assert "Slower than" not in report.readme_block({"large": _results(1.1)}, [])


def test_every_loss_is_listed_also_to_a_peer_that_is_not_jnp_dot():
    content = _results(1.1)
    contestants = content["rows"][0]["contestants"]
    contestants["jnp.dot padded"] = {**contestants["jnp.dot"], "median_us": 70.0}
    assert "- 0.700 at 4096 x 4096 x 4160 kn (jnp.dot padded), large" in report.benchmarks_block({"large": content})
    assert "- llm (layers" in report.benchmarks_block({"large": content}).partition("### Not measured")[2]
    block = report.readme_block({"large": content}, [])
    assert "on 1 of 1 problems" in block
    assert f"docs/benchmarks.md#{report.LOSSES_ANCHOR}" in block


def test_a_set_whose_baseline_was_never_timed_has_no_mean():
    content = _results(1.1)
    held = {**content["rows"][0], "held_sms": report.HEADLINE_HELD}
    held["contestants"] |= {"dynamic": held["contestants"]["jax_clc"], "static": held["contestants"]["jax_clc"]}
    slower = _results(0.9)
    told = report.headline({"large": slower, "pallas": content, "interference": {"rows": [held]}})
    assert "large 0.900;" in told
    assert "pallas" not in told


def test_reasons_are_given_for_problems_of_the_suite():
    labels = {results.label(problem) for chosen in suite.load().values() for problem in chosen.problems}
    assert set(json.loads(report.REASONS_PATH.read_text())) - {"launch"} <= labels


def test_only_the_text_between_the_markers_is_replaced():
    text = "before <!-- plan: begin --> old <!-- plan: end --> after"
    assert report.replace_block(text, "plan", "new") == "before <!-- plan: begin -->\nnew\n<!-- plan: end --> after"
    with pytest.raises(ValueError, match="markers"):
        report.replace_block(text, "results", "new")


@pytest.mark.parametrize("name", ["README.md", "docs/benchmarks.md"])
def test_the_tables_in_the_documents_are_what_the_results_give(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert report.main(["--check", "--write", name]) == 0, capsys.readouterr().out


def test_interference_and_launch_become_tables():
    row = _results(1.0)["rows"][0]
    content = {"rows": [{**row, "held_sms": 0}, {**row, "held_sms": 66}], "sm_count": 132}
    assert report.interference_table(content)[-1] == "| 66 | 100 | 100 | 200 |"
    modes = {"on": {"us_per_product": {"jnp.dot": [1, 2.5, 3]}}, "off": {"us_per_product": {}}}
    assert report.launch_table({"modes": modes})[-1] == "| jnp.dot | 2.50 | - |"


def test_what_auto_loses_is_told_only_for_what_was_measured():
    candidate = {"kernel": "a", "raster_group": 8, "raster_along": 0, "split_k": 1, "measured_us": 100.0}
    other = {**candidate, "kernel": "b", "measured_us": 110.0}
    row = {"candidates": [candidate, other], "auto": {k: other[k] for k in other if k != "measured_us"}}
    assert sweep.auto_loss(row) == pytest.approx(0.1)
    assert sweep.auto_loss({**row, "auto": {**row["auto"], "split_k": 4}}) is None


def test_results_files_are_of_the_format_that_the_tables_read():
    for path in sorted(suite.RESULTS_FOLDER.glob("*.json")):
        content = json.loads(path.read_text())
        assert content["format"] == results.RESULTS_FORMAT, path
        assert content["environment"]["device"], path


def test_every_picture_of_results_is_drawn_from_them(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")
    drawn = {path.name for path in report.draw(report.load(suite.RESULTS_FOLDER), tmp_path)}
    assert drawn == {path.name for path in suite.RESULTS_FOLDER.glob("*.png")}
    assert drawn == {path.name for path in tmp_path.iterdir()}
