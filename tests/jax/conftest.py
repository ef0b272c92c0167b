"""Where the shared tests run: on the CPU's fallback, on the emulated device, and on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)  # a mesh to split products over, wherever the tests run


@dataclasses.dataclass(frozen=True)
class Place:
    """A platform that products run on. `runs_kernels`: our kernels, rather than `lax.dot_general`."""

    name: str
    runs_kernels: bool
    enter: Callable[[], contextlib.AbstractContextManager]
    why_missing: Callable[[], str | None]
    marks: Any = ()

    @property
    def emulated(self) -> bool:
        return self.name.startswith("emulated")


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@contextlib.contextmanager
def _on_emulated_device(arch: str) -> Iterator[None]:
    import jax_clc.emulation as emulation

    with jax.default_device(jax.devices("cpu")[0]), emulation.emulated(arch, sm_count=4):
        yield


@contextlib.contextmanager
def _on_gpu() -> Iterator[None]:
    with jax.default_device(jax.devices("cuda")[0]):
        yield


def why_no_emulated_device(arch: str) -> str | None:
    """What is missing for the emulated device of an architecture, None if nothing is."""
    try:
        import jax_clc.emulator.driver  # noqa: F401
        from jax_clc import native
        from jax_clc.planning import catalog

        native.extension()
        return None if catalog.kernels(arch) else f"no {arch} kernels are built"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def why_no_gpu() -> str | None:
    try:
        jax.devices("cuda")
        return None
    except RuntimeError as error:
        return f"no CUDA device: {str(error).splitlines()[0]}"


PLACES = (
    Place("cpu", False, _on_cpu, lambda: None),
    *(
        Place(f"emulated_{arch}", True, functools.partial(_on_emulated_device, arch),
              functools.partial(why_no_emulated_device, arch), pytest.mark.emulated)
        for arch in ("sm_90a", "sm_100f")
    ),
    Place("gpu", True, _on_gpu, why_no_gpu, pytest.mark.gpu),
)  # fmt: skip


@pytest.fixture(params=[pytest.param(place, id=place.name, marks=place.marks) for place in PLACES])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each test that asks for it runs once in every place there is."""
    missing = request.param.why_missing()
    if missing:
        pytest.skip(missing)
    with request.param.enter():
        yield request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)
