"""wgmma, mma.sync, ldmatrix, stmatrix: matrix instructions on registers and shared memory."""

from __future__ import annotations

import re

from .emitter import Emitter
from .instruction_table import form
from .ptx_tree import Instruction, Vector


@form("wgmma.fence", results=0)
def wgmma_fence(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write(f"warp.wgmma_fence({emitter.mask}, {emitter.line})")


@form("wgmma.commit_group", results=0)
def wgmma_commit(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write("warp.wgmma_commit()")


@form("wgmma.wait_group", results=0)
def wgmma_wait(emitter: Emitter, instruction: Instruction) -> None:
    count = emitter.raw(instruction.operands[0], "u32")
    emitter.wait(f"warp.wgmma_wait({count}, {emitter.mask}, {emitter.line})")
    delivered = set()
    for other, block, position in emitter.sites("wgmma.mma_async"):
        registers = other.operands[0].items
        key = registers[0].name
        if key not in delivered:
            delivered.add(key)
            emitter.write(f"if (done := warp.wgmma_take({key!r})) is not None:")
            emitter.depth += 1
            emitter.deliver(registers, (block, position), "done")
            emitter.depth -= 1


@form("wgmma.mma_async", reads_results=True, uniform="never")
def wgmma(emitter: Emitter, instruction: Instruction) -> None:
    parts, operands = instruction.parts, instruction.operands
    if parts[2:4] != ("sync", "aligned") or "sp" in parts:
        raise emitter.unsupported()
    shape = re.match(r"m64n(\d+)k\d+$", parts[4])
    if shape is None:
        raise emitter.unsupported(f"shape {parts[4]}")
    d_kind, a_kind, b_kind = parts[5:8]
    d, a, b, *rest = operands
    names = [emitter.name(emitter.definition(r)) for r in d.items]
    scale_d, how = emitter.predicate(rest[0])
    if how != "scalar":
        scale_d = f"warp.one_predicate({emitter.predicate_bits(rest[0])})"
    numbers = [o.value for o in rest[1:]]  # imm-scale-a, imm-scale-b, imm-trans-a, imm-trans-b
    numbers += [1, 1][len(numbers) :] if len(numbers) < 2 else []
    in_registers = isinstance(a, Vector)
    transposes = numbers[2:]
    if in_registers:
        trans_a, trans_b = 0, (transposes[0] if transposes else 0)
        a_text = f"({', '.join(emitter.vector(r, 'b32') for r in a.items)},)"
    else:
        trans_a, trans_b = transposes if len(transposes) == 2 else (0, 0)
        if not emitter.is_scalar(a):
            a_text = f"warp.one_value({emitter.raw(a, 'u64')})"
        else:
            a_text = emitter.raw(a, "u64")
    b_text = emitter.raw(b, "u64") if emitter.is_scalar(b) else f"warp.one_value({emitter.raw(b, 'u64')})"
    shape_key = (int(shape.group(1)), d_kind, a_kind, b_kind, numbers[0], numbers[1], trans_a, trans_b)
    constant = emitter.constant(shape_key)
    key = d.items[0].name
    sources = emitter.constant(tuple(r.name for r in a.items) if in_registers else ())
    results = emitter.constant(tuple(r.name for r in d.items))
    emitter.write(f"warp.wgmma_registers({results}, {sources}, {names[0]})")
    emitter.write(
        f"warp.wgmma({key!r}, ({', '.join(names)},), {a_text}, {b_text}, {scale_d}, {constant}, {emitter.mask}, "
        f"{emitter.line})"
    )
    emitter.write(f"{' = '.join(names)} = warp.in_flight")


@form("mma.sync", uniform="never")
def mma_sync(emitter: Emitter, instruction: Instruction) -> None:
    """m16n8kN of dense types: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 d, a, b, c."""
    parts = instruction.parts
    shape = re.match(r"m16n8k(\d+)$", parts[3])
    if shape is None or parts[4:6] != ("row", "col") or len(instruction.operands) != 4:
        raise emitter.unsupported()
    kinds = parts[6:10] if parts[6] != "satfinite" else parts[7:11]
    d, a, b, c = instruction.operands
    known = ("f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2")
    if (
        kinds[0] not in ("f32", "f16", "s32")
        or kinds[1] not in known
        or kinds[2] not in known
        or parts[6] == "satfinite"
    ):
        raise emitter.unsupported()
    a_text, b_text, c_text = (f"({', '.join(emitter.vector(r, 'b32') for r in _items(o))},)" for o in (a, b, c))
    name = emitter.temporary()
    emitter.write(
        f"{name} = warp.mma({tuple(kinds)!r}, {int(shape.group(1))}, {a_text}, {b_text}, {c_text}, {emitter.mask})"
    )
    for index, item in enumerate(_items(d)):
        emitter.put(item, f"{name}[{index}]", "b32", False)


def _items(operand) -> tuple:
    return operand.items if isinstance(operand, Vector) else (operand,)


# ldmatrix, stmatrix


@form("ldmatrix", uniform="never")
def ldmatrix(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    if "m8n8" not in parts or parts[-1] != "b16":
        raise emitter.unsupported()
    d, address = instruction.operands
    text, scalar = emitter.address(address)
    if scalar:
        text = f"FULL_INT({text}, I64)"
    items = d.items if isinstance(d, Vector) else (d,)
    name = emitter.temporary()
    emitter.write(
        f"{name} = warp.load_matrices({text}, {len(items)}, {'trans' in parts}, {emitter.mask}, {emitter.line})"
    )
    for index, item in enumerate(items):
        emitter.put(item, f"{name}[{index}]", "b32", False)


@form("stmatrix", results=0)
def stmatrix(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    if "m8n8" not in parts or parts[-1] != "b16":
        raise emitter.unsupported()
    address, source = instruction.operands
    text, scalar = emitter.address(address)
    if scalar:
        text = f"FULL_INT({text}, I64)"
    items = source.items if isinstance(source, Vector) else (source,)
    values = ", ".join(emitter.vector(item, "b32") for item in items)
    emitter.write(f"warp.store_matrices({text}, ({values},), {'trans' in parts}, {emitter.mask}, {emitter.line})")
