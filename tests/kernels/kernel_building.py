"""Single variants for tests: compiled as they are in the source folder, or, without the DSL, as they are installed.

Each is compiled in a process of its own, into the cache that the kernel build uses.
"""

from __future__ import annotations

import concurrent.futures
import gzip
import hashlib
import importlib.util
import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from jax_clc.planning import catalog
from kernels import compile as kernel_build
from kernels.variant import Variant

TWINS_SOURCE = Path(__file__).with_name("broken_twins.py")


@dataclass(frozen=True)
class Built:
    """A compiled kernel: its manifest entry, its PTX and its cubin."""

    entry: dict
    ptx: str
    cubin: Path


def build(variants: Sequence[Variant], twins: Sequence[str | None] | str | None = None) -> list[Built]:
    """Compiles what the cache lacks; `twins`: names in `broken_twins` whose fault is put in first, one for each
    variant or one for all."""
    twins = [twins] * len(variants) if twins is None or isinstance(twins, str) else twins
    if importlib.util.find_spec("cutlass") is None:
        return [_installed(variant, twin) for variant, twin in zip(variants, twins, strict=True)]
    places = [_place(variant, twin) for variant, twin in zip(variants, twins, strict=True)]
    work = list(zip(variants, twins, places, strict=True))
    missing = [item for item in dict.fromkeys(work) if not (item[2] / "entry.json").exists()]
    if missing:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["cutlass.cute"])
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
            list(pool.map(_compile, *zip(*missing, strict=True)))
    return [_read(place, json.loads((place / "entry.json").read_text())) for place in places]


def _installed(variant: Variant, twin: str | None) -> Built:
    """The kernel that the package ships; skips the test where it ships none."""
    folder = catalog.directory()
    facts = {
        "family": variant.family, "schedule": variant.schedule, "two_sm_mma": variant.two_sm_mma,
        "cta_tile": list(variant.cta_tile), "cluster": list(variant.cluster),
        "dtypes": dict(zip(("a", "b", "accumulator", "d"), variant.dtypes, strict=True)),
        "majors": dict(zip("abd", variant.majors, strict=True)),
        "pingpong": variant.pingpong, "split_k": variant.split_k, "stream_k": variant.stream_k,
        "operand_copies": variant.operand_copies, "output_copies": variant.output_copies,
    }  # fmt: skip
    if variant.schedule == "clc":
        facts["record_stages"] = variant.record_stages
    if twin is None:
        for entry in json.loads((folder / "manifest.json").read_text())["kernels"]:
            if all(entry[key] == value for key, value in facts.items()) and not entry["name"].endswith("traced"):
                return _read(folder, entry)
    what = f"twin {twin}" if twin else variant.name(0)
    pytest.skip(f"{what} does not ship, and without nvidia-cutlass-dsl it cannot be compiled")


def _place(variant: Variant, twin: str | None) -> Path:
    key = kernel_build.cache_key(variant)
    if twin is not None:
        key += f"-{twin}-{hashlib.sha256(TWINS_SOURCE.read_bytes()).hexdigest()[:16]}"
    return kernel_build.cache_directory() / key


def _read(place: Path, entry: dict) -> Built:
    return Built(entry, gzip.decompress((place / entry["ptx"]).read_bytes()).decode(), place / entry["image"])


def _compile(variant: Variant, twin: str | None, place: Path) -> None:
    if twin is None:
        kernel_build.compile_into_cache(variant)
        return
    os.environ["CUTE_DSL_ARCH"] = variant.family
    from broken_twins import HOPPER_TWINS, TWINS

    break_it = TWINS[twin].break_it if twin in TWINS else HOPPER_TWINS[twin][0]
    break_it()
    kernel_build.compile_variant(variant, place)
