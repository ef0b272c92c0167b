"""How often each output element has been stored: once is right, twice and never are errors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from jax_clc.emulator.errors import EmulatorError, OutputNeverWritten, OutputWrittenTwice
from jax_clc.emulator.happens_before import lanes_of


@dataclass
class _Buffer:
    address: int
    size: int
    element: int
    counts: np.ndarray


@dataclass
class OutputCoverage:
    """Counts stores to the tracked buffers, per element. Reductions are not counted."""

    buffers: list[_Buffer] = field(default_factory=list)

    @property
    def tracks(self) -> bool:
        return bool(self.buffers)

    def track(self, address: int, size_bytes: int, element_bytes: int) -> None:
        count = size_bytes // element_bytes
        self.buffers.append(_Buffer(address, size_bytes, element_bytes, np.zeros(count, np.uint8)))

    def write_lanes(self, mask: int, addresses: int | np.ndarray, size: int) -> EmulatorError | None:
        """A store of `size` bytes by each lane of the mask."""
        lanes = np.asarray([addresses]) if isinstance(addresses, int) else np.asarray(addresses)[lanes_of(mask)]
        return self.write_ranges(np.stack([lanes, np.full(len(lanes), size)], axis=1))

    def write_ranges(self, ranges: np.ndarray) -> EmulatorError | None:
        """Stores to (n, 2) ranges of start and bytes. Returns OutputWrittenTwice for the first element stored again."""
        for buffer in self.buffers:
            inside = (ranges[:, 0] >= buffer.address) & (ranges[:, 0] < buffer.address + buffer.size)
            if not inside.any():
                continue
            elements = _elements(ranges[inside], buffer)
            before = buffer.counts[elements]
            buffer.counts[elements] = 1
            if before.any():
                element = int(elements[np.flatnonzero(before)[0]])
                return OutputWrittenTwice(
                    f"output element {element} (byte {element * buffer.element} of {buffer.size}) is stored again"
                )
        return None

    def missing(self) -> EmulatorError | None:
        """OutputNeverWritten for the first element that nobody has stored."""
        for buffer in self.buffers:
            never = np.flatnonzero(buffer.counts == 0)
            if len(never):
                more = f" and {len(never) - 1} more" if len(never) > 1 else ""
                return OutputNeverWritten(
                    f"output element {int(never[0])}{more} of {len(buffer.counts)} were never stored"
                )
        return None


def _elements(ranges: np.ndarray, buffer: _Buffer) -> np.ndarray:
    first = (ranges[:, 0] - buffer.address) // buffer.element
    counts = np.maximum(ranges[:, 1] // buffer.element, 1)
    if (counts == counts[0]).all():
        return (first[:, None] + np.arange(counts[0])).reshape(-1)
    return np.concatenate([np.arange(f, f + c) for f, c in zip(first.tolist(), counts.tolist(), strict=True)])
