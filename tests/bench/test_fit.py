"""Fitting: finds parameters that explain a sweep, and enters only kernels that ship."""

import sys
from pathlib import Path

import pytest

benchmarks = pytest.importorskip("benchmarks", reason="benchmarks/ is in the source folder only")
sys.path.append(str(Path(__file__).parent.parent / "planning"))

import synthetic_manifest  # noqa: E402

from benchmarks import fit  # noqa: E402
from jax_clc.bench.results import problem_of  # noqa: E402
from jax_clc.bench.sweep import candidate_choices, chosen  # noqa: E402
from jax_clc.planning import catalog, cost_model, plan  # noqa: E402
from jax_clc.planning.cost_parameters import CostParameters, tile_class  # noqa: E402
from jax_clc.planning.device_model import REFERENCE_DEVICES  # noqa: E402
from jax_clc.planning.tuned_choices import problem_key  # noqa: E402

PROBLEMS = [
    {"m": m, "n": n, "k": k, "majors": "kn"}
    for m, n, k in [(4096, 4096, 4096), (2048, 2048, 2048), (16, 4096, 4096), (512, 512, 65536), (1000, 3000, 500)]
]


@pytest.fixture
def sweep_of_another_device(tmp_path, monkeypatch):
    """A sweep as a device would give it whose small tiles are slow and whose launches are quick."""
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path)))
    monkeypatch.delenv("JAX_CLC_TUNED", raising=False)
    truth = CostParameters(launch_us=2.5, tile_efficiency={"128x128 c1x1": 0.7, "64x128 c1x1": 0.4})
    rows = []
    for data in PROBLEMS:
        called = plan(problem_of(data)).problem
        candidates = []
        for choice in candidate_choices(called, "sm_90a", 8):
            us = cost_model.estimate(
                catalog.find(choice.kernel), called, REFERENCE_DEVICES["sm_90a"], split_k=choice.split_k,
                raster=(choice.raster_group, choice.raster_along), costs=truth,
            ).total_us  # fmt: skip
            candidates.append({
                "kernel": choice.kernel, "raster_group": choice.raster_group, "raster_along": choice.raster_along,
                "split_k": choice.split_k, "measured_us": us,
            })  # fmt: skip
        candidates.sort(key=lambda c: c["measured_us"])
        rows.append({**data, "key": problem_key(called), "candidates": candidates})
    return {"rows": rows, "family": "sm_90a", "command": "c", "environment": {"device": "NVIDIA X1", "date": "d"}}


def test_a_fit_explains_the_sweep_better_than_the_defaults(sweep_of_another_device):
    groups = fit.measurements([sweep_of_another_device], "sm_90a")
    fitted = fit.fit(groups, CostParameters())
    assert fit.loss(groups, fitted) < 0.5 * fit.loss(groups, CostParameters())
    assert fitted.launch_us < 3.5


def test_the_table_holds_the_fastest_kernel_that_still_ships(sweep_of_another_device):
    first = sweep_of_another_device["rows"][0]["candidates"]
    gone = {**first[0], "kernel": "gone", "measured_us": 0.1}
    sweep_of_another_device["rows"][0]["candidates"] = [gone, *first]
    content = fit.table([sweep_of_another_device], "sm_90a")
    entered = content["choices"][sweep_of_another_device["rows"][0]["key"]]
    assert entered["measured_us"] <= first[0]["measured_us"] * (1 + fit.DYNAMIC_TIE)
    assert catalog.find(entered["kernel"]) is not None
    assert len(content["choices"]) == len(PROBLEMS)


def test_dynamic_is_entered_where_it_ties(sweep_of_another_device):
    row = sweep_of_another_device["rows"][0]
    first = row["candidates"][0]
    tile = catalog.find(first["kernel"]).cta_tile
    dynamic = next(k.name for k in catalog.kernels("sm_90a") if k.schedule == "dynamic" and k.cta_tile == tile)
    for ties, expected in ((0.9, dynamic), (1.1, first["kernel"])):
        tied = {**first, "kernel": dynamic, "measured_us": first["measured_us"] * (1 + ties * fit.DYNAMIC_TIE)}
        content = fit.table([{**sweep_of_another_device, "rows": [{**row, "candidates": [first, tied]}]}], "sm_90a")
        assert content["choices"][row["key"]]["kernel"] == expected


def test_sweeps_of_one_problem_are_compared_over_what_all_measured():
    """A GPU that is slower in all of them, and a candidate that one sweep lacks."""
    names = [k.name for k in catalog.kernels("sm_90a") if k.schedule == "static"][:3]

    def row(times):
        facts = {"raster_group": 8, "raster_along": 0, "split_k": 1}
        return {"candidates": [{"kernel": name, **facts, "measured_us": us} for name, us in times.items()]}

    first, second = {names[0]: 100.0, names[1]: 110.0}, {names[0]: 220.0, names[1]: 210.0, names[2]: 190.0}
    assert fit.best_of([row(first)])["kernel"] == names[0]
    found = fit.best_of([row(first), row(second)])
    assert found["kernel"] == names[2]
    # 190 where the others take 214.9 on average, and 150.1 on average over both sweeps.
    assert abs(found["measured_us"] - 150.14 * 190 / 214.94) < 0.1
    gone = {"kernel": "gone", "raster_group": 8, "raster_along": 0, "split_k": 1, "measured_us": 1.0}
    assert fit.best_of([{"candidates": [gone]}]) is None


def test_one_sweep_of_many_does_not_decide():
    fast, slow = [k.name for k in catalog.kernels("sm_90a") if k.schedule == "nonpersistent"][:2]
    facts = {"raster_group": 8, "raster_along": 0, "split_k": 1}
    slower = {"kernel": slow, **facts, "measured_us": 110.0}
    lucky = {"candidates": [slower, {"kernel": fast, **facts, "measured_us": 100.0}]}
    assert fit.best_of([lucky, *3 * [{"candidates": [slower]}]])["kernel"] == slow
    assert fit.best_of([*2 * [lucky], *2 * [{"candidates": [slower]}]])["kernel"] == fast
    for spread, expected in ((9.0, fast), (11.0, slow)):  # 10 us faster
        sure = {"candidates": [slower, {"kernel": fast, **facts, "measured_us": 100.0, "spread_us": spread}]}
        assert fit.best_of([sure, *3 * [{"candidates": [slower]}]])["kernel"] == expected


@pytest.mark.parametrize(("have_it", "sweeps"), [(1, 3), (3, 7)])
def test_less_than_half_of_an_odd_number_is_not_half(have_it, sweeps):
    fast, slow = [k.name for k in catalog.kernels("sm_90a") if k.schedule == "nonpersistent"][:2]
    facts = {"raster_group": 8, "raster_along": 0, "split_k": 1}
    slower = {"kernel": slow, **facts, "measured_us": 110.0}
    lucky = {"candidates": [slower, {"kernel": fast, **facts, "measured_us": 100.0}]}
    others = {"candidates": [slower]}
    assert fit.best_of([*have_it * [lucky], *(sweeps - have_it) * [others]])["kernel"] == slow
    assert fit.best_of([*(have_it + 1) * [lucky], *(sweeps - have_it - 1) * [others]])["kernel"] == fast


def test_sweeps_that_share_no_candidate_are_not_scaled_by_different_ones():
    """Three sweeps of one GPU, each without another candidate, and one of another GPU that has nothing of theirs."""
    names = [k.name for k in catalog.kernels("sm_90a") if k.schedule == "nonpersistent"][:4]
    facts = {"raster_group": 8, "raster_along": 0, "split_k": 1}
    first, second, third, other = ({"kernel": name, **facts} for name in names)
    times = [{**first, "measured_us": 10.0}, {**second, "measured_us": 20.0}, {**third, "measured_us": 30.0}]
    rows = [{"candidates": [one for one in times if one is not missing]} for missing in times]
    typical = fit.typical_us([*rows, {"candidates": [{**other, "measured_us": 1.0}]}])
    found = {way[0]: us for way, us in typical.items()}
    assert found == pytest.approx(dict(zip(names[:3], (10.0, 20.0, 30.0), strict=True)))


def test_of_two_that_are_as_fast_the_wider_tile_is_entered():
    by_tile = {k.cta_tile[:2]: k.name for k in catalog.kernels("sm_90a") if k.schedule == "static"}
    facts = {"raster_group": 8, "raster_along": 0, "split_k": 1, "measured_us": 100.0}
    rows = [{"candidates": [{"kernel": by_tile[tile], **facts} for tile in ((128, 128), (128, 256))]}]
    assert fit.best_of(rows)["kernel"] == by_tile[128, 256]


def test_finals_decide_where_they_were_run():
    by_shape = {tile_class(k): k.name for k in catalog.kernels("sm_90a") if k.schedule == "nonpersistent"}
    names = list(by_shape.values())[:3]
    facts = {"raster_group": 8, "raster_along": 0, "split_k": 1}

    def row(times, **more):
        return {"candidates": [{"kernel": n, **facts, "measured_us": us} for n, us in times.items()], **more}

    earlier = row(dict(zip(names, (100.0, 101.0, 120.0), strict=True)))
    assert [way[0] for way in fit.finalists([earlier], 2)] == names[:2]
    two_rasters = row(dict(zip(names, (100.0, 110.0, 120.0), strict=True)))
    two_rasters["candidates"].append({"kernel": names[0], **facts, "raster_group": 4, "measured_us": 101.0})
    assert [way[0] for way in fit.finalists([two_rasters], 2)] == names[:2]  # the shape's best alone
    final = row({names[0]: 90.0, names[1]: 88.0}, is_final=True)
    found = fit.best_of([*3 * [earlier], final])
    assert (found["kernel"], found["measured_us"]) == (names[1], 88.0)
    assert fit.finalists([earlier, final], 1) == fit.finalists([earlier], 1)
    retired = row({"sm90_retired": 1.0}, is_final=True)
    assert fit.best_of([earlier, retired]) == fit.best_of([earlier])


def test_what_sweeps_found_after_the_finals_is_named():
    names = [k.name for k in catalog.kernels("sm_90a") if k.schedule == "nonpersistent"][:3]
    facts = {"raster_group": 8, "raster_along": 0, "split_k": 1, "spread_us": 1.0}

    def row(times, **more):
        return {"candidates": [{"kernel": n, **facts, "measured_us": us} for n, us in times.items()], **more}

    final = row({names[0]: 90.0, names[1]: 88.0}, is_final=True)
    earlier = row({names[0]: 100.0, names[1]: 101.0})
    assert fit.newcomers([earlier, final]) == []
    assert [way[0] for way in fit.newcomers([earlier, row({names[1]: 101.0, names[2]: 80.0}), final])] == [names[2]]
    assert fit.newcomers([earlier]) == []


def test_finalists_are_raced_with_what_auto_takes(sweep_of_another_device):
    row = sweep_of_another_device["rows"][0]
    called = plan(problem_of(row)).problem
    ways = fit.finalists([row], 2)
    choices = chosen(called, "sm_90a", ways)
    assert {choice.kernel for choice in choices} >= {way[0] for way in ways}
    assert {(c.kernel, c.raster_group, c.raster_along, c.split_k, c.k_parts) for c in choices} == {
        plan(called).way("sm_90a"), *ways
    }  # fmt: skip
