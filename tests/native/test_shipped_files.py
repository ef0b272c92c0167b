"""The kernels as built: every entry is one that the extension takes, every file is the one that was built."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from jax_clc.planning import catalog
from jax_clc.planning.constraints import MAX_SIZE

PACKAGE_BUDGET_BYTES = 25_000_000


@pytest.fixture(scope="module")
def shipped() -> tuple[catalog.Kernel, ...]:
    if not (catalog.directory() / "manifest.json").exists():
        pytest.skip("no kernels are built here (JAX_CLC_KERNELS=OFF)")
    return catalog.kernels(traced=True)


def test_every_entry_is_taken_by_the_extension(native, shipped):
    for kernel in shipped:
        native.register_kernel(dict(kernel.entry), str(catalog.directory() / kernel.entry["image"]))


def test_the_largest_size_rounded_up_to_whole_tiles_fits_in_32_bits(shipped):
    for kernel in shipped:
        for tile in (*kernel.cluster_tile, kernel.cta_tile[2]):
            assert MAX_SIZE + tile - 1 < 2**31, kernel.name


def test_every_cubin_is_the_one_that_was_built_and_has_its_ptx(shipped):
    for kernel in shipped:
        image = (catalog.directory() / kernel.entry["image"]).read_bytes()
        assert hashlib.sha256(image).hexdigest() == kernel.entry["image_sha256"], kernel.name
        ptx = gzip.decompress((catalog.directory() / kernel.entry["ptx"]).read_bytes()).decode()
        assert f".entry {kernel.entry['symbol']}" in ptx, kernel.name


def test_no_file_is_left_from_kernels_that_no_longer_ship(shipped):
    listed = {name for kernel in shipped for name in (kernel.entry["image"], kernel.entry["ptx"])}
    present = {path.name for path in catalog.directory().iterdir()}
    assert present - listed == {"manifest.json"}


def test_installed_package_keeps_its_size_budget(shipped):
    package = Path(catalog.__file__).parent.parent
    files = [*package.rglob("*.py"), *catalog.directory().iterdir(), *package.glob("_native*")]
    size = sum(path.stat().st_size for path in set(files))
    assert size <= PACKAGE_BUDGET_BYTES, f"{size / 1e6:.1f} MB"
