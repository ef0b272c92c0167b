"""Comparisons and selections."""

from __future__ import annotations

from .emitter import NUMPY_TYPE, Emitter
from .instruction_table import form
from .instructions_float import compare_float, load
from .instructions_integer import FLOAT_KINDS, bits_of, type_of, unsigned
from .ptx_tree import Immediate, Instruction, Pair

COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}


def compared(emitter: Emitter, instruction: Instruction, operation: str, kind: str, a, b) -> tuple[str, str]:
    """(expression, "scalar" | "bool") of a comparison."""
    if kind in FLOAT_KINDS:
        return compare_float(emitter, operation, kind, a, b), "bool"
    if operation not in COMPARE:
        raise emitter.unsupported(f"comparison .{operation}")
    if kind == "pred":
        raise emitter.unsupported()
    if operation in ("lo", "ls", "hi", "hs"):
        kind = unsigned(kind)
    equality = operation in ("eq", "ne")
    if equality:
        kind = unsigned(kind)
    symbol = COMPARE[operation]
    if emitter.is_scalar(a, b):
        bits = bits_of(kind)
        if kind[0] == "s":  # compare as unsigned with the sign bit flipped
            half = 1 << (bits - 1)

            def flipped(operand):
                if isinstance(operand, Immediate):
                    return str((operand.value & ((1 << bits) - 1)) ^ half)
                return f"({emitter.raw(operand, kind)} ^ {half})"

            return f"{flipped(a)} {symbol} {flipped(b)}", "scalar"
        return f"{emitter.raw(a, kind)} {symbol} {emitter.raw(b, kind)}", "scalar"
    return f"{emitter.value(a, kind)} {symbol} {emitter.value(b, kind)}", "bool"


def compare_never(analysis, instruction: Instruction, block: int, position: int) -> bool:
    if instruction.parts[-1] in FLOAT_KINDS:
        return False
    if all(analysis.is_uniform(o, block, position) for o in instruction.operands[1:]):
        return True
    return analysis.always_uniform(instruction, analysis, block, position)


@form("setp", uniform=compare_never)
def setp(emitter: Emitter, instruction: Instruction) -> None:
    parts = [p for p in instruction.parts if p != "ftz"]
    kind, operation = parts[-1], parts[1]
    d, a, b, *rest = instruction.operands
    text, how = compared(emitter, instruction, operation, kind, a, b)
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, None)
    name = emitter.temporary() if second is not None or rest else None
    if name:
        emitter.write(f"{name} = {text}")
        text = name
    negative = f"not ({text})" if how == "scalar" else f"~({text})"
    if rest:
        boolean = {"and": "&", "or": "|", "xor": "^"}[parts[2]]
        other, how_other = emitter.predicate(rest[0])
        if how == how_other == "scalar":
            text, negative = f"bool(({text}) {boolean} {other})", f"bool(({negative}) {boolean} {other})"
        else:
            other = emitter.predicate_lanes(rest[0])
            text, negative, how = f"({text}) {boolean} {other}", f"({negative}) {boolean} {other}", "bool"
            if how_other == "scalar" or name:
                text, negative = f"({text}) & TRUE_LANES", f"({negative}) & TRUE_LANES"
    emitter.put_predicate(first, text, how)
    if second is not None:
        emitter.put_predicate(second, negative, how)


@form("set", uniform=compare_never)
def set_value(emitter: Emitter, instruction: Instruction) -> None:
    parts = [p for p in instruction.parts if p != "ftz"]
    if len(parts) != 4:
        raise emitter.unsupported("with a boolean operand")
    d, a, b = instruction.operands
    text, how = compared(emitter, instruction, parts[1], parts[3], a, b)
    kind = parts[2]
    true = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(kind, (1 << bits_of(kind)) - 1)
    if how == "scalar":
        return emitter.put(d, f"({true} if {text} else 0)", unsigned(kind), True)
    u = unsigned(kind)
    return emitter.put(d, f"WHERE({text}, {NUMPY_TYPE[u]}({true}), {NUMPY_TYPE[u]}(0))", u, False)


@form("selp")
def selp(emitter: Emitter, instruction: Instruction) -> None:
    kind = unsigned(type_of(emitter, instruction))
    d, a, b, p = instruction.operands
    text, how = emitter.predicate(p)
    if how == "scalar":
        if emitter.is_scalar(a, b):
            return emitter.put(d, f"({emitter.raw(a, kind)} if {text} else {emitter.raw(b, kind)})", kind, True)
        return emitter.put(d, f"({emitter.vector(a, kind)} if {text} else {emitter.vector(b, kind)})", kind, False)
    lanes = emitter.predicate_lanes(p)
    numpy_type = NUMPY_TYPE[kind]
    x, y = (f"{numpy_type}({emitter.raw(o, kind)})" if emitter.is_scalar(o) else emitter.raw(o, kind) for o in (a, b))
    return emitter.put(d, f"WHERE({lanes}, {x}, {y})", kind, False)


@form("slct", uniform="never")
def slct(emitter: Emitter, instruction: Instruction) -> None:
    kind = unsigned(instruction.parts[-2])
    d, a, b, c = instruction.operands
    sign = instruction.parts[-1]
    condition = f"({load(emitter, c, sign) if sign == 'f32' else emitter.vector(c, sign)}) >= 0"
    emitter.put(d, f"WHERE({condition}, {emitter.vector(a, kind)}, {emitter.vector(b, kind)})", kind, False)
