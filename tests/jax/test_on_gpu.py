"""What only a GPU can show: the compiled program holds our calls and no copy of an operand, and saved programs run."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_clc.export
from jax_clc.matmul import einsum, matmul

pytestmark = pytest.mark.gpu

CALL = re.compile(r'custom-call[^\n]*custom_call_target="jax_clc\.gemm\.v1"')
COPY = re.compile(r"= \S+ (copy|transpose)\(")


@pytest.fixture(autouse=True)
def strict_on_gpu(monkeypatch):
    monkeypatch.setenv("JAX_CLC_STRICT", "1")
    with jax.default_device(jax.devices("cuda")[0]):
        yield


def integers(rng, *shape):
    return jnp.asarray(rng.integers(-2, 3, shape), jnp.bfloat16)


def loss(call, a, b):
    return call(a, b).astype(jnp.float32).sum()


PROGRAMS = {
    "forward": (lambda matmul, einsum: matmul, (512, 256), (256, 384), 1),
    "backward": (lambda matmul, einsum: jax.grad(functools.partial(loss, matmul), (0, 1)), (512, 256), (256, 384), 2),
    "forward_and_backward": (
        lambda matmul, einsum: jax.value_and_grad(lambda a, b: (matmul(a, b) ** 2).astype(jnp.float32).sum(), (0, 1)),
        (512, 256), (256, 384), 3,
    ),
    "transposed_operand": (lambda matmul, einsum: lambda a, b: matmul(a.T, b), (256, 512), (256, 384), 1),
    "batched": (lambda matmul, einsum: matmul, (4, 256, 128), (4, 128, 256), 1),
    "vmap_of_b": (lambda matmul, einsum: jax.vmap(matmul, (None, 0)), (256, 128), (4, 128, 256), 1),
    "projection": (lambda matmul, einsum: functools.partial(einsum, "bsd,dhe->bshe"), (2, 128, 256), (256, 4, 64), 1),
    "each_head_its_own": (
        lambda matmul, einsum: functools.partial(einsum, "bsnd,ndk->bsnk"), (2, 128, 4, 64), (4, 64, 128), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_program_is_exact_and_holds_our_calls_and_no_copy(rng, name) -> None:
    build, a_shape, b_shape, calls = PROGRAMS[name]
    a, b = integers(rng, *a_shape), integers(rng, *b_shape)
    compiled = jax.jit(build(matmul, einsum)).lower(a, b).compile()
    assert len(CALL.findall(compiled.as_text())) == calls
    assert not COPY.findall(compiled.as_text()), compiled.as_text()
    expected = jax.tree.leaves(jax.jit(build(jnp.matmul, jnp.einsum))(a, b))
    for mine, other in zip(jax.tree.leaves(compiled(a, b)), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(mine, np.float64), np.asarray(other, np.float64))


@pytest.mark.parametrize("m,n,k", [(200, 136, 72), (129, 65, 33), (256, 50257, 128), (1, 512, 256), (512, 1, 256)])
def test_ragged_sizes_and_vectors_are_exact(rng, m, n, k) -> None:
    a, b = integers(rng, m, k), integers(rng, k, n)
    exact = (np.asarray(a, np.float64) @ np.asarray(b, np.float64)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(jax.jit(matmul)(a, b), np.float64), exact.astype(np.float64))


def test_scan_as_the_first_use_of_a_kernel(rng) -> None:
    a, b = integers(rng, 8, 320, 128), integers(rng, 128, 192)
    run = jax.jit(lambda a, b: jax.lax.scan(lambda c, x: (c, matmul(x, b)), 0, a)[1])
    exact = (np.asarray(a, np.float64) @ np.asarray(b, np.float64)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(run(a, b), np.float64), exact.astype(np.float64))


def test_a_program_saved_for_another_machine_runs_here(rng, monkeypatch) -> None:
    monkeypatch.setenv("JAX_CLC_STRICT", "0")  # its part for CPUs is lax.dot_general, as it should be
    pytest.importorskip("flatbuffers", reason="jax.export serializes with flatbuffers")
    a, b = integers(rng, 256, 128), integers(rng, 128, 256)
    saved = jax_clc.export.export(jax.jit(lambda a, b: matmul(a, b)), platforms=("cpu", "cuda"))(a, b).serialize()
    exported = jax_clc.export.deserialize(saved)
    assert "sm90_" in exported.mlir_module()
    exact = (np.asarray(a, np.float64) @ np.asarray(b, np.float64)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(jax.jit(exported.call)(a, b), np.float64), exact.astype(np.float64))


def test_a_program_saved_on_a_machine_without_a_gpu_runs_here(rng) -> None:
    path = os.environ.get("JAX_CLC_SAVED_PROGRAM")
    if not path:
        pytest.skip("JAX_CLC_SAVED_PROGRAM names no file; tests/jax/saved_program.py makes one")
    import saved_program

    exported = jax_clc.export.deserialize(Path(path).read_bytes())
    assert "sm90_" in exported.mlir_module() and "sm100_" in exported.mlir_module()
    a, b = (integers(rng, *shape) for shape in saved_program.SHAPES)
    ours = jax.tree.leaves(jax.jit(exported.call)(a, b))
    theirs = jax.tree.leaves(
        jax.jit(jax.value_and_grad(lambda a, b: (jnp.matmul(a, b) ** 2).astype(jnp.float32).sum(), (0, 1)))(a, b)
    )
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(mine, np.float64), np.asarray(other, np.float64))


def test_two_calls_give_the_same_bits(rng) -> None:
    a, b = (jax.random.normal(key, (1000, 1000), jnp.bfloat16) for key in jax.random.split(jax.random.key(0)))
    run = jax.jit(matmul)
    first = np.asarray(run(a, b))
    assert all((np.asarray(run(a, b)) == first).all() for _ in range(20))
