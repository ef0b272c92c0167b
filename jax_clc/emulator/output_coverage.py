"""Judges how often each output element was stored: once is right, twice and never are errors."""

from __future__ import annotations

import numpy as np

from jax_clc.emulator.errors import OutputNeverWritten, OutputWrittenTwice


def check_coverage(name: str, writes: np.ndarray, element_bytes: int = 1) -> None:
    """`writes`: stores per byte of a buffer. Raises OutputNeverWritten, OutputWrittenTwice for the first element."""
    for error, what, wrong in (
        (OutputNeverWritten, "never stored", writes == 0),
        (OutputWrittenTwice, "stored more than once", writes > 1),
    ):
        elements = np.unique(np.flatnonzero(wrong) // element_bytes)
        if len(elements):
            more = f" and {len(elements) - 1} more" if len(elements) > 1 else ""
            raise error(f"{name}: element {elements[0]}{more} of {len(writes) // element_bytes} {what}")
