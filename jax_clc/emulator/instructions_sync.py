"""Barriers (CTA, warp, cluster, mbarrier), fences, dependent launch."""

from __future__ import annotations

from .emitter import Emitter
from .instruction_table import form
from .instructions_memory import SCOPES
from .ptx_tree import Address, Immediate, Instruction, Label, Register


def order_of(instruction: Instruction, default: str, scope: str | None = "cta") -> tuple[str, str | None]:
    """(semantics, scope) named by an instruction's modifiers."""
    semantics = next((p for p in instruction.parts if p in ("relaxed", "acquire", "release", "acq_rel", "sc")), default)
    return semantics, next((SCOPES[p] for p in instruction.parts[1:] if p in SCOPES), scope)


# bar and barrier


@form("bar.warp.sync", results=0)
def bar_warp_sync(emitter: Emitter, instruction: Instruction) -> None:
    members = emitter.raw(instruction.operands[0], "u32")
    emitter.write(f"warp.warp_sync({members}, {emitter.mask}, {emitter.line})")


@form("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", results=0)
def bar_sync(emitter: Emitter, instruction: Instruction) -> None:
    _named(emitter, instruction, True)


@form("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive", results=0)
def bar_arrive(emitter: Emitter, instruction: Instruction) -> None:
    _named(emitter, instruction, False)


def _named(emitter: Emitter, instruction: Instruction, wait: bool) -> None:
    operands = instruction.operands
    if not all(emitter.is_scalar(o) for o in operands):
        raise emitter.unsupported("barrier number that differs between lanes")
    count = emitter.raw(operands[1], "u32") if len(operands) > 1 else "0"
    aligned = instruction.parts[0] == "bar" or "aligned" in instruction.parts
    arguments = f"{emitter.raw(operands[0], 'u32')}, {count}, {emitter.mask}, {emitter.line}, {aligned}"
    if wait:
        emitter.wait(f"warp.barrier_sync({arguments})")
    else:
        emitter.write(f"warp.barrier_arrive({arguments})")
        emitter.pause()


@form("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", uniform="always")
def bar_red(emitter: Emitter, instruction: Instruction) -> None:
    d, number, *rest = instruction.operands
    predicate = rest[-1]
    count = emitter.raw(rest[0], "u32") if len(rest) > 1 else "0"
    aligned = instruction.parts[0] == "bar" or "aligned" in instruction.parts
    bits = emitter.predicate_bits(predicate)
    name = emitter.wait(
        f"warp.barrier_sync({emitter.raw(number, 'u32')}, {count}, {emitter.mask}, {emitter.line}, {aligned}, "
        f"({bits} & {emitter.mask}).bit_count())"
    )
    if "popc" in instruction.parts:
        return emitter.put(d, f"{name}[0]", "u32", True)
    test = f"{name}[0] == {name}[1]" if "and" in instruction.parts else f"{name}[0] != 0"
    return emitter.put_predicate(d, test, "scalar")


@form("barrier.cluster.arrive", results=0)
def cluster_arrive(emitter: Emitter, instruction: Instruction) -> None:
    semantics, _ = order_of(instruction, "release")
    emitter.write(
        f"warp.cluster_arrive({emitter.mask}, {emitter.line}, {semantics!r}, {'aligned' in instruction.parts})"
    )
    emitter.pause()


@form("barrier.cluster.wait", results=0)
def cluster_wait(emitter: Emitter, instruction: Instruction) -> None:
    semantics, _ = order_of(instruction, "acquire")
    emitter.wait(f"warp.cluster_wait({emitter.mask}, {emitter.line}, {semantics!r}, {'aligned' in instruction.parts})")


# mbarrier


def _remote(instruction: Instruction) -> str:
    if "shared::cluster" in instruction.parts:
        return "'cluster'"
    return "'shared'" if any(p in ("shared", "shared::cta") for p in instruction.parts) else "'generic'"


def _own(emitter: Emitter, instruction: Instruction) -> None:
    """Barriers are initialised, invalidated and waited for in their own CTA."""
    if "shared::cluster" in instruction.parts:
        raise emitter.unsupported("PTX has it for barriers in .shared::cta only")


@form("mbarrier.init", "mbarrier.inval", results=0)
def mbarrier_init(emitter: Emitter, instruction: Instruction) -> None:
    address, *count = instruction.operands
    _own(emitter, instruction)
    text, scalar = emitter.address(address)
    if not scalar:
        emitter.write(f"warp.each_lane(warp.mbarrier_{instruction.parts[1]}, {text}, {_remote(instruction)}, "
                      f"{emitter.vector(count[0], 'u32') if count else 'None'}, {emitter.mask}, "
                      f"{emitter.line})")  # fmt: skip
        return
    arguments = [text, _remote(instruction)]
    if count:
        value = emitter.raw(count[0], "u32")
        arguments.append(value if emitter.is_scalar(count[0]) else f"int({value}[FIRST[{emitter.mask}]])")
    else:
        arguments.append("None")
    emitter.write(f"warp.mbarrier_{instruction.parts[1]}({', '.join(arguments)}, {emitter.mask}, {emitter.line})")


@form("mbarrier.arrive", "mbarrier.arrive_drop", uniform="auto")
def mbarrier_arrive(emitter: Emitter, instruction: Instruction) -> None:
    operands = list(instruction.operands)
    d = operands.pop(0) if not isinstance(operands[0], Address) else Label("_")
    address, *rest = operands
    semantics, scope = order_of(instruction, "release")
    text, scalar = emitter.address(address)
    transaction = "expect_tx" in instruction.parts
    argument = rest[0] if rest else Immediate(0 if transaction else 1)
    value = emitter.raw(argument, "u32")
    if not emitter.is_scalar(argument) or not scalar:
        if isinstance(d, Register) and emitter.definition(d).used:
            raise emitter.unsupported("the state of arrivals at different barriers")
        text = text if not scalar else f"FULL_INT({text}, I64)"
        value = emitter.vector(argument, "u32")
        d = Label("_")
    name = emitter.temporary()
    emitter.write(
        f"{name} = warp.mbarrier_arrive({text}, {_remote(instruction)}, {value}, {emitter.mask}, {emitter.line}, "
        f"{semantics!r}, "
        f"{scope!r}, {transaction}, {'noComplete' in instruction.parts}, {instruction.parts[1] == 'arrive_drop'})"
    )
    if isinstance(d, Register) and emitter.definition(d).used:
        emitter.put(d, name, "u64", True)
    emitter.pause()


@form("mbarrier.expect_tx", "mbarrier.complete_tx", results=0)
def mbarrier_expect(emitter: Emitter, instruction: Instruction) -> None:
    address, count = instruction.operands
    text, scalar = emitter.address(address)
    if not scalar or not emitter.is_scalar(count):
        raise emitter.unsupported("operands that differ between lanes")
    sign = "" if instruction.parts[1] == "expect_tx" else "-"
    value = f"{sign}({emitter.raw(count, 'u32')})"
    emitter.write(f"warp.mbarrier_expect({text}, {_remote(instruction)}, {value}, {emitter.mask}, {emitter.line})")


@form("mbarrier.test_wait", "mbarrier.try_wait")
def mbarrier_wait(emitter: Emitter, instruction: Instruction) -> None:
    p, address, what, *_ = instruction.operands
    _own(emitter, instruction)
    semantics, scope = order_of(instruction, "acquire")
    text, scalar = emitter.address(address)
    parity = "parity" in instruction.parts
    value = emitter.raw(what, "u32" if parity else "u64")
    order = f"{emitter.mask}, {emitter.line}, {semantics!r}, {scope!r}, {parity}"
    if not scalar or not emitter.is_scalar(what):
        text = f"FULL_INT({text}, I64)" if scalar else text
        value = emitter.vector(what, "u32" if parity else "u64")
        emitter.write("warp.poll(); yield")
        name = emitter.temporary()
        emitter.write(f"{name} = warp.test_lanes({text}, {_remote(instruction)}, {value}, {order})")
        return emitter.put_predicate(p, name, "bits")
    if instruction.parts[1] == "try_wait":
        name = emitter.wait(f"warp.try_wait({text}, {_remote(instruction)}, {value}, {order})")
        return emitter.put_predicate(p, name, "scalar")
    emitter.write("warp.poll(); yield")
    name = emitter.temporary()
    emitter.write(f"{name} = warp.test_wait({text}, {_remote(instruction)}, {value}, {order})")
    return emitter.put_predicate(p, name, "scalar")


@form("mbarrier.pending_count")
def mbarrier_pending(emitter: Emitter, instruction: Instruction) -> None:
    d, state = instruction.operands
    scalar = emitter.is_scalar(state)
    text = f"{emitter.raw(state, 'u64')} & {'0xFFFFF' if scalar else 'U64(0xFFFFF)'}"
    emitter.put(d, text if scalar else f"({text}).astype(U32)", "u32", scalar)


# fences


@form("fence", "membar", results=0)
def fence(emitter: Emitter, instruction: Instruction) -> None:
    parts = instruction.parts
    semantics, scope = order_of(instruction, "sc" if parts[0] == "membar" else "acq_rel", None)
    kind = "thread"
    if len(parts) > 1 and parts[1] == "proxy":
        kind = "proxy." + parts[2]
        if len(parts) > 3 and parts[3] in ("global", "shared::cta", "shared::cluster"):
            kind += "." + parts[3]
        if parts[2].startswith("tensormap"):
            kind = "proxy.tensormap"
        elif "async::generic" in parts[2]:
            kind = "proxy.async.sync_restrict." + semantics
    elif "mbarrier_init" in parts:
        kind = "mbarrier_init"
    elif any(p.startswith("sync_restrict") for p in parts):
        kind = "sync_restrict." + semantics
    emitter.write(f"warp.fence({kind!r}, {emitter.mask}, {emitter.line}, {semantics!r}, {scope!r})")


@form("griddepcontrol", results=0)
def griddepcontrol(emitter: Emitter, instruction: Instruction) -> None:
    """Grids of the emulated stream run one after another, so there is nothing to wait for."""
    emitter.write("pass")
