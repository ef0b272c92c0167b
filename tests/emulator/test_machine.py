"""The machine keeps its promises: one seed is one run, residency, whole clusters, SMs that are away, launches
refused.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jax_clc.emulator import errors
from jax_clc.emulator.options import Hostility
from jax_clc.emulator.run import Buffer, LaunchError, run_ptx

PTX = (Path(__file__).parent / "ptx" / "plain_kernels.ptx").read_text()


def rotate(*, clusters: int = 12, size: int = 2, **options):
    values = np.arange(clusters * size * 64, dtype=np.int32)
    out = np.zeros_like(values)
    args = [values, Buffer(out, output=True)]
    report = run_ptx(PTX, "cluster_rotate", grid=clusters * size, block=64, cluster=size, args=args, **options)
    np.testing.assert_array_equal(out, np.roll(values.reshape(clusters, size, 64), -1, axis=1).reshape(-1))
    return report


def history(report):
    return report.instructions, report.ticks, [dataclasses.astuple(launch) for launch in report.launches]


@pytest.mark.parametrize("seed", range(4))
def test_same_seed_same_run(seed):
    manner = Hostility(sm_changes=4, sm_change_interval=(1, 50))
    assert history(rotate(seed=seed, hostility=manner)) == history(rotate(seed=seed, hostility=manner))


def test_seeds_differ():
    assert len({tuple(launch.origin for launch in rotate(seed=seed).launches) for seed in range(8)}) > 1


def test_every_cluster_runs_once():
    report = rotate(clusters=30, seed=1)
    assert sorted(launch.origin[0] for launch in report.launches) == list(range(0, 60, 2))


def resident(launches, tick: int):
    return [launch for launch in launches if launch.start <= tick < launch.stop]


def test_shared_memory_limits_residency():
    report = rotate(clusters=40, size=1, sm_count=4, dynamic_smem_bytes=120_000, seed=2)
    for tick in range(report.ticks):
        sms = [sm for launch in resident(report.launches, tick) for sm in launch.sms]
        assert len(sms) == len(set(sms))


def test_a_cluster_starts_whole_and_on_sms_of_its_own():
    report = rotate(clusters=6, size=4, sm_count=8)
    assert all(len(set(launch.sms)) == 4 for launch in report.launches)


def test_an_sm_that_is_away_gets_no_cluster():
    manner = Hostility(sm_schedule=((0, 0, False), (0, 3, False)))
    report = rotate(clusters=20, sm_count=5, hostility=manner)
    assert {sm for launch in report.launches for sm in launch.sms} == {1, 2, 4}


def test_sms_come_back_when_nothing_else_can_run():
    manner = Hostility(sm_schedule=tuple((0, sm, False) for sm in range(4)))
    assert len(rotate(clusters=5, sm_count=4, hostility=manner).launches) == 5


def test_a_cluster_larger_than_the_device_is_refused():
    with pytest.raises(errors.AddressOutOfRange, match="4 CTAs on a device of 2 SMs"):
        rotate(size=4, sm_count=2)


def test_a_grid_of_broken_clusters_is_refused():
    with pytest.raises(LaunchError, match="whole number of clusters"):
        run_ptx(PTX, "cluster_rotate", grid=3, block=64, cluster=2, args=[np.zeros(192, np.int32)] * 2)


@pytest.mark.parametrize(
    "args, words",
    [
        ([np.zeros(4, np.float32)], "1 arguments for the 3 parameters"),
        ([np.zeros(4, np.float32), np.zeros(1, np.float32), b"too long"], "has 4 bytes, the argument 8"),
        ([np.zeros(4, np.float32), "text", 4], "cannot pass str"),
    ],
)
def test_wrong_arguments_are_refused(args, words):
    with pytest.raises(LaunchError, match=words):
        run_ptx(PTX, "reduce_sum", grid=1, block=32, args=args)


def test_reading_past_a_buffer_names_it():
    values, out = np.zeros(100, np.float32), np.zeros(1, np.float32)
    with pytest.raises(errors.AddressOutOfRange, match="buffer") as caught:
        run_ptx(PTX, "reduce_sum", grid=1, block=32, args=[values, out, 101])
    assert "ld.global" in caught.value.location.text


def test_an_unaligned_buffer_is_refused_where_it_is_read():
    values, out = np.zeros(32, np.float32), np.zeros(1, np.float32)
    with pytest.raises(errors.MisalignedAddress):
        run_ptx(PTX, "reduce_sum", grid=1, block=32, args=[Buffer(values, offset_bytes=2), out, 32])
