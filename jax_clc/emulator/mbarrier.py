"""The mbarrier object: arrivals, signed byte count, phases. It counts; what it orders is the referee's business."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from jax_clc.emulator.errors import BarrierMisuse, BarrierOverArrival, BarrierPhaseAliased

MAX_COUNT = (1 << 20) - 1


@dataclass
class Barrier:
    """One barrier in shared memory, from `mbarrier.init` to `mbarrier.inval`.

    A phase ends when no arrival is pending *and* the byte count is zero; the count is signed, so bytes may complete
    before they are expected. `phase` counts completed phases. Waiting names a parity only, so a waiter that is
    overtaken by two phases hangs or passes wrongly, as on the hardware; `test` reports it when it can see it.
    """

    count: int
    name: str = "barrier"
    require_observed: bool = True
    """ISA: each phase must be observed by a successful wait before an arrival in the next one."""
    pending: int = field(init=False)
    transactions: int = field(init=False, default=0)
    phase: int = field(init=False, default=0)
    _observed: int = field(init=False, default=-1)
    _first_failure: dict[Hashable, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_COUNT:
            raise BarrierMisuse(f"{self.name}: count {self.count} is not in 1 to {MAX_COUNT}")
        self.pending = self.count

    def arrive(self, n: int = 1, *, no_complete: bool = False, drop: bool = False) -> int:
        """`n` arrivals. Returns the number of phases that ended, 0 or 1. Raises BarrierOverArrival."""
        if not 1 <= n <= MAX_COUNT:
            raise BarrierMisuse(f"{self.name}: arrival count {n} is not in 1 to {MAX_COUNT}")
        if self.require_observed and self._observed < self.phase - 1:
            raise BarrierPhaseAliased(
                f"{self.name}: arrival in phase {self.phase} although no wait has observed phase {self.phase - 1}",
                axiom="phase_observed_before_next_arrival",
            )
        if n > self.pending:
            raise BarrierOverArrival(
                f"{self.name}: {n} arrivals with {self.pending} of {self.count} pending in phase {self.phase}"
                + (f" ({self.transactions} bytes outstanding)" if self.transactions else "")
            )
        self.pending -= n
        if drop:
            self.count -= n
            if self.count == 0:
                raise BarrierMisuse(f"{self.name}: arrive_drop leaves no expected arrival")
        ended = self._end_phase()
        if ended and no_complete:
            raise BarrierMisuse(f"{self.name}: an arrival with .noComplete completed phase {self.phase - 1}")
        return ended

    def expect_tx(self, count_bytes: int) -> int:
        """More bytes to come in this phase. Returns phases ended (bytes may have completed before)."""
        return self._add(count_bytes)

    def complete_tx(self, count_bytes: int) -> int:
        """Bytes that have come. Returns phases ended."""
        return self._add(-count_bytes)

    def test(self, parity: int, waiter: Hashable = None) -> bool:
        """Whether the phase of this parity has ended, as test_wait and try_wait see it. `waiter` (any key for the
        waiting thread or warp) makes overtaken waiters visible: raises BarrierPhaseAliased."""
        ended = self.phase & 1 != parity & 1
        first = self._first_failure.get(waiter) if waiter is not None else None
        if first is not None and first & 1 != parity & 1:  # it gave that phase up and asks for another
            del self._first_failure[waiter]
            first = None
        if first is not None and self.phase > first + 1:
            raise BarrierPhaseAliased(
                f"{self.name}: waits for phase {first} since it was current, and phase {self.phase - 1} is over"
            )
        if ended:
            self._observed = self.phase - 1
            self._first_failure.pop(waiter, None)
        elif waiter is not None and first is None:
            self._first_failure[waiter] = self.phase
        return ended

    def test_state(self, state: int) -> bool:
        """Waiting by the token that an arrival returned (`state`)."""
        phase = state >> 20
        if phase not in (self.phase, self.phase - 1):
            raise BarrierPhaseAliased(f"{self.name}: waits for phase {phase} while phase {self.phase} is current")
        if phase < self.phase:
            self._observed = phase
        return phase < self.phase

    @property
    def state(self) -> int:
        """The 64-bit token: current phase and pending count (mbarrier.pending_count reads the low 20 bits)."""
        return self.phase << 20 | self.pending

    def _add(self, count_bytes: int) -> int:
        self.transactions += count_bytes
        if abs(self.transactions) > MAX_COUNT:
            raise BarrierMisuse(f"{self.name}: byte count {self.transactions} is out of range")
        return self._end_phase()

    def _end_phase(self) -> int:
        if self.pending or self.transactions:
            return 0
        self.phase += 1
        self.pending = self.count
        return 1

    def __str__(self) -> str:
        return (
            f"{self.name}: phase {self.phase}, {self.pending} of {self.count} arrivals pending, "
            f"{self.transactions} bytes outstanding"
        )
