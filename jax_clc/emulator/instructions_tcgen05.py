"""tcgen05 (tensor memory, MMA, commit, fences) and cluster launch control."""

from __future__ import annotations

from .emitter import Emitter
from .instruction_table import form
from .instructions_copy import _each_lane, lane_address, lane_value
from .ptx_tree import Address, Instruction, Label, Register, Vector


def _group(instruction: Instruction) -> int:
    return 2 if "cta_group::2" in instruction.parts else 1


@form("tcgen05.alloc", results=0)
def alloc(emitter: Emitter, instruction: Instruction) -> None:
    address, columns = instruction.operands
    text, scalar = emitter.address(address)
    if not scalar:
        raise emitter.unsupported("an address that differs between lanes")
    emitter.wait(
        f"warp.tensor_alloc({text}, {emitter.raw(columns, 'u32')}, {_group(instruction)}, {emitter.mask}, "
        f"{emitter.line})"
    )


@form("tcgen05.dealloc", results=0)
def dealloc(emitter: Emitter, instruction: Instruction) -> None:
    address, columns = instruction.operands
    emitter.write(
        f"warp.tensor_dealloc({lane_value(emitter, address, 'u32').replace('[lane]', '[0]')}, "
        f"{emitter.raw(columns, 'u32')}, "
        f"{_group(instruction)}, {emitter.mask})"
    )


@form("tcgen05.relinquish_alloc_permit", results=0)
def relinquish(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write(f"warp.tensor_relinquish({_group(instruction)}, {emitter.mask})")


def _access(emitter: Emitter, instruction: Instruction, address: Address) -> str:
    parts = instruction.parts
    if (
        parts[1:4] not in (("ld", "sync", "aligned"), ("st", "sync", "aligned"))
        or "pack::16b" in parts
        or "unpack::16b" in parts
    ):
        raise emitter.unsupported()
    shape, repeat = parts[4], int(parts[5][1:])
    text, scalar = emitter.address(address)
    return f"{text if scalar else f'int({text}[0])'}, {shape!r}, {repeat}, {emitter.mask}, {emitter.line}"


@form("tcgen05.ld", uniform="never")
def load(emitter: Emitter, instruction: Instruction) -> None:
    d, address = instruction.operands
    source = f"warp.tensor_load_registers({_access(emitter, instruction, address)})"
    emitter.deliver(d.items, (emitter.block, emitter.position), source)


@form("tcgen05.st", results=0)
def store(emitter: Emitter, instruction: Instruction) -> None:
    address, source = instruction.operands
    values = ", ".join(emitter.vector(r, "b32") for r in source.items)
    emitter.write(f"warp.tensor_store_registers({_access(emitter, instruction, address)}, ({values},))")


@form("tcgen05.wait::ld", results=0)
def wait_load(emitter: Emitter, instruction: Instruction) -> None:
    """Registers of every earlier tcgen05.ld of the warp become valid."""
    emitter.write(f"loaded = warp.tensor_wait_load({emitter.mask}, {emitter.line})")
    emitter.write("if loaded:")
    for other, block, position in emitter.sites("tcgen05.ld"):
        emitter.write(f"  if (done := loaded.get({other.line})) is not None:")
        emitter.depth += 2
        emitter.deliver(other.operands[0].items, (block, position), "done")
        emitter.depth -= 2
    emitter.write("  pass")


@form("tcgen05.wait::st", results=0)
def wait_store(emitter: Emitter, instruction: Instruction) -> None:
    emitter.write(f"warp.tensor_wait_store({emitter.mask}, {emitter.line})")


@form("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", results=0)
def fence(emitter: Emitter, instruction: Instruction) -> None:
    kind = "tcgen05.before" if "before" in instruction.opcode else "tcgen05.after"
    emitter.write(f"warp.fence({kind!r}, {emitter.mask}, {emitter.line}, 'acq_rel', None)")


@form("tcgen05.mma", results=0)
def mma(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    kind = next((p[6:] for p in parts if p.startswith("kind::")), None)
    if kind not in ("f16", "tf32", "f8f6f4", "i8") or any(p in ("sp", "ws") for p in parts):
        raise emitter.unsupported()
    d, a, b, descriptor, *rest = instruction.operands
    disabled = "()"
    if rest and isinstance(rest[0], Vector):
        disabled = "(" + ", ".join(lane_value(emitter, r, "u32") for r in rest.pop(0).items) + ",)"
    if len(rest) > 1:
        raise emitter.unsupported("scale-input-d")
    accumulate, how = emitter.predicate(rest[0])
    accumulate = accumulate if how == "scalar" else f"bool({emitter.predicate_bits(rest[0])} >> lane & 1)"
    in_tensor_memory = isinstance(a, Address)
    a_text = lane_address(emitter, a) if in_tensor_memory else lane_value(emitter, a, "u64")
    _each_lane(
        emitter,
        f"warp.tensor_mma({lane_address(emitter, d)}, {a_text}, {lane_value(emitter, b, 'u64')}, "
        f"{lane_value(emitter, descriptor, 'u32')}, {accumulate}, {disabled}, {kind!r}, {_group(instruction)}, "
        f"{in_tensor_memory}, lane, {emitter.line})",
    )


@form("tcgen05.commit", results=0)
def commit(emitter: Emitter, instruction: Instruction) -> None:
    barrier, *rest = instruction.operands
    multicast = lane_value(emitter, rest[0], "u16") if rest else "None"
    _each_lane(
        emitter,
        f"warp.tensor_commit({lane_address(emitter, barrier)}, {multicast}, {_group(instruction)}, lane, "
        f"{emitter.line})",
    )


# cluster launch control


@form("clusterlaunchcontrol.try_cancel", results=0)
def try_cancel(emitter: Emitter, instruction: Instruction) -> None:
    record, barrier = instruction.operands
    multicast = "multicast::cluster::all" in instruction.parts
    _each_lane(
        emitter,
        f"warp.try_cancel({lane_address(emitter, record)}, {lane_address(emitter, barrier)}, {multicast}, lane, "
        f"{emitter.line})",
    )


def _record(emitter: Emitter, operand) -> str:
    if not isinstance(operand, Register):
        raise emitter.unsupported()
    name = emitter.name(emitter.use(operand))
    return name if emitter.is_scalar(operand) else f"warp.one_record({name}, {emitter.mask})"


@form("clusterlaunchcontrol.query_cancel.is_canceled", uniform="always")
def is_canceled(emitter: Emitter, instruction: Instruction) -> None:
    p, record = instruction.operands
    emitter.put_predicate(p, f"warp.is_canceled({_record(emitter, record)})", "scalar")


@form(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid", "clusterlaunchcontrol.query_cancel.get_first_ctaid::x",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::y", "clusterlaunchcontrol.query_cancel.get_first_ctaid::z",
    uniform="always",
)  # fmt: skip
def first_ctaid(emitter: Emitter, instruction: Instruction) -> None:
    d, record = instruction.operands
    name = emitter.temporary()
    emitter.write(f"{name} = warp.first_ctaid({_record(emitter, record)})")
    if isinstance(d, Vector):
        for axis, item in enumerate(d.items[:3]):
            if item != Label("_"):
                emitter.put(item, f"{name}[{axis}]", "u32", True)
        return
    axis = "xyz".index(instruction.parts[2][-1])
    emitter.put(d, f"{name}[{axis}]", "u32", True)
