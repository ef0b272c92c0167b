"""Traced builds on the emulated device, whose SMs come and go: each tile once, and gaps where they are promised."""

import pytest

from jax_clc.cli import main as command_line
from jax_clc.planning import catalog
from jax_clc.schedule import trace as trace_format
from jax_clc.schedule.claims import claims
from jax_clc.schedule.trace import SmWindow

pytestmark = pytest.mark.emulated
SIZES = (768, 1024, 128)  # 12 cluster tiles of 256 x 256, two of k
CASES = [("sm_90a", "dynamic"), ("sm_100f", "clc")]


@pytest.fixture(scope="module")
def traced_runs():
    try:
        traced = [kernel for kernel in catalog.kernels(traced=True) if kernel.traced]
    except catalog.CatalogError as error:
        pytest.skip(str(error))
    if {kernel.family for kernel in traced} != {"sm_90a", "sm_100f"}:
        pytest.skip(f"no traced kernels in {catalog.directory()}")
    from jax_clc.cli import traced_runs

    return traced_runs


def run(traced_runs, arch, schedules, taken=(), hostile=False, seed=0):
    return traced_runs.on_emulated_device(
        arch, SIZES, schedules, sm_count=8, seed=seed, taken=taken, hostile=hostile
    )  # fmt: skip


@pytest.mark.parametrize(("arch", "asking"), CASES)
def test_planned_worker_without_an_sm_waits_under_static_and_not_where_tiles_are_asked_for(traced_runs, arch, asking):
    away = (SmWindow(6), SmWindow(7))
    static, asked = run(traced_runs, arch, ["static", asking], away)
    for trace in (static, asked):
        trace.check()
        assert not {event.sm for event in trace.events} & {6, 7}
    first_to_leave = min(max(e.end for e in static.events if e.cluster == c) for c in range(3))
    assert min(event.start for event in static.events if event.cluster == 3) >= first_to_leave
    assert {sum(e.cluster == c and e.cta == 0 for e in static.events) for c in range(4)} == {3}
    found = claims(asked)
    assert found.granted == (12 if asking == "dynamic" else 9)
    assert found.latency.longest > 0


@pytest.mark.parametrize(("arch", "asking"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_sms_that_come_and_go_under_hostile_orders_lose_no_tile_and_repeat_none(traced_runs, arch, asking, seed):
    comes_back, is_taken = SmWindow(7, 0.0, 300.0), SmWindow(0, 150.0)
    (trace,) = run(traced_runs, arch, [asking], (comes_back, is_taken), hostile=True, seed=seed)
    trace.check()
    assert min((event.start for event in trace.events if event.sm == 7), default=300.0) >= 300.0


def test_nobody_asks_where_tiles_are_fixed(traced_runs):
    for trace in run(traced_runs, "sm_100f", ["nonpersistent", "static"]):
        assert claims(trace).granted == 0


@pytest.mark.parametrize(("arch", "schedule"), [("sm_90a", "static"), ("sm_100f", "clc")])
@pytest.mark.parametrize("sizes", [(100, 100, 100), (300, 1, 7)])
def test_sizes_that_need_padding_are_padded(traced_runs, arch, schedule, sizes):
    (trace,) = traced_runs.on_emulated_device(
        arch, sizes, [schedule], sm_count=8, seed=0, taken=(), hostile=False
    )  # fmt: skip
    trace.check()
    assert trace.tiles == -(-sizes[0] // 256)


def test_command_draws_an_emulated_run_and_keeps_its_traces(traced_runs, tmp_path, capsys):
    arguments = ["timeline", "--emulated", "sm_100", "--schedules", "clc", "--shape", "512", "512", "64"]
    assert command_line([*arguments, "--take", "7@0:200", "--json", str(tmp_path / "t.json")]) == 0
    assert "clc, emulated device" in capsys.readouterr().out
    (trace,) = trace_format.load(tmp_path / "t.json")
    assert (trace.unit, trace.tiles, trace.taken) == ("steps", 4, (SmWindow(7, 0.0, 200.0),))
