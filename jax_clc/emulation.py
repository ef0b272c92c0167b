"""`jax_clc.emulated(...)`: inside, the products of CPU arrays run their shipping kernels on the emulated device."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import jax

from jax_clc.planning.device_model import DeviceModel, device_model


@dataclasses.dataclass(frozen=True)
class EmulatedTarget:
    """What compiled programs depend on. Seed and hostility are the running device's alone: they recompile nothing."""

    family: str
    sm_count: int

    @property
    def model(self) -> DeviceModel:
        return device_model(self.family, self.sm_count)


# A user context is part of jit's cache key: the same function inside and outside is compiled twice, as it must be.
_target = jax.make_user_context(None)
_device: Any = None
_owner = threading.RLock()


def current_target() -> EmulatedTarget | None:
    """The device that CPU lowering is for, or None outside `emulated`."""
    return _target.value


@contextlib.contextmanager
def emulated(arch: str, sm_count: int = 8, seed: int = 0, **hostility: Any) -> Iterator[Any]:
    """Runs products of CPU arrays on an emulated GPU of `arch` with `sm_count` SMs; yields the device.

    `arch` is a family (`sm_90a`), an architecture (`sm_100`) or a compute capability (`10.3`). `seed` decides every
    order that the hardware leaves open; `hostility` is passed to `jax_clc.emulator.driver.EmulatedDevice`. There is one
    emulated device at a time in a process: other threads that ask for one wait. Raises ValueError for an `arch` that no
    kernel is built for, and for an `sm_count` below 1.
    """
    global _device
    from jax_clc import native
    from jax_clc.emulator.driver import EmulatedDevice

    target = EmulatedTarget(device_model(arch, sm_count).family, sm_count)
    with _owner:
        outer, device = _device, EmulatedDevice(arch, sm_count=sm_count, seed=seed, **hostility)
        native.register()
        _finish_pending()
        native.set_emulator(device)
        _device = device
        try:
            with _target(target):
                yield device
        finally:
            _finish_pending()
            native.set_emulator(outer)
            _device = outer


def _finish_pending() -> None:
    """Waits for products already dispatched: JAX runs them later, and they belong to the device that is leaving."""
    for array in jax.live_arrays("cpu"):
        with contextlib.suppress(Exception):  # whoever uses the array gets its error
            array.block_until_ready()
