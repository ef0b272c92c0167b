"""Basic blocks of a kernel: what they read and write, where control goes, where paths meet again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from .errors import PtxSyntaxError
from .instruction_table import form_of, reading
from .ptx_tree import Address, Immediate, Instruction, Kernel, Label, Negated, Pair, Register, Vector

EXIT = -1


@dataclass(slots=True)
class Block:
    index: int
    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)  # [taken, fall-through] of a conditional branch
    predecessors: list[int] = field(default_factory=list)
    branch: Instruction | None = None  # the conditional branch that ends the block, if any


def registers_in(operand) -> Iterable[Register]:
    """Every register an operand mentions."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers_in(item)
    elif isinstance(operand, Pair):
        yield from registers_in(operand.first)
        yield from registers_in(operand.second)
    elif isinstance(operand, Negated):
        yield from registers_in(operand.register)
    elif isinstance(operand, Address):
        yield from registers_in(operand.base)
        for item in operand.extra:
            yield from registers_in(item)


def definitions(instruction: Instruction) -> list[str]:
    """Registers written. An address where a result could stand means that the form has no result here."""
    results = [o for o in instruction.operands[: form_of(instruction).results] if not isinstance(o, Address)]
    return [r.name for operand in results for r in registers_in(operand)]


def uses(instruction: Instruction) -> list[str]:
    """Registers read. A guarded definition also lets the old value through, so it counts as a use."""
    form = form_of(instruction)
    first = 0 if form.reads_results or instruction.guard is not None else form.results
    read = [o for i, o in enumerate(instruction.operands) if i >= first or isinstance(o, Address)]
    names = [r.name for operand in read for r in registers_in(operand)]
    if instruction.guard is not None:
        names.append(instruction.guard.name)
    return names


POLLS = ("atom", "mbarrier.try_wait", "mbarrier.test_wait", "nanosleep")
ORDERED = ("volatile", "relaxed", "acquire")


def polls(instruction: Instruction) -> bool:
    """Whether an instruction looks at memory that others may change: what spin loops are made of."""
    if instruction.opcode.startswith(POLLS):
        return True
    return instruction.parts[0] == "ld" and any(p in ORDERED for p in instruction.parts)


def build_blocks(kernel: Kernel, split_polls: bool = False) -> list[Block]:
    """Blocks in program order; block 0 is the entry. Empty jumps are threaded away. `split_polls`: a block starts
    before every instruction that polls."""
    targets: dict[str, int] = {}
    leaders = {0}
    code: list[Instruction] = []
    for item in _without_tables(kernel):
        if isinstance(item, Label):
            targets[item.name] = len(code)
        else:
            if split_polls and polls(item):
                leaders.add(len(code))
            code.append(item)
            if item.parts[0] in ("bra", "ret", "exit", "trap"):
                leaders.add(len(code))
    if not code:
        raise PtxSyntaxError(f"kernel {kernel.name} is empty", line=kernel.line)
    for instruction in code:
        for label in branch_targets(instruction):
            if label not in targets:
                raise PtxSyntaxError(f"branch to unknown label {label!r}", line=instruction.line)
            leaders.add(targets[label])
    starts = sorted(s for s in leaders if s < len(code))
    block_at = {start: index for index, start in enumerate(starts)}
    blocks = []
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else len(code)
        block = Block(index, code[start:end])
        following = block_at.get(end, EXIT)
        last = block.instructions[-1]
        kind = last.parts[0]
        places = [block_at.get(targets[label], EXIT) for label in branch_targets(last)]
        if kind == "bra":
            block.instructions.pop()
            if last.guard is None or places[0] == following:
                block.successors = places
            else:
                block.branch = last
                block.successors = [places[0], following]
        elif kind in ("ret", "exit", "trap") and last.guard is None:
            block.successors = [EXIT]
        else:
            block.successors = [following]
        blocks.append(block)
    _thread_jumps(blocks)
    _keep_reachable(blocks)
    for block in blocks:
        _copy_constants(block)
    return blocks


def branch_targets(instruction: Instruction) -> list[str]:
    if instruction.parts[0] == "bra":
        target = instruction.operands[0]
        return [target.name] if isinstance(target, Label) else [getattr(target, "name", "?")]
    return []


def _without_tables(kernel: Kernel) -> Iterator[Instruction | Label]:
    """The kernel's body with each brx.idx as a chain of comparisons and branches, so that lanes may part at it."""
    chosen = Register("%brx@")
    for number, item in enumerate(kernel.body):
        if isinstance(item, Label) or item.parts[0] != "brx":
            yield item
            continue
        kernel.registers[chosen.name] = "pred"
        with reading(item):
            index, table = item.operands
            labels = kernel.label_tables[table.name]
        after = Label(f"brx@{number}")
        if item.guard is not None:
            yield Instruction(item.line, "bra", (after,), item.guard, not item.guard_negated)
        for value, label in enumerate(labels):
            yield Instruction(item.line, "setp.eq.u32", (chosen, index, Immediate(value)))
            yield Instruction(item.line, "bra", (Label(label),), chosen)
        yield Instruction(item.line, "trap.brx", (index, Immediate(len(labels))))
        yield after


def _thread_jumps(blocks: list[Block]) -> None:
    def final(index: int) -> int:
        seen = set()
        while index != EXIT and index not in seen:
            block = blocks[index]
            if block.instructions or block.branch or len(block.successors) != 1:
                break
            seen.add(index)
            index = block.successors[0]
        return index

    for block in blocks:
        block.successors = [final(s) for s in block.successors]
        if block.branch is not None and block.successors[0] == block.successors[1]:
            block.branch, block.successors = None, block.successors[:1]


def _keep_reachable(blocks: list[Block]) -> None:
    reached, work = {0}, [0]
    while work:
        for successor in blocks[work.pop()].successors:
            if successor != EXIT and successor not in reached:
                reached.add(successor)
                work.append(successor)
    for block in blocks:
        block.predecessors = []
    for block in blocks:
        if block.index in reached:
            for successor in block.successors:
                if successor != EXIT and block.index not in blocks[successor].predecessors:
                    blocks[successor].predecessors.append(block.index)
        else:
            block.instructions, block.successors, block.branch = [], [], None


def _copy_constants(block: Block) -> None:
    """`mov` of a register that holds a constant becomes `mov` of the constant: compilers take the zero of an
    accumulator for the zero of a loop counter, which must not become one value per lane for that."""
    constants: dict[str, Immediate] = {}
    for index, instruction in enumerate(block.instructions):
        plain = instruction.guard is None and instruction.parts[0] == "mov" and len(instruction.operands) == 2
        if plain and isinstance(instruction.operands[1], Register) and instruction.operands[1].name in constants:
            constant = constants[instruction.operands[1].name]
            instruction = replace(instruction, operands=(instruction.operands[0], constant))
            block.instructions[index] = instruction
        for name in definitions(instruction):
            constants.pop(name, None)
        if plain and isinstance(instruction.operands[1], Immediate) and isinstance(instruction.operands[0], Register):
            constants[instruction.operands[0].name] = instruction.operands[1]


def immediate_post_dominators(blocks: list[Block]) -> list[int]:
    """For each block the nearest block that every path to the exit passes; EXIT where there is none."""
    count = len(blocks)
    every = (1 << (count + 1)) - 1  # bit `count` is the exit
    sets = [every] * count
    live = [b.index for b in blocks if b.successors]
    changed = True
    while changed:
        changed = False
        for index in reversed(live):
            meet = every
            for successor in blocks[index].successors:
                meet &= (1 << count) if successor == EXIT else sets[successor]
            new = meet | (1 << index)
            if new != sets[index]:
                sets[index], changed = new, True
    result = [EXIT] * count
    for index in live:
        strict = sets[index] & ~(1 << index)
        size = bin(strict).count("1")
        for other in range(count):
            if strict >> other & 1 and bin(sets[other]).count("1") == size:
                result[index] = other
                break
    return result
