"""`jax-clc first-contact`: what it says without a GPU, what it records, and the picture of a report."""

import dataclasses
import json

import pytest

from jax_clc.bench import results
from jax_clc.bench.race import Timing
from jax_clc.cli import first_contact, first_contact_picture
from jax_clc.cli import first_contact_steps as steps
from jax_clc.cli import main as command_line
from jax_clc.planning import GemmProblem, catalog
from jax_clc.schedule import trace as trace_format
from jax_clc.schedule.model import Device, Tiles, simulate
from jax_clc.schedule.trace import SmWindow


@dataclasses.dataclass(frozen=True)
class Clock:
    name: str = "wall"


CONTACT = steps.Contact("sm_100f", ("static", "clc"), quick=True, sm_count=148, clock=Clock())


def timing(microseconds):
    return Timing(microseconds, microseconds, microseconds, microseconds, 3, 1, ())


def row(m, n, k, **times):
    return results.row(
        GemmProblem.compact(m, n, k), {name.replace("_dot", ".dot"): timing(us) for name, us in times.items()},
        input_sets=2, kernels={},
    )  # fmt: skip


def test_a_folder_that_cannot_be_written_is_noticed_before_the_steps_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jax_clc.bench.environment.running_family", lambda: "sm_90a")
    monkeypatch.setattr(steps.Contact, "of_this_device", lambda quick: CONTACT)
    monkeypatch.setattr(first_contact, "run", lambda *_: pytest.fail("the steps were run"))
    (tmp_path / "file").touch()
    assert command_line(["first-contact", "--output", str(tmp_path / "file")]) == 2
    assert "file" in capsys.readouterr().err


def test_without_a_gpu_it_says_what_it_would_do(capsys):
    if not catalog_is_there():
        pytest.skip("no kernels are built here, and the command lists their schedules")
    assert command_line(["first-contact"]) == 0
    said = capsys.readouterr().out
    assert "There is no CUDA device here" in said
    assert all(f"{step.name}: " in said for step in steps.STEPS)
    assert max(map(len, said.splitlines())) <= first_contact.WIDTH


def catalog_is_there():
    try:
        return bool(catalog.kernels("sm_100f"))
    except catalog.CatalogError:
        return False


def test_step_that_raises_is_recorded_and_the_others_run():
    def broken(contact, progress):
        raise RuntimeError("device lost")

    chosen = [
        steps.Step("broken", lambda contact: "", broken),
        steps.Step("sound", lambda contact: "", lambda contact, progress: {"passed": True, "summary": "3 of 3"}),
    ]
    report = first_contact.run(CONTACT, chosen)
    assert not report["passed"]
    assert report["steps"]["broken"]["error"] == "RuntimeError: device lost"
    assert report["steps"]["sound"]["passed"]
    assert json.loads(json.dumps(report)) == report
    said = first_contact.summary(report)
    assert "FAILED  RuntimeError: device lost" in said
    assert "passed  3 of 3" in said


def test_unknown_step_is_named():
    with pytest.raises(ValueError, match="no step taste; the steps are exact, bits, race, held, tiles"):
        steps.named(["taste"])


def test_siblings_differ_in_their_schedule_alone():
    if not catalog_is_there():
        pytest.skip("no kernels are built here")
    every = catalog.kernels("sm_100f")
    kernel = next(kernel for kernel in every if kernel.schedule == "clc")
    found = steps.siblings(kernel, every)
    assert found["clc"] == kernel
    for schedule, other in found.items():
        assert other.schedule == schedule
        assert (other.cta_tile, other.cluster, other.two_sm_mma) == (kernel.cta_tile, kernel.cluster, kernel.two_sm_mma)


def test_picture_shows_what_the_report_holds(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")
    race = [
        row(4096, 4096, 4096, static=100.0, clc=98.0, jnp_dot=102.0),
        row(8192, 8192, 256, static=50.0, jnp_dot=55.0),
    ]
    held = [
        {**row(8192, 8192, 4096, static=us, clc=us / 1.3, jnp_dot=us), "held_sms": s} for s, us in ((0, 400), (16, 700))
    ]
    device = Device(32, 2, taken=(SmWindow(0), SmWindow(1)))
    traces = [simulate(name, Tiles.constant(128, 10.0), device) for name in ("static", "clc")]
    report = first_contact.run(CONTACT, [])
    report["steps"] = {
        "exact": {"passed": True, "summary": "180 of 180 cases exact"},
        "race": {"passed": True, "summary": "1.02", "rows": race},
        "held": {"passed": True, "summary": "", "rows": held},
        "tiles": {"passed": True, "summary": "", "held": {"traces": trace_format.to_json(traces)}},
    }
    first_contact_picture.save(report, tmp_path / "full.png")
    report["steps"] = {"exact": report["steps"]["exact"]}
    first_contact_picture.save(report, tmp_path / "verdicts.png")
    assert (tmp_path / "full.png").stat().st_size > (tmp_path / "verdicts.png").stat().st_size > 5000
