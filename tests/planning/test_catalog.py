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


@pytest.mark.parametrize("arch, capability", [
    ("sm_90a", (9, 0)), ("9.0", (9, 0)), ("SM_90", (9, 0)), ("sm_100f", (10, 0)), ("sm_100a", (10, 0)),
    ("10.0", (10, 0)), ("10.3", (10, 3)), (" 10.3 ", (10, 3)), ("sm_103", (10, 3)), (" SM_103A\n", (10, 3)),
])  # fmt: skip
def test_a_name_of_an_architecture_means_one_compute_capability(arch, capability):
    assert catalog.compute_capability_of(arch) == capability


@pytest.mark.parametrize("arch", ["8.0", "sm_120", "90", "10.30", ""])
def test_the_compute_capability_of_an_arch_without_kernels_is_a_value_error(arch):
    with pytest.raises(ValueError, match="there are kernels for sm_90a"):
        catalog.compute_capability_of(arch)


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


@pytest.mark.parametrize(
    "damage",
    ["", "{", '{"format": 99}', "[]", '{"format": 1}', '{"format": 1, "kernels": null}',
     '{"format": 1, "kernels": {"a": 1}}', "[" * 100_000, "9" * 5000],
)  # fmt: skip
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


@pytest.mark.parametrize("change, text", [
    (lambda e: e.update(name=5), r"\?: the field 'name' is 5, expected text"),
    (lambda e: e.update(name=[[[[[[[[5]]]]]]]]), r"the field 'name' is \[+\.\.\.\]+, expected text"),
    (lambda e: e.update(image=None), "the field 'image' is None, expected text"),
    (lambda e: e.update(symbol=["k"]), "the field 'symbol'"),
    (lambda e: e.update(family=["sm_90a"]), "the field 'family'"),
    (lambda e: e.update(compute_capabilities="9.0"), "the field 'compute_capabilities' is '9.0', expected a list of"),
    (lambda e: e.update(cta_tile=[128, 0, 64]), r"the field 'cta_tile' is \[128, 0, 64\], expected 3 whole numbers"),
    (lambda e: e.update(cta_tile=[128, 128]), "the field 'cta_tile'"),
    (lambda e: e.update(cluster=[0, 1]), r"the field 'cluster' is \[0, 1\], expected 2 whole numbers from 1"),
    (lambda e: e.update(cluster=[1.0, 1]), "the field 'cluster'"),
    (lambda e: e.update(cluster_k=0), "the field 'cluster_k' is 0, expected a whole number from 1"),
    (lambda e: e.update(stages=0), "the field 'stages' is 0, expected a whole number from 1"),
    (lambda e: e.update(stages="4"), "the field 'stages' is '4', expected a whole number from 1"),
    (lambda e: e.update(threads=True), "the field 'threads' is True"),
    (lambda e: e.update(ctas_per_sm=-1), "the field 'ctas_per_sm'"),
    (lambda e: e.update(split_k=1), "the field 'split_k' is 1, expected true or false"),
    (lambda e: e.update(traced=None), "the field 'traced' is None"),
    (lambda e: e.update(scratch=5), "the field 'scratch' is 5, expected an object"),
    (lambda e: e["scratch"].update(counter_bytes=-1), "the field 'counter_bytes' is -1, expected a whole number"),
    (lambda e: e.update(launch=[]), "the field 'launch'"),
    (lambda e: e["dtypes"].update(accumulator=4), "the field 'accumulator'"),
    (lambda e: e.update(params=None), "the field 'params' is None, expected a list of objects"),
    (lambda e: e.update(params=[5]), "the field 'params'"),
    (lambda e: e["params"][0].update(operand=5), "the field 'operand' is 5"),
])  # fmt: skip
def test_damage_within_an_entry_names_the_field(change, text, tmp_path, monkeypatch):
    entry, other = (synthetic_manifest.entry("sm_90a", schedule) for schedule in ("static", "dynamic"))
    change(entry)
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path, [other, entry])))
    with pytest.raises(CatalogError, match=rf"manifest\.json is damaged at kernel .*{text}") as error:
        catalog.kernels()
    assert "ebuild" in str(error.value)


@pytest.mark.parametrize("entry", [5, None, "name", [1]])
def test_an_entry_that_is_no_object_is_damage(entry, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_CLC_CUBINS", str(synthetic_manifest.write(tmp_path, [entry])))
    with pytest.raises(CatalogError, match=r"manifest\.json is damaged at kernel \?"):
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
