"""Cluster launch control: every cluster is launched or granted once, and the protocol's errors are named."""

import random

import pytest

from jax_clc.emulator.cluster_launch_control import ClusterLaunchControl, Policy
from jax_clc.emulator.errors import (
    ClcMulticastToAbsentCta,
    ClcRecordNotComplete,
    ClcRecordUnread,
    ClcRefusedRecordDecoded,
    ClcRequestAfterRefusal,
    ClcRequestInFlightAtExit,
)

PRESENT = [(0, True), (1, True)]


@pytest.mark.parametrize("seed", range(20))
def test_every_cluster_is_launched_or_granted_exactly_once(seed):
    rng = random.Random(seed)
    queue = ClusterLaunchControl((8, 3, 2), (2, 1, 1), rng, Policy(0.3, random_order=True))
    seen, cta = [], 0
    while queue.pending:
        if rng.random() < 0.4:
            seen.append(queue.launch_next())
            continue
        cta += 1  # a fresh CTA asks, as one that has seen a refusal may not
        record = queue.answer(queue.request(cta, cta), PRESENT)
        if queue.is_canceled(cta, record):
            seen.append(queue.first_ctaid(cta, record))
    assert sorted(seen) == sorted((x, y, z) for x in range(0, 8, 2) for y in range(3) for z in range(2))
    assert queue.refusals > 0 or queue.grants == 0


def test_a_grant_may_follow_a_refusal():
    queue = ClusterLaunchControl((4, 1, 1), (1, 1, 1), random.Random(0), Policy(0.5))
    answers = [queue.is_canceled(cta, queue.answer(queue.request(cta, cta), PRESENT)) for cta in range(7)]
    assert True in answers[answers.index(False) :]


def test_without_hostility_clusters_come_in_order():
    queue = ClusterLaunchControl((6, 1, 1), (2, 1, 1), random.Random(0))
    assert queue.launch_next() == (0, 0, 0)
    assert queue.first_ctaid(0, queue.answer(queue.request(0, 0), PRESENT)) == (2, 0, 0)
    assert queue.launch_next() == (4, 0, 0)
    assert queue.launch_next() is None


def empty_queue():
    queue = ClusterLaunchControl((1, 1, 1), (1, 1, 1), random.Random(0))
    queue.launch_next()
    return queue


def test_asking_again_is_an_error_only_after_the_refusal_was_observed():
    queue = empty_queue()
    first = queue.answer(queue.request(0, 0), PRESENT)
    second = queue.answer(queue.request(0, 0), PRESENT)  # the first answer is not yet observed
    assert not queue.is_canceled(0, first) and not queue.is_canceled(0, second)
    with pytest.raises(ClcRequestAfterRefusal):
        queue.request(0, 0)


def test_a_refused_record_has_no_coordinates():
    queue = empty_queue()
    record = queue.answer(queue.request(0, 0), PRESENT)
    with pytest.raises(ClcRefusedRecordDecoded):
        queue.first_ctaid(0, record)


def test_only_a_completed_record_can_be_decoded():
    queue = ClusterLaunchControl((4, 1, 1), (1, 1, 1), random.Random(0))
    record = queue.answer(queue.request(0, 0), PRESENT)
    with pytest.raises(ClcRecordNotComplete):
        queue.is_canceled(0, bytes(16))
    with pytest.raises(ClcRecordNotComplete):
        queue.is_canceled(0, record[:4] + bytes(4) + record[8:])


def test_exit_with_requests_open_is_an_error():
    queue = ClusterLaunchControl((4, 1, 1), (1, 1, 1), random.Random(0))
    serial = queue.request(0, 0)
    with pytest.raises(ClcRequestInFlightAtExit):
        queue.cta_exit(0, 0)
    record = queue.answer(serial, PRESENT)
    queue.cta_exit(0, 0)
    with pytest.raises(ClcRecordUnread, match="lost|nobody read"):
        queue.cluster_exit(0)
    queue.is_canceled(0, record)
    queue.cluster_exit(0)


def test_multicast_needs_every_cta():
    queue = ClusterLaunchControl((4, 1, 1), (2, 1, 1), random.Random(0))
    with pytest.raises(ClcMulticastToAbsentCta, match="rank 1"):
        queue.answer(queue.request(0, 0), [(0, True), (1, False)])
