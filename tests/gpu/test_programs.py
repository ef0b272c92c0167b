"""On a GPU, a product gives the same bits wherever it stands in a program, and whatever else the process does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_clc

pytestmark = pytest.mark.gpu

PRELUDE = """
import hashlib, json, jax, jax.numpy as jnp, numpy as np, jax_clc
rng = np.random.default_rng(5)
a = jnp.asarray(rng.standard_normal((384, 512)), jnp.bfloat16)
b = jnp.asarray(rng.standard_normal((512, 512)) / 16, jnp.bfloat16)
def bits(x): return hashlib.sha256(np.asarray(x).tobytes()).hexdigest()
"""
STEPS = 5
PROGRAMS = {
    "alone": f"""
        x = a
        for _ in range({STEPS}): x = jax_clc.matmul(x, b)
        print(bits(x))""",
    "scan, as the first call of the process": f"""
        step = lambda x, _: (jax_clc.matmul(x, b), None)
        print(bits(jax.jit(lambda a: jax.lax.scan(step, a, length={STEPS})[0])(a)))""",
    "while_loop, as the first call of the process": f"""
        body = lambda s: (s[0] + 1, jax_clc.matmul(s[1], b))
        print(bits(jax.jit(lambda a: jax.lax.while_loop(lambda s: s[0] < {STEPS}, body, (0, a))[1])(a)))""",
    "first call while another program runs": f"""
        busy = jax.jit(lambda x: jax.lax.fori_loop(0, 400, lambda _, x: jnp.matmul(x, x) * 0.01, x))
        other = busy(jnp.ones((4096, 4096), jnp.bfloat16))
        step = lambda x, _: (jax_clc.matmul(x, b), None)
        x = jax.jit(lambda a: jax.lax.scan(step, a, length={STEPS})[0])(a)
        print(bits(x)); other.block_until_ready()""",
}
FLAGS = {
    "command buffers off": "--xla_gpu_enable_command_buffer=",
    "command buffers on": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL,WHILE,CONDITIONAL "
    "--xla_gpu_graph_min_graph_size=1",
}


def bits_of(program: str, flags: str = "") -> str:
    """What a fresh process prints last."""
    environment = {**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1", "JAX_CLC_STRICT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def expected_bits() -> str:
    return bits_of(PROGRAMS["alone"])


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_bits_are_the_same_in_every_program(program, flags, expected_bits):
    """Cases 27 and 29: in loops, first or not, in command buffers or not, in one process or another."""
    assert bits_of(PROGRAMS[program], FLAGS[flags]) == expected_bits


def test_threads_with_kernels_of_different_size():
    """Case 28: the shared-memory limit of a kernel is set once, before any launch."""
    rng = np.random.default_rng(6)
    sizes = [(2048, 2048, 512), (64, 512, 512), (640, 200, 96), (16, 4096, 4096)]
    operands = [
        (jnp.asarray(rng.integers(-3, 4, (m, k)), dtype), jnp.asarray(rng.integers(-3, 4, (k, n)), dtype))
        for m, n, k in sizes
        for dtype in (jnp.bfloat16, jnp.float16)
    ]
    expected = [jnp.matmul(a, b) for a, b in operands]
    wrong: list[int] = []

    def work(first: int) -> None:
        for i in range(200):
            index = (first + i) % len(operands)
            if not jnp.array_equal(jax.jit(jax_clc.matmul)(*operands[index]), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_program_names_kernels_and_holds_no_code():
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    text = jax.jit(jax_clc.matmul).lower(a, a).as_text()
    assert "jax_clc.gemm.v1" in text and "sm90_bf16" in text
    assert len(text) < 8000, "attributes are names and a few integers"


def test_bits_of_random_products_are_recorded(record_property):
    """Left in the evidence, for the emulated device to be compared with."""
    digests = {}
    for index, (m, n, k) in enumerate([(128, 256, 64), (136, 264, 1152), (304, 520, 1000), (64, 264, 4096)]):
        rng = np.random.default_rng(100 + index)
        a, b = (jnp.asarray(rng.integers(-3, 4, shape), jnp.bfloat16) for shape in ((m, k), (k, n)))
        digests[f"{m}x{n}x{k}"] = hashlib.sha256(np.asarray(jax_clc.matmul(a, b)).tobytes()).hexdigest()
    record_property("digests", json.dumps(digests))
