"""A warp at barriers: named barriers, the cluster barrier, mbarriers, fences, register hand-over."""

from __future__ import annotations

import numpy as np

from .errors import AddressOutOfRange, BarrierMisuse, EmulatorError
from .lane_math import LANES
from .memory import SHARED_WINDOW, check_alignment
from .warp_memory import WarpMemory


class WarpBarriers(WarpMemory):
    """Mixin of Warp. Blocking helpers return None until they are done."""

    # named barriers

    def warp_sync(self, members, mask, line):
        self.check_members(members, mask)
        if self.referee is None:
            return
        groups = [members] if isinstance(members, int) else np.unique(members[LANES[mask]]).tolist()
        for group in groups:
            self.referee.warp_sync(self.handle, mask & group, line)

    def barrier_arrive(self, number, count, mask, line, aligned):
        if count == 0:
            raise BarrierMisuse("barrier.arrive needs a thread count")
        self._join_barrier(number, count, mask, line, aligned, 0)

    def barrier_sync(self, number, count, mask, line, aligned, votes=0):
        """True (or, for reductions, (votes, threads)) when everybody has arrived."""
        if self.ticket is None:
            barrier, phase = self._join_barrier(number, count, mask, line, aligned, votes)
            self.ticket = (barrier, phase)
        barrier, phase = self.ticket
        if barrier.phase == phase:
            barrier.sleepers.append(self)
            self.sleep(f"named barrier {number} ({barrier.arrived} of {barrier.expected or 'all'} threads)")
            return None
        self.ticket = None
        if self.referee is not None:
            self.referee.rendezvous_leave(self.handle, mask, ("bar", self.cta.number, number), line)
        return barrier.result

    def _join_barrier(self, number, count, mask, line, aligned, votes):
        if aligned:
            self.check_aligned(mask, "bar")
        barrier = self.cta.named_barrier(number)
        if count and count % 32:
            raise BarrierMisuse(f"barrier {number}: thread count {count} is not a multiple of 32")
        if barrier.arrived and barrier.expected != count:
            raise BarrierMisuse(
                f"barrier {number}: {count or 'all'} threads expected here, {barrier.expected or 'all'} elsewhere"
            )
        if self.referee is not None:
            self.referee.rendezvous_arrive(self.handle, mask, ("bar", self.cta.number, number), line)
        phase = barrier.phase
        barrier.expected = count
        barrier.arrived += 32
        barrier.warps.add(self.index)
        barrier.votes += votes
        self.machine.changes += 1
        self.cta.check_barrier(number)
        return barrier, phase

    # cluster barrier

    def cluster_arrive(self, mask, line, semantics, aligned):
        if aligned:
            self.check_aligned(mask, "barrier.cluster.arrive")
        if self.cluster_arrivals & mask:
            raise BarrierMisuse("barrier.cluster.arrive twice without barrier.cluster.wait")
        self.cluster_arrivals |= mask
        if self.referee is not None:
            self.referee.rendezvous_arrive(
                self.handle, mask, ("cluster", self.cluster.number), line, semantics, "cluster"
            )
        self.machine.changes += 1
        self.cluster.barrier_arrive(self, mask)

    def cluster_wait(self, mask, line, semantics, aligned):
        if aligned:
            self.check_aligned(mask, "barrier.cluster.wait")
        cluster = self.cluster
        if mask & ~self.cluster_arrivals:
            raise BarrierMisuse("barrier.cluster.wait without barrier.cluster.arrive")
        if not cluster.barrier_passed(self):
            cluster.sleepers.append(self)
            self.sleep(f"cluster barrier ({cluster.arrived_lanes} of {cluster.live_lanes} threads arrived)")
            return None
        self.cluster_arrivals &= ~mask
        if self.referee is not None:
            self.referee.rendezvous_leave(self.handle, mask, ("cluster", cluster.number), line, semantics, "cluster")
        return True

    # mbarriers

    def barrier_place(self, address: int, space: str, remote: bool = True):
        """(CTA, offset) of an mbarrier object. Those that are initialised, waited for or made invalid are the CTA's
        own: `remote` False."""
        if space == "generic":
            if address >> 56 != SHARED_WINDOW >> 56:
                raise AddressOutOfRange(f"generic address {address:#x} of an mbarrier is not in shared memory")
            address &= (1 << 56) - 1
        check_alignment(address, 8)
        return self.shared_owner(address & 0xFFFFFFFF, remote and space != "shared")

    def each_lane(self, function, addresses, space, values, mask, line):
        for lane in np.flatnonzero(LANES[mask]).tolist():
            value = None if values is None else int(values[lane])
            function(int(addresses[lane]), space, value, 1 << lane, line)

    def mbarrier_init(self, address, space, count, mask, line):
        cta, offset = self.barrier_place(address, space, False)
        if mask.bit_count() != 1:
            raise BarrierMisuse(f"{mask.bit_count()} lanes initialise the mbarrier at {offset:#x}")
        cta.make_barrier(offset, count)
        self.machine.changes += 1
        if self.referee is not None:
            self.referee.mbarrier_init(self.handle, mask, cta.number, offset, line)

    def mbarrier_inval(self, address, space, count, mask, line):
        cta, offset = self.barrier_place(address, space, False)
        cta.barrier(offset)
        del cta.barriers[offset]
        if self.referee is not None:
            self.referee.mbarrier_inval(self.handle, mask, cta.number, offset, line)

    def mbarrier_arrive(self, address, space, value, mask, line, semantics, scope, transaction, no_complete, drop):
        """Arrivals of the active lanes (one each, or `value` each; with expect_tx, `value` bytes each). Returns the
        state.
        """
        self.machine.changes += 1
        if not isinstance(address, int):
            for lane in np.flatnonzero(LANES[mask]).tolist():
                self.mbarrier_arrive(int(address[lane]), space, int(value[lane]), 1 << lane, line, semantics, scope,
                transaction,
                                     no_complete, drop)  # fmt: skip
            return 0
        cta, offset = self.barrier_place(address, space)
        barrier = cta.barrier(offset)
        lanes = mask.bit_count()
        if self.referee is not None:
            self.referee.mbarrier_arrive(self.handle, mask, cta.number, offset, line, semantics, scope)
        state = barrier.state
        if transaction:
            barrier.expect_tx(value * lanes)  # arrival still pending: this cannot end the phase
            ended = barrier.arrive(lanes, no_complete=no_complete, drop=drop)
        else:
            ended = barrier.arrive(value * lanes, no_complete=no_complete, drop=drop)
        if ended:
            cta.phase_ended(offset)
        return state

    def mbarrier_expect(self, address, space, count, mask, line):
        cta, offset = self.barrier_place(address, space)
        self.machine.changes += 1
        if cta.barrier(offset).expect_tx(count * mask.bit_count()):
            cta.phase_ended(offset)

    def try_wait(self, address, space, what, mask, line, semantics, scope, parity):
        """True when the phase is over, False when the wait gave up, None while asleep."""
        cta, offset = self.barrier_place(address, space, False)
        barrier = cta.barrier(offset)
        woken, self.ticket = self.ticket, None
        if self._phase_over(barrier, what, parity):
            if woken is None and self.random.random() < self.options.spurious_failures:
                self.machine.polls += 1
                return False
            self._observed(cta, offset, barrier, mask, line, semantics, scope, what, parity)
            return True
        if woken == "gave up":
            return False
        if woken is None and self.random.random() < self.options.spurious_failures:
            self.machine.give_up_later(self)
        self.ticket = "waiting"
        cta.waiters.setdefault(offset, []).append(self)
        self.sleep(f"mbarrier {offset:#x} of CTA {cta.number}, {'parity' if parity else 'state'} {what} ({barrier})")
        return None

    def test_wait(self, address, space, what, mask, line, semantics, scope, parity):
        cta, offset = self.barrier_place(address, space, False)
        barrier = cta.barrier(offset)
        if not self._phase_over(barrier, what, parity):
            self.polled = (cta, offset, what, parity)
            return False
        self._observed(cta, offset, barrier, mask, line, semantics, scope, what, parity)
        return True

    def test_lanes(self, addresses, space, what, mask, line, semantics, scope, parity):
        """test_wait where lanes look at different barriers: the lanes for which it holds."""
        groups: dict[tuple[int, int], int] = {}
        for lane in np.flatnonzero(LANES[mask]).tolist():
            key = int(addresses[lane]), int(what[lane])
            groups[key] = groups.get(key, 0) | 1 << lane
        result = 0
        for (one, phase), lanes in groups.items():
            if self.test_wait(one, space, phase, lanes, line, semantics, scope, parity):
                result |= lanes
        return result

    def _phase_over(self, barrier, what, parity):
        return barrier.test(what & 1, (self.cta.number, self.index)) if parity else barrier.test_state(what)

    def _observed(self, cta, offset, barrier, mask, line, semantics, scope, what, parity):
        if self.referee is not None:
            phase = barrier.phase - 1
            self.referee.mbarrier_wait_success(self.handle, mask, cta.number, offset, phase, line, semantics, scope)

    # fences and registers

    def fence(self, kind, mask, line, semantics, scope):
        if self.referee is not None:
            self.referee.fence(self.handle, mask, kind, line, semantics, scope)

    def set_registers(self, count, increase, mask, line):
        """setmaxnreg: an increase waits until the CTA's pool holds enough registers."""
        self.check_aligned(mask, "setmaxnreg")
        if count % 8 or not 24 <= count <= 256:
            raise EmulatorError(f"setmaxnreg of {count}: a multiple of 8 from 24 to 256 is needed")
        cta = self.cta
        have = cta.registers[self.index]
        if not self.wants_registers:
            self.wants_registers = True
            cta.note_register_change(self.index, count, line)
        if increase and count < have or not increase and count > have:
            raise EmulatorError(f"setmaxnreg.{'inc' if increase else 'dec'} to {count} from {have} registers")
        if increase and cta.free_registers < count - have:
            cta.register_waiters.append(self)
            self.sleep(
                f"setmaxnreg.inc to {count} ({cta.free_registers} registers a thread free in the CTA, "
                f"{count - have} needed)"
            )
            return None
        self.wants_registers = False
        cta.free_registers -= count - have
        cta.registers[self.index] = count
        cta.registers_freed()
        return True
