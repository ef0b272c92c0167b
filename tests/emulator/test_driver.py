"""The emulated device as the extension's driver table sees it: which GPU it is."""

from __future__ import annotations

import pytest

from jax_clc.emulator.driver import EmulatedDevice


@pytest.mark.parametrize("arch, capability", [
    ("sm_90a", (9, 0)), ("9.0", (9, 0)), (" SM_90A", (9, 0)), ("sm_100f", (10, 0)), ("10.0", (10, 0)),
    ("sm_103", (10, 3)), ("10.3", (10, 3)), (" 10.3 ", (10, 3)),
])  # fmt: skip
def test_the_device_has_the_compute_capability_that_its_arch_names(arch, capability):
    assert EmulatedDevice(arch).compute_capability == capability


@pytest.mark.parametrize("arch", ["8.0", "sm_120a", "x90"])
def test_a_device_that_no_kernel_is_built_for_is_a_value_error(arch):
    with pytest.raises(ValueError, match="no kernels are built for"):
        EmulatedDevice(arch)
