"""The mbarrier object counts as the ISA says, and names what the ISA calls undefined."""

import pytest

from jax_clc.emulator.errors import BarrierMisuse, BarrierOverArrival, BarrierPhaseAliased
from jax_clc.emulator.mbarrier import Barrier


def test_a_phase_ends_iff_no_arrival_is_pending_and_no_byte_is_outstanding():
    barrier = Barrier(2)
    assert barrier.arrive() == 0
    assert barrier.complete_tx(64) == 0  # bytes may come before they are expected
    assert barrier.arrive() == 0
    assert not barrier.test(0)
    assert barrier.expect_tx(128) == 0
    assert barrier.complete_tx(64) == 1
    assert barrier.test(0) and not barrier.test(1)
    assert (barrier.phase, barrier.pending) == (1, 2)


def test_the_phase_before_the_first_counts_as_ended():
    assert Barrier(1).test(1)


def test_a_parity_aliases_after_two_phases():
    barrier = Barrier(1)
    for phase in range(2):
        barrier.arrive()
        assert barrier.test(phase & 1)
    assert not barrier.test(0)  # phase 0 has long ended, and the parity cannot say so


def test_an_overtaken_waiter_is_named():
    barrier = Barrier(1)
    assert not barrier.test(0, waiter="consumer")
    barrier.arrive()
    assert barrier.test(0)
    barrier.arrive()
    with pytest.raises(BarrierPhaseAliased, match="phase 0 .* phase 1 is over"):
        barrier.test(0, waiter="consumer")


def test_arrivals_before_anybody_observed_the_last_phase_are_named():
    barrier = Barrier(1)
    barrier.arrive()
    with pytest.raises(BarrierPhaseAliased, match="no wait has observed phase 0"):
        barrier.arrive()


def test_over_arrival_needs_bytes_that_hold_the_phase_open():
    barrier = Barrier(1)
    barrier.expect_tx(16)
    barrier.arrive()
    with pytest.raises(BarrierOverArrival, match="0 of 1 pending.*16 bytes"):
        barrier.arrive()
    with pytest.raises(BarrierOverArrival):
        Barrier(4).arrive(5)


def test_ranges_and_no_complete():
    with pytest.raises(BarrierMisuse):
        Barrier(0)
    with pytest.raises(BarrierMisuse):
        Barrier(1 << 20)
    with pytest.raises(BarrierMisuse, match="byte count"):
        Barrier(1).expect_tx(1 << 20)
    with pytest.raises(BarrierMisuse, match="noComplete"):
        Barrier(1).arrive(no_complete=True)


def test_drop_lowers_the_count_of_the_next_phase():
    barrier = Barrier(3)
    barrier.arrive(drop=True)
    barrier.arrive(2)
    assert barrier.test(0)
    assert barrier.arrive(2) == 1


def test_tokens_name_a_phase():
    barrier = Barrier(2)
    token = barrier.state
    assert not barrier.test_state(token)
    barrier.arrive(2)
    assert barrier.test_state(token)
    barrier.arrive(2)
    with pytest.raises(BarrierPhaseAliased):
        barrier.test_state(token)
