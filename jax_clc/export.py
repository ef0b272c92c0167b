"""Saving programs with `jax.export`: the safety check our custom call needs, and a check of its version on loading.

    saved = jax_clc.export.export(jax.jit(f), platforms=("cuda",))(a, b).serialize()
    out = jax_clc.export.deserialize(saved).call(a, b)

A program holds the names of one kernel for each GPU family, never code, so it may be saved on a machine without a GPU.
It is bound to the version of the call (`jax_clc.gemm.v1`), and to the kernels that ship under those names where it is
loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax.export

from jax_clc import native

_OUR_TARGETS = re.compile(r"\bjax_clc\.\w+\.v\d+\b")


def safety_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What `jax.export.export(..., disabled_checks=)` must be told so that it saves our custom call."""
    return [jax.export.DisabledSafetyCheck.custom_call(native.TARGET)]


def export(
    function: Any, *, platforms: Sequence[str] | None = None, disabled_checks: Sequence[Any] = ()
) -> Callable[..., jax.export.Exported]:
    """`jax.export.export` for a jitted function that uses jax_clc. Arguments and result as there.

    Programs for one device and `shard_map` programs keep their kernels; one that XLA is to split by itself is saved
    with `lax.dot_general`, because a partitioning rule is code of this process.
    """
    return jax.export.export(function, platforms=platforms, disabled_checks=[*disabled_checks, *safety_checks()])


def deserialize(saved: bytes | bytearray) -> jax.export.Exported:
    """`jax.export.deserialize`, after which the program can run here.

    Raises ValueError for a program that calls a version of our custom call that this package does not have.
    """
    exported = jax.export.deserialize(bytearray(saved))
    called = {found.group() for found in _OUR_TARGETS.finditer(exported.mlir_module())}
    unknown = sorted(called - {native.TARGET})
    if unknown:
        from jax_clc import __version__

        raise ValueError(
            f"jax_clc: this saved program calls {', '.join(unknown)}; jax_clc {__version__} provides {native.TARGET}. "
            "Load it with the version of jax_clc that saved it, or export it again with this one."
        )
    if called:
        native.register()
    return exported
