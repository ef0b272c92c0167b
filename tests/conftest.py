"""Markers and fixtures that all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# `python -m pytest` puts the source folder first, where the package has no extension unless it was built in place. Then
# the installed package is what is tested, and the source folder serves the rest, such as `kernels`.
if not any((ROOT / "jax_clc").glob("_native*")):
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT] + [str(ROOT)]

# What a user has exported for programs of their own must not decide what is tested.
for name in ("JAX_CLC_STRICT", "JAX_CLC_TUNED"):
    os.environ.pop(name, None)

# No example fails for the time it takes, on however slow or busy a machine.
settings.register_profile("jax_clc", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("jax_clc")

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU that kernels ship for")
    config.addinivalue_line("markers", "emulated: runs kernels on the emulated device, many seconds each")


def _gpu_reason() -> str | None:
    """Why tests marked gpu cannot run here, None if they can. Asks JAX only if such a test was collected."""
    import jax

    try:
        devices = jax.devices("gpu")
    except RuntimeError as error:
        return f"no GPU: {str(error).splitlines()[0]}"
    capability = devices[0].compute_capability
    return None if capability in ("9.0", "10.0", "10.3") else f"no kernels ship for compute capability {capability}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if "gpu" in item.keywords]
    if not gpu_items:
        return
    reason = _gpu_reason()
    if reason is not None:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))
