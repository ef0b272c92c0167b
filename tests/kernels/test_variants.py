"""The list of kernels that ship keeps to its budget."""

import collections
import re
from pathlib import Path

from kernels.variants import VARIANTS

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


def test_no_more_kernels_ship_than_the_design_allows():
    budget = int(re.search(r"at most (\d+) per GPU family, traced builds apart", DESIGN.read_text("utf-8"))[1])
    families = collections.Counter(variant.family for variant in VARIANTS if not variant.traced)
    assert families.keys() == {"sm_90a", "sm_100f"}
    assert max(families.values()) <= budget


def test_no_kernel_is_listed_twice():
    assert len(set(VARIANTS)) == len(VARIANTS)
