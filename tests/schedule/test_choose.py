"""`schedule="auto"`: the rule's promises, and its closed forms against the simulation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_clc.schedule.choose import DEFAULT_COSTS, PREFERENCE, choose_schedule, predicted_us
from jax_clc.schedule.model import Costs, Device, Tiles, simulate
from jax_clc.schedule.trace import SmWindow

HOPPER = ("nonpersistent", "static", "dynamic")
BLACKWELL = ("nonpersistent", "static", "clc")


@given(
    schedule=st.sampled_from(PREFERENCE),
    tiles=st.integers(1, 90),
    planned=st.integers(1, 24),
    data=st.data(),
    tile_us=st.floats(0.25, 20),
    launch_us=st.floats(0, 2),
    prologue_us=st.floats(0, 2),
    request_us=st.floats(0, 3),
    reset_us=st.floats(0, 3),
)
@settings(max_examples=300)
def test_closed_form_equals_simulation(
    schedule, tiles, planned, data, tile_us, launch_us, prologue_us, request_us, reset_us
):
    room = data.draw(st.integers(1, planned))
    costs = Costs(launch_us=launch_us, prologue_us=prologue_us, request_us=request_us, reset_us=reset_us)
    device = Device(planned, taken=tuple(SmWindow(sm) for sm in range(planned - room)))
    simulated = simulate(schedule, Tiles.constant(tiles, tile_us), device, costs).makespan
    assert predicted_us(schedule, tiles, planned, room, tile_us, costs) == pytest.approx(simulated, rel=1e-9)


def test_blackwell_takes_clc_by_default():
    choice = choose_schedule(BLACKWELL, family="sm_100f", tiles=1024, resident_clusters=74, tile_us=20.0)
    assert choice.schedule == "clc"
    assert "SMs are taken" in choice.reason


def test_hopper_takes_dynamic_for_many_long_tiles():
    choice = choose_schedule(HOPPER, family="sm_90a", tiles=1024, resident_clusters=66, tile_us=44.6)
    assert choice.schedule == "dynamic"


@pytest.mark.parametrize(("family", "available"), [("sm_90a", HOPPER), ("sm_100f", BLACKWELL)])
def test_static_where_tiles_are_few_or_short_or_a_limit_is_set(family, available):
    few = choose_schedule(available, family=family, tiles=60, resident_clusters=66, tile_us=44.0)
    short = choose_schedule(available, family=family, tiles=4096, resident_clusters=66, tile_us=0.5)
    limited = choose_schedule(available, family=family, tiles=4096, resident_clusters=66, tile_us=44.0, sm_limit=8)
    assert [choice.schedule for choice in (few, short, limited)] == ["static"] * 3
    assert "60 tiles for 66 workers" in few.reason
    assert "less than asking" in short.reason
    assert "sm_limit=8" in limited.reason


def test_limit_falls_to_dynamic_without_static_and_is_an_error_without_both():
    def choose(available):
        return choose_schedule(available, family="sm_90a", tiles=9, resident_clusters=4, tile_us=1.0, sm_limit=2)

    assert choose(("dynamic", "clc")).schedule == "dynamic"
    with pytest.raises(ValueError, match="sm_limit=2"):
        choose(("clc", "nonpersistent"))


def test_reason_for_the_only_schedule_of_a_tile_is_that_it_is_the_only_one():
    only = choose_schedule(("clc",), family="sm_100f", tiles=64, resident_clusters=148, tile_us=1.0)
    assert (only.schedule, only.reason) == ("clc", "clc: no other kernel of this tile is persistent")
    one = choose_schedule(("static", "clc"), family="sm_100f", tiles=1, resident_clusters=148, tile_us=1.0)
    assert "1 tile for 148 workers" in one.reason


def test_single_schedule_is_taken_and_none_is_an_error():
    def choose(available):
        return choose_schedule(available, family="sm_100f", tiles=9, resident_clusters=4, tile_us=1.0)

    assert choose(("nonpersistent",)).schedule == "nonpersistent"
    with pytest.raises(ValueError, match="no known schedule"):
        choose(())


@given(
    tiles=st.integers(1, 5000),
    resident=st.integers(1, 148),
    tile_us=st.floats(0, 200),
    family=st.sampled_from(sorted(DEFAULT_COSTS)),
)
def test_choice_is_never_much_slower_alone_than_the_best(tiles, resident, tile_us, family):
    available = HOPPER if family == "sm_90a" else BLACKWELL
    choice = choose_schedule(available, family=family, tiles=tiles, resident_clusters=resident, tile_us=tile_us)
    best = min(quiet for quiet, _ in choice.weighed.values())
    # The most that 5% of a disturbed run can buy: the whole of static's second round.
    assert choice.weighed[choice.schedule][0] <= best * 1.08
