"""Integer, logic, shift, bit-field, compare and select instructions."""

from __future__ import annotations

from .instruction_table import form
from .ptx_parser import TYPE_BYTES, Immediate, Instruction, Pair
from .translator import NUMPY_TYPE, Emitter

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
FLOAT_KINDS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2")


def type_of(emitter: Emitter, instruction: Instruction) -> str:
    kind = instruction.parts[-1]
    if kind not in TYPE_BYTES:
        raise emitter.unsupported(f"type .{kind}")
    return kind


def bits_of(kind: str) -> int:
    return 8 * TYPE_BYTES[kind]


def unsigned(kind: str) -> str:
    return f"u{bits_of(kind)}"


def truncated(text: str, kind: str) -> str:
    """A Python integer expression cut to the type's bits."""
    return f"({text}) & {(1 << bits_of(kind)) - 1}"


def arithmetic(emitter: Emitter, instruction: Instruction, operator: str) -> None:
    """a <op> b with wraparound: the same bits signed or unsigned."""
    kind = unsigned(type_of(emitter, instruction))
    d, a, b = instruction.operands
    if emitter.is_scalar(a, b):
        emitter.put(d, truncated(f"{emitter.raw(a, kind)} {operator} {emitter.raw(b, kind)}", kind), kind, True)
    else:
        emitter.put(d, f"{emitter.raw(a, kind)} {operator} {emitter.raw(b, kind)}", kind, False)


def _is_float(instruction: Instruction) -> bool:
    return instruction.parts[-1] in FLOAT_KINDS


def float_never(analysis, instruction: Instruction, block: int, position: int) -> bool:
    """Float results are kept as lane vectors: floats do not steer control flow in kernels worth optimising for."""
    if _is_float(instruction):
        return False
    if all(analysis.is_uniform(o, block, position) for o in instruction.operands[1:]):
        return analysis.special_uniform(instruction)
    return analysis.always_uniform(instruction, analysis, block, position)


@form("add", "sub", uniform=float_never)
def add_sub(emitter: Emitter, instruction: Instruction) -> None:
    operator = "+" if instruction.parts[0] == "add" else "-"
    kind = instruction.parts[-1]
    if _is_float(instruction):
        from .instructions_float import binary_float

        return binary_float(emitter, instruction, operator)
    if "cc" in instruction.parts or kind in ("u16x2", "s16x2"):
        raise emitter.unsupported()
    if "sat" in instruction.parts:
        d, a, b = instruction.operands
        text = (
            f"(({emitter.vector(a, 's32')}).astype(I64) {operator} {emitter.value(b, 's32')}).clip(-2**31, 2**31 - 1)"
        )
        return emitter.put(d, f"{text}.astype(I32)", "s32", False)
    arithmetic(emitter, instruction, operator)
    return None


@form("mul", uniform=float_never)
def mul(emitter: Emitter, instruction: Instruction) -> None:
    if _is_float(instruction):
        from .instructions_float import binary_float

        return binary_float(emitter, instruction, "*")
    d, a, b = instruction.operands
    text, kind, scalar = product(emitter, instruction, a, b)
    return emitter.put(d, text, kind, scalar)


def product(emitter: Emitter, instruction: Instruction, a, b) -> tuple[str, str, bool]:
    """(expression, result type, scalar?) of mul.lo / mul.hi / mul.wide / mul24."""
    kind = type_of(emitter, instruction)
    part = next((p for p in instruction.parts if p in ("lo", "hi", "wide")), "lo")
    bits = bits_of(kind)
    scalar = emitter.is_scalar(a, b)
    if part == "lo":
        u = unsigned(kind)
        text = f"{emitter.raw(a, u)} * {emitter.raw(b, u)}"
        return (truncated(text, u) if scalar else text), u, scalar
    wide_kind = f"{kind[0]}{2 * bits}"
    if scalar:
        text = f"({emitter.value(a, kind)}) * ({emitter.value(b, kind)})"
        if part == "wide":
            return truncated(text, wide_kind), unsigned(wide_kind), True
        return truncated(f"({text}) >> {bits}", kind), unsigned(kind), True
    if part == "wide":
        wide = NUMPY_TYPE[wide_kind]
        first, second = (a, b) if not emitter.is_scalar(a) else (b, a)
        text = f"{emitter.value(first, kind)}.astype({wide}) * "
        text += (
            f"({emitter.value(second, kind)})"
            if emitter.is_scalar(second)
            else f"{emitter.value(second, kind)}.astype({wide})"
        )
        return text, wide_kind, False
    x, y = emitter.vector(a, kind), emitter.vector(b, kind)
    if bits == 64:
        return f"MULHI_64({x}, {y}, {kind[0] == 's'})", kind, False
    if bits == 16:
        wide = NUMPY_TYPE[f"{kind[0]}32"]
        return f"(({x}.astype({wide}) * {y}.astype({wide})) >> 16).astype({NUMPY_TYPE[kind]})", kind, False
    return f"MULHI_{kind.upper()}({x}, {y})", kind, False


@form("mad", uniform=float_never)
def mad(emitter: Emitter, instruction: Instruction) -> None:
    if _is_float(instruction):
        from .instructions_float import fma

        return fma(emitter, instruction)
    if "cc" in instruction.parts:
        raise emitter.unsupported()
    d, a, b, c = instruction.operands
    text, kind, scalar = product(emitter, instruction, a, b)
    u = unsigned(kind)
    if scalar and emitter.is_scalar(c):
        return emitter.put(d, truncated(f"({text}) + {emitter.raw(c, u)}", u), u, True)
    if scalar:
        return emitter.put(d, f"({text}) + {emitter.raw(c, u)}", u, False)
    if NUMPY_TYPE[kind] != NUMPY_TYPE[u]:
        text = f"({text}).view({NUMPY_TYPE[u]})"
    return emitter.put(d, f"({text}) + {emitter.raw(c, u)}", u, False)


@form("mul24", "mad24")
def mul24(emitter: Emitter, instruction: Instruction) -> None:
    raise emitter.unsupported()


@form("div", "rem", uniform=float_never)
def div_rem(emitter: Emitter, instruction: Instruction) -> None:
    if _is_float(instruction):
        from .instructions_float import divide

        return divide(emitter, instruction)
    kind = type_of(emitter, instruction)
    d, a, b = instruction.operands
    operation = "DIV" if instruction.parts[0] == "div" else "REM"
    if emitter.is_scalar(a, b):
        text = f"{operation}_INT({emitter.value(a, kind)}, {emitter.value(b, kind)}, {bits_of(kind)})"
        return emitter.put(d, text, unsigned(kind), True)
    text = f"TRUNC_{operation}({emitter.value(a, kind)}, {emitter.value(b, kind)}, {NUMPY_TYPE[kind]})"
    return emitter.put(d, text, kind, False)


@form("min", "max", uniform=float_never)
def min_max(emitter: Emitter, instruction: Instruction) -> None:
    if _is_float(instruction):
        from .instructions_float import min_max_float

        return min_max_float(emitter, instruction)
    kind = type_of(emitter, instruction)
    if kind not in NUMPY_TYPE or "relu" in instruction.parts:
        raise emitter.unsupported()
    d, a, b = instruction.operands
    operation = instruction.parts[0]
    if emitter.is_scalar(a, b):
        text = truncated(f"{operation}({emitter.value(a, kind)}, {emitter.value(b, kind)})", kind)
        return emitter.put(d, text, unsigned(kind), True)
    function = "MINIMUM" if operation == "min" else "MAXIMUM"
    return emitter.put(d, f"{function}({emitter.value(a, kind)}, {emitter.value(b, kind)})", kind, False)


@form("neg", "abs", uniform=float_never)
def neg_abs(emitter: Emitter, instruction: Instruction) -> None:
    if _is_float(instruction):
        from .instructions_float import sign_float

        return sign_float(emitter, instruction)
    kind = type_of(emitter, instruction)
    d, a = instruction.operands
    x = emitter.value(a, kind)
    if emitter.is_scalar(a):
        return emitter.put(
            d, truncated(f"-({x})" if instruction.parts[0] == "neg" else f"abs({x})", kind), unsigned(kind), True
        )
    return emitter.put(d, f"-({x})" if instruction.parts[0] == "neg" else f"np.abs({x})", kind, False)


@form("sad")
def sad(emitter: Emitter, instruction: Instruction) -> None:
    kind = type_of(emitter, instruction)
    d, a, b, c = instruction.operands
    text = f"EACH(lambda a, b, c: (c + abs(a - b)) & {(1 << bits_of(kind)) - 1}, {NUMPY_TYPE[unsigned(kind)]}, "
    text += f"{emitter.value(a, kind)}, {emitter.value(b, kind)}, {emitter.raw(c, unsigned(kind))})"
    if emitter.is_scalar(a, b, c):
        text = f"int({text}[0])"
    emitter.put(d, text, unsigned(kind), emitter.is_scalar(a, b, c))


# logic and shifts


@form("and", "or", "xor")
def logic(emitter: Emitter, instruction: Instruction) -> None:
    operator = {"and": "&", "or": "|", "xor": "^"}[instruction.parts[0]]
    d, a, b = instruction.operands
    if instruction.parts[-1] == "pred":
        (x, how_x), (y, how_y) = emitter.predicate(a), emitter.predicate(b)
        if how_x == how_y == "scalar":
            return emitter.put_predicate(d, f"bool({x} {operator} {y})", "scalar")
        if "bool" in (how_x, how_y):
            x = f"LANES[{x}]" if how_x == "bits" else x
            y = f"LANES[{y}]" if how_y == "bits" else y
            return emitter.put_predicate(d, f"{x} {operator} {y}", "bool")
        return emitter.put_predicate(d, f"{emitter.predicate_bits(a)} {operator} {emitter.predicate_bits(b)}", "bits")
    kind = unsigned(type_of(emitter, instruction))
    text = f"{emitter.raw(a, kind)} {operator} {emitter.raw(b, kind)}"
    return emitter.put(d, text, kind, emitter.is_scalar(a, b))


@form("not")
def logical_not(emitter: Emitter, instruction: Instruction) -> None:
    d, a = instruction.operands
    if instruction.parts[-1] == "pred":
        text, how = emitter.predicate(a)
        text = {"scalar": f"not {text}", "bool": f"~{text}", "bits": f"{text} ^ 0xFFFFFFFF"}[how]
        return emitter.put_predicate(d, text, how)
    kind = unsigned(type_of(emitter, instruction))
    if emitter.is_scalar(a):
        return emitter.put(d, f"{emitter.raw(a, kind)} ^ {(1 << bits_of(kind)) - 1}", kind, True)
    return emitter.put(d, f"~{emitter.raw(a, kind)}", kind, False)


@form("cnot")
def cnot(emitter: Emitter, instruction: Instruction) -> None:
    kind = unsigned(type_of(emitter, instruction))
    d, a = instruction.operands
    if emitter.is_scalar(a):
        return emitter.put(d, f"int({emitter.raw(a, kind)} == 0)", kind, True)
    return emitter.put(d, f"({emitter.raw(a, kind)} == 0).astype({NUMPY_TYPE[kind]})", kind, False)


@form("lop3")
def lop3(emitter: Emitter, instruction: Instruction) -> None:
    """Any function of three bits, as the OR of its minterms."""
    if instruction.parts[-1] != "b32" or len(instruction.operands) != 5:
        raise emitter.unsupported()
    d, a, b, c, table = instruction.operands
    scalar = emitter.is_scalar(a, b, c)
    x, y, z = ((emitter.raw if scalar else emitter.vector)(o, "b32") for o in (a, b, c))
    names = [emitter.temporary() for _ in range(3)]
    emitter.write(f"{names[0]} = {x}; {names[1]} = {y}; {names[2]} = {z}")
    minterms = []
    for index in range(8):
        if table.value >> index & 1:
            minterms.append(
                "(" + " & ".join(n if index >> s & 1 else f"~{n}" for n, s in zip(names, (2, 1, 0), strict=True)) + ")"
            )
    text = " | ".join(minterms) if minterms else ("0" if scalar else f"{names[0]} & 0")
    emitter.put(d, truncated(text, "b32") if scalar else text, "b32", scalar)


@form("shl", "shr")
def shift(emitter: Emitter, instruction: Instruction) -> None:
    kind = type_of(emitter, instruction)
    d, a, b = instruction.operands
    bits = bits_of(kind)
    right = instruction.parts[0] == "shr"
    kind = kind if right and kind[0] == "s" else unsigned(kind)
    amount = emitter.raw(b, "u32")
    if emitter.is_scalar(a, b):
        if right:
            text = f"({emitter.value(a, kind)}) >> {amount}"
            return emitter.put(d, truncated(text, kind) if kind[0] == "s" else text, unsigned(kind), True)
        if isinstance(b, Immediate):
            return emitter.put(
                d, truncated(f"{emitter.raw(a, kind)} << {amount}", kind) if b.value < bits else "0", kind, True
            )
        return emitter.put(d, f"SHIFT_LEFT({emitter.raw(a, kind)}, {amount}, {bits})", kind, True)
    numpy_type = NUMPY_TYPE[kind]
    if isinstance(b, Immediate):
        if not right and b.value >= bits:
            return emitter.put(d, f"ZERO_{numpy_type}", kind, False)
        step = str(min(b.value, bits - 1) if kind[0] == "s" else b.value)
        if b.value >= bits and kind[0] == "u":
            return emitter.put(d, f"ZERO_{numpy_type}", kind, False)
    elif emitter.is_scalar(b):
        step = f"{numpy_type}(min({amount}, {bits if kind[0] == 'u' else bits - 1}))"
    else:
        step = f"MINIMUM({amount}, {bits if kind[0] == 'u' else bits - 1}).astype({numpy_type})"
    value = emitter.vector(a, kind)
    return emitter.put(d, f"{value} {'>>' if right else '<<'} {step}", kind, False)


@form("shf")
def funnel_shift(emitter: Emitter, instruction: Instruction) -> None:
    d, a, b, c = instruction.operands
    left, clamp = "l" in instruction.parts, "clamp" in instruction.parts
    scalar = emitter.is_scalar(a, b, c)
    function = "FUNNEL" if scalar else "FUNNEL_LANES"
    text = f"{function}({emitter.raw(a, 'b32')}, {emitter.raw(b, 'b32')}, {emitter.raw(c, 'b32')}, {left}, {clamp})"
    emitter.put(d, text, "b32", scalar)


@form("prmt")
def prmt(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.opcode != "prmt.b32":
        raise emitter.unsupported("only the default mode is")
    d, a, b, c = instruction.operands
    scalar = emitter.is_scalar(a, b, c)
    text = (
        f"{'PRMT_INT' if scalar else 'PRMT'}({emitter.raw(a, 'b32')}, {emitter.raw(b, 'b32')}, {emitter.raw(c, 'b32')})"
    )
    emitter.put(d, text, "b32", scalar)


@form("bfe", "bfi", "szext", "bmsk", "fns")
def bit_fields(emitter: Emitter, instruction: Instruction) -> None:
    kind = type_of(emitter, instruction)
    bits, u = bits_of(kind), unsigned(kind)
    d, *sources = instruction.operands
    name = instruction.parts[0]
    if name == "bfe":
        function, extra = "BFE", f", {bits}, {kind[0] == 's'}"
    elif name == "bfi":
        function, extra = "BFI", f", {bits}"
    elif name == "bmsk":
        wrap = "b & 31" if "wrap" in instruction.parts else "min(b, 32)"
        function, extra = f"(lambda a, b: (((1 << ({wrap})) - 1) << min(a, 32)) & 0xFFFFFFFF)", ""
    else:
        raise emitter.unsupported()
    kinds = [u if i < (1 if name == "bfe" else 2) else "u32" for i in range(len(sources))]
    values = [emitter.raw(o, k) for o, k in zip(sources, kinds, strict=True)]
    if emitter.is_scalar(*sources):
        return emitter.put(d, f"{function}({', '.join(values)}{extra})", u, True)
    names = ", ".join("abcd"[: len(values)])
    text = f"EACH(lambda {names}: {function}({names}{extra}), {NUMPY_TYPE[u]}, {', '.join(values)})"
    return emitter.put(d, text, u, False)


@form("popc", "clz", "bfind", "brev")
def bit_counts(emitter: Emitter, instruction: Instruction) -> None:
    kind = type_of(emitter, instruction)
    bits, u = bits_of(kind), unsigned(kind)
    d, a = instruction.operands
    x, scalar = emitter.raw(a, u), emitter.is_scalar(a)
    name = instruction.parts[0]
    if name == "brev":
        return emitter.put(d, f"BREV_INT({x}, {bits})" if scalar else f"BREV({x}, {bits})", u, scalar)
    if name == "bfind" and kind[0] == "s":
        x = (
            f"({x} ^ (({(1 << bits) - 1}) if {x} >> {bits - 1} else 0))"
            if scalar
            else f"WHERE({x} >> {bits - 1} != 0, ~{x}, {x})"
        )
    if scalar:
        text = {"popc": f"({x}).bit_count()", "clz": f"{bits} - ({x}).bit_length()"}.get(name)
        text = text or f"(({x}).bit_length() - 1) & 0xFFFFFFFF"
        if "shiftamt" in instruction.parts:
            text = f"({bits - 1} - ({text})) & 0xFFFFFFFF if {x} else 0xFFFFFFFF"
        return emitter.put(d, text, "u32", True)
    text = {"popc": f"POPC({x})", "clz": f"CLZ({x}, {bits})", "bfind": f"BFIND({x}, {bits})"}[name]
    if "shiftamt" in instruction.parts:
        text = f"WHERE({x} != 0, {bits - 1} - {text}, 0xFFFFFFFF).astype(U32)"
    return emitter.put(d, text, "u32", False)


@form("dp4a", "dp2a")
def dot_product(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.parts[0] == "dp2a":
        raise emitter.unsupported()
    d, a, b, c = instruction.operands
    first, second = ("I8" if k == "s32" else "U8" for k in instruction.parts[1:3])
    x, y = (f"{emitter.vector(o, 'u32')}.view({t}).reshape(32, 4).astype(I32)" for o, t in ((a, first), (b, second)))
    emitter.put(d, f"(({x}) * ({y})).sum(1, dtype=I32) + {emitter.value(c, 's32')}", "s32", False)


# compare and select


def compared(emitter: Emitter, instruction: Instruction, operation: str, kind: str, a, b) -> tuple[str, str]:
    """(expression, "scalar" | "bool") of a comparison."""
    if kind in FLOAT_KINDS:
        from .instructions_float import compare_float

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
    true = 0x3F800000 if kind == "f32" else (1 << bits_of(kind)) - 1
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
    condition = f"({emitter.vector(c, instruction.parts[-1])}) >= 0"
    emitter.put(d, f"WHERE({condition}, {emitter.vector(a, kind)}, {emitter.vector(b, kind)})", kind, False)
