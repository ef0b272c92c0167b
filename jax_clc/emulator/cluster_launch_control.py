"""Cluster launch control: clusters of a grid that have not started, and requests that cancel and take one.

Every cluster of the grid is either launched or granted: never both, never neither. A request may be refused while
clusters are pending, and grants to others may follow.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from jax_clc.emulator.errors import (
    ClcMulticastToAbsentCta,
    ClcRecordNotComplete,
    ClcRecordUnread,
    ClcRefusedRecordDecoded,
    ClcRequestAfterRefusal,
    ClcRequestInFlightAtExit,
)

RECORD_BYTES = 16
_RECORD = struct.Struct("<IHHII")
_MAGIC = 0x0C1C0000
_SCRAMBLE = 0x9E3779B1


@dataclass(frozen=True)
class Policy:
    """What the hardware may do that a kernel must live with. `refusal_probability`: a request is refused although
    clusters are pending. `random_order`: pending clusters start, and are granted, in any order."""

    refusal_probability: float = 0.0
    random_order: bool = False


@dataclass
class _Request:
    serial: int
    cta: int
    cluster: int
    granted: tuple[int, int, int] | None = None
    answered: bool = False
    read: bool = False


@dataclass
class ClusterLaunchControl:
    """The launch queue of one grid. `grid` and `cluster` in CTAs; CTAs and clusters are known by the machine's
    numbers. The machine decides when a request is answered; the answer is atomic."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    rng: random.Random
    policy: Policy = Policy()
    pending: list[tuple[int, int, int]] = field(init=False)
    grants: int = field(init=False, default=0)
    refusals: int = field(init=False, default=0)
    _requests: list[_Request] = field(init=False, default_factory=list)
    _refusal_seen: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        counts = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
            raise ValueError(f"grid {self.grid} is not a whole number of clusters {self.cluster}")
        cx, cy, cz = self.cluster
        order = ((x * cx, y * cy, z * cz) for z in range(counts[2]) for y in range(counts[1]) for x in range(counts[0]))
        self.pending = list(order)[::-1]  # taken from the end

    def _pop(self) -> tuple[int, int, int]:
        if self.policy.random_order and len(self.pending) > 1:
            chosen = self.rng.randrange(len(self.pending))
            self.pending[chosen], self.pending[-1] = self.pending[-1], self.pending[chosen]
        return self.pending.pop()

    def launch_next(self) -> tuple[int, int, int] | None:
        """The first CTA's coordinates of the cluster that starts now; None when all are launched or granted."""
        return self._pop() if self.pending else None

    # Requests

    def request(self, cta: int, cluster: int) -> int:
        """`try_cancel` issued by a thread of `cta`. Returns a serial number for `answer`."""
        if cta in self._refusal_seen:
            raise ClcRequestAfterRefusal("try_cancel by a CTA that has already observed a refusal", cta=cta)
        self._requests.append(_Request(len(self._requests), cta, cluster))
        return len(self._requests) - 1

    def answer(self, serial: int, receivers: Iterable[tuple[int, bool]]) -> bytes:
        """Decides the request and returns the record to write. `receivers`: (rank, present) of every CTA whose shared
        memory gets it."""
        absent = [rank for rank, present in receivers if not present]
        request = self._requests[serial]
        if absent:
            raise ClcMulticastToAbsentCta(
                f"record multicast to CTA rank {absent[0]} of the cluster, which has exited or not started",
                cta=request.cta,
            )
        refused = self.rng.random() < self.policy.refusal_probability
        if self.pending and not refused:
            request.granted = self._pop()
            self.grants += 1
        else:
            self.refusals += 1
        request.answered = True
        return _encode(serial, request.granted)

    def is_canceled(self, cta: int, record: bytes) -> bool:
        """`query_cancel.is_canceled`. From here on the CTA has observed the answer."""
        request = self._lookup(record)
        request.read = True
        if request.granted is None:
            self._refusal_seen.add(cta)
        return request.granted is not None

    def first_ctaid(self, cta: int, record: bytes) -> tuple[int, int, int]:
        """`query_cancel.get_first_ctaid`. Undefined for a refused record: ClcRefusedRecordDecoded."""
        request = self._lookup(record)
        request.read = True
        if request.granted is None:
            raise ClcRefusedRecordDecoded("get_first_ctaid of a record that is a refusal", cta=cta)
        return request.granted

    def cta_exit(self, cta: int, cluster: int) -> None:
        """No request of the cluster may be in flight when one of its CTAs exits."""
        for request in self._requests:
            if request.cluster == cluster and not request.answered:
                raise ClcRequestInFlightAtExit("a CTA exits while a try_cancel of its cluster is in flight", cta=cta)

    def cluster_exit(self, cluster: int) -> None:
        """A grant that no thread of the cluster has decoded is a tile lost."""
        for request in self._requests:
            if request.cluster == cluster and request.granted is not None and not request.read:
                raise ClcRecordUnread(
                    f"cluster {request.granted} was granted to a request whose record nobody read", cta=request.cta
                )

    def _lookup(self, record: bytes) -> _Request:
        serial = _decode(record)
        if serial is None or serial >= len(self._requests) or not self._requests[serial].answered:
            raise ClcRecordNotComplete(f"query_cancel of {record.hex()}, which is no completed record")
        request = self._requests[serial]
        if _encode(serial, request.granted) != record:
            raise ClcRecordNotComplete(f"query_cancel of {record.hex()}, a record partly overwritten")
        return request


def _encode(serial: int, granted: tuple[int, int, int] | None) -> bytes:
    """Opaque on purpose: coordinates are mixed with the serial, so that only query_cancel finds them."""
    mix = (serial + 1) * _SCRAMBLE & 0xFFFFFFFF
    x, y, z = granted or (0xFFFFFFFF, 0xFFFF, 0xFFFF)
    return _RECORD.pack(
        x ^ mix, y ^ (mix & 0xFFFF), z ^ (mix >> 16), serial, _MAGIC | (granted is not None) | (serial & 0xFF) << 8
    )


def _decode(record: bytes) -> int | None:
    *_, serial, magic = _RECORD.unpack(record)
    return serial if magic & 0xFFFF00FE == _MAGIC and magic >> 8 & 0xFF == serial & 0xFF else None
