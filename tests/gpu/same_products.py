"""Products that a GPU and the emulated device both compute, from the same bits: recorded there, compared here.

On a GPU:   python tests/gpu/same_products.py docs/evidence/h200_products.json
Anywhere:   python -m pytest -m emulated tests/emulator/test_same_as_gpu.py
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jax_clc
from jax_clc.bench.environment import environment
from jax_clc.bench.operands import on_stored, stored_shapes
from jax_clc.planning import GemmProblem, catalog, plan

FAMILY = "sm_90a"
SIZES = ((200, 136, 72, 1), (136, 264, 200, 1), (40, 72, 136, 2))
RANDOM_SIZES = ((72, 136, 512, 1), (136, 72, 1024, 1))


class SameProduct(NamedTuple):
    """One product by a pinned kernel; `random` operands are normal, the others integers with exact sums."""

    problem: GemmProblem
    kernel: str
    random: bool
    seed: int

    @property
    def key(self) -> str:
        p = self.problem
        return f"{self.kernel} {p.batch}x{p.m}x{p.n}x{p.k} {'random' if self.random else 'integers'} {self.seed}"

    def operands(self) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, self.random])
        make = rng.standard_normal if self.random else functools.partial(rng.integers, -3, 4)
        found = [np.asarray(make(size=shape)) for shape in stored_shapes(self.problem)]
        if self.problem.a_dtype == "bfloat16":  # ml_dtypes before 0.7 rounds float64 to it by way of float32
            found = [values.astype(np.float32) for values in found]
        return [values.astype(self.problem.a_dtype) for values in found]

    def result(self) -> np.ndarray:
        """On JAX's default device, or on the emulated one inside its context."""
        matmul = functools.partial(
            jax_clc.matmul, kernel=self.kernel, preferred_element_type=self.problem.out_dtype
        )
        return np.asarray(jax.jit(on_stored(self.problem, matmul))(*self.operands()))


def products() -> Iterator[SameProduct]:
    """Every Hopper kernel that can take it, on one size each in turn; every third also on random operands."""
    for number, kernel in enumerate(k for k in catalog.kernels(FAMILY) if not k.traced and not k.swapped):
        for random, sizes in ((False, SIZES), (True, RANDOM_SIZES)):
            if random and number % 3:
                continue
            m, n, k, batch = sizes[number % len(sizes)]
            problem = GemmProblem.compact(
                m, n, k, batch=batch, dtype=kernel.a_dtype, out_dtype=kernel.out_dtype,
                a_major=kernel.a_major, b_major=kernel.b_major,
            )  # fmt: skip
            try:
                fits = FAMILY in plan(problem, kernel=kernel.name).choices
            except ValueError:  # a size that this kernel's copies cannot take
                continue
            if fits:
                yield SameProduct(problem, kernel.name, random, number)


def record(product: SameProduct) -> dict[str, Any]:
    """A digest of exact results; the bits themselves of random ones, which are compared to within rounding."""
    result = product.result()
    if product.random:
        return {"bits": base64.b64encode(result.tobytes()).decode()}
    return {"sha256": hashlib.sha256(result.tobytes()).hexdigest()}


def main(path: str) -> None:
    found = {product.key: record(product) for product in products()}
    content = {"environment": environment("none: nothing was timed"), "products": found}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} products written to {path}")


if __name__ == "__main__":
    main(sys.argv[1])
