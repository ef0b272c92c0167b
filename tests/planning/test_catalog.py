"""The catalog: reads the manifest lazily, and says which file is wrong and how to rebuild it."""

import json
import subprocess
import sys

import pytest
import synthetic_manifest

from jax_clc.planning import CatalogError, catalog


def test_every_entry_becomes_a_kernel_sorted_by_name():
    kernels = catalog.kernels()
    assert len(kernels) == len(synthetic_manifest.entries())
    assert [k.name for k in kernels] == sorted(k.name for k in kernels)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_90", "9.0", "SM_90A"])
def test_arch_is_a_family_an_architecture_or_a_compute_capability(arch):
    assert {k.family for k in catalog.kernels(arch)} == {"sm_90a"}


def test_b300_runs_the_blackwell_kernels():
    assert catalog.kernels("10.3") == catalog.kernels("sm_100f") != ()


def test_an_arch_without_kernels_is_a_value_error_that_names_those_with():
    with pytest.raises(ValueError, match=r"'8\.0'.*sm_90a.*sm_100f"):
        catalog.kernels("8.0")


def test_copies_are_read_off_the_parameters():
    kernels = catalog.kernels("sm_90a")
    assert {k.aligned_operands for k in kernels} == {frozenset("abd"), frozenset()}


def test_a_pointer_of_16_byte_accesses_must_be_aligned_as_for_a_tensor_map():
    entry = synthetic_manifest.entry("sm_90a", "nonpersistent", copies="registers")
    assert catalog.Kernel.from_entry(entry).aligned_operands == frozenset("abd")


def test_missing_manifest_names_the_file_and_how_to_rebuild(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_CLC_CUBINS", str(tmp_path / "nowhere"))
    with pytest.raises(CatalogError, match=r"nowhere.manifest\.json.*pip install"):
        catalog.kernels()


@pytest.mark.parametrize("damage", ["", "{", '{"format": 99}', "[]"])
def test_damaged_manifest_names_the_file_and_how_to_rebuild(tmp_path, monkeypatch, damage):
    (tmp_path / "manifest.json").write_text(damage)
    monkeypatch.setenv("JAX_CLC_CUBINS", str(tmp_path))
    with pytest.raises(CatalogError, match=r"manifest\.json.*pip install"):
        catalog.kernels()


def test_damaged_entry_is_named(tmp_path, monkeypatch):
    entry = synthetic_manifest.entry("sm_90a", "static")
    del entry["cta_tile"]
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path, [entry])))
    with pytest.raises(CatalogError, match=f"{entry['name']}.*cta_tile"):
        catalog.kernels()


def test_planning_imports_neither_jax_nor_the_extension():
    code = (
        "import sys, types; package = types.ModuleType('jax_clc'); package.__path__ = [sys.argv[1]];"
        "sys.modules['jax_clc'] = package; import jax_clc.planning, json;"
        "print(json.dumps([m for m in sys.modules if m == 'jax' or m.startswith('jaxlib') or m.endswith('_native')]))"
    )
    folder = str(catalog.__file__).rsplit("/planning/", 1)[0]
    output = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []


def test_in_a_source_folder_the_way_out_is_to_start_python_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "PACKAGE_FOLDER", tmp_path / "jax_clc")
    assert catalog.how_to_rebuild() == "Rebuild it with `pip install .` in the source folder."
    (tmp_path / "CMakeLists.txt").touch()
    assert f"source folder {tmp_path}: start Python elsewhere" in catalog.how_to_rebuild()
