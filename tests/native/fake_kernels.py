"""Manifest entries of kernels that do not exist, and a device that records what it is asked to launch."""

from __future__ import annotations

import copy
import hashlib
import struct
from pathlib import Path
from typing import Any

TENSOR_MAP_BYTES = 128
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1}


def tensor_map_param(operand: str, axes: list[str], offset: int, box: list[int], dtype: str) -> dict[str, Any]:
    return {
        "kind": "tensor_map", "operand": operand, "offset": offset, "size": TENSOR_MAP_BYTES, "alignment": 64,
        "rank": len(axes), "axes": axes, "element_type": dtype, "box": box, "element_strides": [1] * len(axes),
        "swizzle": "128B", "interleave": "none", "l2_promotion": "128B", "fill": "zeros",
    }  # fmt: skip


def fake_entry(
    name: str = "fake",
    *,
    majors: str = "kkn",
    dtype: str = "bfloat16",
    out_dtype: str | None = None,
    cta_tile: tuple[int, int, int] = (128, 256, 64),
    cluster: tuple[int, int] = (2, 1),
    grid: str = "workers",
    schedule: str = "static",
    counter_bytes: int = 0,
    partial_bytes: int = 0,
    elements: bool = False,
    registers: bool = False,
    family: str = "sm_90a",
    capabilities: tuple[str, ...] = ("9.0",),
    smem: int = 200_000,
    minimum_driver: int = 12000,
    image: bytes = b"fake cubin",
) -> dict[str, Any]:
    """An entry in the form of docs/design.md, 7.1. `majors` are those of a, b and d. It moves all operands by tensor
    maps, or by pointers if `elements`; d by a pointer, 16 bytes at a time, if `registers`."""
    out_dtype = out_dtype or dtype
    operand_axes = {"a": "mk", "b": "kn", "d": "mn"}
    params: list[dict[str, Any]] = []
    offset = 0
    for operand, major in zip("abd", majors, strict=True):
        from_registers = registers and operand == "d"
        if elements or from_registers:
            access = {"access_bytes": 16} if from_registers else {}
            params.append(
                {"kind": "pointer", "operand": operand, **access, "offset": offset, "size": 8, "alignment": 8}
            )
            offset += 8
        else:
            outer = operand_axes[operand].replace(major, "")
            operand_dtype = out_dtype if operand == "d" else dtype
            box = [128 // ITEM_BYTES[operand_dtype], 64, 1]
            params.append(tensor_map_param(operand, [major, outer, "l"], offset, box, operand_dtype))
            offset += TENSOR_MAP_BYTES
    params.append({"kind": "pointer", "operand": "scratch", "offset": offset, "size": 8, "alignment": 8})
    offset += 8
    values = ["m", "n", "k", "l", "raster_group", "raster_along", "split_k"]
    params.append({"kind": "int32", "values": values, "offset": offset, "size": 28, "alignment": 4})
    offset += 32  # aligned for the strides
    by_pointer = "abd" if elements else "d" if registers else ""
    if by_pointer:
        values = [f"{operand}_{axis}" for operand in by_pointer for axis in ("outer", "batch")]
        params.append({"kind": "int64", "values": values, "offset": offset, "size": 8 * len(values), "alignment": 8})
    cluster_size = cluster[0] * cluster[1]
    return {
        "name": name, "abi_version": 1, "family": family, "compute_capabilities": list(capabilities),
        "minimum_driver": minimum_driver, "image": f"{name}.cubin", "image_sha256": hashlib.sha256(image).hexdigest(),
        "ptx": f"{name}.ptx.gz", "symbol": f"kernel_{name}",
        "dtypes": {"a": dtype, "b": dtype, "accumulator": "float32", "d": out_dtype},
        "majors": dict(zip("abd", majors, strict=True)),
        "cta_tile": list(cta_tile), "cluster": list(cluster), "two_sm_mma": False, "pingpong": False,
        "stages": 4, "threads": 384,
        "schedule": schedule, "epilogue": "none", "reduction_order": "k_ascending", "split_k": partial_bytes > 0,
        "operand_copies": "elements" if elements else "tma", "dynamic_smem_bytes": smem, "registers": 168,
        "local_bytes": 0, "tensor_memory_columns": 0, "ctas_per_sm": 1, "record_stages": 0,
        "launch": {"block": [384, 1, 1], "cluster": [cluster_size, 1, 1], "grid": grid},
        "scratch": {
            "counter_bytes": counter_bytes, "partial_bytes_per_element": partial_bytes, "zeroed_bytes": counter_bytes,
        },
        "params": params,
    }  # fmt: skip


def register(native: Any, entry: dict[str, Any], folder: Path, image: bytes = b"fake cubin") -> None:
    """Writes the entry's cubin into `folder` and makes the kernel known to the extension."""
    path = folder / entry["image"]
    path.write_bytes(image)
    native.register_kernel(copy.deepcopy(entry), str(path))


def decode_tensor_map(encoded: bytes) -> dict[str, Any]:
    """The emulated device's tensor map (docs/design.md, 7.4) as fields."""
    assert len(encoded) == TENSOR_MAP_BYTES and encoded[:4] == b"JCTM"
    element_type, rank, interleave, swizzle, l2_promotion, fill = encoded[4:10]
    return {
        "element_type": element_type, "rank": rank, "interleave": interleave, "swizzle": swizzle,
        "l2_promotion": l2_promotion, "fill": fill,
        "address": struct.unpack_from("<Q", encoded, 16)[0],
        "dims": struct.unpack_from("<5Q", encoded, 24)[:rank],
        "strides": struct.unpack_from("<4Q", encoded, 64)[: rank - 1],
        "box": struct.unpack_from("<5H", encoded, 96)[:rank],
        "element_strides": struct.unpack_from("<5B", encoded, 106)[:rank],
    }  # fmt: skip


class RecordingDevice:
    """Records each request; computes nothing. `events` holds (what, arguments) in order."""

    def __init__(self, compute_capability: tuple[int, int] = (9, 0), sm_count: int = 8, clusters: int = 4) -> None:
        self.compute_capability = compute_capability
        self.sm_count = sm_count
        self.clusters = clusters
        self.events: list[tuple[str, dict[str, Any]]] = []

    def load(self, kernel_name: str) -> int:
        self.events.append(("load", {"kernel": kernel_name}))
        return 0

    def max_active_clusters(self, kernel_name, grid, block, cluster, dynamic_smem_bytes) -> int:
        self.events.append(("occupancy", {"kernel": kernel_name, "cluster": cluster, "smem": dynamic_smem_bytes}))
        return self.clusters

    def memset(self, address: int, value: int, count_bytes: int) -> None:
        self.events.append(("memset", {"address": address, "value": value, "bytes": count_bytes}))

    def launch(self, kernel_name, grid, block, cluster, dynamic_smem_bytes, params, buffers) -> None:
        assert isinstance(params, bytes)
        self.events.append(("launch", {
            "kernel": kernel_name, "grid": grid, "block": block, "cluster": cluster, "smem": dynamic_smem_bytes,
            "params": params, "buffers": {name: (address, size) for address, size, name in buffers},
        }))  # fmt: skip

    def of(self, what: str) -> list[dict[str, Any]]:
        return [arguments for kind, arguments in self.events if kind == what]

    @property
    def launched(self) -> dict[str, Any]:
        (launch,) = self.of("launch")
        return launch
