"""Saves a program for the tests of another machine: `JAX_PLATFORMS=cpu python tests/jax/saved_program.py FILE`.

There, `JAX_CLC_SAVED_PROGRAM=FILE python -m pytest -m gpu tests/jax/test_on_gpu.py` loads and runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import jax_clc.export

SHAPES = ((256, 128), (128, 384))


def loss(a, b):
    return (jax_clc.matmul(a, b) ** 2).astype(jnp.float32).sum()


def main() -> None:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in SHAPES]
    program = jax.jit(jax.value_and_grad(loss, (0, 1)))
    exported = jax_clc.export.export(program, platforms=("cuda",))(*arguments)
    text = exported.mlir_module()
    assert text.count("@jax_clc.gemm.v1(") == 3 and "sm90_" in text and "sm100_" in text, text
    Path(sys.argv[1]).write_bytes(exported.serialize())


if __name__ == "__main__":
    main()
