"""Kernels from elsewhere run right, and are judged by the rules of the ISA; what only our axioms forbid is unproven."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jax_clc.emulator import errors
from jax_clc.emulator.axioms import Axioms
from jax_clc.emulator.options import Hostility
from jax_clc.emulator.run import Buffer, RunReport, run_ptx

PTX = Path(__file__).parent / "ptx"
SHARED = {"bf16_sm90": 36864, "fp32_sm90": 73728, "bf16_sm100": 36880}


def triton_matmul(name: str, seed: int, **options) -> RunReport:
    """Runs a Triton matmul with tails in every axis and checks it to be exact."""
    m, n, k = 200, 88, 112
    rng = np.random.default_rng(seed)
    dtype = np.float32 if "fp32" in name else ml_dtypes.bfloat16
    a, b = rng.integers(-4, 5, (m, k)).astype(dtype), rng.integers(-4, 5, (n, k)).astype(dtype)
    c, scratch = np.zeros((m, n), np.float32), np.zeros(16, np.uint8)
    report = run_ptx(
        (PTX / f"triton_matmul_{name}.ptx").read_text(),
        grid=4,
        block=128,
        args=[a, b, Buffer(c, output=True), m, n, k, scratch, scratch],
        dynamic_smem_bytes=SHARED[name],
        arch="sm_100a" if "sm100" in name else "sm_90a",
        seed=seed,
        **options,
    )
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    return report


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["bf16_sm90", "fp32_sm90"])
def test_a_fence_in_another_thread_is_unproven(name, seed):
    report = triton_matmul(name, seed, foreign=True)
    assert {error.axiom for error in report.unproven} == {"fence_by_accessing_thread"}
    assert triton_matmul(name, seed, axioms=Axioms(fence_by_accessing_thread=False)).unproven == []


def test_the_same_is_an_error_in_a_kernel_of_ours():
    with pytest.raises(errors.MissingProxyFence, match="fence_by_accessing_thread"):
        triton_matmul("fp32_sm90", 0)


# Triton leaves out both tcgen05 fences and moves registers between tcgen05.ld and its wait.


def test_missing_tensor_memory_fences_break_a_rule_of_the_isa():
    with pytest.raises(errors.TensorMemoryNotReady, match="tensor_fences"):
        triton_matmul("bf16_sm100", 0, foreign=True)


def test_triton_on_blackwell_is_exact_where_these_rules_are_switched_off():
    report = triton_matmul(
        "bf16_sm100",
        0,
        foreign=True,
        axioms=Axioms(tensor_fences=False, fence_by_accessing_thread=False),
        hostility=Hostility(tensor_loads_pending=False),
    )
    assert report.unproven == []
