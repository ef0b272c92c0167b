"""Floating-point arithmetic: f16, bf16 (and pairs), f32, f64. Results are lane vectors."""

from __future__ import annotations

from .emitter import Emitter
from .instruction_table import form
from .ptx_tree import Instruction

PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def load(emitter: Emitter, operand, kind: str) -> str:
    """An operand as an array in the type that the arithmetic runs in (float32 for bf16; pairs as 64 values)."""
    if kind == "f16x2":
        return f"{emitter.vector(operand, 'b32')}.view(F16)"
    if kind == "bf16x2":
        return f"BF16_TO_F32({emitter.vector(operand, 'b32')}.view(U16))"
    if kind == "f32x2":
        return f"{emitter.vector(operand, 'b64')}.view(F32)"
    return emitter.vector(operand, kind)


def store(emitter: Emitter, operand, text: str, kind: str) -> None:
    """Put an arithmetic result back into the register's bits, with .ftz and .sat applied by the caller."""
    parts = emitter.instruction.parts
    if "ftz" in parts and kind in ("f32", "f32x2"):
        text = f"FLUSH({text})"
    if "sat" in parts:
        text = f"np.nan_to_num(({text}).clip(0, 1), nan=0.0)"
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
        text = f"DIRECTED32({load(emitter, a, kind)}.astype(F64) {operator} {load(emitter, b, kind)}, {mode!r})"
        return store(emitter, d, text, kind)
    return store(emitter, d, f"{load(emitter, a, kind)} {operator} {load(emitter, b, kind)}", kind)


@form("fma", uniform="never")
def fma(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    d, a, b, c = instruction.operands
    x, y, z = (load(emitter, o, kind) for o in (a, b, c))
    mode = direction(emitter, kind)
    if mode is not None:
        text = f"DIRECTED32({x}.astype(F64) * {y} + {z}, {mode!r})"
    elif kind in ("f32", "f32x2"):
        text = f"FMA32({x}, {y}, {z})"
    elif kind == "f64":
        text = f"FMA64({x}, {y}, {z})"
    elif kind in ("f16", "f16x2"):
        text = f"({x}.astype(F64) * {y} + {z}).astype(F16)"
    else:
        text = f"({x}.astype(F64) * {y} + {z}).astype(F32)"
    if "relu" in instruction.parts:
        text = f"np.fmax({text}, 0)"
    store(emitter, d, text, kind)


def divide(emitter: Emitter, instruction: Instruction) -> None:
    """div.full and div.approx are computed as div.rn: allowed by their error bounds."""
    binary_float(emitter, instruction, "/")


def min_max_float(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    d, *sources = instruction.operands
    if any(p in instruction.parts for p in ("abs", "xorsign")):
        raise emitter.unsupported()
    ignoring, keeping = ("np.fmin", "np.minimum") if instruction.parts[0] == "min" else ("np.fmax", "np.maximum")
    function = keeping if "NaN" in instruction.parts else ignoring
    text = load(emitter, sources[0], kind)
    for operand in sources[1:]:
        text = f"{function}({text}, {load(emitter, operand, kind)})"
    store(emitter, d, text, kind)


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
