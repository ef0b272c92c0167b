"""Floating-point arithmetic: f16, bf16 (and pairs), f32, f64. Results are lane vectors."""

from __future__ import annotations

from .emitter import Emitter
from .instruction_table import form
from .ptx_tree import Instruction

PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def load(emitter: Emitter, operand, kind: str) -> str:
    """An operand as an array in the type that the arithmetic runs in (float32 for bf16; pairs as 64 values), with
    its subnormals flushed where the instruction says .ftz."""
    if kind == "bf16x2":
        return f"BF16_TO_F32({emitter.vector(operand, 'b32')}.view(U16))"
    if kind == "f16x2":
        text = f"{emitter.vector(operand, 'b32')}.view(F16)"
    elif kind == "f32x2":
        text = f"{emitter.vector(operand, 'b64')}.view(F32)"
    else:
        text = emitter.vector(operand, kind)
    return f"FLUSH({text})" if flushes(emitter, kind) else text


def flushes(emitter: Emitter, kind: str) -> bool:
    """Whether .ftz makes zeros of the subnormals of a type: bf16 keeps them."""
    return "ftz" in emitter.instruction.parts and kind not in ("bf16", "bf16x2")


def store(emitter: Emitter, operand, text: str, kind: str) -> None:
    """Put an arithmetic result back into the register's bits, after .ftz and .sat."""
    if flushes(emitter, kind):
        text = f"FLUSH({text})"
    if "sat" in emitter.instruction.parts:
        text = f"SATURATE({text})"
    if kind == "f16x2":
        emitter.put(operand, f"({text}).view(U32)", "b32", False)
    elif kind == "bf16x2":
        emitter.put(operand, f"F32_TO_BF16({text}).astype(U16).view(U32)", "b32", False)
    elif kind == "bf16":
        emitter.put(operand, f"F32_TO_BF16({text}).astype(U16)", "b16", False)
    elif kind == "f32x2":
        emitter.put(operand, f"({text}).view(U64)", "b64", False)
    else:
        emitter.put(operand, text, kind, False)


def direction(emitter: Emitter, kind: str) -> str | None:
    """rz, rm, rp, or None for nearest even."""
    found = next((p for p in emitter.instruction.parts if p in ("rz", "rm", "rp")), None)
    if found is not None and kind != "f32":
        raise emitter.unsupported(f"rounding .{found} of .{kind}")
    return found


def binary_float(emitter: Emitter, instruction: Instruction, operator: str) -> None:
    kind = instruction.parts[-1]
    d, a, b = instruction.operands
    mode = direction(emitter, kind)
    if mode is not None:
        x, y = (f"{load(emitter, o, kind)}.astype(F64)" for o in (a, b))
        exact = f"{x} {operator} {y}" if operator in "*/" else f"ADD_TO_ODD({x}, {'-' if operator == '-' else ''}{y})"
        return store(emitter, d, f"DIRECTED32({exact}, {mode!r})", kind)
    return store(emitter, d, f"{load(emitter, a, kind)} {operator} {load(emitter, b, kind)}", kind)


@form("fma", uniform="never")
def fma(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    if "oob" in instruction.parts:
        raise emitter.unsupported("modifier .oob")
    d, a, b, c = instruction.operands
    x, y, z = (load(emitter, o, kind) for o in (a, b, c))
    mode = direction(emitter, kind)
    if kind == "f64":
        text = f"FMA64({x}, {y}, {z})"
    else:
        text = f"ADD_TO_ODD({x}.astype(F64) * {y}, {z}.astype(F64))"  # products of floats are exact in double
        if mode is not None:
            text = f"DIRECTED32({text}, {mode!r})"
        elif kind in ("bf16", "bf16x2"):
            text = f"TO_ODD32({text})"
        else:
            text = f"({text}).astype({'F32' if kind in ('f32', 'f32x2') else 'F16'})"
    if "relu" in instruction.parts:
        text = f"CANONICAL(RELU({text}))"
    store(emitter, d, text, kind)


def divide(emitter: Emitter, instruction: Instruction) -> None:
    """div.full and div.approx are computed as div.rn: allowed by their error bounds."""
    binary_float(emitter, instruction, "/")


def min_max_float(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    d, *sources = instruction.operands
    if any(p in instruction.parts for p in ("abs", "xorsign")):
        raise emitter.unsupported()
    function = "MIN_FLOAT" if instruction.parts[0] == "min" else "MAX_FLOAT"
    text = load(emitter, sources[0], kind)
    for operand in sources[1:]:
        text = f"{function}({text}, {load(emitter, operand, kind)}, {'NaN' in instruction.parts})"
    store(emitter, d, f"CANONICAL({text})", kind)


def sign_float(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    d, a = instruction.operands
    x = load(emitter, a, kind)
    store(emitter, d, f"-{x}" if instruction.parts[0] == "neg" else f"np.abs({x})", kind)


def compare_float(emitter: Emitter, operation: str, kind: str, a, b) -> str:
    if kind in PAIRS:
        raise emitter.unsupported("comparison of pairs")
    x, y = load(emitter, a, kind), load(emitter, b, kind)
    symbols = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    if operation in symbols:
        return f"{x} {symbols[operation]} {y}"
    if operation == "neu":
        return f"{x} != {y}"
    ordered = f"(({x} == {x}) & ({y} == {y}))"
    if operation == "num":
        return ordered
    if operation == "nan":
        return f"~{ordered}"
    if operation == "ne":
        return f"({x} != {y}) & {ordered}"
    if operation[:-1] in symbols and operation[-1] == "u":
        return f"({x} {symbols[operation[:-1]]} {y}) | ~{ordered}"
    raise emitter.unsupported(f"comparison .{operation}")


@form("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", uniform="never")
def functions(emitter: Emitter, instruction: Instruction) -> None:
    """Approximate forms are computed exactly in double and rounded: within their error bounds."""
    kind = instruction.parts[-1]
    d, a = instruction.operands
    mode = direction(emitter, kind)
    x = f"{load(emitter, a, kind)}.astype(F64)"
    text = {
        "rcp": f"1.0 / {x}", "sqrt": f"np.sqrt({x})", "rsqrt": f"1.0 / np.sqrt({x})", "ex2": f"np.exp2({x})",
        "lg2": f"np.log2({x})", "sin": f"np.sin({x})", "cos": f"np.cos({x})", "tanh": f"np.tanh({x})",
    }[instruction.parts[0]]  # fmt: skip
    compute = {"f32": "F32", "f64": "F64", "f16": "F16", "f16x2": "F16", "bf16": "F32", "bf16x2": "F32"}[kind]
    text = f"DIRECTED32({text}, {mode!r})" if mode is not None else f"({text}).astype({compute})"
    store(emitter, d, text, kind)


@form("copysign", uniform="never")
def copysign(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    d, a, b = instruction.operands
    store(emitter, d, f"np.copysign({load(emitter, b, kind)}, {load(emitter, a, kind)})", kind)


@form("testp", uniform="never")
def testp(emitter: Emitter, instruction: Instruction) -> None:
    d, a = instruction.operands
    x = load(emitter, a, instruction.parts[-1])
    tests = {
        "finite": "np.isfinite({})",
        "infinite": "np.isinf({})",
        "number": "({0} == {0})",
        "notanumber": "({0} != {0})",
    }
    if instruction.parts[1] not in tests:
        raise emitter.unsupported()
    emitter.put(d, tests[instruction.parts[1]].format(x), "pred", False)
