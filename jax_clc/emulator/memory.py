"""Memories of the emulated device: global allocations, shared memory of a CTA, the windows of generic addresses."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import numpy as np

from .errors import AddressOutOfRange, MisalignedAddress
from .output_coverage import check_coverage

SHARED_WINDOW = 1 << 56  # generic address = window | rank << 24 | offset
LOCAL_WINDOW = 2 << 56
PARAM_WINDOW = 3 << 56
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
POISON = 0xFF  # a NaN in every float type


@dataclass(slots=True)
class Allocation:
    """One buffer of global memory. `writes` counts stores per byte where outputs are audited."""

    address: int
    data: np.ndarray  # uint8, one axis
    name: str
    element_bytes: int = 1
    writes: np.ndarray | None = None
    audited: np.ndarray | None = None  # bool per byte: what must be stored; None: all of it
    _views: dict = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.address + len(self.data)

    def audit(self, audited: np.ndarray | None, element_bytes: int) -> None:
        """Count stores from here on; each audited byte must be stored once."""
        self.writes, self.audited, self.element_bytes = np.zeros(len(self.data), np.uint8), audited, element_bytes

    def view(self, size: int) -> tuple[np.ndarray, int]:
        """(array of unsigned `size`-byte words, address of its first word); words are naturally aligned."""
        found = self._views.get(size)
        if found is None:
            skip = -self.address % size
            words = max(len(self.data) - skip, 0) // size
            array = self.data[skip : skip + words * size]
            found = self._views[size] = (array.view(UNSIGNED[size]), self.address + skip)
        return found


class GlobalMemory:
    """All global memory there is: an access outside every allocation is an error."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._starts: list[int] = []
        self._last: Allocation | None = None

    def add(self, address: int, data: np.ndarray, name: str, audited_element: int = 0) -> Allocation:
        """Register a buffer (uint8, contiguous) at an address. `audited_element`: bytes of an element, each of which
        must be stored exactly once; 0: not audited."""
        place = bisect.bisect(self._starts, address)
        if place and self.allocations[place - 1].end > address and len(data):
            other = self.allocations[place - 1]
            if other.address == address and len(other.data) == len(data):  # the same buffer given twice (a @ a)
                return other
            if other.end >= address + len(data):
                return other
        allocation = Allocation(address, data, name)
        if audited_element:
            allocation.audit(None, audited_element)
        self.allocations.insert(place, allocation)
        self._starts.insert(place, address)
        return allocation

    def find(self, low: int, high: int) -> Allocation:
        """The allocation that holds all of [low, high). Raises AddressOutOfRange."""
        last = self._last
        if last is not None and last.address <= low and high <= last.end:
            return last
        place = bisect.bisect(self._starts, low) - 1
        if place >= 0:
            allocation = self.allocations[place]
            if high <= allocation.end:
                self._last = allocation
                return allocation
        known = ", ".join(f"{a.name} [{a.address:#x}, {a.end:#x})" for a in self.allocations)
        raise AddressOutOfRange(f"global addresses {low:#x} to {high - 1:#x} lie in no buffer (there are {known})")

    def bytes(self, address: int, size: int) -> np.ndarray:
        """A uint8 view for reading."""
        allocation = self.find(address, address + size)
        start = address - allocation.address
        return allocation.data[start : start + size]

    def note_writes(self, ranges: np.ndarray, distinct: bool = False) -> None:
        """Count stores to (n, 2) ranges of address and bytes. `distinct`: the ranges do not overlap."""
        for allocation in self.allocations:
            if allocation.writes is None:
                continue
            inside = ranges[(ranges[:, 0] >= allocation.address) & (ranges[:, 0] < allocation.end)]
            if not len(inside):
                continue
            starts, sizes = inside[:, 0] - allocation.address, inside[:, 1]
            if (sizes == sizes[0]).all():
                places = (starts[:, None] + np.arange(sizes[0])).reshape(-1)
            else:
                places = np.concatenate([np.arange(s, s + n) for s, n in inside.tolist()]) - allocation.address
            if distinct:
                allocation.writes[places] += 1
            else:
                np.add.at(allocation.writes, places, 1)

    def check_coverage(self) -> None:
        """Every element of an audited buffer has been stored once. Raises OutputNeverWritten, OutputWrittenTwice."""
        for allocation in self.allocations:
            if allocation.writes is not None:
                if allocation.audited is not None:
                    allocation.writes[~allocation.audited] = 1
                check_coverage(allocation.name, allocation.writes, allocation.element_bytes)


def check_alignment(addresses: np.ndarray | int, size: int) -> None:
    """Natural alignment of an access of `size` bytes."""
    if isinstance(addresses, int):
        if addresses & (size - 1):
            raise MisalignedAddress(f"address {addresses:#x} is not aligned to {size} bytes")
    elif size > 1 and (addresses & (size - 1)).any():
        bad = addresses[(addresses & (size - 1)) != 0][0]
        raise MisalignedAddress(f"address {int(bad):#x} is not aligned to {size} bytes")


class SharedMemory:
    """One CTA's window: offsets 0 to 1023 belong to the system. Poisoned at start and at exit."""

    __slots__ = ("data", "size", "_views")

    def __init__(self, size: int):
        self.size = size
        self.data = np.empty(-(-size // 128) * 128 // 16, np.complex128).view(np.uint8)  # 16-byte aligned
        self._views: dict[tuple[int, int], np.ndarray] = {}
        self.poison()

    def poison(self) -> None:
        self.data.fill(POISON)

    def words(self, size: int, count: int = 1) -> np.ndarray:
        """The memory as words of `size` bytes, in rows of `count` if more than one."""
        found = self._views.get((size, count))
        if found is None:
            found = self.data.view(UNSIGNED[size])
            if count > 1:
                found = found[: len(found) // count * count].reshape(-1, count)
            self._views[(size, count)] = found
        return found
