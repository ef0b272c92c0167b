"""The extension: loading it, telling XLA of its handlers and it of the kernels that ship, and asking for devices.

Nothing here touches CUDA unless asked for a device: importing, registering and lowering work without libcuda.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from jax_clc.planning import catalog

TARGET = "jax_clc.gemm.v1"
"""The FFI target that programs are lowered to. Versioned: it may stand in a program saved years ago."""

STATE_TYPE = "jax_clc.GemmCall"
OLDEST_JAX = (0, 9, 1)
"""The jaxlib on whose FFI headers the extension is built; an older one may refuse it only when its backend starts."""


class NativeError(RuntimeError):
    """The extension or the kernels cannot be used; the text names the file and how to rebuild it."""


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """A CUDA device as the driver describes it."""

    ordinal: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    memory_bytes: int


_lock = threading.RLock()
_targets_registered = False
_kernels_registered: Path | None = None


@functools.cache
def extension() -> ModuleType:
    """The compiled module `jax_clc._native`. Raises NativeError if it is missing or built for something else."""
    try:
        return importlib.import_module("jax_clc._native")
    except ImportError as error:
        folder = Path(__file__).parent
        found = ", ".join(sorted(path.name for path in folder.glob("_native*"))) or "none"
        raise NativeError(
            f"jax_clc: the extension {folder / '_native'} cannot be loaded ({error}); files found: {found}. "
            f"{catalog.how_to_rebuild()}"
        ) from error


def register() -> None:
    """Registers the FFI type and targets with JAX, and the kernels of the manifest with the extension; once.

    Raises NativeError when the extension or the manifest is missing, damaged or of another version.
    """
    with _lock:
        _register_targets()
        _register_kernels()


def _register_targets() -> None:
    global _targets_registered
    if _targets_registered:
        return
    if jax.__version_info__ < OLDEST_JAX:
        oldest = ".".join(str(part) for part in OLDEST_JAX)
        raise NativeError(f"jax_clc: jax {jax.__version__} is too old: {oldest} or later is needed. Update jax.")
    native = extension()
    try:
        # The type first: a target registered before the type of its state is refused, and XLA's start-up with it.
        jax.ffi.register_ffi_type(STATE_TYPE, native.state_type(), platform="CUDA")
        for platform in ("CUDA", "cpu"):
            jax.ffi.register_ffi_target(TARGET, native.handlers(platform), platform=platform, api_version=1)
    except Exception as error:
        version = ".".join(str(part) for part in native.ffi_api_version)
        raise NativeError(
            f"jax_clc: jaxlib {jax.lib.__version__} does not take the handlers of {native.__file__}, built for XLA FFI "
            f"{version}: {error}. {catalog.how_to_rebuild()}"
        ) from error
    _targets_registered = True


def _register_kernels() -> None:
    global _kernels_registered
    folder = catalog.directory()
    if _kernels_registered == folder:
        return
    try:
        kernels = catalog.kernels(traced=True)
    except catalog.CatalogError as error:
        raise NativeError(str(error)) from error
    native = extension()
    native.clear_kernels()
    for kernel in kernels:
        try:
            native.register_kernel(dict(kernel.entry), str(folder / kernel.entry["image"]))
        except (TypeError, ValueError) as error:  # TypeError: a path that is no UTF-8
            raise NativeError(
                f"jax_clc: the extension refuses an entry of {folder / 'manifest.json'}: {error}. "
                f"{catalog.how_to_rebuild()}"
            ) from error
    _kernels_registered = folder


def set_emulator(device: Any) -> None:
    """Makes `device` (docs/design.md, 7.4) the one that CPU programs with our kernels run on; None for none."""
    extension().set_emulator(device)


def driver_version() -> int | None:
    """The CUDA version of the driver (12040 for 12.4), None without libcuda."""
    return extension().driver_version()


def devices() -> list[DeviceInfo]:
    """The CUDA devices, empty without libcuda. Creates no CUDA context."""
    _, found = extension().devices()
    return [
        DeviceInfo(ordinal, name, (major, minor), sm_count, memory_bytes)
        for ordinal, (name, major, minor, sm_count, memory_bytes) in enumerate(found)
    ]


def why_no_devices() -> str | None:
    """Why the driver cannot be used, None if it can."""
    return extension().devices()[0]
