"""A synthetic catalog for every test of this folder."""

import pytest
import synthetic_manifest


@pytest.fixture(autouse=True)
def catalog_folder(tmp_path_factory, monkeypatch):
    folder = synthetic_manifest.write(tmp_path_factory.mktemp("cubins"))
    monkeypatch.setenv("JAX_CLC_CUBINS", str(folder))
    monkeypatch.delenv("JAX_CLC_TUNED", raising=False)
    return folder
