"""Integer, logic, shift, bit-field, compare and select instructions."""

from __future__ import annotations

from .emitter import NUMPY_TYPE, Emitter
from .instruction_table import form
from .ptx_tree import TYPE_BYTES, Immediate, Instruction

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
    if "cc" in instruction.parts or "sat" in instruction.parts:
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


@form("mul24", "mad24", uniform="never")
def mul24(emitter: Emitter, instruction: Instruction) -> None:
    """Products of the low 24 bits: .lo keeps bits 0 to 31 of the 48, .hi bits 16 to 47."""
    kind = type_of(emitter, instruction)
    if "sat" in instruction.parts:
        raise emitter.unsupported()
    d, a, b, *rest = instruction.operands
    shift = "<< I64(40) >> I64(40)" if kind == "s32" else "& I64(0xFFFFFF)"
    x, y = (f"({emitter.vector(o, 'u32')}.astype(I64) {shift})" for o in (a, b))
    text = f"(({x} * {y}) >> I64({16 if 'hi' in instruction.parts else 0})).astype(U32)"
    if rest:
        text = f"{text} + {emitter.raw(rest[0], 'u32')}"
    emitter.put(d, text, "u32", False)


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


@form("shl", "shr")
def shift(emitter: Emitter, instruction: Instruction) -> None:
    kind = type_of(emitter, instruction)
    d, a, b = instruction.operands
    bits = bits_of(kind)
    right = instruction.parts[0] == "shr"
    kind = kind if right and kind[0] == "s" else unsigned(kind)
    amount = emitter.raw(b, "u32")
    known = b.value & 0xFFFFFFFF if isinstance(b, Immediate) else None
    if emitter.is_scalar(a, b):
        if right:
            text = f"({emitter.value(a, kind)}) >> {amount}"
            return emitter.put(d, truncated(text, kind) if kind[0] == "s" else text, unsigned(kind), True)
        if known is not None:
            return emitter.put(
                d, truncated(f"{emitter.raw(a, kind)} << {amount}", kind) if known < bits else "0", kind, True
            )
        return emitter.put(d, f"SHIFT_LEFT({emitter.raw(a, kind)}, {amount}, {bits})", kind, True)
    numpy_type = NUMPY_TYPE[kind]
    if known is not None:
        if known >= bits and kind[0] == "u":
            return emitter.put(d, f"ZERO_{numpy_type}", kind, False)
        step = str(min(known, bits - 1))
    elif emitter.is_scalar(b):
        step = f"{numpy_type}(min({amount}, {bits if kind[0] == 'u' else bits - 1}))"
    else:
        step = f"MINIMUM({amount}, {bits if kind[0] == 'u' else bits - 1}).astype({numpy_type})"
    value = emitter.vector(a, kind)
    return emitter.put(d, f"{value} {'>>' if right else '<<'} {step}", kind, False)
