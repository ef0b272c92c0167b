"""Release and acquire through ordinary locations, scopes of strong accesses, and the cluster's barrier: right programs
pass under 20 seeds, and those with one thing missing are named."""

from __future__ import annotations

import numpy as np
import pytest

from jax_clc.emulator import errors
from jax_clc.emulator.run import run_ptx

SEEDS = 20
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def run(body: str, seed: int, **launch) -> np.ndarray:
    text = f"""
    .version 8.8
    .target sm_90a
    .address_size 64
    .visible .entry k(.param .u64 out) {{
    .reg .b64 %out, %d<9>; .reg .b32 %thread, %lane, %rank, %there, %r<9>; .reg .pred %first, %other, %third, %p;
    .shared .align 16 .b8 data[4096];
    .shared .align 8 .b64 barrier;
    ld.param.u64 %out, [out];
    mov.u32 %thread, %tid.x; mov.u32 %lane, %laneid; mov.u32 %rank, %cluster_ctarank;
    setp.eq.u32 %first, %thread, 0; setp.eq.u32 %other, %thread, 32; setp.eq.u32 %third, %thread, 64;
    {body}
    ret;
    }}"""
    out = np.zeros(1024, np.uint32)
    run_ptx(text, grid=launch.get("cluster", 1), args=[out], seed=seed, **{"block": 96, **launch})
    return out


def passed(release: str, observe: str, acquire: str = "") -> str:
    """Thread 0 writes data and a flag, thread 32 waits for the flag and reads the data; `acquire`: after the wait."""
    return f"""
    @%first st.shared.u32 [data+4], 0;
    bar.sync 0;
    @!%first bra READER;
    st.shared.u32 [data], 42;
    {release}
    READER: @!%other bra END;
    AGAIN: {observe}
    setp.eq.u32 %p, %r1, 0;
    @%p bra AGAIN;
    {acquire}
    ld.shared.u32 %r2, [data];
    st.global.u32 [%out], %r2;
    END:"""


STORE, LOAD = "st.{}.shared.u32 [data+4], 1;", "ld.{}.shared.u32 %r1, [data+4];"
RELAXED, VOLATILE = (LOAD.format(kind) for kind in ("relaxed.cta", "volatile"))
PASSED = {
    "store and load": passed(STORE.format("release.cta"), LOAD.format("acquire.cta")),
    "fences": passed("fence.acq_rel.cta;" + STORE.format("relaxed.cta"), RELAXED, "fence.acq_rel.cta;"),
    "half fences": passed("fence.release.cta;" + STORE.format("relaxed.cta"), RELAXED, "fence.acquire.cta;"),
    "volatile": passed("membar.gl;" + STORE.format("volatile"), VOLATILE, "membar.gl;"),
    "volatile in a CTA": passed("membar.cta;" + STORE.format("volatile"), VOLATILE, "membar.cta;"),
    "narrow fence, wide flag": passed("fence.acq_rel.cta;" + STORE.format("relaxed.gpu"), LOAD.format("acquire.gpu")),
    "reduction": passed("red.release.cta.shared.add.u32 [data+4], 1;", LOAD.format("acquire.cta")),
}
NOT_PASSED = {
    "no release": passed(STORE.format("relaxed.cta"), LOAD.format("acquire.cta")),
    "no acquire": passed(STORE.format("release.cta"), LOAD.format("relaxed.cta")),
    "volatile, no fence": passed(STORE.format("volatile"), LOAD.format("volatile")),
    "volatile, no second fence": passed("membar.cta;" + STORE.format("volatile"), LOAD.format("volatile")),
    # `red` reads, but that makes no acquire pattern (8.8)
    "reduction and fence": passed(
        STORE.format("release.cta") + "st.relaxed.cta.shared.u32 [data+8], 1;",
        "ld.relaxed.cta.shared.u32 %r1, [data+8];",
        "red.relaxed.cta.shared.add.u32 [data+4], 1; fence.acquire.cta;",
    ).replace("bar.sync 0;", "@%first st.shared.u32 [data+8], 0;\nbar.sync 0;"),
}


def chained(middle: str) -> str:
    """Thread 0 releases 1; thread 64 makes it 2; thread 32 acquires 2 and reads the data of thread 0."""
    return f"""
    @%first st.shared.u32 [data+4], 0;
    bar.sync 0;
    @!%first bra MIDDLE;
    st.shared.u32 [data], 42;
    st.release.cta.shared.u32 [data+4], 1;
    MIDDLE: @!%third bra LAST;
    FIRST: ld.relaxed.cta.shared.u32 %r1, [data+4];
    setp.ne.u32 %p, %r1, 1;
    @%p bra FIRST;
    {middle}
    LAST: @!%other bra END;
    AGAIN: ld.acquire.cta.shared.u32 %r1, [data+4];
    setp.ne.u32 %p, %r1, 2;
    @%p bra AGAIN;
    ld.shared.u32 %r2, [data];
    st.global.u32 [%out], %r2;
    END:"""


PASSED["update of a released flag"] = chained("atom.relaxed.cta.shared.add.u32 %r3, [data+4], 1;")
PASSED["fence before a second flag"] = chained("fence.acq_rel.cta; st.relaxed.cta.shared.u32 [data+4], 2;")
NOT_PASSED["released flag overwritten"] = chained("st.relaxed.cta.shared.u32 [data+4], 2;")


@pytest.mark.parametrize("name", PASSED)
def test_a_message_that_is_passed(name):
    for seed in range(SEEDS):
        assert run(PASSED[name], seed)[0] == 42


@pytest.mark.parametrize("name", NOT_PASSED)
def test_a_message_that_is_not_passed_is_named(name):
    with pytest.raises(errors.DataRace, match="not ordered"):
        for seed in range(SEEDS):
            run(NOT_PASSED[name], seed)


def between_ctas(release: str, acquire: str) -> str:
    return f"""
    @%first st.shared.u32 [data], 0;
    {MEET}
    mov.u32 %there, data;
    mapa.shared::cluster.u32 %there, %there, 1;
    @!%first bra END;
    setp.eq.u32 %p, %rank, 1;
    @%p bra AGAIN;
    st.shared::cluster.u32 [%there+8], 42;
    {release}
    bra END;
    AGAIN: {acquire.partition("|")[0]}
    setp.eq.u32 %p, %r1, 0;
    @%p bra AGAIN;
    {acquire.partition("|")[2]}
    ld.shared.u32 %r2, [data+8];
    st.global.u32 [%out], %r2;
    END: barrier.cluster.arrive; barrier.cluster.wait;"""


def test_scopes_between_ctas():
    far = "st.{}.shared::cluster.u32 [%there], 1;"
    near = "ld.{}.shared.u32 %r1, [data];"
    fences = between_ctas(
        "fence.acq_rel.gpu;" + far.format("volatile"), near.format("relaxed.cluster") + "|fence.acq_rel.cluster;"
    )
    for seed in range(SEEDS):
        assert run(fences, seed, block=32, cluster=2)[0] == 42
    for release, acquire in [
        (far.format("release.cta"), near.format("acquire.cluster")),
        (far.format("release.cluster"), near.format("acquire.cta")),
        ("fence.acq_rel.cta;" + far.format("relaxed.cluster"), near.format("acquire.cluster")),
        (far.format("release.cluster"), near.format("relaxed.cluster") + "|fence.acq_rel.cta;"),
    ]:
        with pytest.raises(errors.DataRace, match="not ordered"):
            for seed in range(SEEDS):
                run(between_ctas(release, acquire), seed, block=32, cluster=2)


@pytest.mark.parametrize(("scope", "right"), [("cluster", True), ("cta", False)])
def test_atomics_of_two_ctas_need_a_scope_that_holds_both(scope, right):
    body = f"""
    @%first st.shared.u32 [data], 0;
    mov.u32 %there, data;
    mapa.shared::cluster.u32 %there, %there, 0;
    {MEET}
    @%first atom.relaxed.{scope}.shared::cluster.add.u32 %r1, [%there], 1;
    {MEET}"""
    if right:
        for seed in range(SEEDS):
            run(body, seed, block=32, cluster=2)
        return
    with pytest.raises(errors.DataRace, match="scope_limits_order"):
        for seed in range(SEEDS):
            run(body, seed, block=32, cluster=2)


@pytest.mark.parametrize(
    "body",
    [
        "barrier.cluster.wait.aligned;",
        MEET + "barrier.cluster.wait.aligned;",
        "barrier.cluster.arrive.aligned;" + MEET,
    ],
)
def test_each_wait_of_the_cluster_has_its_arrival(body):
    for seed in range(SEEDS):
        with pytest.raises(errors.BarrierMisuse, match="without barrier.cluster"):
            run(body, seed, block=32, cluster=2)


def test_another_ctas_mbarrier_cannot_be_waited_for():
    body = "mov.u32 %r1, barrier; W: mbarrier.try_wait.parity.shared::cluster.b64 %p, [%r1], 0; @!%p bra W;"
    with pytest.raises(errors.UnsupportedInstruction, match="shared::cta only"):
        run(body, 0)


def test_setmaxnreg_is_for_the_whole_warpgroup():
    for body in (
        "setp.lt.u32 %p, %thread, 32; @%p setmaxnreg.dec.sync.aligned.u32 40;",
        "setp.lt.u32 %p, %thread, 32; @%p setmaxnreg.dec.sync.aligned.u32 40; @!%p setmaxnreg.dec.sync.aligned.u32 48;",
    ):
        with pytest.raises(errors.BrokenAligned, match="setmaxnreg"):
            run(body, 0, block=128)


def test_groups_of_cp_async_belong_to_the_lanes_that_committed():
    body = """
    mov.u32 %r1, data; shl.b32 %r2, %lane, 4; add.u32 %r1, %r1, %r2; mul.wide.u32 %d1, %lane, 16;
    add.u64 %d1, %d1, %out; setp.lt.u32 %p, %lane, 16;
    @%p cp.async.cg.shared.global [%r1], [%d1], 16;
    @%p cp.async.commit_group;
    @!%p cp.async.commit_group;
    cp.async.wait_group {};
    @%p ld.shared.u32 %r4, [%r1];
    cp.async.wait_all;"""
    for seed in range(SEEDS):
        run(body.format(0), seed, block=32)
    with pytest.raises((errors.DataRace, errors.UninitializedRead)):
        for seed in range(SEEDS):
            run(body.format(1), seed, block=32)
