"""The cache of compiled kernels: builds that run at the same time, and folders that the compiler cannot take."""

import json

import pytest

from kernels import compile as kernel_build
from kernels.variants_sm90 import HOPPER

VARIANT = HOPPER[0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_build, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(kernel_build, "toolchain", dict)  # none need be installed
    return tmp_path


def compiled_as(name, meanwhile=None):
    """Stands for `compile_variant`: writes an entry, after another build has done what `meanwhile` does."""

    def compile_variant(variant, directory):
        if meanwhile is not None:
            meanwhile()
        (directory / "entry.json").write_text(json.dumps({"name": name}))
        return {"name": name}

    return compile_variant


def test_of_two_builds_at_the_same_time_the_first_stays(cache, monkeypatch):
    def other_build():
        monkeypatch.setattr(kernel_build, "compile_variant", compiled_as("other"))
        kernel_build.compile_into_cache(VARIANT)

    monkeypatch.setattr(kernel_build, "compile_variant", compiled_as("own", meanwhile=other_build))
    entry, _ = kernel_build.compile_into_cache(VARIANT)
    assert entry == {"name": "own"}
    assert kernel_build.cached_entry(VARIANT) == {"name": "other"}
    assert [path.name for path in cache.iterdir()] == [kernel_build.cache_key(VARIANT)], "nothing half done is left"


def test_what_was_half_removed_is_compiled_again(cache, monkeypatch):
    (cache / kernel_build.cache_key(VARIANT)).mkdir()
    (cache / kernel_build.cache_key(VARIANT) / "kernel.cubin").write_bytes(b"left over")
    monkeypatch.setattr(kernel_build, "compile_variant", compiled_as("own"))
    kernel_build.compile_into_cache(VARIANT)
    assert kernel_build.cached_entry(VARIANT) == {"name": "own"}


def test_a_folder_for_temporary_files_with_a_space_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("cutlass", reason="compiling kernels needs nvidia-cutlass-dsl")
    monkeypatch.setattr(kernel_build.tempfile, "tempdir", str(tmp_path / "with space"))
    (tmp_path / "with space").mkdir()
    with pytest.raises(ValueError, match="TMPDIR must have no space"):
        kernel_build.compile_variant(VARIANT, tmp_path)
