"""One BLAS thread while the emulator runs: its products are small, and its parallelism is in processes."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads",
)


@lru_cache(maxsize=1)
def _functions() -> tuple | None:
    """(get, set) of NumPy's own OpenBLAS, or None where NumPy was built on another BLAS."""
    package = Path(np.__file__).parent
    for path in [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]:
        library = ctypes.CDLL(str(path))
        for name in NAMES:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Within the block NumPy's matrix products use one thread: 3 to 5 times faster for tiles of 64x256x16 when all
    cores are busy with other emulators."""
    found = _functions()
    if found is None:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)
