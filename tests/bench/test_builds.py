"""Builds of one kernel side by side: names of their own, and each runs."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("benchmarks", reason="benchmarks/ is in the source folder only")

from benchmarks import builds  # noqa: E402
from jax_clc.planning import catalog  # noqa: E402


@pytest.fixture
def shipped():
    try:
        catalog.manifest()
    except catalog.CatalogError as error:
        pytest.skip(f"no kernels are built here: {error}")
    return catalog.directory()


@pytest.fixture
def kernel(shipped):
    """The name of a kernel that ships, for row-major bfloat16."""
    return next(
        one.name for one in catalog.kernels("sm_90a")
        if one.schedule == "static" and one.name.startswith("sm90_bf16_bf16_f32_bf16_knn_") and not one.stream_k
    )  # fmt: skip


def test_builds_lie_side_by_side(tmp_path, shipped, kernel, monkeypatch):
    pairs = [("old", shipped), ("new", shipped)]
    names = builds.merge(tmp_path, pairs, [kernel])
    assert names == [f"{kernel}@old", f"{kernel}@new"]
    monkeypatch.setenv("JAX_CLC_CUBINS", str(tmp_path))
    assert [one.name for one in catalog.kernels()] == sorted(names)
    for entry in json.loads((tmp_path / "manifest.json").read_text())["kernels"]:
        assert (tmp_path / entry["image"]).read_bytes() == (shipped / f"{kernel}.cubin").read_bytes()
        assert (tmp_path / entry["ptx"]).name == f"{entry['name']}.ptx.gz"


@pytest.mark.emulated
def test_a_kernel_of_each_build_runs_by_its_name(tmp_path, shipped, kernel, monkeypatch):
    jax = pytest.importorskip("jax")
    import jax_clc

    names = builds.merge(tmp_path, [("old", shipped), ("new", shipped)], [kernel])
    monkeypatch.setenv("JAX_CLC_CUBINS", str(tmp_path))
    a, b = (np.random.default_rng(seed).integers(-2, 3, (64, 64)) for seed in (0, 1))
    first, second = (jax.numpy.asarray(x, jax.numpy.bfloat16) for x in (a, b))
    for name in names:
        with jax_clc.emulated("sm_90a", sm_count=4):
            product = jax.jit(lambda a, b, name=name: jax_clc.matmul(a, b, kernel=name)).lower(first, second)
            assert name in product.as_text()
            np.testing.assert_array_equal(np.asarray(product.compile()(first, second), np.float32), a @ b)


def test_what_is_no_build_is_refused(tmp_path, shipped, capsys):
    shutil.copy(shipped / "manifest.json", tmp_path)
    for arguments in ([f"a={tmp_path}/none"], [f"={tmp_path}"], [str(tmp_path)]):
        with pytest.raises(SystemExit):
            builds.main([str(tmp_path / "out"), *arguments])
        assert "is not NAME=FOLDER" in capsys.readouterr().err
    for arguments, reason in (
        ([f"a={tmp_path}", "--kernel", "none*"], "no kernel of"),
        ([f"a={tmp_path}", f"a={tmp_path}"], "a name of its own"),
    ):
        with pytest.raises(SystemExit):
            builds.main([str(tmp_path / "out"), *arguments])
        assert reason in capsys.readouterr().err
    with pytest.raises(ValueError, match="it would be overwritten"):
        builds.merge(tmp_path, [("a", shipped), ("b", tmp_path)])
