"""Small PTX programs, right and with one fault each: the fault is named, and the right twin passes under 50 seeds.

A line of a program that ends in `//~ fault ...` is left out of these faulty twins; `//+ fault` puts one in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jax_clc.emulator import errors
from jax_clc.emulator.options import Hostility
from jax_clc.emulator.run import Buffer, run_ptx

PROGRAMS = Path(__file__).parent / "programs"
TWIN_SEEDS = 50
FAULT_SEEDS = 20


@lru_cache
def program(name: str, fault: str | None = None) -> str:
    """The text of a program, or of its faulty twin; line numbers stay those of the file."""
    lines, used = [], fault is None
    for line in (PROGRAMS / f"{name}.ptx").read_text().splitlines():
        code, _, only = line.partition("//+ ")
        code, _, left_out = code.partition("//~ ")
        drop = fault in left_out.split() or (only and fault not in only.split())
        used |= fault in left_out.split() or fault in only.split()
        lines.append("" if drop else code)
    assert used, f"{name}.ptx has no fault {fault}"
    return "\n".join(lines)


def exchange(text: str, seed: int) -> None:
    out = np.zeros(64, np.int32)
    run_ptx(text, grid=1, block=64, args=[Buffer(out, output=True)], seed=seed)
    np.testing.assert_array_equal(out, 3 * (63 - (np.arange(64) ^ 1)))


def pipeline(text: str, seed: int, hostility: Hostility | None = None) -> None:
    tiles = 7
    values = np.random.default_rng(seed).integers(0, 1000, 32 * (tiles + 1)).astype(np.int32)
    out = np.zeros(32 * tiles, np.int32)
    run_ptx(text, grid=1, block=64, args=[values, Buffer(out, output=True), tiles], seed=seed, hostility=hostility)
    np.testing.assert_array_equal(out, values[: 32 * tiles] + 1)


def bulk_store(text: str, seed: int) -> None:
    out = np.zeros(64, np.int32)
    run_ptx(text, grid=1, block=32, args=[Buffer(out, output=True)], seed=seed)
    np.testing.assert_array_equal(out, [*range(32), *range(100, 132)])


def cluster(text: str, seed: int) -> None:
    out = np.zeros(64, np.int32)
    run_ptx(text, grid=2, block=32, cluster=2, args=[Buffer(out, output=True)], seed=seed)
    np.testing.assert_array_equal(out, [*range(1000, 1032), *range(32)])


def multiply(text: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (64, 16)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-4, 5, (8, 16)).astype(ml_dtypes.bfloat16)
    d = np.zeros((64, 8), np.float32)
    run_ptx(text, grid=1, block=128, args=[a, b, Buffer(d, output=True)], seed=seed)
    np.testing.assert_array_equal(d, 2 * a.astype(np.float32) @ b.astype(np.float32).T)


def registers(text: str, seed: int) -> None:
    out = np.zeros(384, np.int32)
    run_ptx(text, grid=1, block=384, args=[Buffer(out, output=True)], seed=seed)
    np.testing.assert_array_equal(out, np.arange(384))


def tensor(text: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (128, 16)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-4, 5, (16, 16)).astype(ml_dtypes.bfloat16)
    d = np.zeros((128, 16), np.float32)
    run_ptx(text, grid=1, block=128, args=[a, b, Buffer(d, output=True)], arch="sm_100a", seed=seed)
    np.testing.assert_array_equal(d, 2 * a.astype(np.float32) @ b.astype(np.float32).T)


def claims(text: str, seed: int, cluster: int = 1, refusals: float = 0.2) -> None:
    ctas = 12
    out = np.zeros(32 * ctas, np.int32)
    hostility = Hostility(clc_refusals=refusals, sm_changes=4, sm_change_interval=(10, 100))
    run_ptx(
        text, grid=ctas, block=32, cluster=cluster, args=[Buffer(out, output=True)], arch="sm_100a", sm_count=4,
        seed=seed, hostility=hostility,
    )  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(32 * ctas))


def pair_claims(text: str, seed: int) -> None:
    claims(text, seed, cluster=2)


RUNS: dict[str, Callable[[str, int], None]] = {
    "exchange": exchange,
    "pipeline": pipeline,
    "bulk_store": bulk_store,
    "cluster": cluster,
    "multiply": multiply,
    "registers": registers,
    "tensor": tensor,
    "claims": claims,
    "pair_claims": pair_claims,
}

# (program, fault, error or errors that name it, words of the message)
FAULTS = [
    ("exchange", "data_race", errors.DataRace, "not ordered after"),
    ("exchange", "lanes", errors.DataRace, "lanes_are_threads"),
    ("exchange", "never_written", errors.UninitializedRead, "nobody has written"),
    ("exchange", "partial_barrier", errors.BrokenAligned, "lanes"),
    ("exchange", "too_many_threads", errors.Deadlock, "64 of 96"),
    ("exchange", "misaligned", errors.MisalignedAddress, "aligned"),
    ("exchange", "out_of_range", errors.AddressOutOfRange, ""),
    ("exchange", "global_out_of_range", errors.AddressOutOfRange, ""),
    ("exchange", "output_twice", errors.OutputWrittenTwice, ""),
    ("exchange", "output_never", errors.OutputNeverWritten, ""),
    ("pipeline", "no_init", errors.BarrierMisuse, "no mbarrier"),
    ("pipeline", "init_twice", errors.BarrierMisuse, "valid mbarrier"),
    ("pipeline", "opaque", errors.BarrierMisuse, "holds an mbarrier"),
    ("pipeline", "init_unordered", (errors.DataRace, errors.BarrierMisuse), ""),
    ("pipeline", "no_wait_full", (errors.BufferReusedInFlight, errors.UninitializedRead), ""),
    ("pipeline", "no_wait_empty", (errors.DataRace, errors.BarrierPhaseAliased, errors.BarrierOverArrival), ""),
    ("pipeline", "no_fence", errors.MissingProxyFence, "fence_covers_write_after_read"),
    ("pipeline", "one_lane_releases", errors.DataRace, "lane"),
    ("pipeline", "over_arrival", errors.BarrierOverArrival, "0 of 1 pending"),
    ("pipeline", "no_flip", (errors.BarrierPhaseAliased, errors.BufferReusedInFlight, errors.UninitializedRead), ""),
    ("pipeline", "half_expect", (errors.BufferReusedInFlight, errors.BarrierMisuse, errors.Deadlock), ""),
    ("pipeline", "no_arrive", errors.Deadlock, "mbarrier"),
    ("pipeline", "misaligned_copy", errors.MisalignedAddress, "16"),
    ("pipeline", "extra_copy", errors.AsyncInFlightAtExit, "exits"),
    ("bulk_store", "no_fence", errors.MissingProxyFence, "no fence.proxy.async"),
    ("bulk_store", "fence_elsewhere", errors.MissingProxyFence, "fence_by_accessing_thread"),
    ("bulk_store", "no_wait", (errors.BufferReusedInFlight, errors.DataRace), ""),
    ("bulk_store", "no_commit", (errors.BufferReusedInFlight, errors.AsyncInFlightAtExit), ""),
    ("bulk_store", "exit_without_wait", errors.AsyncInFlightAtExit, "bulk.store"),
    ("cluster", "cta_scope", errors.DataRace, "scope_limits_order"),
    ("cluster", "no_init_fence", errors.DataRace, "init_before_use"),
    ("cluster", "no_start_barrier", (errors.DataRace, errors.BarrierMisuse), ""),
    ("cluster", "no_end_barrier", errors.RemoteAccessToExitedCta, ""),
    ("cluster", "early_exit", (errors.RemoteAccessToExitedCta, errors.DataRace), ""),
    ("multiply", "no_proxy_fence", errors.MissingProxyFence, "wgmma"),
    ("multiply", "no_barrier", (errors.DataRace, errors.UninitializedRead), "wgmma"),
    ("multiply", "descriptor_range", errors.AddressOutOfRange, "reach"),
    ("multiply", "no_register_fence", errors.RegistersInFlight, "wgmma.fence"),
    ("multiply", "late_register", errors.RegistersInFlight, "after the last wgmma.fence"),
    ("multiply", "early_registers", errors.RegistersInFlight, "before"),
    ("multiply", "partial_warpgroup", errors.BrokenAligned, "wgmma"),
    ("multiply", "no_wait", (errors.BufferReusedInFlight, errors.RegistersInFlight), ""),
    ("tensor", "alloc_after_relinquish", errors.TensorMemoryMisuse, "after relinquish"),
    ("tensor", "no_proxy_fence", errors.MissingProxyFence, "tcgen05.mma"),
    ("tensor", "descriptor_bits", errors.BadDescriptor, "0b001"),
    ("tensor", "other_lanes", errors.TensorMemoryMisuse, "may touch"),
    ("tensor", "plain_arrive", (errors.TensorMemoryNotReady, errors.UninitializedRead), "tcgen05.ld"),
    ("tensor", "no_fence_after", errors.TensorMemoryNotReady, "tcgen05.fence is missing"),
    ("tensor", "early_registers", errors.TensorMemoryNotReady, "before tcgen05.wait::ld"),
    ("tensor", "no_wait_load", errors.TensorMemoryNotReady, ""),
    ("tensor", "no_fence_before", errors.TensorMemoryNotReady, "tcgen05.mma"),
    ("tensor", "no_fence_again", errors.TensorMemoryNotReady, "tcgen05.mma"),
    ("tensor", "not_freed", errors.TensorMemoryNotFreed, "32 columns"),
    ("claims", "no_expect", errors.Deadlock, "waits for mbarrier"),
    ("claims", "no_wait", (errors.BufferReusedInFlight, errors.UninitializedRead, errors.ClcRecordNotComplete), ""),
    ("claims", "no_fence", errors.MissingProxyFence, "try_cancel"),
    ("claims", "unguarded", errors.ClcRefusedRecordDecoded, "refusal"),
    ("claims", "asks_again", errors.ClcRequestAfterRefusal, "refusal"),
    ("claims", "unread", errors.ClcRecordUnread, "nobody read"),
    ("claims", "leaves", (errors.ClcRequestInFlightAtExit, errors.AsyncInFlightAtExit), ""),
    ("pair_claims", "no_fence", errors.MissingProxyFence, "try_cancel"),
    (
        "pair_claims",
        "no_hand_back",
        (
            errors.BufferReusedInFlight,
            errors.DataRace,
            errors.MissingProxyFence,
            errors.RemoteAccessToExitedCta,
            errors.ClcMulticastToAbsentCta,
        ),
        "",
    ),
    (
        "pair_claims",
        "second_leaves",
        (
            errors.ClcMulticastToAbsentCta,
            errors.RemoteAccessToExitedCta,
            errors.AsyncInFlightAtExit,
            errors.ClcRequestInFlightAtExit,
        ),
        "",
    ),
    ("registers", "one_warp_keeps_its_registers", errors.Deadlock, "setmaxnreg"),
]


@pytest.mark.parametrize(("name", "fault", "error", "words"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_a_fault_is_named_where_it_is(name, fault, error, words):
    text = program(name, fault)
    for seed in range(FAULT_SEEDS):
        try:
            RUNS[name](text, seed)
        except errors.EmulatorError as raised:
            assert isinstance(raised, error), raised
            assert words in str(raised)
            if not isinstance(raised, (errors.Deadlock, errors.OutputNeverWritten, errors.OutputWrittenTwice)):
                assert raised.location.cta is not None
            return
        except AssertionError:
            continue  # a wrong result is no name; another seed has to give one
    pytest.fail(f"{name} with {fault} passed {FAULT_SEEDS} seeds")


@pytest.mark.parametrize("name", RUNS)
def test_the_right_twin_passes(name):
    for seed in range(TWIN_SEEDS):
        RUNS[name](program(name), seed)
