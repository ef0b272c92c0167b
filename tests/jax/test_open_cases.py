"""Faults reported of systems of this kind, by the number they have in the list of open cases; each in every place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_clc
from jax_clc.matmul import dot_general, matmul

PACKAGE_FOLDER = Path(jax_clc.__file__).parents[1]
"""Where the package under test lies, installed or in the source folder."""


def integers(rng, *shape, dtype=jnp.bfloat16):
    return jnp.asarray(rng.integers(-2, 3, shape), dtype)


def same(ours, theirs) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_array_equal(np.asarray(ours, np.float64), np.asarray(theirs, np.float64))


@pytest.mark.parametrize("shapes", [((4, 0), (0, 4)), ((3, 4, 0), (3, 0, 5)), ((0, 4), (4, 3)), ((0, 3, 4), (0, 4, 3))])
@pytest.mark.parametrize("compile_it", [False, True])
def test_case_16_an_empty_sum_is_zero(place, shapes, compile_it) -> None:
    a, b = (jnp.ones(shape, jnp.bfloat16) for shape in shapes)
    same((jax.jit(matmul) if compile_it else matmul)(a, b), jnp.zeros(jnp.matmul(a, b).shape, jnp.bfloat16))
    gradient = jax.grad(lambda a, b: matmul(a, b).astype(jnp.float32).sum(), (0, 1))(a, b)
    assert [g.shape for g in gradient] == list(shapes)


@pytest.mark.parametrize("m,n,k", [(24, 40, 56), (65, 33, 72), (17, 100, 7), (16, 8, 100)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_case_17_nan_and_inf_stay_in_their_row_and_column(place, rng, m, n, k, bad) -> None:
    a, b = integers(rng, m, k).at[m // 2, k - 1].set(bad), integers(rng, k, n).at[0, n - 1].set(bad)
    ours, theirs = np.asarray(matmul(a, b), np.float64), np.asarray(jnp.matmul(a, b), np.float64)
    np.testing.assert_array_equal(ours, theirs)
    clean = np.ones((m, n), bool)
    clean[m // 2], clean[:, n - 1] = False, False
    assert np.isfinite(ours[clean]).all()


def test_case_19_cotangents_have_the_operands_dtypes(place, rng) -> None:
    a, b = integers(rng, 16, 32), integers(rng, 32, 24)
    wide = lambda call: jax.grad(lambda a, b: call(a, b, preferred_element_type=jnp.float32).sum(), (0, 1))(a, b)  # noqa: E731
    for mine, other in zip(wide(matmul), wide(jnp.matmul), strict=True):
        assert mine.dtype == jnp.bfloat16
        same(mine, other)


def test_case_20_double_results_of_single_operands_are_right(place) -> None:
    with jax.enable_x64(True):
        a = jnp.asarray([[1.0, 2.0**-24], [3.0, 1.0]], jnp.float32)
        out = matmul(a, a, preferred_element_type=jnp.float64)
        assert out.dtype == jnp.float64
        np.testing.assert_allclose(np.asarray(out), np.asarray(a, np.float64) @ np.asarray(a, np.float64), rtol=1e-12)


@pytest.mark.parametrize("spec", ["None0-0None", "0None-None0", "axes"])
def test_case_21_nested_vmap_with_mixed_axes(place, rng, spec) -> None:
    a, b = integers(rng, 3, 8, 16), integers(rng, 4, 16, 8)

    def run(call):
        if spec == "None0-0None":
            return jax.vmap(jax.vmap(call, (None, 0)), (0, None))(a, b)
        if spec == "0None-None0":
            return jax.vmap(jax.vmap(call, (0, None)), (None, 0))(a, b)
        return jax.vmap(call, (2, None), 1)(jnp.moveaxis(a, 0, 2), b[0])

    same(run(matmul), run(jnp.matmul))


def test_case_22_an_array_and_its_transpose(place, rng) -> None:
    a, b = integers(rng, 16, 16), integers(rng, 16, 16)

    def both(call):
        return jax.jit(lambda a, b: (call(a, b), call(a, b).T, call(a.T, b), call(a, b.T), call(a.T, b.T).T))(a, b)

    for mine, other in zip(both(matmul), both(jnp.matmul), strict=True):
        same(mine, other)


def test_case_22_operands_in_a_layout_of_the_users(place, rng) -> None:
    from jax.experimental.layout import Format, Layout

    a, b = integers(rng, 16, 32), integers(rng, 32, 24)
    column_major = Format(Layout((1, 0)), a.sharding)
    placed = jax.device_put(a, column_major)
    same(jax.jit(matmul, in_shardings=(column_major, None))(placed, b), jnp.matmul(a, b))


def test_drop_in_for_flax_style_callers(place, rng) -> None:
    a, b = integers(rng, 8, 16), integers(rng, 16, 8)
    numbers = (((1,), (0,)), ((), ()))
    same(dot_general(a, b, numbers, precision=None), lax.dot_general(a, b, numbers, precision=None))


def run_python(code: str, **environment: str) -> str:
    path = os.pathsep.join([str(PACKAGE_FOLDER), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_case_24_importing_starts_no_backend_and_needs_no_driver() -> None:
    code = "import jax_clc, jax._src.xla_bridge as x; print(x._backends, 'libcuda' in open('/proc/self/maps').read())"
    assert run_python(code, JAX_PLATFORMS="cpu").split() == ["{}", "False"]


def test_case_24_a_fork_before_first_use_works() -> None:
    code = """
import os, jax_clc, jax.numpy as jnp
child = os.fork()
total = float(jax_clc.matmul(jnp.ones((8, 8), jnp.bfloat16), jnp.ones((8, 8), jnp.bfloat16)).sum())
if child == 0:
    os._exit(0 if total == 512 else 1)
print(os.waitpid(child, 0)[1], total)
"""
    assert run_python(code, JAX_PLATFORMS="cpu").split() == ["0", "512.0"]


def test_case_25_this_jaxlib_takes_the_handlers() -> None:
    from jax_clc import native

    try:
        native.extension()
    except native.NativeError as error:
        pytest.skip(f"no extension for this Python: {error}")
    native.register()
    code = "import jax_clc, jax.numpy as jnp; print(jax_clc.matmul(jnp.ones((2, 2)), jnp.ones((2, 2)))[0, 0])"
    assert run_python(code, JAX_PLATFORMS="cpu").split() == ["2.0"]
