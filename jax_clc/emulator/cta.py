"""Grids, clusters and CTAs: their memory, barriers, and what their exit means."""

from __future__ import annotations

from dataclasses import dataclass, field

from .cluster_launch_control import ClusterLaunchControl
from .errors import AsyncInFlightAtExit, BarrierMisuse, BarrierOverArrival, BrokenAligned, RemoteAccessToExitedCta
from .layout import SHARED_BASE
from .mbarrier import Barrier
from .memory import SharedMemory
from .translator import Program
from .warp import Warp
from .warp_matrix import Warpgroup
from .warp_tensor_memory import TensorPipe

FULL = 0xFFFFFFFF


@dataclass(slots=True)
class Grid:
    """One launch."""

    number: int
    program: Program
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem_bytes: int
    params: bytes
    data_base: int
    control: ClusterLaunchControl
    registers: int | None = None
    running: int = 0

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)

    @property
    def shared_bytes(self) -> int:
        """The window's end: system part, static and dynamic shared memory."""
        return SHARED_BASE + self.program.static_shared_bytes + self.dynamic_smem_bytes


@dataclass(slots=True)
class NamedBarrier:
    arrived: int = 0
    expected: int = 0
    phase: int = 0
    votes: int = 0
    warps: set = field(default_factory=set)
    sleepers: list = field(default_factory=list)
    result: object = True


class Cta:
    """One CTA on an SM."""

    def __init__(
        self, machine, grid: Grid, cluster: Cluster, rank: int, position: tuple[int, int, int], number: int, sm: int
    ):
        self.machine, self.grid, self.cluster = machine, grid, cluster
        self.rank, self.position, self.number, self.sm = rank, position, number, sm
        self.shared: SharedMemory = machine.take_shared(grid.shared_bytes)
        self.barriers: dict[int, Barrier] = {}
        self.waiters: dict[int, list[Warp]] = {}
        self.named: dict[int, NamedBarrier] = {}
        self.reading: dict = {}  # asynchronous operations that read this CTA's shared memory
        self.writing: dict = {}
        self.exited = False
        share = min(65536 // (grid.warps * 32) // 8 * 8, 255)
        self.registers = [grid.registers or share] * grid.warps
        self.free_registers = 0
        self.register_waiters: list[Warp] = []
        self.register_changes: list[list[tuple[int, int]]] = [[] for _ in range(grid.warps)]
        self.tensor_requests: list[int] = []
        self.tensor_grants: list[int] = []
        self.tensor_pipe = TensorPipe(machine)
        self.warps: list[Warp] = []
        self.warpgroups = [Warpgroup(self) for _ in range(-(-grid.warps // 4))]
        self.live_warps = grid.warps

    def start(self) -> None:
        referee = self.machine.referee
        if referee is not None:
            referee.cta_start(self.number, self.cluster.number, self.rank, self.shared.size, self.grid.number)
        for index in range(self.grid.warps):
            lanes = min(self.grid.threads - 32 * index, 32)
            self.warps.append(Warp(self, index, FULL >> (32 - lanes)))

    # mbarriers

    def make_barrier(self, offset: int, count: int) -> None:
        if offset in self.barriers:
            raise BarrierMisuse(f"mbarrier.init of {offset:#x}, which holds a valid mbarrier")
        observed = self.machine.axioms.phase_observed_before_next_arrival
        self.barriers[offset] = Barrier(count, f"mbarrier {offset:#x} of CTA {self.number}", require_observed=observed)

    def barrier(self, offset: int) -> Barrier:
        self.check_alive(f"use of mbarrier {offset:#x}")
        found = self.barriers.get(offset)
        if found is None:
            raise BarrierMisuse(f"shared memory {offset:#x} of CTA {self.number} holds no mbarrier")
        return found

    def phase_ended(self, offset: int) -> None:
        self.machine.changes += 1
        if self.machine.referee is not None:
            self.machine.referee.mbarrier_phase_complete(self.number, offset, self.barriers[offset].phase - 1)
        for warp in self.waiters.pop(offset, ()):
            self.machine.wake(warp)

    # named barriers

    def named_barrier(self, number: int) -> NamedBarrier:
        if not 0 <= number < 16:
            raise BarrierMisuse(f"barrier {number}: a CTA has 16")
        if number not in self.named:
            self.named[number] = NamedBarrier()
        return self.named[number]

    def check_barrier(self, number: int) -> None:
        """Ends a named barrier's phase when everybody has arrived; exited warps count as arrived where all are
        expected.
        """
        barrier = self.named[number]
        expected = barrier.expected or 32 * sum(1 for w in self.warps if w.live or w.index in barrier.warps)
        if barrier.arrived < expected or not barrier.arrived:
            return
        if barrier.arrived > expected:
            raise BarrierOverArrival(f"barrier {number} of CTA {self.number}: {barrier.arrived} threads for {expected}")
        barrier.result = (barrier.votes, barrier.arrived)
        barrier.phase += 1
        barrier.arrived = barrier.votes = 0
        barrier.warps = set()
        if self.machine.referee is not None:
            self.machine.referee.rendezvous_complete(("bar", self.number, number))
        sleepers, barrier.sleepers = barrier.sleepers, []
        for warp in sleepers:
            self.machine.wake(warp)

    # registers

    def note_register_change(self, index: int, count: int, line: int) -> None:
        """A warp's next setmaxnreg (registers, PTX line): all warps of a warpgroup execute the same."""
        mine = self.register_changes[index]
        mine.append((count, line))
        for other in self._warpgroup(index):
            theirs = self.register_changes[other]
            if len(theirs) >= len(mine) and theirs[len(mine) - 1] != mine[-1]:
                raise BrokenAligned(
                    f"warps {index} and {other} of a warpgroup execute different setmaxnreg: to {count} at PTX line "
                    f"{line}, to {theirs[len(mine) - 1][0]} at PTX line {theirs[len(mine) - 1][1]}"
                )

    def _warpgroup(self, index: int) -> range:
        first = index // 4 * 4
        return range(first, min(first + 4, self.grid.warps))

    def _check_register_changes(self) -> None:
        for index, changes in enumerate(self.register_changes):
            for other in self._warpgroup(index):
                if len(self.register_changes[other]) < len(changes):
                    missing = changes[len(self.register_changes[other])]
                    raise BrokenAligned(
                        f"setmaxnreg to {missing[0]} is executed by warp {index}, but not by warp {other} of its "
                        "warpgroup",
                        line=missing[1],
                    )

    def registers_freed(self) -> None:
        sleepers, self.register_waiters = self.register_waiters, []
        for warp in sleepers:
            self.machine.wake(warp)

    # life

    def check_alive(self, what: str) -> None:
        if self.exited:
            raise RemoteAccessToExitedCta(f"{what}: CTA {self.number} (rank {self.rank}) has exited")

    def warp_done(self, warp: Warp) -> None:
        self.live_warps -= 1
        for number, barrier in self.named.items():
            if barrier.arrived and not barrier.expected:
                self.check_barrier(number)
        if self.live_warps == 0:
            self._exit(warp)

    def _exit(self, last: Warp) -> None:
        machine = self.machine
        self._check_register_changes()
        for operation in [*self.reading, *(key[0] for key in self.writing)]:
            raise AsyncInFlightAtExit(
                f"CTA {self.number} exits while {operation} is in flight", line=operation.line, cta=self.number
            )
        if machine.referee is not None:
            machine.referee.cta_exit(self.number, 0)
        self.grid.control.cta_exit(self.number, self.cluster.number)
        machine.tensor_memory(self.sm).cta_exit(self.number)
        self.exited = True
        self.shared.poison()
        machine.give_shared(self.shared)
        machine.free_sm(self)
        self.cluster.cta_done(self)


class Cluster:
    """CTAs that started together."""

    def __init__(self, machine, grid: Grid, number: int, origin: tuple[int, int, int], sms: list[int]):
        self.machine, self.grid, self.number, self.origin = machine, grid, number, origin
        self.started = machine.now
        self.phase = 0
        self.arrived: dict[Warp, int] = {}
        self.sleepers: list[Warp] = []
        self.live_lanes = grid.threads * grid.cluster_size
        x, y, z = grid.cluster
        self.ctas: list[Cta] = []
        for rank, sm in enumerate(sms):
            place = (rank % x, rank // x % y, rank // (x * y))
            position = (origin[0] + place[0], origin[1] + place[1], origin[2] + place[2])
            self.ctas.append(Cta(machine, grid, self, rank, position, machine.next_cta(), sm))
        for cta in self.ctas:
            cta.start()
        self.left = len(self.ctas)

    def member(self, rank: int, what: str) -> Cta:
        if rank >= len(self.ctas):
            raise RemoteAccessToExitedCta(f"{what}: there is no CTA of rank {rank} in a cluster of {len(self.ctas)}")
        self.ctas[rank].check_alive(what)
        return self.ctas[rank]

    # barrier

    @property
    def arrived_lanes(self) -> int:
        return sum(mask.bit_count() for mask in self.arrived.values())

    def barrier_arrive(self, warp: Warp, mask: int) -> None:
        self.arrived[warp] = self.arrived.get(warp, 0) | mask
        warp.cluster_target = self.phase + 1
        self._check()

    def barrier_passed(self, warp: Warp) -> bool:
        return self.phase >= warp.cluster_target

    def lanes_left(self, warp: Warp, mask: int) -> None:
        """Exited threads count as arrived."""
        self.live_lanes -= mask.bit_count()
        if warp in self.arrived:
            self.arrived[warp] &= ~mask
        self._check()

    def _check(self) -> None:
        arrived = self.arrived_lanes
        if not self.arrived or arrived < self.live_lanes:
            return
        self.phase += 1
        self.arrived = {}
        if self.machine.referee is not None:
            self.machine.referee.rendezvous_complete(("cluster", self.number))
        sleepers, self.sleepers = self.sleepers, []
        for warp in sleepers:
            self.machine.wake(warp)

    def cta_done(self, cta: Cta) -> None:
        self.left -= 1
        if self.left == 0:
            self.grid.control.cluster_exit(self.number)
            self.grid.running -= 1
            self.machine.cluster_done(self)
