"""The emulated device gives what an H200 gave: the same bits of exact sums, and random sums to within rounding."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import jax_clc

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "evidence" / "h200_products.json"
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

from same_products import SameProduct, products  # noqa: E402

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(
        not RECORDED.is_file(), reason="no GPU has recorded its products yet: tests/gpu/same_products.py does"
    ),
]


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, str]]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))["products"]


def units_in_the_last_place(dtype: np.dtype, values: np.ndarray) -> np.ndarray:
    """The distance between neighbours at `values`, of a 16-bit float."""
    explicit_bits = {"bfloat16": 7, "float16": 10}[dtype.name]
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 2.0**-14))) - explicit_bits)


def allowed(product: SameProduct, a: np.ndarray, b: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """One unit in the last place of a 16-bit result, or sqrt(k) * 2^-22 of the operands' norms if that is larger."""
    rows = np.linalg.norm(a, axis=-1)[..., :, None]
    columns = np.linalg.norm(b, axis=-2)[..., None, :]
    bound = np.sqrt(product.problem.k) * 2.0**-22 * rows * columns
    if expected.dtype.itemsize == 2:
        bound = np.maximum(bound, units_in_the_last_place(expected.dtype, expected.astype(np.float64)))
    return bound


@pytest.mark.parametrize("product", list(products()), ids=lambda product: product.key.replace(" ", "-"))
def test_the_emulated_device_gives_what_the_gpu_gave(product, recorded):
    assert product.key in recorded, "kernels have changed since the recording: make it anew on a GPU"
    with jax_clc.emulated("sm_90a", sm_count=4, seed=product.seed):
        result = product.result()
    there = recorded[product.key]
    if not product.random:
        assert hashlib.sha256(result.tobytes()).hexdigest() == there["sha256"]
        return
    expected = np.frombuffer(base64.b64decode(there["bits"]), result.dtype).reshape(result.shape)
    a, b = (np.asarray(x, np.float64) for x in product.operands())
    a = a if product.problem.a_major == "k" else np.swapaxes(a, -1, -2)
    b = b if product.problem.b_major == "n" else np.swapaxes(b, -1, -2)
    difference = np.abs(result.astype(np.float64) - expected.astype(np.float64))
    assert np.all(difference <= allowed(product, a, b, expected)), f"largest difference {difference.max():.3g}"
