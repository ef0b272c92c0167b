"""What an emulator of these machines easily gets wrong: each trap is a test here, or one that a comment names."""

import numpy as np
import pytest
from test_named_errors import PROGRAMS, RUNS, claims, pipeline, program

from jax_clc.emulator import errors
from jax_clc.emulator.axioms import Axioms
from jax_clc.emulator.options import Hostility
from jax_clc.emulator.run import Buffer, run_ptx

SEEDS = range(20)


# 1. A grant can follow a refusal; undefined is only asking after the asking CTA has observed one.
# Also engines/test_cluster_launch_control.py and the faults `asks_again` and `unguarded`.


@pytest.mark.parametrize("refusals", [0.0, 0.5, 0.9])
def test_refusals_before_the_end_lose_no_tile(refusals):
    for seed in SEEDS:
        claims(program("claims"), seed, refusals=refusals)


# 2. Byte counts of barriers are signed. Also engines/test_mbarrier.py.


def test_bytes_may_complete_before_they_are_expected():
    for seed in SEEDS:
        pipeline(program("pipeline", "copy_first"), seed)


# 3. A wait names a parity, and try_wait may return false for no reason. Aliasing: engines/test_mbarrier.py.


def test_waits_that_fail_for_no_reason_are_repeated():
    for seed in SEEDS:
        pipeline(program("pipeline"), seed, hostility=Hostility(spurious_failures=0.8))


# 4. Scope: fault `cta_scope`; hand-backs of asynchronous operations: referee/test_happens_before.py.
# 5. The proxy fence is per thread, for write-after-read too: faults `no_fence` and `fence_elsewhere`. Completions
# carry one: the consumer of `pipeline` reads what was copied without a fence.
# 6. Bulk groups belong to a thread.


def test_other_lanes_cannot_wait_for_a_group():
    with pytest.raises((errors.BufferReusedInFlight, errors.AsyncInFlightAtExit)):
        for seed in SEEDS:
            RUNS["bulk_store"](program("bulk_store", "other_lanes_wait"), seed)


# 7. tcgen05: all faults of `tensor`.
# 8. An exited CTA's shared memory is gone, and reused at once.


def test_shared_memory_of_an_exited_cta_is_poisoned():
    for seed in SEEDS:
        out = np.zeros(8, np.int32)
        text = (PROGRAMS / "leftover.ptx").read_text()
        hostility = Hostility(shuffle_launches=1)
        lenient = Axioms(written_before_read=False)
        run_ptx(text, grid=8, block=32, args=[out], sm_count=1, seed=seed, hostility=hostility, axioms=lenient)
        assert out[0] == 12345 and (out[1:] != 12345).all()


def test_reading_what_an_exited_cta_left_is_an_error():
    with pytest.raises(errors.UninitializedRead):
        run_ptx((PROGRAMS / "leftover.ptx").read_text(), grid=8, block=32, args=[np.zeros(8, np.int32)])


# 9. shared::cluster addresses hold the rank at bit 24; clearing its lowest bit names the pair's first CTA.


def test_clearing_bit_24_names_the_first_cta_of_the_pair():
    for seed in SEEDS:
        out = np.zeros(64, np.int32)
        text = (PROGRAMS / "leader.ptx").read_text()
        run_ptx(text, grid=2, block=32, cluster=2, args=[Buffer(out, output=True)], seed=seed)
        np.testing.assert_array_equal(out, np.arange(64))


# 10. Lanes: faults `lanes`, `one_lane_releases`, `partial_barrier`, `partial_warpgroup`, `early_registers` and
# `one_warp_keeps_its_registers`.
