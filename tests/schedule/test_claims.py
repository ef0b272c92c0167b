"""What is read off a trace about claims is what the model put in."""

import pytest

from jax_clc.schedule.claims import claims
from jax_clc.schedule.model import Costs, Device, Tiles, simulate
from jax_clc.schedule.trace import SmWindow

TILES = Tiles.constant(40, 2.0)
FOUR_PLACES = Device(8, 2)


def claims_of(schedule, device=FOUR_PLACES, **costs):
    return claims(simulate(schedule, TILES, device, Costs(**costs)))


def test_quiet_clc_launches_what_fits_and_grants_the_rest_in_grid_order():
    found = claims_of("clc", request_us=0.5)
    assert (found.launched, found.granted, found.refused_while_pending) == (4, 36, 0)
    assert (found.grants_in_order, found.late_launches_in_order, found.hidden) == (1.0, None, 1.0)
    assert found.latency.median == found.latency.longest == pytest.approx(0.5)
    assert found.latency.requests == 36


def test_dynamic_asks_for_every_tile():
    assert (claims_of("dynamic", request_us=0.5).granted, claims_of("static").granted) == (40, 0)


def test_schedules_that_do_not_ask_have_no_latency():
    found = claims_of("nonpersistent")
    assert found.latency is None
    assert found.hidden is None
    assert (found.launched, found.granted, found.late_launches_in_order) == (40, 0, 1.0)


def test_refusals_before_the_end_are_seen():
    device = Device(8, 2, taken=(SmWindow(0, 3.0, 9.0),))
    found = claims_of("clc", device, request_us=0.5)
    assert found.refused_while_pending == 1
    assert found.launched == 5
    assert claims_of("clc", device, request_us=0.5, clc_yields=False).refused_while_pending == 0


def test_request_longer_than_a_tile_is_not_hidden():
    assert claims_of("clc", request_us=3.0).hidden == 0.0
