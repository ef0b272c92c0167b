"""Kernels that ship, on the emulated device: exact at every seed tried, and the same work under every schedule."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest

from jax_clc.emulator import verification
from jax_clc.emulator.kernel_run import Problem, dtype_of, exact_operands, read_ptx, run_kernel
from jax_clc.planning import catalog

pytestmark = pytest.mark.emulated


@lru_cache(maxsize=1)
def entries() -> dict[str, dict]:
    path = catalog.directory() / "manifest.json"
    if not path.exists():
        return {}
    found = {entry["name"]: entry for entry in json.loads(path.read_text())["kernels"]}
    return {name: entry for name, entry in found.items() if (catalog.directory() / entry["ptx"]).exists()}


def representatives() -> list[str]:
    return sorted(verification.representatives([e for e in entries().values() if not e.get("traced")]))


def need_kernels() -> None:
    if not entries():
        pytest.skip(f"no kernels are built in {catalog.directory()}: run `python -m kernels.compile`")


def test_there_are_kernels_to_verify():
    need_kernels()
    assert representatives()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", representatives())
def test_representative_kernels_are_exact(name, seed):
    entry = entries()[name]
    case = verification.Case(name, verification.shapes_of(entry)[seed], seed)
    outcome = verification.run_case(case, entry, catalog.directory())
    assert outcome.fault is None, f"{outcome.fault}\n{case.command}"


def families_of_schedules() -> list[tuple[str, ...]]:
    """Kernels that differ in their schedule alone, at least two of them; K-major, so that loads name k first."""
    groups = defaultdict(list)
    for entry in entries().values():
        if not entry.get("traced") and not entry["split_k"] and {entry["majors"][o] for o in "ab"} == {"k"}:
            facts = ("family", "cta_tile", "cluster", "two_sm_mma", "pingpong", "dtypes", "majors", "operand_copies")
            groups[repr([entry.get(f) for f in facts]) + str(entry.get("cluster_k", 1))].append(entry["name"])
    return [tuple(sorted(names)) for names in groups.values() if len(names) > 1]


def mma_sequences(name: str, problem: Problem, seed: int) -> tuple[np.ndarray, dict]:
    """D, and for each tile (m, n, l of its first element) the MMAs that made it, in order."""
    entry = entries()[name]
    a, b = exact_operands(entry, problem, 0)
    trace: list = []
    run = run_kernel(entry, read_ptx(entry, catalog.directory()), problem, a, b, seed=seed, sm_count=8, trace=trace)
    by_cta = defaultdict(lambda: ([], []))
    for event in trace:
        if event.kind == "load" and event.what[0] == 0:
            by_cta[event.cta][0].append(event.what[1:])
        elif event.kind == "mma":
            instruction, _, adds = event.what
            if not adds:
                by_cta[event.cta][1].append([])
            by_cta[event.cta][1][-1].append((instruction, adds))
    tiles: dict = {}
    for loads, sequences in by_cta.values():
        starts = list(zip(loads[::2], loads[1::2], strict=True))
        for start, sequence in zip(starts, sequences, strict=False):
            assert start not in tiles
            tiles[start] = sequence
    return run.d, tiles


@pytest.mark.parametrize("names", [g for g in families_of_schedules() if "sm100" in g[0]][:4])
def test_schedules_give_the_same_bits_and_the_same_mma_sequence_per_tile(names):
    entry = entries()[names[0]]
    tile_m, tile_n = (entry["cta_tile"][i] * entry["cluster"][i] for i in (0, 1))
    problem = Problem(2 * tile_m + 8, 2 * tile_n + 8, 3 * entry["cta_tile"][2] + 8, raster_group=2)
    first, *others = (mma_sequences(name, problem, seed) for seed, name in enumerate(names))
    assert all(first[1].values())
    for d, tiles in others:
        assert d.tobytes() == first[0].tobytes()
        assert tiles == first[1]


def last_place(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance of `values` to their neighbours in `dtype`."""
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 1e-30)))) * float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.parametrize("name", representatives())
def test_random_operands_are_multiplied_as_accurately_as_float32_sums_allow(name):
    entry = entries()[name]
    problem = verification.shapes_of(entry)[1]
    draw = np.random.default_rng(1)
    types = [dtype_of(entry["dtypes"][o]) for o in "abd"]
    a = draw.normal(size=(problem.l, problem.m, problem.k)).astype(types[0])
    b = draw.normal(size=(problem.l, problem.n, problem.k)).astype(types[1])
    d = run_kernel(entry, read_ptx(entry, catalog.directory()), problem, a, b, seed=1).d.astype(np.float64)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = wide_a @ wide_b.transpose(0, 2, 1)
    norms = np.linalg.norm(wide_a, axis=2)[:, :, None] * np.linalg.norm(wide_b, axis=2)[:, None, :]
    allowed = np.maximum(last_place(exact, types[2]), np.sqrt(problem.k) * 2.0**-22 * norms)
    assert (np.abs(d - exact) <= allowed).all()
