"""The makespan model: classic examples, and bounds that hold for every launch."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_clc.schedule.model import Costs, Device, Tiles, simulate
from jax_clc.schedule.trace import SCHEDULES, SmWindow

ASKING = ("dynamic", "clc")


def held(*sms):
    return tuple(SmWindow(sm) for sm in sms)


def makespans(tiles, device, **options):
    return {schedule: simulate(schedule, tiles, device, **options).makespan for schedule in SCHEDULES}


def test_twelve_tiles_four_planned_workers_room_for_three():
    times = makespans(Tiles.constant(12, 1.0), Device(4, taken=held(3)))
    assert times == {"nonpersistent": 4.0, "static": 6.0, "dynamic": 4.0, "clc": 4.0}


def test_four_hundred_tiles_on_hundred_sms_of_which_twenty_are_taken():
    times = makespans(Tiles.constant(400, 1.0), Device(100, taken=held(*range(20))))
    assert times == {"nonpersistent": 5.0, "static": 8.0, "dynamic": 5.0, "clc": 5.0}


def test_quiet_device_makes_all_schedules_equal():
    assert set(makespans(Tiles.constant(400, 1.0), Device(100)).values()) == {4.0}


def test_one_tile_per_cta_pays_launch_and_prologue_for_each_tile():
    costs = Costs(launch_us=0.5, prologue_us=1.5)
    times = makespans(Tiles.constant(12, 10.0), Device(4), costs=costs)
    assert times == {"nonpersistent": 36.0, "static": 32.0, "dynamic": 32.0, "clc": 32.0}


def test_second_accumulator_hides_the_epilogue_of_all_tiles_but_the_last():
    def makespan(accumulators):
        return simulate("static", Tiles.constant(12, 10.0, 3.0), Device(4), Costs(accumulators=accumulators)).makespan

    assert makespan(2) == 33.0
    assert makespan(1) == 39.0


def test_request_behind_a_long_tile_is_free_and_behind_a_short_one_is_not():
    def makespan(tile_us):
        return simulate("clc", Tiles.constant(12, tile_us), Device(4), Costs(request_us=1.0)).makespan

    assert makespan(2.0) == 6.0
    assert makespan(0.25) == 3.0  # each of three requests, the refusal among them, is waited for


def test_second_record_stage_keeps_a_slow_epilogue_from_delaying_requests():
    tiles, device = Tiles.constant(40, 2.0, 2.0), Device(1)

    def makespan(stages):
        return simulate("clc", tiles, device, Costs(request_us=1.5, record_stages=stages)).makespan

    assert makespan(1) > makespan(2) == makespan(3) == 82.0


def test_scheduler_without_throttle_hoards_tiles_that_others_could_take():
    tiles = Tiles((1.5, 1.0, 5.0, 1.0, 5.0, 1.0), (0.0,) * 6)
    hasty = simulate("clc", tiles, Device(2), Costs(throttle=False, record_stages=3))
    patient = simulate("clc", tiles, Device(2), Costs(throttle=True, record_stages=3))
    assert (patient.makespan, hasty.makespan) == (7.5, 11.5)


def test_worker_on_a_wanted_sm_is_refused_and_its_tiles_go_to_others():
    device = Device(4, taken=(SmWindow(3, 1.5, 100.0),))
    trace = simulate("clc", Tiles.constant(16, 1.0), device)
    trace.check()
    on_taken = [event for event in trace.events if event.sm == 3]
    assert max(event.start for event in on_taken) <= 2.0  # the tile already granted is finished, none after it
    stubborn = simulate("clc", Tiles.constant(16, 1.0), device, Costs(clc_yields=False))
    assert sum(event.sm == 3 for event in stubborn.events) == 4


def test_clusters_are_launched_on_sms_that_are_given_back():
    device = Device(4, taken=(SmWindow(2, 0.0, 2.0), SmWindow(3, 0.0, 2.0)))
    clc = simulate("clc", Tiles.constant(16, 1.0), device)
    static = simulate("static", Tiles.constant(16, 1.0), device)
    assert clc.makespan == 5.0
    assert {event.sm for event in clc.events} == {0, 1, 2, 3}
    assert static.makespan == 6.0


def test_clusters_are_launched_whole_within_a_gpc():
    odd = Device(8, cluster_size=2, gpc_sizes=(4, 4), taken=held(0, 4))
    whole = Device(8, cluster_size=2, gpc_sizes=(4, 4), taken=held(0, 1))
    tiles = Tiles.constant(12, 1.0)
    assert simulate("clc", tiles, odd).makespan == 6.0  # three free SMs in each GPC hold one cluster
    assert simulate("clc", tiles, whole).makespan == 4.0
    for event in simulate("clc", tiles, odd).events:
        assert event.sm not in (0, 4)


def test_refused_workers_leave_and_the_hardware_launches_what_is_pending():
    trace = simulate("clc", Tiles.constant(100, 1.0), Device(4), Costs(refusals=0.5, seed=7))
    trace.check()
    assert trace.makespan == 25.0
    assert trace.workers > 4


def test_speed_depends_on_busy_sms():
    device = Device(4, speed=((1, 2.0), (4, 1.0)))
    assert simulate("static", Tiles.constant(4, 6.0), device).makespan == 6.0
    assert simulate("static", Tiles.constant(1, 6.0), device).makespan == 3.0
    # 4 busy for 6, then one alone at double speed
    assert simulate("static", Tiles.constant(5, 6.0), device).makespan == 9.0


def test_nothing_to_do_takes_no_time():
    assert set(makespans(Tiles.constant(0, 1.0), Device(4)).values()) == {0.0}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_launch_that_can_never_happen_is_an_error(schedule):
    with pytest.raises(ValueError, match="never be launched: 4 of 4 SMs are taken"):
        simulate(schedule, Tiles.constant(5, 1.0), Device(4, taken=held(0, 1, 2, 3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device(4, cluster_size=8), "does not fit a GPC"),
        (lambda: Device(4, gpc_sizes=(2, 1)), "do not make 4 SMs"),
        (lambda: Device(4, taken=held(4)), "beyond the 4 SMs"),
        (lambda: Tiles((1.0,), ()), "1 mainloop times, 0 epilogue"),
        (lambda: Tiles((math.nan,), (0.0,)), "finite"),
        (lambda: Costs(record_stages=0), "at least 1"),
        (lambda: simulate("stealing", Tiles.constant(1, 1.0), Device(1)), "none of nonpersistent, static"),
        (lambda: SmWindow(0, 2.0, 1.0), "taken at 2.0 and given back at 1.0"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


times = st.floats(0.05, 20, allow_nan=False)


@st.composite
def launches(draw):
    size = draw(st.integers(1, 4))
    gpcs = tuple(draw(st.lists(st.integers(size, 9), min_size=1, max_size=3)))
    sms = sum(gpcs)
    windows = []
    for sm in draw(st.lists(st.integers(0, sms - 1), max_size=6, unique=True)):
        taken = draw(st.floats(0, 30))
        windows.append(SmWindow(sm, taken, taken + draw(st.floats(0.1, 30))))
    tiles = draw(st.lists(st.tuples(times, st.floats(0, 5)), max_size=60))
    device = Device(sms, size, gpcs, tuple(windows), draw(st.sampled_from([(), ((2, 1.3), (8, 1.0))])))
    costs = Costs(
        draw(st.floats(0, 2)),
        draw(st.floats(0, 2)),
        draw(st.floats(0, 3)),
        draw(st.floats(0, 3)),
        draw(st.integers(1, 4)),
        draw(st.booleans()),
        draw(st.integers(1, 2)),
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 0.3])),
        seed=draw(st.integers(0, 9)),
    )
    return Tiles(tuple(t for t, _ in tiles), tuple(e for _, e in tiles)), device, costs


@given(launch=launches(), schedule=st.sampled_from(SCHEDULES))
@settings(max_examples=300)
def test_every_tile_is_computed_once_and_no_bound_is_broken(launch, schedule):
    tiles, device, costs = launch
    trace = simulate(schedule, tiles, device, costs)
    trace.check()
    fastest = max(speed for _, speed in device.speed or ((1, 1.0),))
    if len(tiles):
        longest = max(m + e for m, e in zip(tiles.mainloop_us, tiles.epilogue_us, strict=True))
        area = sum(tiles.mainloop_us) / device.resident_clusters
        assert trace.makespan * fastest >= max(longest, area) - 1e-6
    for window in device.taken:  # nothing starts there that was not launched before it was taken
        late = [
            event for event in trace.events if event.sm == window.sm and window.taken <= event.start < window.given_back
        ]
        early = {event.cluster for event in trace.events if event.sm == window.sm}
        launched = {cluster: min(e.start for e in trace.events if e.cluster == cluster) for cluster in early}
        slack = (costs.launch_us + costs.prologue_us + costs.request_us) + 1e-6
        assert all(launched[event.cluster] <= window.taken + slack for event in late)
    by_place = {}
    for event in trace.events:  # one cluster at a time on an SM
        by_place.setdefault(event.sm, {}).setdefault(event.cluster, []).append(event)
    for clusters in by_place.values():
        spans = sorted((min(e.start for e in es), max(e.end for e in es)) for es in clusters.values())
        assert all(first[1] <= second[0] + 1e-6 for first, second in itertools.pairwise(spans))


@given(
    tile_times=st.lists(times, min_size=1, max_size=60),
    sms=st.integers(1, 12),
    schedule=st.sampled_from(ASKING),
    request_us=st.floats(0, 3),
)
def test_asking_is_never_worse_than_the_list_scheduling_bound(tile_times, sms, schedule, request_us):
    """Graham's bound, with one tile claimed ahead and the longest a worker may wait for an answer."""
    tiles = Tiles(tuple(tile_times), (0.0,) * len(tile_times))
    makespan = simulate(schedule, tiles, Device(sms), Costs(request_us=request_us)).makespan
    waiting = [max(t, request_us) for t in tile_times]
    assert makespan <= sum(waiting) / sms + 2 * max(waiting) + request_us + 1e-6


@given(tile_us=times, count=st.integers(1, 80), sms=st.integers(1, 12), schedule=st.sampled_from(SCHEDULES))
def test_equal_tiles_on_a_quiet_device_take_the_same_time_under_every_schedule(tile_us, count, sms, schedule):
    trace = simulate(schedule, Tiles.constant(count, tile_us), Device(sms))
    assert trace.makespan == pytest.approx(math.ceil(count / sms) * tile_us)


@given(launch=launches(), schedule=st.sampled_from(SCHEDULES))
@settings(max_examples=50)
def test_same_input_gives_the_same_trace(launch, schedule):
    assert simulate(schedule, *launch) == simulate(schedule, *launch)


def test_drawn_tiles_have_the_mean_and_spread_asked_for():
    times = Tiles.drawn(20_000, 10.0, 0.3, seed=1).mainloop_us
    mean = sum(times) / len(times)
    spread = math.sqrt(sum((t - mean) ** 2 for t in times) / len(times)) / mean
    assert mean == pytest.approx(10.0, rel=0.02)
    assert spread == pytest.approx(0.3, rel=0.05)
    assert times == Tiles.drawn(20_000, 10.0, 0.3, seed=1).mainloop_us
