"""The arguments of a launch by `run_ptx`: its shapes, NumPy arrays as device memory, values as parameter bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import EmulatorError
from .memory import GlobalMemory
from .ptx_tree import Kernel, Parameter
from .tensor_map import TensorMap

FIRST_ADDRESS = 0x7_0000_0000
GUARD = 1 << 20
LIMITS = {
    "grid": (2**31 - 1, 65535, 65535),
    "block": (1024, 1024, 64),
    "cluster": (16, 16, 16),
}
MOST_THREADS, MOST_CTAS_OF_CLUSTER = 1024, 16


class LaunchError(EmulatorError):
    """A launch that does not agree with the kernel or the device: parameters, grid, block, cluster, architecture."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A NumPy array as device memory. `output`: each element must be written exactly once. `offset_bytes`:
    misalignment of the base from 256 bytes."""

    array: np.ndarray
    name: str = "buffer"
    output: bool = False
    offset_bytes: int = 0


def integer(what: str, value: object, least: int) -> int:
    """A launch argument that has to be an integer of `least` or more. Raises LaunchError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise LaunchError(f"{what} has to be an integer, {least} or more, and is {value!r}")
    return int(value)


def triple(what: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    """A `grid`, `block` or `cluster` as (x, y, z), within the hardware's limits. Raises LaunchError."""
    numbers = [value] if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str) else list(value)
    if not 1 <= len(numbers) <= 3:
        raise LaunchError(f"{what} has one to three sizes, and is {value!r}")
    x, y, z = [integer(f"each size of {what}", n, 1) for n in numbers] + [1] * (3 - len(numbers))
    if any(n > limit for n, limit in zip((x, y, z), LIMITS[what], strict=True)):
        raise LaunchError(f"{what} {(x, y, z)} is beyond the limits {LIMITS[what]}")
    most = {"block": MOST_THREADS, "cluster": MOST_CTAS_OF_CLUSTER}.get(what)
    if most is not None and x * y * z > most:
        unit = "threads" if what == "block" else "CTAs"
        raise LaunchError(f"{what} {(x, y, z)} has {x * y * z} {unit}, and at most {most} are possible")
    return x, y, z


def check_target(target: str, arch: str) -> None:
    """PTX for `target` runs on a device of `arch`: `sm_90a` on that alone, `sm_100f` on its family, others on every
    later device. Raises LaunchError."""
    wanted, device = (re.match(r"sm_(\d+)(\d)([af]?)$", name) for name in (target, arch))
    if wanted is None or device is None:
        raise LaunchError(f"PTX of target {target!r} on a device {arch!r}: sm_NN, with a or f if need be, is meant")
    suffix, have = wanted[3], (int(device[1]), int(device[2]))
    need = (int(wanted[1]), int(wanted[2]))
    fits = have == need if suffix == "a" else have >= need and (suffix != "f" or have[0] == need[0])
    if not fits:
        raise LaunchError(f"PTX of target {target} does not run on {arch}")


def cluster_of(kernel: Kernel, cluster: int | Sequence[int] | None) -> tuple[int, int, int]:
    """The cluster of a launch: what is given, the kernel's own, or one CTA. Raises LaunchError."""
    own = kernel.reqnctapercluster
    shape = own or (1, 1, 1) if cluster is None else triple("cluster", cluster)
    if own is not None and shape != own:
        raise LaunchError(f"kernel {kernel.name} requires clusters of {own} CTAs, launched with {shape}")
    return shape


# Device memory


def place_buffers(memory: GlobalMemory, given: Sequence[object]) -> dict[int, int]:
    """Gives each array an address of its own: {id(array): address}. Raises LaunchError."""
    buffers: dict[int, Buffer] = {}
    for item in given:
        buffer = Buffer(item) if isinstance(item, np.ndarray) else item
        if not isinstance(buffer, Buffer):
            continue
        _check_buffer(buffer)
        known = buffers.setdefault(id(buffer.array), buffer)
        if isinstance(item, Buffer) and known != buffer:
            raise LaunchError(f"one array is given twice, as {describe(known)} and as {describe(buffer)}: give it once")
    placed = list(buffers.values())
    addresses: dict[int, int] = {}
    address = FIRST_ADDRESS
    for number, buffer in enumerate(placed):
        for other in placed[:number]:
            if np.may_share_memory(buffer.array, other.array):
                raise LaunchError(f"{describe(other)} and {describe(buffer)} overlap: on a device they would not")
        flat = buffer.array.reshape(-1).view(np.uint8)
        place = address + buffer.offset_bytes
        memory.add(place, flat, buffer.name, buffer.array.dtype.itemsize if buffer.output else 0)
        addresses[id(buffer.array)] = place
        address = -(-(place + flat.size + GUARD) // 256) * 256
    return addresses


def describe(buffer: Buffer) -> str:
    kind = "output" if buffer.output else "buffer"
    return f"{kind} {buffer.name!r} ({buffer.array.dtype}{list(buffer.array.shape)}, offset {buffer.offset_bytes})"


def _check_buffer(buffer: Buffer) -> None:
    if not isinstance(buffer.array, np.ndarray):
        raise LaunchError(f"a Buffer holds a NumPy array, not {type(buffer.array).__name__}")
    if buffer.array.dtype.hasobject:
        raise LaunchError(f"device memory holds numbers, and {describe(buffer)} objects")
    if not buffer.array.flags.c_contiguous:
        raise LaunchError(f"a device buffer must be a C-contiguous array, and {describe(buffer)} is none")
    if not buffer.array.flags.writeable:
        raise LaunchError(f"a device buffer must be writeable, and {describe(buffer)} is not: give a copy")
    integer("offset_bytes", buffer.offset_bytes, 0)


# Parameters


def pack(kernel: Kernel, args: Sequence[object], addresses: dict[int, int]) -> bytes:
    """The parameter block. Raises LaunchError."""
    if len(args) != len(kernel.parameters):
        raise LaunchError(f"{len(args)} arguments for the {len(kernel.parameters)} parameters of kernel {kernel.name}")
    params = bytearray(kernel.parameter_bytes)
    for parameter, arg in zip(kernel.parameters, args, strict=True):
        if callable(arg):
            arg = arg(addresses)
        data = _bytes_of(parameter, arg, addresses)
        if len(data) != parameter.size:
            raise LaunchError(f"parameter {parameter.name} has {parameter.size} bytes, the argument {len(data)}")
        params[parameter.offset : parameter.offset + parameter.size] = data
    return bytes(params)


def _bytes_of(parameter: Parameter, arg: object, addresses: dict[int, int]) -> bytes:
    if isinstance(arg, (np.ndarray, Buffer)):
        array = arg if isinstance(arg, np.ndarray) else arg.array
        return addresses[id(array)].to_bytes(8, "little")
    if isinstance(arg, TensorMap):
        return arg.to_bytes()
    if isinstance(arg, bytes):
        return arg
    number = arg.item() if isinstance(arg, np.generic) else arg
    if not isinstance(number, (int, float)):
        raise LaunchError(f"parameter {parameter.name}: cannot pass {type(arg).__name__}")
    what = f"parameter {parameter.name}, a .{parameter.kind} of {parameter.size} bytes"
    if parameter.kind in ("f32", "f64") or isinstance(number, float) and parameter.kind in ("b32", "b64"):
        try:
            return struct.pack("<f" if parameter.size == 4 else "<d", number)
        except OverflowError:
            raise LaunchError(f"{what}: {number!r} is beyond its range") from None
    if isinstance(number, float):
        raise LaunchError(f"{what}: cannot pass the float {number!r}")
    bits = 8 * parameter.size
    if not -(1 << bits - 1) <= number < 1 << bits:
        raise LaunchError(f"{what}: {number} does not fit")
    return (number & ((1 << bits) - 1)).to_bytes(parameter.size, "little")
