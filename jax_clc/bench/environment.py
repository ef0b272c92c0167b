"""What a measurement must say about where it was made."""

from __future__ import annotations

import datetime
import platform
from importlib import metadata
from typing import Any

from jax_clc.planning import GemmPlan, GemmProblem, plan, reference_devices

PACKAGES = ("jax", "jaxlib", "jax_clc", "jax-cuda13-plugin", "jax-cuda12-plugin")


def environment(timer_name: str) -> dict[str, Any]:
    """Device, driver and versions, as plain data. Opens JAX's backend."""
    import jax

    device = jax.devices()[0]
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": device.device_kind,
        "platform": device.platform,
        "runtime": getattr(device.client, "platform_version", "").splitlines()[0:1],
        "timer": timer_name,
        "python": platform.python_version(),
        "packages": {name: text for name in PACKAGES if (text := version(name))},
    }
    try:
        from jax_clc import native

        found["driver"] = native.driver_version()
    except (ImportError, RuntimeError):
        found["driver"] = None
    return found


def version(package: str) -> str | None:
    """The installed version, or None. Ours is the one that is imported, installed or not."""
    if package == "jax_clc":
        import jax_clc

        return jax_clc.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def running_family() -> str | None:
    """The kernel family of JAX's default device; None where it is no CUDA device or none is built for it."""
    import jax

    from jax_clc.planning.catalog import family_of

    capability = getattr(jax.devices()[0], "compute_capability", None)
    try:
        return None if capability is None else family_of(str(capability))
    except ValueError:
        return None


def plan_here(problem: GemmProblem, **request: Any) -> GemmPlan:
    """The plan that a program for JAX's default device is lowered with: for its family alone, if it has one."""
    family = running_family()
    return plan(problem, devices=None if family is None else reference_devices((family,)), **request)
