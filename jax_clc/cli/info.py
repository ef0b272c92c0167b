"""`jax-clc info`: versions, driver, devices, kernels that would serve."""

from __future__ import annotations

import argparse
from collections import Counter

from jax_clc.bench.environment import version
from jax_clc.planning import catalog, tuned_choices


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser("info", help="versions, driver, devices, kernels", description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="name every kernel")
    return parser


def main(args: argparse.Namespace) -> int:
    """Prints what is there; a part that is missing is named with its reason, and the status is 1."""
    complete = True
    for name in ("jax_clc", "jax", "jaxlib", "numpy"):
        _line(name, version(name) or "not installed")

    from jax_clc import native

    try:
        extension = native.extension()
        _line("extension", str(extension.__file__))
        driver, why_none, devices = native.driver_version(), native.why_no_devices(), native.devices()
    except native.NativeError as error:
        complete = False
        driver, why_none, devices = None, None, []
        _line("extension", f"missing: {error}")
    _line("driver", why_none or (f"CUDA {driver // 1000}.{driver % 1000 // 10}" if driver else "none"))
    for device in devices:
        capability = ".".join(map(str, device.compute_capability))
        _line(
            f"device {device.ordinal}", f"{device.name}, {device.sm_count} SMs, {device.memory_bytes / 2**30:.0f} GiB"
        )
        _line("", _serves(capability))
    if not devices:
        _line("devices", "none; products run as lax.dot_general")

    try:
        kernels = catalog.kernels()
    except catalog.CatalogError as error:
        _line("kernels", f"missing: {error}")
        return 1
    _line("cubins", str(catalog.directory()))
    for family in catalog.FAMILIES:
        schedules = Counter(kernel.schedule for kernel in kernels if kernel.family == family)
        counts = ", ".join(f"{count} {schedule}" for schedule, count in sorted(schedules.items()))
        _line(family, f"{schedules.total()} kernels" + (f": {counts}" if counts else ""))
    _line("tuned", f"{len(tuned_choices.tables())} measured choices")
    if args.kernels:
        print()
        print("\n".join(kernel.name for kernel in kernels))
    return 0 if complete else 1


def _serves(capability: str) -> str:
    try:
        return f"compute capability {capability}: served by {len(catalog.kernels(capability))} kernels"
    except ValueError:
        return f"compute capability {capability}: no kernels; lax.dot_general"
    except catalog.CatalogError:
        return f"compute capability {capability}"


def _line(name: str, text: str) -> None:
    print(f"{name:<10} {text}".rstrip())
