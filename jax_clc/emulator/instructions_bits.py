"""lop3, funnel shifts, byte permutes, bit fields, bit counts, dot products of bytes."""

from __future__ import annotations

from .emitter import NUMPY_TYPE, Emitter
from .instruction_table import form
from .instructions_integer import bits_of, truncated, type_of, unsigned
from .ptx_tree import Instruction


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
        a, b = ("a & 31", "b & 31") if "wrap" in instruction.parts else ("min(a, 32)", "min(b, 32)")
        function, extra = f"(lambda a, b: (((1 << ({b})) - 1) << ({a})) & 0xFFFFFFFF)", ""
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
