"""Runs the traced kernels, on this process's GPU or on the emulated device, and reads who computed which tile when."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_clc import native
from jax_clc.gemm_lowering import padded
from jax_clc.planning import GemmProblem, catalog, plan
from jax_clc.planning.catalog import Kernel
from jax_clc.planning.device_model import DeviceModel, device_model
from jax_clc.schedule.trace import SCHEDULES, SmWindow, TileTrace, rows_of_scratch, trace_from_buffer


def traced_kernels(family: str) -> dict[str, Kernel]:
    """schedule -> the traced kernel of a family, in the order of `SCHEDULES`. Raises ValueError if there is none."""
    found = {kernel.schedule: kernel for kernel in catalog.kernels(family, traced=True) if kernel.traced}
    if not found:
        raise ValueError(f"no traced kernel of {family} is in {catalog.directory()}")
    return {schedule: found[schedule] for schedule in SCHEDULES if schedule in found}


def chosen(kernels: Mapping[str, Kernel], schedules: Sequence[str] | None) -> list[Kernel]:
    """The traced kernels of the wanted schedules. Raises ValueError naming what there is."""
    if missing := set(schedules or ()) - set(kernels):
        raise ValueError(f"no traced kernel for {', '.join(sorted(missing))}; there are {', '.join(kernels)}")
    return [kernels[schedule] for schedule in schedules or kernels]


@dataclasses.dataclass(frozen=True)
class TracedProduct:
    """One product by a traced kernel, ready to be launched: compiled, its operands on the device."""

    kernel: Kernel
    problem: GemmProblem
    operands: tuple[jax.Array, jax.Array]
    call: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]

    @classmethod
    def of(cls, kernel: Kernel, sizes: tuple[int, int, int], device: DeviceModel) -> TracedProduct:
        """The product of `sizes` (m, n, k) on integers whose sums are exact."""
        m, n, k = sizes
        problem = GemmProblem.compact(
            m, n, k, dtype=kernel.a_dtype, out_dtype=kernel.out_dtype, a_major=kernel.a_major, b_major=kernel.b_major
        )
        made = plan(problem, kernel=kernel.name, devices=[device])
        attributes, pads = made.attributes(), made.pads
        shapes = (
            jax.ShapeDtypeStruct((m, pads.get("d", n)), kernel.out_dtype),
            jax.ShapeDtypeStruct((made.scratch_bytes,), jnp.uint8),
        )
        native.register()

        @jax.jit
        def call(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
            a = padded(a, (len(a), pads["a"])) if "a" in pads else a
            b = padded(b, (len(b), pads["b"])) if "b" in pads else b
            d, scratch = jax.ffi.ffi_call(native.TARGET, shapes)(a, b, **attributes)
            return d[:, :n], scratch

        return cls(kernel, problem, _integers(problem), call)

    def launch(self) -> tuple[jax.Array, jax.Array]:
        """The result and the scratch with the rows, when the device has finished."""
        return jax.block_until_ready(self.call(*self.operands))

    def read(
        self, launched: tuple[jax.Array, jax.Array], device: DeviceModel, source: str, **options: Any
    ) -> TileTrace:
        """The trace of a launch, whose result must be exact. Raises RuntimeError if it is not.

        `source` and `options` are those of `trace_from_buffer`.
        """
        (d, scratch), (a, b) = launched, self.operands
        exact = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
        if wrong := int(jnp.sum(d != exact.astype(d.dtype))):
            raise RuntimeError(
                f"{self.kernel.name} on {self.problem}: {wrong} of {d.size} elements differ from the exact product"
            )
        m, n, k = self.problem.m, self.problem.n, self.problem.k
        tiles = math.prod(-(-size // tile) for size, tile in zip((m, n), self.kernel.cluster_tile, strict=True))
        rows = rows_of_scratch(np.asarray(scratch), tiles, self.kernel.cluster_size)
        about = {"device": device.name, "kernel": self.kernel.name, "m": m, "n": n, "k": k}
        return trace_from_buffer(
            rows, schedule=self.kernel.schedule, sm_count=device.sm_count, source=source, about=about, **options
        )


def _integers(problem: GemmProblem) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(1))
    shapes = (problem.m, problem.k), (problem.k, problem.n)
    return tuple(
        jax.random.randint(key, shape, -2, 3).astype(dtype)
        for key, shape, dtype in zip(keys, shapes, (problem.a_dtype, problem.b_dtype), strict=True)
    )  # type: ignore[return-value]


def on_device(sizes: tuple[int, int, int], schedules: Sequence[str] | None, held: int) -> list[TileTrace]:
    """The traces of this process's GPU, while other work holds `held` of its SMs. Raises ValueError without a GPU."""
    found = native.devices()
    if not found:
        raise ValueError(f"no CUDA device: {native.why_no_devices()}")
    device = device_model(".".join(map(str, found[0].compute_capability)), found[0].sm_count, found[0].name)
    products = [TracedProduct.of(kernel, sizes, device) for kernel in chosen(traced_kernels(device.family), schedules)]
    for product in products:  # all are loaded before the first SM is held: loading may wait for the whole device
        product.launch()
    holding: AbstractContextManager[None] = nullcontext()
    if held:
        from jax_clc.bench.sm_holder import SmHolder

        holding = SmHolder().holding(held)
    with holding:
        launched = [product.launch() for product in products]
    traces = [product.read(done, device, "device") for product, done in zip(products, launched, strict=True)]
    if not held:
        return traces
    used = {event.sm for trace in traces for event in trace.events}
    # The holder does not say which SMs it got: those on which no tile ran under any schedule, and with them an SM that
    # was left alone, without a partner to hold a cluster.
    idle = [sm for sm in range(device.sm_count) if sm not in used]
    return [dataclasses.replace(trace, taken=tuple(SmWindow(sm) for sm in idle)) for trace in traces]


def on_emulated_device(
    arch: str, sizes: tuple[int, int, int], schedules: Sequence[str] | None, *, sm_count: int, seed: int,
    taken: Sequence[SmWindow], hostile: bool,
) -> list[TileTrace]:  # fmt: skip
    """The traces of the emulated device, from which `taken` SMs are away. `hostile`: the seed delays and reorders."""
    import jax_clc
    from jax_clc.emulator.options import Hostility

    family = catalog.family_of(arch)
    device = device_model(family, sm_count, f"emulated {family}")
    changes = sorted(
        [(round(window.taken), window.sm, False) for window in taken]
        + [(round(window.given_back), window.sm, True) for window in taken if math.isfinite(window.given_back)]
    )
    manner = dataclasses.asdict(Hostility() if hostile else Hostility.calm()) | {"sm_schedule": tuple(changes)}
    traces = []
    for kernel in chosen(traced_kernels(family), schedules):
        with jax_clc.emulated(arch, sm_count=sm_count, seed=seed, **manner):
            product = TracedProduct.of(kernel, sizes, device)
            traces.append(product.read(product.launch(), device, "emulated", launch_ns=0, taken=tuple(taken)))
    return traces
