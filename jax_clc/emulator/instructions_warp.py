"""Warp-wide exchange: shfl, vote, match, redux, elect, activemask; and the odd ones: nanosleep, trap, setmaxnreg."""

from __future__ import annotations

from .emitter import Emitter
from .instruction_table import form
from .ptx_tree import Immediate, Instruction, Pair, Register


def shfl_uniform(analysis, instruction: Instruction, block: int, position: int) -> bool:
    """An indexed shuffle from one lane of the whole warp gives all lanes the same value."""
    _, a, b, c, *_ = instruction.operands
    if all(analysis.is_uniform(o, block, position) for o in (a, b, c)):
        return "idx" in instruction.parts
    whole = isinstance(c, Immediate) and c.value & 0x1F1F == 31
    return "idx" in instruction.parts and whole and analysis.is_uniform(b, block, position)


@form("shfl", uniform=shfl_uniform)
def shfl(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    mode = next(p for p in parts if p in ("up", "down", "bfly", "idx"))
    d, a, b, c, *member = instruction.operands
    value, lanes = (d.first, d.second) if isinstance(d, Pair) else (d, None)
    members = emitter.raw(member[0], "u32") if member else "0xFFFFFFFF"
    if mode == "idx" and emitter.is_scalar(b) and isinstance(c, Immediate) and c.value & 0x1F1F == 31:
        emitter.write(f"warp.check_members({members}, {emitter.mask})")
        lane = f"({emitter.raw(b, 'u32')} & 31)"
        text = emitter.raw(a, "u32") if emitter.is_scalar(a) else f"int({emitter.raw(a, 'u32')}[{lane}])"
        emitter.put(value, f"({text} if {emitter.mask} >> {lane} & 1 else 0xFFFFFFFF)", "u32", True)
        if lanes is not None:
            emitter.put_predicate(lanes, "True", "scalar")
        return
    result, valid = emitter.temporary(), emitter.temporary()
    emitter.write(
        f"{result}, {valid} = warp.shuffle({mode!r}, {emitter.vector(a, 'u32')}, {emitter.vector(b, 'u32')}, "
        f"{emitter.vector(c, 'u32')}, {members}, {emitter.mask})"
    )
    emitter.put(value, result, "u32", False)
    if lanes is not None:
        emitter.put_predicate(lanes, valid, "bool")


def _one_mask(emitter: Emitter, members) -> str:
    """A member mask that all lanes have to name alike, because all get one result."""
    if not emitter.is_scalar(members):
        raise emitter.unsupported("a member mask that may differ between lanes")
    return emitter.raw(members, "u32")


@form("vote", uniform="always")
def vote(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    d, p, *member = instruction.operands
    members = _one_mask(emitter, member[0]) if member else "0xFFFFFFFF"
    emitter.write(f"warp.check_members({members}, {emitter.mask})")
    active = f"({members} & {emitter.mask})"
    bits = f"({emitter.predicate_bits(p)} & {active})"
    if "ballot" in parts:
        return emitter.put(d, bits, "u32", True)
    text = {"all": f"{bits} == {active}", "any": f"{bits} != 0", "uni": f"{bits} in (0, {active})"}
    return emitter.put_predicate(d, next(t for k, t in text.items() if k in parts), "scalar")


@form("match", uniform=lambda analysis, instruction, block, position: "all" in instruction.parts)
def match(emitter: Emitter, instruction: Instruction) -> None:
    kind = instruction.parts[-1]
    d, a, members = instruction.operands
    if "all" in instruction.parts:
        value, holds = (d.first, d.second) if isinstance(d, Pair) else (d, None)
        name = emitter.temporary()
        emitter.write(
            f"{name} = warp.match_all({emitter.vector(a, kind)}, {_one_mask(emitter, members)}, {emitter.mask})"
        )
        emitter.put(value, name, "u32", True)
        if holds is not None:
            emitter.put_predicate(holds, f"{name} != 0", "scalar")
        return
    text = f"warp.match_any({emitter.vector(a, kind)}, {emitter.raw(members, 'u32')}, {emitter.mask})"
    emitter.put(d, text, "u32", False)


@form("redux", uniform="always")
def redux(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    d, a, members = instruction.operands
    kind, operation = parts[-1], parts[2]
    if kind == "f32" and operation in ("min", "max"):
        lanes = f"{emitter.vector(a, 'f32')}, {_one_mask(emitter, members)}, {emitter.mask}"
        emitter.put(d, f"warp.reduce_float({operation!r}, {'abs' in parts}, {'NaN' in parts}, {lanes})", "u32", True)
        return
    if kind not in ("u32", "s32", "b32"):
        raise emitter.unsupported()
    text = f"warp.reduce({operation!r}, {emitter.vector(a, kind)}, {_one_mask(emitter, members)}, {emitter.mask})"
    emitter.put(d, text, "u32", True)


@form("elect", uniform=lambda analysis, instruction, block, position: False)
def elect(emitter: Emitter, instruction: Instruction) -> None:
    d, members = instruction.operands
    value, chosen = (d.first, d.second) if isinstance(d, Pair) else (d, None)
    name = emitter.temporary()
    emitter.write(f"{name} = warp.elect({_one_mask(emitter, members)}, {emitter.mask})")
    if isinstance(value, Register) and emitter.definition(value).used:
        emitter.put(value, name, "u32", True)
    if chosen is not None:
        emitter.put_predicate(chosen, f"1 << {name}", "bits")


@form("activemask", uniform="always")
def activemask(emitter: Emitter, instruction: Instruction) -> None:
    emitter.put(instruction.operands[0], emitter.mask, "u32", True)


@form("nanosleep", results=0)
def nanosleep(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write("warp.poll(); yield")


@form("setmaxnreg", results=0)
def setmaxnreg(emitter: Emitter, instruction: Instruction) -> None:
    increase = "inc" in instruction.parts
    emitter.wait(
        f"warp.set_registers({emitter.raw(instruction.operands[0], 'u32')}, {increase}, {emitter.mask}, {emitter.line})"
    )


@form("trap", results=0)
def trap(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write("warp.trap()")


@form("call.extern", results=0)
def call_extern(emitter: Emitter, instruction: Instruction) -> None:
    """Of the functions that a driver provides: printf prints nothing, a failed assertion traps."""
    name = getattr(instruction.operands[0], "name", "?")
    if name == "vprintf":
        emitter.write("pass")
    elif name == "__assertfail":
        emitter.write("warp.trap()")
    else:
        raise emitter.unsupported(f"call of {name}")


@form("brkpt", "pmevent", results=0)
def ignored(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write("pass")


@form("trap.brx", results=0)
def beyond_table(emitter: Emitter, instruction: Instruction) -> None:
    """Where no target of a brx.idx was taken."""
    index, count = instruction.operands
    emitter.write(f"warp.beyond_table({emitter.raw(index, 'u32')}, {count.value}, {emitter.mask})")


@form("bra", "ret", "exit", results=0)
def control(emitter: Emitter, instruction: Instruction) -> None:
    raise AssertionError("control flow is emitted by BlockEmitter")
