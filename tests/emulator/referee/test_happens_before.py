"""The referee's verdicts on sequences of events, without a machine: what is ordered passes, what is not is named."""

import numpy as np
import pytest

from jax_clc.emulator import errors
from jax_clc.emulator.axioms import Axioms
from jax_clc.emulator.output_coverage import check_coverage
from jax_clc.emulator.referee import Referee

FULL = 0xFFFFFFFF
LANES = np.arange(32, dtype=np.int64)
BAR, TILE, OTHER = 0, 1024, 8192


class Scene:
    """Two CTAs of one cluster with four warps each, and short names for events. Lines count up by themselves."""

    def __init__(self, ctas=1, warps=4, **options):
        self.referee = Referee(**options)
        self.line = 0
        self.warps = {}
        self.phases = {}
        for cta in range(ctas):
            self.referee.cta_start(cta, 0, cta, 65536, 0)
            for warp in range(warps):
                self.warps[cta, warp] = self.referee.warp_start(cta, warp, FULL)

    def next(self):
        self.line += 1
        return self.line

    def warp(self, who):
        return self.warps[who if isinstance(who, tuple) else (0, who)]

    def write(self, who, address=TILE, mask=FULL, size=4, cta=None, kind="write", **more):
        warp = self.warp(who)
        at = address + size * LANES if mask == FULL else address
        self.referee.access(warp, mask, kind, "shared", warp.cta if cta is None else cta, at, size, self.next(), **more)

    def read(self, who, address=TILE, mask=FULL, size=4, **more):
        self.write(who, address, mask, size, kind="read", **more)

    def init(self, who=0, address=BAR, mask=1):
        warp = self.warp(who)
        self.referee.mbarrier_init(warp, mask, warp.cta, address, self.next())
        self.phases[warp.cta, address] = 0

    def bar(self, *who, key=("bar", 0, 0), **more):
        for one in who:
            self.referee.rendezvous_arrive(self.warp(one), FULL, key, self.next(), **more)
        self.referee.rendezvous_complete(key)
        leave = {"semantics": "acquire", **({"scope": more["scope"]} if "scope" in more else {})}
        for one in who:
            self.referee.rendezvous_leave(self.warp(one), FULL, key, self.next(), **leave)

    def arrive(self, who, address=BAR, mask=1, cta=None, **more):
        warp = self.warp(who)
        self.referee.mbarrier_arrive(warp, mask, warp.cta if cta is None else cta, address, self.next(), **more)

    def flip(self, address=BAR, cta=0):
        self.referee.mbarrier_phase_complete(cta, address, self.phases[cta, address])
        self.phases[cta, address] += 1

    def wait(self, who, address=BAR, mask=FULL, **more):
        warp = self.warp(who)
        phase = self.phases[warp.cta, address] - 1
        self.referee.mbarrier_wait_success(warp, mask, warp.cta, address, phase, self.next(), **more)

    def issue(self, who, kind, mask=1):
        return self.referee.issue(self.warp(who), mask, kind, self.next())

    def touch(self, op, kind, address=TILE, size=128, cta=0):
        self.referee.async_access(op, kind, "shared", cta, np.array([[address, size]]), self.next())

    def land(self, op, address=BAR, cta=0):
        """The operation's bytes complete on the barrier, and its phase ends."""
        self.referee.mbarrier_async_arrive(op, cta, address, self.next())
        self.flip(address, cta)

    def load(self, who, address=TILE, size=128, barrier=BAR, mask=1):
        op = self.issue(who, "bulk.load", mask)
        self.touch(op, "write", address, size)
        self.land(op, barrier)
        return op

    def fence(self, who, kind="proxy.async", mask=FULL, **more):
        self.referee.fence(self.warp(who), mask, kind, self.next(), **more)

    def exit(self, *ctas):
        for cta in ctas:
            for (home, _), warp in self.warps.items():
                if home == cta:
                    self.referee.warp_exit(warp, FULL, self.next())
            self.referee.cta_exit(cta, self.next())


@pytest.fixture
def scene():
    return Scene()


def ready(scene, *barriers):
    """Barriers initialised by warp 0 and known to all."""
    for address in barriers or (BAR,):
        scene.init(0, address)
    scene.bar(0, 1, 2, 3)


# Generic proxy


def test_a_barrier_orders_a_write_before_a_read(scene):
    scene.write(0)
    scene.bar(0, 1)
    scene.read(1)
    scene.bar(0, 1)
    scene.write(0)


@pytest.mark.parametrize("first, second", [("write", "read"), ("write", "write"), ("read", "write")])
def test_unordered_conflicting_accesses_are_a_race(scene, first, second):
    scene.write(0)
    scene.bar(0, 1, 2)
    scene.write(0, kind=first)
    with pytest.raises(errors.DataRace, match="line .* by warp 0"):
        scene.write(1, kind=second)


def test_reads_by_many_warps_are_all_remembered(scene):
    scene.write(0)
    scene.bar(0, 1, 2, 3)
    for warp in (1, 2, 3):
        scene.read(warp)
    scene.bar(0, 1, 3)
    with pytest.raises(errors.DataRace, match="read at PTX line .* by warp 2"):
        scene.write(0)


def test_lanes_are_not_ordered_by_lockstep(scene):
    scene.write(0)
    with pytest.raises(errors.DataRace, match="lanes_are_threads"):
        scene.read(0, TILE + 4, mask=1)  # lane 0 reads what lane 1 wrote


def test_warp_sync_orders_lanes(scene):
    scene.write(0)
    scene.referee.warp_sync(scene.warp(0), FULL, 1)
    scene.read(0, TILE + 4, mask=1)


def test_memory_never_written_is_named(scene):
    with pytest.raises(errors.UninitializedRead, match=hex(TILE)):
        scene.read(0)
    Scene(axioms=Axioms(written_before_read=False)).read(0)


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses(scene):
    scene.write(0, mask=1)
    scene.bar(0, 1, 2)
    for warp in (0, 1):
        scene.write(warp, mask=1, kind="atomic", semantics="relaxed", scope="cta")
    with pytest.raises(errors.DataRace):
        scene.read(2, mask=1)


def test_a_release_store_and_an_acquire_load_order(scene):
    scene.write(0, mask=1)
    scene.write(0, OTHER, mask=1, semantics="release", scope="cta")
    scene.read(1, OTHER, mask=1, semantics="acquire", scope="cta")
    scene.read(1, mask=1)


def test_relaxed_accesses_order_with_fences_only(scene):
    scene.write(0, mask=1)
    scene.fence(0, "thread", 1, semantics="acq_rel", scope="cta")
    scene.write(0, OTHER, mask=1, semantics="relaxed", scope="cta")
    scene.read(1, OTHER, mask=1, semantics="relaxed", scope="cta")
    scene.fence(1, "thread", 1, semantics="acq_rel", scope="cta")
    scene.read(1, mask=1)
    scene = Scene()
    scene.write(0, mask=1)
    scene.write(0, OTHER, mask=1, semantics="relaxed", scope="cta")
    scene.read(1, OTHER, mask=1, semantics="relaxed", scope="cta")
    with pytest.raises(errors.DataRace):
        scene.read(1, mask=1)


def test_a_lane_publishes_its_own_part_of_a_fence_of_the_warp(scene):
    ready(scene)
    scene.write(1)
    scene.fence(1, "thread", semantics="release", scope="cluster")
    scene.arrive(1, mask=1, semantics="relaxed", scope="cluster")
    scene.flip()
    scene.wait(2)
    scene.read(2, mask=1)
    with pytest.raises(errors.DataRace):
        scene.read(2, TILE + 4, mask=2)


# mbarriers


def test_arrivals_order_before_the_wait_that_observes_their_phase(scene):
    ready(scene)
    scene.write(1)
    scene.arrive(1, mask=FULL)
    scene.flip()
    scene.wait(2)
    scene.read(2)


def test_one_lane_releases_for_itself_alone(scene):
    ready(scene)
    scene.write(1)
    scene.arrive(1, mask=1)
    scene.flip()
    scene.wait(2)
    with pytest.raises(errors.DataRace, match="warp 1 lane 1 "):
        scene.read(2)


def test_one_lane_releases_for_its_warp_after_warp_sync(scene):
    ready(scene)
    scene.write(1)
    scene.referee.warp_sync(scene.warp(1), FULL, 1)
    scene.arrive(1, mask=1)
    scene.flip()
    scene.wait(2)
    scene.read(2)


def test_one_lane_waits_for_itself_alone(scene):
    ready(scene)
    scene.write(1, mask=1)
    scene.arrive(1)
    scene.flip()
    scene.wait(2, mask=1)
    scene.read(2, mask=1)
    with pytest.raises(errors.DataRace):
        scene.read(2, mask=2)


def test_each_lane_arriving_alone_covers_a_read_of_the_whole_warp(scene):
    ready(scene)
    scene.write(0, mask=1)
    scene.bar(0, 1)
    scene.referee.access(scene.warp(1), FULL, "read", "shared", 0, TILE, 4, 1)
    for lane in range(32):
        scene.arrive(1, mask=1 << lane)
    scene.flip()
    scene.wait(0)
    scene.write(0, mask=1)


def test_a_barrier_used_before_its_init_is_ordered_is_named(scene):
    scene.init(0)
    with pytest.raises(errors.DataRace, match="ordered after its init"):
        scene.arrive(1)


def test_barrier_memory_is_opaque_until_inval(scene):
    ready(scene)
    with pytest.raises(errors.BarrierMisuse, match="holds an mbarrier"):
        scene.write(0, BAR, mask=1)
    scene = Scene()
    ready(scene)
    scene.referee.mbarrier_inval(scene.warp(0), 1, 0, BAR, 1)
    scene.write(0, BAR, mask=1)


# Proxies


def test_a_load_is_read_after_waiting_for_it(scene):
    ready(scene)
    scene.load(0)
    scene.wait(1)
    scene.read(1)
    scene = Scene()
    ready(scene)
    scene.load(0)
    with pytest.raises(errors.BufferReusedInFlight, match="copies that complete on barrier"):
        scene.read(1)


def test_a_relaxed_wait_for_a_load_needs_an_acquiring_fence():
    def loaded(fence):
        scene = Scene()
        ready(scene)
        scene.load(0)
        scene.wait(1, semantics="relaxed", scope="cluster")
        if fence:
            scene.fence(1, "sync_restrict.acquire", scope="cluster")
        scene.read(1)

    loaded(True)
    with pytest.raises(errors.BufferReusedInFlight):
        loaded(False)


def test_generic_writes_need_a_proxy_fence_before_a_store_reads_them():
    def store(fence):
        scene = Scene()
        scene.write(0)
        if fence == "writer":
            scene.fence(0)
        scene.bar(0, 1)
        if fence == "reader":
            scene.fence(1)
        scene.touch(scene.issue(1, "bulk.store"), "read")

    store("writer")
    with pytest.raises(errors.MissingProxyFence, match="not in the thread.*fence_by_accessing_thread"):
        store("reader")
    with pytest.raises(errors.MissingProxyFence, match="no fence.proxy.async.*generic_to_async_needs_fence"):
        store(None)


def test_async_stores_over_what_was_read_need_a_fence_by_our_choice():
    def overwrite(**options):
        scene = Scene(**options)
        ready(scene)
        scene.write(1, mask=1)
        scene.bar(0, 1)
        op = scene.issue(0, "st.async")
        scene.touch(op, "write", size=4)
        scene.land(op)
        return scene.referee.unproven

    with pytest.raises(errors.MissingProxyFence, match="async_stores_need_fence"):
        overwrite()
    assert [e.axiom for e in overwrite(foreign=True)] == ["async_stores_need_fence"]
    assert overwrite(axioms=Axioms(async_stores_need_fence=False)) == []


def test_the_fence_of_a_lane_covers_its_own_writes_only(scene):
    scene.write(0)
    scene.fence(0, mask=1)
    scene.bar(0, 1)
    with pytest.raises(errors.MissingProxyFence):
        scene.touch(scene.issue(1, "bulk.store"), "read")


def test_generic_reads_need_a_proxy_fence_before_a_load_overwrites_them():
    def refill(fence, **options):
        scene = Scene(**options)
        ready(scene)
        scene.load(0)
        scene.wait(1)
        scene.read(1)
        if fence:
            scene.fence(1)
        scene.bar(0, 1)
        scene.load(0)

    refill(True)
    with pytest.raises(errors.MissingProxyFence, match="fence_covers_write_after_read"):
        refill(False)
    refill(False, axioms=Axioms(fence_covers_write_after_read=False))


def test_the_source_of_a_store_is_free_after_wait_group_read():
    def reuse(wait):
        scene = Scene()
        scene.write(0)
        scene.fence(0)
        scene.bar(0, 1)
        op = scene.issue(1, "bulk.store")
        scene.touch(op, "read")
        if wait:
            scene.referee.group_wait(scene.warp(1), FULL, [op], scene.next(), reads_only=True)
            scene.referee.warp_sync(scene.warp(1), FULL, scene.next())
        scene.bar(0, 1)
        scene.write(0)

    reuse(True)
    with pytest.raises(errors.BufferReusedInFlight, match="bulk.store operations of warp 1"):
        reuse(False)


def test_groups_belong_to_the_thread_that_committed_them(scene):
    scene.write(0, mask=1)
    scene.fence(0)
    scene.bar(0, 1)
    op = scene.issue(1, "bulk.store", mask=1)
    scene.touch(op, "read", size=4)
    scene.referee.group_wait(scene.warp(1), 2, [op], scene.next())  # lane 1 has no group to wait for
    with pytest.raises(errors.BufferReusedInFlight):
        scene.write(1, mask=2)


def test_a_race_is_found_whichever_side_comes_first(scene):
    scene.write(0)
    scene.fence(0)
    scene.bar(0, 1)
    op = scene.issue(1, "bulk.store")
    scene.bar(0, 1)
    scene.write(0)  # before the engine gets to it
    with pytest.raises((errors.DataRace, errors.BufferReusedInFlight)):
        scene.touch(op, "read")


# wgmma


def staged(scene, *, wait_full=True, wait_group=True):
    """A stage loaded, multiplied, handed back and loaded again."""
    ready(scene, BAR, BAR + 8)
    scene.load(0)
    if wait_full:
        scene.wait(1)
    chunks = np.arange(TILE // 16, TILE // 16 + 8)
    ops = []
    for step in range(2):
        op = scene.issue(1, "wgmma", mask=FULL)
        scene.referee.async_access(op, "read", "shared", 0, chunks[4 * step : 4 * step + 4], scene.next())
        ops.append(op)
    if wait_group:
        scene.referee.group_wait(scene.warp(1), FULL, ops, scene.next())
    scene.arrive(1, BAR + 8)
    scene.flip(BAR + 8)
    scene.wait(0, BAR + 8)
    scene.load(0)
    scene.wait(1)
    scene.referee.group_wait(scene.warp(1), FULL, ops, scene.next())


def test_a_stage_is_reused_after_wait_group(scene):
    staged(scene)
    scene.bar(0, 1, 2, 3)
    scene.exit(0)


def test_a_stage_multiplied_before_its_barrier_is_named(scene):
    with pytest.raises(errors.BufferReusedInFlight):
        staged(scene, wait_full=False)


def test_a_stage_handed_back_before_wait_group_is_named(scene):
    with pytest.raises(errors.BufferReusedInFlight):
        staged(scene, wait_group=False)


# Clusters


def pair(**options):
    scene = Scene(ctas=2, **options)
    for cta in (0, 1):
        scene.init((cta, 0))
        scene.fence((cta, 0), "mbarrier_init")
    everyone = list(scene.warps)
    scene.bar(*everyone, key=("cluster", 0), semantics="relaxed", scope="cluster")
    return scene


def test_the_fence_of_inits_releases_them_through_a_relaxed_cluster_barrier():
    scene = pair()
    scene.arrive((1, 1), cta=0, scope="cluster")
    scene = Scene(ctas=2)
    scene.init((0, 0))
    scene.bar(*scene.warps, key=("cluster", 0), semantics="relaxed", scope="cluster")
    with pytest.raises(errors.DataRace, match="after its init"):
        scene.arrive((1, 1), cta=0, scope="cluster")


@pytest.mark.parametrize(("arrive", "wait"), [("cta", "cta"), ("cta", "cluster"), ("cluster", "cta")])
def test_scopes_of_the_cta_order_nothing_across_ctas(arrive, wait):
    def hand_over(arrive, wait):
        scene = pair()
        scene.write((1, 1), cta=0)
        scene.arrive((1, 1), mask=FULL, cta=0, scope=arrive)
        scene.flip()
        scene.wait((0, 1), scope=wait)
        scene.read((0, 1))

    hand_over("cluster", "cluster")
    with pytest.raises(errors.DataRace, match="scope_limits_order"):
        hand_over(arrive, wait)


def test_async_hand_backs_by_cta_scope_are_unproven_in_foreign_kernels():
    def hand_back(**options):
        scene = pair(**options)
        scene.init((0, 0), BAR + 8)
        scene.bar((0, 0), (0, 1), (0, 2), (0, 3))
        scene.bar(*scene.warps, key=("cluster", 0), scope="cluster")
        op = scene.issue((0, 0), "bulk.load")  # multicast to both
        for cta in (0, 1):
            scene.touch(op, "write", cta=cta)
            scene.land(op, cta=cta)
        scene.wait((1, 1))
        op = scene.issue((1, 1), "wgmma", mask=FULL)
        scene.referee.async_access(op, "read", "shared", 1, np.arange(TILE // 16, TILE // 16 + 8), scene.next())
        scene.referee.group_wait(scene.warp((1, 1)), FULL, [op], scene.next())
        scene.arrive((1, 1), BAR + 8, cta=0)
        scene.wait((0, 0))
        scene.flip(BAR + 8)
        scene.wait((0, 0), BAR + 8)
        op = scene.issue((0, 0), "bulk.load")
        for cta in (0, 1):
            scene.touch(op, "write", cta=cta)
            scene.land(op, cta=cta)
        return scene.referee.unproven

    with pytest.raises(errors.BufferReusedInFlight, match="scope_limits_async_hand_back"):
        hand_back()
    assert [e.axiom for e in hand_back(foreign=True)] == ["scope_limits_async_hand_back"]
    assert hand_back(axioms=Axioms(scope_limits_async_hand_back=False)) == []


def test_remote_arrivals_are_ordered_before_the_exit():
    scene = pair()
    scene.arrive((1, 1), cta=0, scope="cluster")
    with pytest.raises(errors.RemoteAccessToExitedCta, match="warp 1 lane 0 of CTA 1"):
        scene.exit(0)
    scene = pair()
    scene.arrive((1, 1), cta=0, scope="cluster")
    scene.bar(*scene.warps, key=("cluster", 0), scope="cluster")
    scene.exit(0, 1)


def test_a_remote_arrival_that_a_wait_has_seen_is_done_before_the_exit():
    """A relaxed one too, since the arrival itself is over; but not what its thread did before, nor arrivals that nobody
    has seen, on another barrier or in the next phase."""

    def arrive_and_leave(before=lambda scene: None, unseen=lambda scene: None):
        scene = pair()
        scene.init((0, 0), BAR + 8)
        scene.fence((0, 0), "mbarrier_init")
        scene.bar(*scene.warps, key=("cluster", 0), semantics="relaxed", scope="cluster")
        before(scene)
        scene.arrive((1, 1), cta=0, **relaxed)
        scene.flip()
        unseen(scene)
        scene.wait((0, 0), **relaxed)
        scene.exit(0)

    relaxed = {"semantics": "relaxed", "scope": "cluster"}
    arrive_and_leave()
    for faults in (
        {"before": lambda scene: scene.write((1, 1), cta=0, mask=1)},
        {"before": lambda scene: scene.arrive((1, 1), BAR + 8, cta=0, **relaxed)},
        {"unseen": lambda scene: scene.arrive((1, 1), cta=0, **relaxed)},
    ):
        with pytest.raises(errors.RemoteAccessToExitedCta, match="warp 1 lane 0 of CTA 1"):
            arrive_and_leave(**faults)


@pytest.mark.parametrize("arrival, wait", [("cta", "cluster"), ("cluster", "cta")])
def test_a_remote_arrival_is_seen_in_cluster_scope_alone(arrival, wait):
    scene = pair()
    scene.arrive((1, 1), cta=0, semantics="relaxed", scope=arrival)
    scene.flip()
    scene.wait((0, 0), semantics="relaxed", scope=wait)
    with pytest.raises(errors.RemoteAccessToExitedCta, match="warp 1 lane 0 of CTA 1"):
        scene.exit(0)


def test_access_to_an_exited_cta_is_named():
    scene = pair()
    scene.exit(0)
    with pytest.raises(errors.RemoteAccessToExitedCta):
        scene.arrive((1, 1), cta=0, scope="cluster")


def test_copies_in_flight_at_exit_are_named(scene):
    ready(scene)
    scene.load(0)
    with pytest.raises(errors.AsyncInFlightAtExit, match="copies that complete"):
        scene.exit(0)
    scene = Scene()
    scene.write(0)
    scene.fence(0)
    scene.touch(scene.issue(0, "bulk.store"), "read", size=4)
    with pytest.raises(errors.AsyncInFlightAtExit, match="bulk.store"):
        scene.exit(0)


# Tensor memory


def tensor_op(scene, who, kind, access, *, mask=1, rows=None, columns=32):
    op = scene.issue(who, kind, mask)
    ranges = np.array([[0, 4 * columns]])
    rows = None if rows is None else np.array([rows])
    scene.referee.async_access(op, access, "tensor", 0, ranges, scene.next(), rows)
    return op


def multiply_then_load(*, commit=True, after=True, wait_ld=True, before=True, after_again=True, relaxed=False):
    """mma, commit, epilogue load, hand back, next mma."""
    order = {"semantics": "relaxed", "scope": "cluster"} if relaxed else {}
    scene = Scene()
    ready(scene, BAR, BAR + 8)
    mma = tensor_op(scene, 0, "tcgen05.mma", "write")
    if commit:
        scene.referee.mbarrier_async_arrive([mma], 0, BAR, scene.next())
    scene.flip()
    scene.wait(1, **order)
    if after:
        scene.fence(1, "tcgen05.after")
    load = tensor_op(scene, 1, "tcgen05.ld", "read", mask=FULL, rows=(32, 32))
    if wait_ld:
        scene.referee.group_wait(scene.warp(1), FULL, [load], scene.next())
    if before:
        scene.fence(1, "tcgen05.before")
    scene.arrive(1, BAR + 8, mask=FULL, **order)
    scene.flip(BAR + 8)
    scene.wait(0, BAR + 8, **order)
    if after_again:
        scene.fence(0, "tcgen05.after")
    mma = tensor_op(scene, 0, "tcgen05.mma", "write")
    scene.referee.mbarrier_async_arrive([mma], 0, BAR, scene.next())
    scene.flip()
    scene.wait(1)


@pytest.mark.parametrize("relaxed", [False, True])
def test_an_accumulator_is_read_and_reused_in_order(relaxed):
    multiply_then_load(relaxed=relaxed)


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("left_out", ["commit", "after", "wait_ld", "before", "after_again"])
def test_each_step_of_the_accumulator_protocol_is_needed(left_out, relaxed):
    error = errors.UninitializedRead if left_out == "commit" else errors.TensorMemoryNotReady
    with pytest.raises(error):
        multiply_then_load(**{left_out: False}, relaxed=relaxed)


def test_tensor_memory_is_freed_after_its_last_use():
    def freed(ordered):
        scene = Scene()
        ready(scene)
        store = tensor_op(scene, 1, "tcgen05.st", "write", mask=FULL, rows=(32, 32))
        scene.referee.group_wait(scene.warp(1), FULL, [store], scene.next())
        if ordered:
            scene.bar(0, 1)
        scene.referee.tensor_free(scene.warp(0), FULL, 0, 0, 32)

    freed(True)
    with pytest.raises(errors.TensorMemoryNotReady, match="freed"):
        freed(False)


def test_multiplications_of_one_thread_follow_each_other(scene):
    ready(scene)
    for _ in range(3):
        tensor_op(scene, 0, "tcgen05.mma", "write")
    mma = tensor_op(scene, 0, "tcgen05.mma", "write")
    scene.referee.mbarrier_async_arrive([mma], 0, BAR, scene.next())
    scene.flip()
    scene.wait(1)


# cp.async


def test_lanes_wait_for_their_own_copies(scene):
    def copied(wait, reader_mask, address):
        scene = Scene()
        op = scene.issue(0, "cp.async", mask=FULL)
        ranges = np.stack([TILE + 16 * LANES, np.full(32, 16)], axis=1)
        scene.referee.async_access(op, "write", "shared", 0, ranges, scene.next())
        if wait:
            scene.referee.group_wait(scene.warp(0), FULL, [op], scene.next())
        scene.read(0, address, mask=reader_mask)
        scene.bar(0, 1, 2, 3)
        scene.read(1, TILE, size=16)

    copied(True, 1, TILE)
    with pytest.raises(errors.DataRace, match="cp.async"):
        copied(True, 2, TILE)  # lane 1 reads what lane 0 copied
    with pytest.raises(errors.DataRace, match="cp.async"):
        copied(False, 1, TILE)


# Outputs


def test_output_elements_are_stored_once():
    writes = np.ones(64, np.uint8)
    check_coverage("d", writes, 4)
    writes[8:12] = 2
    with pytest.raises(errors.OutputWrittenTwice, match="d: element 2 of 16"):
        check_coverage("d", writes, 4)
    writes[40:] = 0
    with pytest.raises(errors.OutputNeverWritten, match="element 10 and 5 more"):
        check_coverage("d", writes, 4)
