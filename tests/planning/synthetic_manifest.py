"""A manifest in the shipped format, without cubins: kernels from a table of facts, for tests of the planner."""

from __future__ import annotations

import json
from pathlib import Path

SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
CAPABILITIES = {"sm_90a": ["9.0"], "sm_100f": ["10.0", "10.3"]}
AXES = {("a", "k"): "km", ("a", "m"): "mk", ("b", "k"): "kn", ("b", "n"): "nk", ("d", "n"): "nm", ("d", "m"): "mn"}


def entry(
    family: str,
    schedule: str,
    *,
    dtype: str = "bfloat16",
    out: str | None = None,
    majors: str = "kkn",
    cta_tile: tuple[int, int, int] = (128, 256, 64),
    cluster: tuple[int, int] = (1, 1),
    two_sm: bool = False,
    stages: int = 4,
    split_k: bool = False,
    copies: str = "tma",
) -> dict:
    """One manifest entry; `copies` is `tma` or `elements` for all three operands, or `registers` for d."""
    out = out or dtype
    size = cluster[0] * cluster[1]
    tile = "x".join(map(str, cta_tile))
    name = f"{family[:-1].replace('_', '')}_{SHORT[dtype]}_{SHORT[dtype]}_f32_{SHORT[out]}_{majors}_{tile}"
    name += "_2sm" * two_sm + f"_c{cluster[0]}x{cluster[1]}_s{stages}" + "_splitk" * split_k
    name += "_elements" * (copies == "elements") + "_registerstore" * (copies == "registers") + f"_{schedule}"
    params: list[dict] = []
    offset = 0
    for operand, major in zip("abd", majors, strict=True):
        from_registers = copies == "registers" and operand == "d"
        if copies != "elements" and not from_registers:
            params.append({
                "kind": "tensor_map", "operand": operand, "offset": offset, "size": 128, "alignment": 64, "rank": 3,
                "axes": [*AXES[operand, major], "l"], "element_type": out if operand == "d" else dtype,
                "box": [64, 64, 1], "element_strides": [1, 1, 1], "swizzle": "128B", "interleave": "none",
                "l2_promotion": "128B", "fill": "zeros",
            })  # fmt: skip
            offset += 128
        else:
            access = {"access_bytes": 16} if from_registers else {}
            params.append(
                {"kind": "pointer", "operand": operand, **access, "offset": offset, "size": 8, "alignment": 8}
            )
            offset += 8
    params.append({"kind": "pointer", "operand": "scratch", "offset": offset, "size": 8, "alignment": 8})
    values = ["m", "n", "k", "l", "raster_group", "raster_along", "split_k"]
    params.append({"kind": "int32", "values": values, "offset": offset + 8, "size": 28, "alignment": 4})
    counter = 128 if schedule == "dynamic" else 0
    return {
        "name": name, "abi_version": 1, "family": family, "compute_capabilities": CAPABILITIES[family],
        "minimum_driver": 12000, "image": f"{name}.cubin", "image_sha256": "0" * 64, "ptx": f"{name}.ptx.gz",
        "symbol": "kernel", "dtypes": {"a": dtype, "b": dtype, "accumulator": "float32", "d": out},
        "majors": dict(zip("abd", majors, strict=True)), "cta_tile": list(cta_tile), "cluster": list(cluster),
        "two_sm_mma": two_sm, "pingpong": False, "stages": stages, "threads": 384, "schedule": schedule,
        "epilogue": "none",
        "reduction_order": "k_ascending", "split_k": split_k,
        "operand_copies": "elements" if copies == "elements" else "tma", "output_copies": copies,
        "dynamic_smem_bytes": 229376, "registers": 168, "local_bytes": 0,
        "tensor_memory_columns": 512 if family == "sm_100f" else 0,
        "ctas_per_sm": 1, "record_stages": 0,
        "launch": {"block": [384, 1, 1], "cluster": [size, 1, 1],
                   "grid": "workers" if schedule in ("static", "dynamic") else "tiles"},
        "scratch": {"counter_bytes": counter, "partial_bytes_per_element": 4 if split_k else 0,
                    "zeroed_bytes": counter},
        "params": params,
    }  # fmt: skip


def entries() -> list[dict]:
    """About what ships: two families, all majors, the schedules, a few tiles; split-K and element copies on Hopper."""
    found = []
    for dtype in ("bfloat16", "float16"):
        for majors in ("kkn", "knn", "mkn", "mnn", "kkm", "knm", "mkm", "mnm"):
            for schedule in ("nonpersistent", "static", "dynamic"):
                for tile, cluster in (((128, 256, 64), (2, 1)), ((128, 128, 64), (1, 1)), ((64, 128, 64), (1, 1))):
                    found.append(entry("sm_90a", schedule, dtype=dtype, majors=majors, cta_tile=tile, cluster=cluster))
    for majors in ("kkn", "knn", "mkn", "mnn"):
        for schedule in ("nonpersistent", "static", "clc"):
            found.append(entry("sm_100f", schedule, majors=majors, cluster=(2, 1), two_sm=True, stages=6))
            found.append(entry("sm_100f", schedule, majors=majors, cta_tile=(128, 128, 64), stages=6))
        found.append(entry("sm_90a", "static", majors=majors, cta_tile=(128, 128, 64), split_k=True))
        found.append(entry("sm_90a", "static", majors=majors, cta_tile=(128, 128, 64), copies="elements"))
    found.append(entry("sm_90a", "static", out="float32", cluster=(2, 1)))
    return found


def write(folder: Path, content: list[dict] | None = None) -> Path:
    """A manifest in `folder`, as the kernel build would leave it; gives the folder back."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "format": 1,
        "package_version": "0.1.0",
        "toolchain": {"nvidia-cutlass-dsl": "4.8.1", "ptxas": "12.9"},
        "kernels": entries() if content is None else content,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
