"""One GEMM kernel of the manifest on the emulated device, from NumPy arrays, without the extension: for tests and
`verify`.

The parameter block, tensor maps and grid are made here from the manifest entry as design.md 7.1 says, a second reading
of the contract beside the extension's.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np

from .axioms import STRICT, Axioms
from .launch_arguments import FIRST_ADDRESS, GUARD, LaunchError
from .machine import Launch, Machine, TraceEvent
from .options import Hostility
from .referee import Referee
from .run import add_module_data, check_parameters, load_program, new_referee
from .tensor_map import TensorMap

ELEMENT_CODES = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7,
                 "float64": 8, "bfloat16": 9, "float8_e4m3fn": 0, "float8_e5m2": 0, "int8": 0}  # fmt: skip
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
OPERAND_AXES = {"a": ("m", "k"), "b": ("n", "k"), "d": ("m", "n")}


def dtype_of(name: str) -> np.dtype:
    """A manifest dtype name as a NumPy dtype."""
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True, slots=True)
class KernelRun:
    """What came out: D as (l, m, n) and what the machine did."""

    d: np.ndarray
    instructions: int
    ticks: int
    launches: list[Launch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes in the kernel's own terms. `raster_group` of cluster tiles; `workers`: most clusters of a persistent
    grid.
    """

    m: int
    n: int
    k: int
    l: int = 1  # noqa: E741 - the field's name for the batch
    raster_group: int = 1
    raster_along: int = 0
    split_k: int = 1
    workers: int | None = None


def read_ptx(entry: Mapping, folder: Path) -> str:
    """The PTX text that ships next to a cubin."""
    path = folder / entry["ptx"]
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    return path.read_text()


class Operand:
    """One operand in emulated global memory: (l, outer, inner) with rows padded to 16 bytes where the kernel moves so
    many at a time.
    """

    def __init__(self, name: str, entry: Mapping, problem: Problem, values: np.ndarray | None, padded: bool):
        self.name = name
        self.dtype = dtype_of(entry["dtypes"][name])
        inner = entry["majors"][name]
        self.axes = (inner, next(a for a in OPERAND_AXES[name] if a != inner), "l")
        sizes = {axis: getattr(problem, axis) for axis in "mnkl"}
        self.inner, self.outer, self.batch = (sizes[a] for a in self.axes)
        step = max(16 // self.dtype.itemsize, 1) if padded else 1
        self.pitch = -(-self.inner // step) * step
        self.storage = np.zeros((self.batch, self.outer, self.pitch), self.dtype)
        self.storage.view(np.uint8).fill(0xFF)  # NaN everywhere that is not written
        if values is not None:
            natural = OPERAND_AXES[name]
            self.storage[:, :, : self.inner] = values if self.axes[1] == natural[0] else values.transpose(0, 2, 1)
        self.address = 0

    @property
    def values(self) -> np.ndarray:
        """(l, m, n) of D, (l, m, k) of A, (l, n, k) of B."""
        view = self.storage[:, :, : self.inner]
        return view if self.axes[1] == OPERAND_AXES[self.name][0] else view.transpose(0, 2, 1)

    def element_strides(self) -> tuple[int, int]:
        """(outer, batch) strides in elements."""
        return self.pitch, self.pitch * self.outer

    def tensor_map(self, parameter: Mapping) -> TensorMap:
        sizes = {self.axes[0]: self.inner, self.axes[1]: self.outer, "l": self.batch}
        strides = {self.axes[1]: self.pitch * self.dtype.itemsize, "l": self.pitch * self.outer * self.dtype.itemsize}
        axes = parameter["axes"]
        if axes[0] != self.axes[0]:
            raise LaunchError(f"tensor map of {self.name} has {axes[0]} innermost, the operand {self.axes[0]}")
        return TensorMap(
            element_type=ELEMENT_CODES[parameter["element_type"]], address=self.address,
            dims=tuple(sizes[a] for a in axes), strides_bytes=tuple(strides[a] for a in axes[1:]),
            box=tuple(parameter["box"]), element_strides=tuple(parameter["element_strides"]),
            swizzle=SWIZZLES[parameter["swizzle"]], fill=0 if parameter["fill"] == "zeros" else 1,
        )  # fmt: skip


def region_of_d(entry: Mapping, params: bytes, size: int) -> np.ndarray:
    """bool per byte of D's buffer: which belong to elements of D, read from the parameter block. Rows may be padded."""
    item = dtype_of(entry["dtypes"]["d"]).itemsize
    for parameter in entry["params"]:
        if parameter["kind"] == "tensor_map" and parameter["operand"] == "d":
            view = TensorMap.from_bytes(params[parameter["offset"] : parameter["offset"] + 128])
            counts, strides = view.dims[1:], view.strides_bytes
            row = view.dims[0] * item
            break
    else:
        numbers = {}
        for parameter in entry["params"]:
            width = 8 if parameter["kind"] == "int64" else 4
            for index, name in enumerate(parameter.get("values", ())):
                place = parameter["offset"] + index * width
                numbers[name] = int.from_bytes(params[place : place + width], "little", signed=True)
        inner = entry["majors"]["d"]
        counts = (numbers["m" if inner == "n" else "n"], numbers["l"])
        strides = (numbers["d_outer"] * item, numbers["d_batch"] * item)
        row = numbers[inner] * item
    starts = np.zeros(1, np.int64)
    for count, stride in zip(counts, strides, strict=True):
        starts = (starts[:, None] + np.arange(count) * stride).reshape(-1)
    region = np.zeros(size, bool)
    for start in starts.tolist():
        region[start : start + row] = True
    return region


def cluster_tiles(entry: Mapping, problem: Problem) -> int:
    """Cluster tiles of a problem."""
    tile_m = entry["cta_tile"][0] * entry["cluster"][0]
    tile_n = entry["cta_tile"][1] * entry["cluster"][1]
    return problem.l * -(-problem.m // tile_m) * -(-problem.n // tile_n) * problem.split_k


def scratch_bytes(entry: Mapping, problem: Problem) -> int:
    """Bytes of scratch, as `jax_clc/planning/scratch.py` says."""
    scratch = entry["scratch"]
    if problem.split_k <= 1:
        return scratch["counter_bytes"]
    tile_m = entry["cta_tile"][0] * entry["cluster"][0]
    tile_n = entry["cta_tile"][1] * entry["cluster"][1]
    elements = problem.l * (-(-problem.m // tile_m) * tile_m) * (-(-problem.n // tile_n) * tile_n)
    return scratch["counter_bytes"] + problem.split_k * elements * scratch["partial_bytes_per_element"]


def run_kernel(
    entry: Mapping,
    ptx: str,
    problem: Problem,
    a: np.ndarray,
    b: np.ndarray,
    *,
    sm_count: int = 8,
    seed: int = 0,
    hostility: Hostility | None = None,
    axioms: Axioms = STRICT,
    referee: bool | Referee = True,
    trace: list[TraceEvent] | None = None,
) -> KernelRun:
    """Run a manifest entry's kernel: a (l, m, k), b (l, n, k) -> D (l, m, n). Raises EmulatorError subclasses."""
    block = tuple(entry["launch"]["block"])
    cluster = tuple(entry["launch"]["cluster"])
    program = load_program(ptx, entry["symbol"], block)
    judge = referee if isinstance(referee, Referee) else new_referee(program, axioms, False) if referee else None
    machine = Machine(sm_count, seed, hostility or Hostility(), judge, axioms)
    machine.trace = trace
    padded = {p["operand"] for p in entry["params"] if p["kind"] == "tensor_map" or "access_bytes" in p}
    operands = {
        name: Operand(name, entry, problem, values, name in padded)
        for name, values in (("a", a), ("b", b), ("d", None))
    }
    address = FIRST_ADDRESS
    for operand in operands.values():
        operand.address = address
        flat = operand.storage.reshape(-1).view(np.uint8)
        allocation = machine.memory.add(address, flat, operand.name)
        if operand.name == "d":
            output = allocation
        address = -(-(address + flat.size + GUARD) // 256) * 256
    scratch = np.full(max(scratch_bytes(entry, problem), 1), 0xFF, np.uint8)
    scratch[: entry["scratch"]["zeroed_bytes"]] = 0
    machine.memory.add(address, scratch, "scratch")
    params = pack_parameters(entry, problem, operands, address)
    check_parameters(program.kernel, params)
    output.audit(region_of_d(entry, params, len(output.data)), operands["d"].dtype.itemsize)
    data = add_module_data(machine, program)
    tiles = cluster_tiles(entry, problem)
    size = cluster[0] * cluster[1] * cluster[2]
    clusters = tiles
    if entry["launch"]["grid"] == "workers":
        clusters = min(tiles, entry["ctas_per_sm"] * (sm_count // size), problem.workers or tiles)
    machine.run_grid(program, (clusters * size, 1, 1), block, cluster, entry["dynamic_smem_bytes"], params, data)
    machine.memory.check_coverage()
    return KernelRun(operands["d"].values, machine.instructions, machine.now, list(machine.launches.values()))


def pack_parameters(entry: Mapping, problem: Problem, operands: Mapping[str, Operand], scratch: int) -> bytes:
    """The parameter block of a launch."""
    numbers = {name: getattr(problem, name) for name in ("m", "n", "k", "l", "raster_group", "raster_along", "split_k")}
    for name, operand in operands.items():
        numbers[f"{name}_outer"], numbers[f"{name}_batch"] = operand.element_strides()
    block = bytearray(max(p["offset"] + p["size"] for p in entry["params"]))
    for parameter in entry["params"]:
        kind = parameter["kind"]
        if kind == "tensor_map":
            data = operands[parameter["operand"]].tensor_map(parameter).to_bytes()
        elif kind == "pointer":
            place = scratch if parameter["operand"] == "scratch" else operands[parameter["operand"]].address
            data = place.to_bytes(8, "little")
        else:
            width = 8 if kind == "int64" else 4
            data = b"".join(int(numbers[v]).to_bytes(width, "little", signed=True) for v in parameter["values"])
        if len(data) != parameter["size"]:
            raise LaunchError(
                f"parameter at offset {parameter['offset']}: {len(data)} bytes made for {parameter['size']}"
            )
        block[parameter["offset"] : parameter["offset"] + parameter["size"]] = data
    return bytes(block)


def exact_operands(entry: Mapping, problem: Problem, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers whose partial sums are all exact in float32 (and the result in D's type, for its few values)."""
    draw = np.random.default_rng(seed)
    low = -2 if entry["dtypes"]["d"] in ("bfloat16", "float16") and problem.k <= 512 else -1
    a = draw.integers(low, -low + 1, (problem.l, problem.m, problem.k))
    b = draw.integers(-1, 2, (problem.l, problem.n, problem.k))
    return a.astype(dtype_of(entry["dtypes"]["a"])), b.astype(dtype_of(entry["dtypes"]["b"]))


def reference(entry: Mapping, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """D = A B^T, summed in double and rounded once to D's type."""
    product = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
    return product.astype(np.float32).astype(dtype_of(entry["dtypes"]["d"]))
