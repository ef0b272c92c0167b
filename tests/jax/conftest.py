"""Where the shared tests run: on the CPU's fallback, on the emulated device, and on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

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


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@contextlib.contextmanager
def _on_emulated_device() -> Iterator[None]:
    import jax_clc.emulation as emulation

    with jax.default_device(jax.devices("cpu")[0]), emulation.emulated("sm_90a", sm_count=4):
        yield


@contextlib.contextmanager
def _on_gpu() -> Iterator[None]:
    with jax.default_device(jax.devices("cuda")[0]):
        yield


def why_no_emulated_device() -> str | None:
    """What is missing for the emulated device, None if nothing is."""
    try:
        import jax_clc.emulator.driver  # noqa: F401
        from jax_clc import native
        from jax_clc.planning import catalog

        native.extension()
        return None if catalog.kernels("sm_90a") else "no sm_90a kernels are built"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def why_no_gpu() -> str | None:
    try:
        jax.devices("cuda")
        return None
    except RuntimeError as error:
        return f"no CUDA device: {str(error).splitlines()[0]}"


PLACES = {
    "cpu": Place("cpu", False, _on_cpu),
    "emulated": Place("emulated", True, _on_emulated_device),
    "gpu": Place("gpu", True, _on_gpu),
}
_MISSING = {"cpu": lambda: None, "emulated": why_no_emulated_device, "gpu": why_no_gpu}


@pytest.fixture(
    params=["cpu", pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("gpu", marks=pytest.mark.gpu)]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each test that asks for it runs once in every place there is."""
    missing = _MISSING[request.param]()
    if missing:
        pytest.skip(missing)
    chosen = PLACES[request.param]
    with chosen.enter():
        yield chosen


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)
