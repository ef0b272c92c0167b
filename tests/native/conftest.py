"""The extension without kernels, a recording emulated device, a fake CUDA driver."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import FakeDriver
from fake_kernels import RecordingDevice, register

from jax_clc import native as native_module


@pytest.fixture
def native() -> Iterator[Any]:
    """The extension with no kernels registered; afterwards those that ship are back."""
    extension = native_module.extension()
    extension.clear_kernels()
    yield extension
    extension.clear_kernels()
    extension.set_emulator(None)
    native_module._kernels_registered = None


@pytest.fixture
def device(native: Any) -> RecordingDevice:
    recorder = RecordingDevice()
    native.set_emulator(recorder)
    return recorder


@pytest.fixture(scope="session")
def fake_libcuda_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the fake driver with")
    path = tmp_path_factory.mktemp("libcuda") / "libfakecuda.so"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(source), "-lpthread"], check=True)
    return path


@pytest.fixture
def driver(native: Any, fake_libcuda_path: Path) -> Iterator[FakeDriver]:
    fake = FakeDriver(fake_libcuda_path)
    native.set_driver_library(str(fake_libcuda_path))
    yield fake
    assert fake.library.fake_context_depth() == 0, "a handler left a context current"
    native.set_driver_library("libcuda.so.1")


@pytest.fixture
def kernel_folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def ship(native: Any, kernel_folder: Path) -> Any:
    """ship(entry): makes a kernel known to the extension, with its cubin on disk."""
    return lambda entry, **options: register(native, entry, kernel_folder, **options)
