"""ld, st, atom, red, prefetch, fences of memory hierarchy: generic-proxy memory instructions."""

from __future__ import annotations

from dataclasses import dataclass

from .emitter import Emitter
from .instruction_table import form
from .ptx_tree import TYPE_BYTES, Address, Instruction, Kernel, Label, Symbol, Vector

SPACES = {"shared": "shared", "shared::cta": "shared", "shared::cluster": "cluster", "global": "global",
"local": "local",
          "param": "param", "const": "global", "param::entry": "param"}  # fmt: skip
HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified", "mmio", "async", "bulk")
SEMANTICS = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "sc")
SCOPES = {"cta": "cta", "cluster": "cluster", "gpu": "gpu", "sys": "sys", "gl": "gpu"}


@dataclass(frozen=True, slots=True)
class Access:
    """Modifiers of a memory instruction."""

    space: str
    kind: str
    count: int
    semantics: str
    scope: str | None


def parse_access(emitter: Emitter, instruction: Instruction) -> Access:
    space, count, semantics, scope = "generic", 1, "weak", None
    for part in instruction.parts[1:-1]:
        if part in SPACES:
            space = SPACES[part]
        elif part in ("v2", "v4", "v8"):
            count = int(part[1])
        elif part in SEMANTICS:
            semantics = part
        elif part in SCOPES:
            scope = SCOPES[part]
        elif part not in HINTS and not part.startswith(("L1::", "L2::", "level::")):
            raise emitter.unsupported(f"modifier .{part}")
    if "volatile" in instruction.parts:
        scope = "sys"
    kind = instruction.parts[-1]
    if kind not in TYPE_BYTES:
        raise emitter.unsupported(f"type .{kind}")
    return Access(space, kind, count, semantics, scope)


def load_uniform(analysis, instruction: Instruction, block: int, position: int) -> bool:
    parts = instruction.parts
    base = instruction.operands[1].base if isinstance(instruction.operands[1], Address) else None
    if (
        "local" in parts
        or isinstance(base, Symbol)
        and base.name in analysis.kernel.variables
        and "shared" not in parts
    ):
        return False
    if any(p.endswith("f32") or p.endswith("f64") for p in parts[-1:]) and "param" not in parts:
        return False
    if not any(p in SPACES for p in parts) and points_into_local(analysis.kernel):
        return False
    return all(analysis.is_uniform(o, block, position) for o in instruction.operands[1:2])


def points_into_local(kernel: Kernel) -> bool:
    """Whether a generic address of the kernel may be one of local memory, where lanes find different things at it."""
    return any(isinstance(item, Instruction) and item.opcode.startswith("cvta.local") for item in kernel.body)


@form("ld", "ldu", uniform=load_uniform)
def load(emitter: Emitter, instruction: Instruction) -> None:
    access = parse_access(emitter, instruction)
    d, address = instruction.operands[0], instruction.operands[1]
    size = TYPE_BYTES[access.kind]
    items = d.items if isinstance(d, Vector) else (d,)
    if len(items) != access.count:
        raise emitter.unsupported(f"{len(items)} destinations for {access.count} elements")
    space = frame_space(emitter, access, address)
    text, scalar = emitter.address(address)
    if space == "generic" and scalar and points_into_local(emitter.kernel):
        text, scalar = f"FULL_INT({text}, I64)", False
    if space == "param":
        if not scalar:
            raise emitter.unsupported("parameter address that differs between lanes")
        for index, item in enumerate(items):
            _put_loaded(emitter, item,
            f"int.from_bytes(params[{text} + {size * index}:{text} + {size * (index + 1)}], 'little')",
                        access.kind, True)  # fmt: skip
        return
    if access.semantics != "weak":
        emitter.write("warp.poll(); yield")
    name = emitter.temporary()
    order = "" if access.semantics == "weak" else f", {access.semantics!r}, {access.scope!r}"
    emitter.write(f"{name} = warp.load_{space}({text}, {size}, {access.count}, {emitter.mask}, {emitter.line}{order})")
    whole = scalar and space != "local"
    for index, item in enumerate(items):
        if item != Label("_"):
            _put_loaded(emitter, item, f"{name}[{index}]", access.kind, whole)


def _put_loaded(emitter: Emitter, item, text: str, kind: str, scalar: bool) -> None:
    size = TYPE_BYTES[kind]
    if kind == "b128":
        from .instructions_convert import put_b128, put_scalar_b128

        return put_scalar_b128(emitter, item, text) if scalar else put_b128(emitter, item, text)
    have = emitter.bytes_of(item)
    if scalar and kind[0] == "s" and have > size:
        half = 1 << (8 * size - 1)
        return emitter.put(item, f"(({text} ^ {half}) - {half}) & {(1 << 8 * have) - 1}", f"u{8 * have}", True)
    if scalar:
        return emitter.put(item, text, f"u{8 * size}", True)
    if kind[0] == "s" and have > size:
        return emitter.put(item, f"{text}.view(I{8 * size})", kind, False)
    return emitter.put(item, text, f"u{8 * size}", False)


def frame_space(emitter: Emitter, access: Access, address: Address) -> str:
    """The state space of an access: parameters of calls live in the frame, in local memory."""
    place = emitter.symbol_space(address.base)
    if access.space == "param" and place == "local" or place == "param":
        return place
    return access.space


@form("st", results=0)
def store(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.opcode.startswith("st.async"):
        from .instructions_copy import store_async

        return store_async(emitter, instruction)
    if instruction.opcode.startswith("st.bulk"):
        raise emitter.unsupported()
    access = parse_access(emitter, instruction)
    address, source = instruction.operands[0], instruction.operands[1]
    size = TYPE_BYTES[access.kind]
    items = source.items if isinstance(source, Vector) else (source,)
    space = frame_space(emitter, access, address)
    if space == "param":
        raise emitter.unsupported("stores to parameters")
    if access.kind == "b128":
        values = [_b128(emitter, item) for item in items]
    else:
        values = [emitter.raw(item, f"u{8 * size}") for item in items]
    text, _ = emitter.address(address)
    order = "" if access.semantics == "weak" else f", {access.semantics!r}, {access.scope!r}"
    emitter.write(f"warp.store_{space}({text}, ({', '.join(values)},), {size}, {emitter.mask}, {emitter.line}{order})")
    if access.semantics != "weak":
        emitter.pause()
    return None


def _b128(emitter: Emitter, item) -> str:
    if not emitter.is_scalar(item):
        raise emitter.unsupported("128-bit store of values that differ between lanes")
    return emitter.name(emitter.use(item))


@form("atom", uniform="never")
def atom(emitter: Emitter, instruction: Instruction) -> None:
    d, address, *values = instruction.operands
    name = _atomic(emitter, instruction, address, values, "atomic")
    if d != Label("_"):
        emitter.put(d, name, f"u{8 * TYPE_BYTES[instruction.parts[-1]]}", False)


@form("red", results=0)
def red(emitter: Emitter, instruction: Instruction) -> None:
    if "async" in instruction.parts:
        from .instructions_copy import reduce_async

        return reduce_async(emitter, instruction)
    address, *values = instruction.operands
    _atomic(emitter, instruction, address, values, "reduction")
    return None


OPERATIONS = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")


def _atomic(emitter: Emitter, instruction: Instruction, address: Address, values: list, event: str) -> str:
    space, semantics, scope, operation = "generic", "relaxed", "gpu", None
    for part in instruction.parts[1:-1]:
        if part in SPACES:
            space = SPACES[part]
        elif part in SEMANTICS:
            semantics = part
        elif part in SCOPES:
            scope = SCOPES[part]
        elif part in OPERATIONS:
            operation = part
        elif part != "noftz" and not part.startswith(("L1::", "L2::", "level::")):
            raise emitter.unsupported(f"modifier .{part}")
    kind = instruction.parts[-1]
    wanted = 2 if operation == "cas" else 1
    if operation is None or kind not in TYPE_BYTES or kind == "b128" or any(isinstance(v, Vector) for v in values):
        raise emitter.unsupported()
    size = TYPE_BYTES[kind]
    arguments = [emitter.vector(v, f"u{8 * size}") for v in values[:wanted]]
    text, scalar = emitter.address(address)
    if scalar:
        text = f"FULL_INT({text}, I64)"
    name = emitter.temporary()
    emitter.write("warp.poll(); yield")
    emitter.write(
        f"{name} = warp.atomic({space!r}, {operation!r}, {kind!r}, {text}, ({', '.join(arguments)},), {emitter.mask}, "
        f"{emitter.line}, {semantics!r}, {scope!r}, {event!r})"
    )
    return name


@form("prefetch", "prefetchu", "applypriority", "discard", "createpolicy", results=0)
def prefetch(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.parts[:2] == ("prefetch", "tensormap"):
        text, _ = emitter.address(instruction.operands[0])
        emitter.write(f"warp.tensor_map({text})")
    elif instruction.parts[0] == "createpolicy":
        raise emitter.unsupported()
    else:
        emitter.write("pass")


@form("createpolicy.fractional", uniform="always")
def create_policy(emitter: Emitter, instruction: Instruction) -> None:
    """Cache policies have no meaning here: any value does."""
    emitter.put(instruction.operands[0], "0", "u64", True)
