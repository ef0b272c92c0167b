"""A kernel's parameter list, read off the DSL's own objects while it is traced. See docs/design.md, section 7.1.

A kernel function takes tensor maps, pointers and plain integers and nothing else. The names of its parameters say what
the launcher must pass: `tensor_map_a` is the tensor map of operand a, `scratch` a pointer, `raster_group` an integer.
"""

import inspect
import re
from collections.abc import Callable, Sequence

import cutlass
import cutlass.cute as cute

TENSOR_MAP_PREFIX = "tensor_map_"
SCRATCH = "scratch"  # the launcher's own, aligned for any access
POINTERS = {"a", "b", "d", SCRATCH}
INT32_VALUES = {"m", "n", "k", "l", "raster_group", "raster_along", "split_k"}
INT64_VALUES = {"a_outer", "a_batch", "b_outer", "b_batch", "d_outer", "d_batch"}
OPERAND_AXES = {"a": ("m", "k", "l"), "b": ("n", "k", "l"), "d": ("m", "n", "l")}  # modes of the DSL's tensors
SWIZZLES = {0: "none", 1: "32B", 2: "64B", 3: "128B"}  # by the bits that a layout's swizzle permutes
TMA_ELEMENT_TYPES = {
    "BF16_RN": "bfloat16",
    "F16_RN": "float16",
    "F32_RN": "float32",
    "U8": "uint8",
    "S32": "int32",
}


def describe_parameters(
    kernel: Callable,
    arguments: Sequence[object],
    tma_infos: dict[str, object],
    multicast: dict[str, int] | None = None,
    l2_promotion: str = "128B",
) -> list[dict]:
    """Manifest entries of a kernel's parameters in order, without offsets.

    Args:
      kernel: the kernel function; its parameter names are the vocabulary of the manifest.
      arguments: what it is launched with: TMA copy atoms, pointers, Int32 and Int64 values.
      tma_infos: by operand, the `TmaInfo` that each atom came from.
      multicast: by operand, the CTAs that share a tile and load a part each; 1 where not named.
      l2_promotion: what L2 fetches at least from device memory where a tensor map's copy misses it.

    Raises:
      TypeError: an argument that the launcher could not make.
    """
    if not isinstance(arguments, dict):
        names = [name for name in inspect.signature(kernel).parameters if name != "self"]
        if len(names) != len(arguments):
            raise TypeError(f"{kernel.__name__} takes {names}, but {len(arguments)} arguments are passed")
        arguments = dict(zip(names, arguments, strict=True))
    multicast = multicast or {}
    described = [_describe(name, argument, tma_infos, multicast) for name, argument in arguments.items()]
    return [{**p, "l2_promotion": l2_promotion} if p["kind"] == "tensor_map" else p for p in described]


def _describe(name: str, argument: object, tma_infos: dict[str, object], multicast: dict[str, int]) -> dict:
    if name.startswith(TENSOR_MAP_PREFIX) and isinstance(argument, cute.CopyAtom):
        operand = name.removeprefix(TENSOR_MAP_PREFIX)
        return _describe_tensor_map(operand, tma_infos[operand], multicast.get(operand, 1))
    if name in POINTERS and isinstance(argument, cute.Pointer):
        return {"kind": "pointer", "operand": name, **_access(name, argument), "size": 8, "alignment": 8}
    if name in INT32_VALUES and isinstance(argument, cutlass.Int32):
        return {"kind": "int32", "values": [name], "size": 4, "alignment": 4}
    if name in INT64_VALUES and isinstance(argument, cutlass.Int64):
        return {"kind": "int64", "values": [name], "size": 8, "alignment": 8}
    raise TypeError(f"kernel parameter {name} of type {type(argument).__name__} is not one that the launcher can pass")


def _access(operand: str, pointer: cute.Pointer) -> dict[str, int]:
    """What a kernel moves at once through a pointer that must be aligned to more than an element."""
    is_aligned = operand != SCRATCH and pointer.alignment > pointer.dtype.width // 8
    return {"access_bytes": pointer.alignment} if is_aligned else {}


def _share_of_box(box: list[int], sharers: int) -> list[int]:
    """What each of `sharers` CTAs loads of a box: a part along the outermost axis, further in if that is too small."""
    share = list(box)
    for axis in reversed(range(len(box))):
        factor = min(sharers, box[axis])
        if box[axis] % factor or sharers % factor:
            raise TypeError(f"box {box} cannot be shared by {sharers} CTAs")
        share[axis], sharers = box[axis] // factor, sharers // factor
    return share


def _describe_tensor_map(operand: str, info, sharers: int) -> dict:
    """The facts of one tensor map: box and axis order from the atom's MLIR type, swizzle from its shared-memory layout.

    The type holds the box of the whole tile; the DSL's tensor map, and the code, have one CTA's share of it.
    """
    atom_type = str(info.atom._trait.value.type)
    basis = re.search(r'tma_gbasis = <"\(([\d,]+)\):\(([\d@,]+)\)">', atom_type)
    element = re.search(r"tma_format = (\w+)", atom_type)
    if basis is None or element is None or element[1] not in TMA_ELEMENT_TYPES:
        raise TypeError(f"tensor map of {operand}: cannot read box and type from {atom_type}")
    modes = [step.partition("@") for step in basis[2].split(",")]
    if any(scale != "1" for scale, _, _ in modes):
        raise TypeError(f"tensor map of {operand}: element strides other than 1 in {atom_type}")
    axes = [OPERAND_AXES[operand][int(mode)] for _, _, mode in modes]
    return {
        "kind": "tensor_map",
        "operand": operand,
        "size": 128,
        "alignment": 64,
        "rank": len(axes),
        "axes": axes,
        "element_type": TMA_ELEMENT_TYPES[element[1]],
        "box": _share_of_box([int(extent) for extent in basis[1].split(",")], sharers),
        "element_strides": [1] * len(axes),
        "swizzle": SWIZZLES[info.smem_layout.inner.num_bits],
        "interleave": "none",
        "fill": "zeros",
    }


def place_parameters(parameters: list[dict]) -> list[dict]:
    """The same entries with their offsets: each aligned to its own alignment, in order."""
    placed, end = [], 0
    for parameter in parameters:
        alignment = parameter["alignment"]
        offset = (end + alignment - 1) // alignment * alignment
        placed.append({**parameter, "offset": offset})
        end = offset + parameter["size"]
    return placed


PTX_TYPE_BYTES = {"b8": 1, "u8": 1, "b16": 2, "u16": 2, "b32": 4, "u32": 4, "s32": 4, "b64": 8, "u64": 8, "s64": 8}


def check_against_ptx(parameters: list[dict], ptx: str) -> None:
    """Compares the list with the `.param` list of the PTX entry: one for one in number, offset, size and alignment.

    Raises:
      ValueError: naming the first parameter that differs.
    """
    found = place_parameters([_ptx_parameter(line) for line in _entry_parameter_lines(ptx)])
    expected = [(p["offset"], p["size"], p["alignment"]) for p in parameters]
    actual = [(p["offset"], p["size"], p["alignment"]) for p in found]
    if expected != actual:
        raise ValueError(f"parameters (offset, size, alignment): traced {expected}, PTX has {actual}")


def entry_symbol(ptx: str) -> str:
    """Name of the only entry of a PTX module."""
    entries = re.findall(r"\.entry\s+([\w$]+)", ptx)
    if len(entries) != 1:
        raise ValueError(f"expected one entry in the PTX, found {entries}")
    return entries[0]


def _entry_parameter_lines(ptx: str) -> list[str]:
    body = re.search(r"\.entry\s+[\w$]+\s*\((.*?)\)", ptx, re.DOTALL)
    return [line for line in (body[1].split(",\n") if body else []) if ".param" in line]


def _ptx_parameter(line: str) -> dict:
    alignment, pointer = r"(?:\.align\s+(\d+)\s+)?", r"(?:\.ptr\S*(?:\s+\.\w+)*(?:\s+\d+)?\s+)?"
    match = re.match(rf"\s*\.param\s+{alignment}\.(\w+)\s+{pointer}[\w$]+(?:\[(\d+)\])?", line)
    if match is None or match[2] not in PTX_TYPE_BYTES:
        raise ValueError(f"cannot read the PTX parameter {line.strip()!r}")
    element_bytes = PTX_TYPE_BYTES[match[2]]
    return {"size": element_bytes * int(match[3] or 1), "alignment": int(match[1] or element_bytes)}


LAUNCH_CONFIG = r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"  # cudaLaunchConfig_t


def launch_facts(host_code: str, ptx: str) -> dict[str, int]:
    """Dynamic shared-memory bytes, from the host code that the DSL made for its own launch, and threads, from the PTX.

    Raises:
      ValueError: the DSL's host code no longer looks as expected.
    """
    field = re.search(rf"(%\d+) = llvm\.getelementptr %\d+\[0, 2\] : .*{LAUNCH_CONFIG}", host_code)
    stored = field and re.search(rf"llvm\.store (%\d+), {field[1]} : i64", host_code[field.end() :])
    definition = rf"^ *{stored[1]} = llvm\.mlir\.constant\((\d+) : i64\)" if stored else ""
    definitions = re.findall(definition, host_code[: field.end()], re.MULTILINE) if stored else []
    threads = re.search(r"\.reqntid (\d+), 1, 1", ptx)
    if not definitions or threads is None:
        raise ValueError("cannot read shared memory and threads from the DSL's launch")
    return {"dynamic_smem_bytes": int(definitions[-1]), "threads": int(threads[1])}
