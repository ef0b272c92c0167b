"""Asynchronous copies: cp.async, cp.async.bulk, bulk tensor copies and reductions, st.async, red.async, bulk groups."""

from __future__ import annotations

from .emitter import Emitter
from .instruction_table import form
from .ptx_tree import TYPE_BYTES, Immediate, Instruction, Vector

KNOWN = {
    "cp", "async", "bulk", "tensor", "tile", "global", "shared::cta", "shared::cluster", "cta_group::1", "cta_group::2",
    "mbarrier::complete_tx::bytes", "multicast::cluster", "L2::cache_hint", "bulk_group", "prefetch", "L2", "reduce",
    "1d", "2d", "3d", "4d", "5d", "add", "min", "max", "and", "or", "xor", "inc", "dec", "noftz",
}  # fmt: skip


def _check(emitter: Emitter, instruction: Instruction) -> None:
    for part in instruction.parts:
        if part not in KNOWN and part not in TYPE_BYTES:
            raise emitter.unsupported(f"modifier .{part}")


def lane_value(emitter: Emitter, operand, kind: str) -> str:
    """An operand as one integer for lane `lane`."""
    text = emitter.raw(operand, kind)
    return text if emitter.is_scalar(operand) else f"int({text}[lane])"


def lane_address(emitter: Emitter, operand) -> str:
    text, scalar = emitter.address(operand)
    return text if scalar else f"int({text}[lane])"


def _coordinates(emitter: Emitter, address) -> str:
    """Signed tensor coordinates as a tuple."""
    vector = next(e for e in address.extra if isinstance(e, Vector))
    values = []
    for item in vector.items:
        text = emitter.signed(item, "s32")
        values.append(text if emitter.is_scalar(item) else f"int({text}[lane])")
    return f"({', '.join(values)},)"


def _each_lane(emitter: Emitter, call: str) -> None:
    """One operation for each active lane that executes the instruction."""
    emitter.write(f"for lane in warp.lanes_of({emitter.mask}):")
    emitter.write(f"  {call}")
    emitter.pause()


@form("cp.async.bulk.tensor", results=0)
def bulk_tensor(emitter: Emitter, instruction: Instruction) -> None:
    _check(emitter, instruction)
    parts, operands = instruction.parts, instruction.operands
    if parts.index("global") > next((i for i, p in enumerate(parts) if p.startswith("shared::")), 0):
        destination, source, barrier, *rest = operands
        multicast = lane_value(emitter, rest[0], "u16") if "multicast::cluster" in parts else "None"
        call = (
            f"warp.tensor_load({lane_address(emitter, destination)}, {lane_address(emitter, source)}, "
            f"{_coordinates(emitter, source)}, {lane_address(emitter, barrier)}, {multicast}, "
            f"{'cta_group::2' in parts}, "
            f"{'shared::cta' in parts}, lane, {emitter.line})"
        )
    else:
        destination, source, *rest = operands
        call = (
            f"warp.tensor_store({lane_address(emitter, destination)}, {_coordinates(emitter, destination)}, "
            f"{lane_address(emitter, source)}, None, lane, {emitter.line})"
        )
    _each_lane(emitter, call)


@form("cp.reduce.async.bulk.tensor", results=0)
def bulk_tensor_reduce(emitter: Emitter, instruction: Instruction) -> None:
    _check(emitter, instruction)
    destination, source, *_ = instruction.operands
    operation = next(p for p in instruction.parts if p in ("add", "min", "max", "and", "or", "xor", "inc", "dec"))
    _each_lane(
        emitter,
        f"warp.tensor_store({lane_address(emitter, destination)}, {_coordinates(emitter, destination)}, "
        f"{lane_address(emitter, source)}, {operation!r}, lane, {emitter.line})",
    )


@form("cp.async.bulk.prefetch.tensor", "cp.async.bulk.prefetch", results=0)
def bulk_prefetch(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write("pass")


@form("cp.async.bulk", results=0)
def bulk(emitter: Emitter, instruction: Instruction) -> None:
    _check(emitter, instruction)
    parts = instruction.parts
    destination, source, size, *rest = instruction.operands
    places = [p for p in parts if p in ("global", "shared::cta", "shared::cluster")]
    arguments = (
        f"{lane_address(emitter, destination)}, {lane_address(emitter, source)}, {lane_value(emitter, size, 'u32')}"
    )
    if places[0] == "global":
        _each_lane(emitter, f"warp.bulk_store({arguments}, None, None, lane, {emitter.line})")
        return
    barrier, *rest = rest
    multicast = lane_value(emitter, rest[0], "u16") if "multicast::cluster" in parts else "None"
    _each_lane(
        emitter,
        f"warp.bulk_load({arguments}, {lane_address(emitter, barrier)}, {multicast}, {places[1] == 'global'}, "
        f"lane, {emitter.line})",
    )


@form("cp.reduce.async.bulk", results=0)
def bulk_reduce(emitter: Emitter, instruction: Instruction) -> None:
    _check(emitter, instruction)
    parts = instruction.parts
    if parts[4] != "global":
        raise emitter.unsupported("reductions into shared memory")
    destination, source, size, *_ = instruction.operands
    operation = next(p for p in parts if p in ("add", "min", "max", "and", "or", "xor", "inc", "dec"))
    _each_lane(
        emitter,
        f"warp.bulk_store({lane_address(emitter, destination)}, {lane_address(emitter, source)}, "
        f"{lane_value(emitter, size, 'u32')}, {operation!r}, {parts[-1]!r}, lane, {emitter.line})",
    )


@form("cp.async.bulk.commit_group", results=0)
def bulk_commit(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write(f"warp.bulk_commit({emitter.mask})")


@form("cp.async.bulk.wait_group", results=0)
def bulk_wait(emitter: Emitter, instruction: Instruction) -> None:
    count = emitter.raw(instruction.operands[0], "u32")
    emitter.wait(f"warp.bulk_wait({count}, {'read' in instruction.parts}, {emitter.mask}, {emitter.line})")


# cp.async


@form("cp.async.ca", "cp.async.cg", results=0)
def async_copy(emitter: Emitter, instruction: Instruction) -> None:
    destination, source, size, *rest = instruction.operands
    rest = [r for r in rest if "L2::cache_hint" not in instruction.parts or r is not instruction.operands[-1]]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise emitter.unsupported()
    to, scalar_to = emitter.address(destination)
    of, scalar_of = emitter.address(source)
    to = f"FULL_INT({to}, I64)" if scalar_to else to
    of = f"FULL_INT({of}, I64)" if scalar_of else of
    source_size = "None"
    if rest and emitter.is_predicate(rest[0]):  # ignore-src: zeros instead
        text, how = emitter.predicate(rest[0])
        ignored = f"({text})" if how == "scalar" else emitter.predicate_lanes(rest[0])
        source_size = f"np.broadcast_to(WHERE({ignored}, U32(0), U32({size.value})), 32)"
    elif rest:
        source_size = emitter.vector(rest[0], "u32")
    emitter.write(f"warp.async_copy({to}, {of}, {size.value}, {source_size}, {emitter.mask}, {emitter.line})")


@form("cp.async.commit_group", results=0)
def async_commit(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write(f"warp.async_commit({emitter.mask})")


@form("cp.async.wait_group", "cp.async.wait_all", results=0)
def async_wait(emitter: Emitter, instruction: Instruction) -> None:
    count = emitter.raw(instruction.operands[0], "u32") if instruction.operands else "-1"
    emitter.wait(f"warp.async_wait({count}, {emitter.mask}, {emitter.line})")


@form("cp.async.mbarrier.arrive", results=0)
def async_arrive(emitter: Emitter, instruction: Instruction) -> None:
    text, scalar = emitter.address(instruction.operands[0])
    if not scalar:
        raise emitter.unsupported("a barrier address that differs between lanes")
    emitter.write(f"warp.async_arrive({text}, {'noinc' in instruction.parts}, {emitter.mask}, {emitter.line})")


# st.async and red.async


def store_async(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    kind = parts[-1]
    address, source, barrier = instruction.operands
    if "shared::cluster" not in parts:
        raise emitter.unsupported()
    items = source.items if isinstance(source, Vector) else (source,)
    values = [lane_value(emitter, item, f"u{8 * TYPE_BYTES[kind]}") for item in items]
    _each_lane(
        emitter,
        f"warp.remote_store({lane_address(emitter, address)}, ({', '.join(values)},), {TYPE_BYTES[kind]}, "
        f"{lane_address(emitter, barrier)}, None, {kind!r}, lane, {emitter.line})",
    )


def reduce_async(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    kind = parts[-1]
    address, value, barrier = instruction.operands
    operation = next(p for p in parts if p in ("add", "min", "max", "and", "or", "xor", "inc", "dec"))
    _each_lane(
        emitter,
        f"warp.remote_store({lane_address(emitter, address)}, "
        f"({lane_value(emitter, value, f'u{8 * TYPE_BYTES[kind]}')},), "
        f"{TYPE_BYTES[kind]}, {lane_address(emitter, barrier)}, {operation!r}, {kind!r}, lane, {emitter.line})",
    )
