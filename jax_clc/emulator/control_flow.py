"""Basic blocks of a kernel, where lanes part and meet again, and which registers hold one value for the whole warp.

A register is first split into *webs*: sets of definitions that reach a common use. A web is *uniform* when, at every
definition, all active lanes get the same value, and no two definitions of it meet where diverged lanes meet (the sync
dependence of LLVM's uniformity analysis). Uniform webs are kept as Python integers; the others as NumPy vectors of 32
lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from .errors import PtxSyntaxError
from .instruction_table import form_of
from .ptx_parser import Address, Immediate, Instruction, Kernel, Label, Negated, Pair, Register, SpecialRegister, Vector

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
    for item in kernel.body:
        if isinstance(item, Label):
            targets[item.name] = len(code)
        else:
            if split_polls and polls(item):
                leaders.add(len(code))
            code.append(item)
            if item.parts[0] in ("bra", "ret", "exit", "trap", "brx"):
                leaders.add(len(code))
    if not code:
        raise PtxSyntaxError(f"kernel {kernel.name} is empty", line=kernel.line)
    for instruction in code:
        for label in branch_targets(kernel, instruction):
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
        places = [block_at.get(targets[label], EXIT) for label in branch_targets(kernel, last)]
        if kind == "bra":
            block.instructions.pop()
            if last.guard is None or places[0] == following:
                block.successors = places
            else:
                block.branch = last
                block.successors = [places[0], following]
        elif kind == "brx":
            block.branch = last
            block.instructions.pop()
            block.successors = places
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


def branch_targets(kernel: Kernel, instruction: Instruction) -> list[str]:
    if instruction.parts[0] == "bra":
        target = instruction.operands[0]
        return [target.name] if isinstance(target, Label) else [getattr(target, "name", "?")]
    if instruction.parts[0] == "brx":
        return kernel.label_tables[instruction.operands[1].name]
    return []


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
        if block.branch is not None and block.branch.parts[0] == "bra" and block.successors[0] == block.successors[1]:
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


@dataclass(slots=True)
class Web:
    register: str
    index: int
    definitions: list[tuple[int, int]] = field(default_factory=list)  # (block, position)
    uniform: bool = True
    used: bool = False
    blended: bool = False  # definitions must keep the values of lanes that are not active


class Analysis:
    """Webs of a kernel and what is uniform. `rules` says for an instruction whether equal inputs give equal outputs."""

    def __init__(
        self, kernel: Kernel, blocks: list[Block], always_uniform: Callable[[Instruction, Analysis, int, int], bool]
    ):
        self.kernel, self.blocks = kernel, blocks
        self.always_uniform = always_uniform
        self.post_dominator = immediate_post_dominators(blocks)
        self.webs: list[Web] = []
        self.web_of: dict[tuple[str, int, int, bool], Web] = {}  # (register, block, position, is definition)
        self.live_in: list[set[str]] = []
        self.partial: set[int] = set()  # blocks that may run with some lanes inactive
        self.divergent_branches: set[int] = set()
        self._find_liveness()
        self._build_webs()
        self._find_divergence()

    def web(self, name: str, block: int, position: int, definition: bool = False) -> Web:
        return self.web_of[(name, block, position, definition)]

    # liveness and webs

    def sites(self, block: Block) -> list[Instruction]:
        """A block's instructions, its branch last."""
        return block.instructions + ([block.branch] if block.branch is not None else [])

    def _find_liveness(self) -> None:
        gen, kill = [], []
        for block in self.blocks:
            used: set[str] = set()
            defined: set[str] = set()
            for instruction in self.sites(block):
                used.update(n for n in uses(instruction) if n not in defined)
                if instruction.guard is None:
                    defined.update(definitions(instruction))
            gen.append(used)
            kill.append(defined)
        self.live_in = [set() for _ in self.blocks]
        changed = True
        while changed:
            changed = False
            for block in reversed(self.blocks):
                out: set[str] = set()
                for successor in block.successors:
                    if successor != EXIT:
                        out |= self.live_in[successor]
                new = gen[block.index] | (out - kill[block.index])
                if new != self.live_in[block.index]:
                    self.live_in[block.index], changed = new, True

    def _build_webs(self) -> None:
        sites: dict[str, list[tuple[int, int]]] = {}
        use_sites: dict[str, list[tuple[int, int]]] = {}
        for block in self.blocks:
            for position, instruction in enumerate(self.sites(block)):
                for name in definitions(instruction):
                    sites.setdefault(name, []).append((block.index, position))
                for name in uses(instruction):
                    use_sites.setdefault(name, []).append((block.index, position))
        for name in sites.keys() | use_sites.keys():
            self._webs_of(name, list(dict.fromkeys(sites.get(name, []))), use_sites.get(name, []))

    def _webs_of(self, name: str, sites: list, use_sites: list) -> None:
        if len(sites) <= 1:
            web = Web(name, 0, sites)
            self.webs.append(web)
            for site in sites:
                self.web_of[(name, *site, True)] = web
            web.used = bool(use_sites)
            for site in use_sites:
                self.web_of[(name, *site, False)] = web
            return
        # Definitions that reach the start of each block; a guarded one does not stop those before it.
        by_block: dict[int, list[int]] = {}
        for block, position in sites:
            by_block.setdefault(block, []).append(position)

        def through(block: int, incoming: set) -> set:
            for position in by_block.get(block, ()):
                guarded = self.sites(self.blocks[block])[position].guard is not None
                incoming = incoming | {(block, position)} if guarded else {(block, position)}
            return incoming

        reach_in: list[set] = [set() for _ in self.blocks]
        work = list(by_block)
        while work:
            index = work.pop()
            out = through(index, reach_in[index])
            for successor in self.blocks[index].successors:
                if successor != EXIT and not out <= reach_in[successor]:
                    reach_in[successor] |= out
                    work.append(successor)
        parent = {site: site for site in sites}

        def find(site):
            while parent[site] != site:
                parent[site] = parent[parent[site]]
                site = parent[site]
            return site

        reaching_use = {}
        for block, position in use_sites:
            current = reach_in[block]
            for p in by_block.get(block, ()):
                if p >= position:
                    break
                guarded = self.sites(self.blocks[block])[p].guard is not None
                current = current | {(block, p)} if guarded else {(block, p)}
            instruction = self.sites(self.blocks[block])[position]
            if name in definitions(instruction):  # guarded, or reads what it writes: one web
                current = current | {(block, position)}
            reaching_use[(block, position)] = current
            ordered = list(current)
            for other in ordered[1:]:
                parent[find(other)] = find(ordered[0])
        together = [s for s in sites if self.sites(self.blocks[s[0]])[s[1]].opcode.startswith("wgmma.mma_async")]
        for site in together[1:]:  # wgmma.wait_group delivers an accumulator by name, so it must have one
            parent[find(site)] = find(together[0])
        groups: dict = {}
        for site in sites:
            root = find(site)
            if root not in groups:
                groups[root] = Web(name, len(groups))
                self.webs.append(groups[root])
            groups[root].definitions.append(site)
            self.web_of[(name, *site, True)] = groups[root]
        undefined = None
        for site, current in reaching_use.items():
            if current:
                web = self.web_of[(name, *site, False)] = groups[find(next(iter(current)))]
                web.used = True
            else:  # read before any definition
                if undefined is None:
                    undefined = Web(name, len(groups))
                    self.webs.append(undefined)
                self.web_of[(name, *site, False)] = undefined

    # uniformity

    def is_uniform(self, operand, block: int, position: int) -> bool:
        return all(self.web(r.name, block, position).uniform for r in registers_in(operand))

    def _find_divergence(self) -> None:
        changed = True
        while changed:
            changed = False
            for block in self.blocks:
                for position, instruction in enumerate(block.instructions):
                    if not definitions(instruction) or self._result_uniform(instruction, block.index, position):
                        continue
                    for name in definitions(instruction):
                        web = self.web(name, block.index, position, True)
                        if web.uniform:
                            web.uniform, changed = False, True
                if block.branch is not None and block.index not in self.divergent_branches:
                    if not self._branch_uniform(block):
                        self.divergent_branches.add(block.index)
                        self._mark_divergent_branch(block)
                        changed = True

    def _branch_uniform(self, block: Block) -> bool:
        position = len(block.instructions)
        assert block.branch is not None
        names = uses(block.branch)
        return all(self.web(n, block.index, position).uniform for n in names)

    def _result_uniform(self, instruction: Instruction, block: int, position: int) -> bool:
        if instruction.guard is not None and not self.is_uniform(instruction.guard, block, position):
            return False
        form = form_of(instruction)
        rule = form.uniform
        if callable(rule):
            return rule(self, instruction, block, position)
        if rule == "never":
            return False
        if rule == "always":
            return True
        first = 0 if form.reads_results else form.results
        read = [o for i, o in enumerate(instruction.operands) if i >= first or isinstance(o, Address)]
        if all(self.is_uniform(o, block, position) for o in read):
            return self.special_uniform(instruction)
        return self.always_uniform(instruction, self, block, position)

    @staticmethod
    def special_uniform(instruction: Instruction) -> bool:
        """Special registers that differ between lanes."""
        lane_dependent = ("%tid", "%laneid", "%lanemask")
        return not any(
            isinstance(o, SpecialRegister) and o.name.startswith(lane_dependent) for o in instruction.operands
        )

    def _reach(self, start: int, stop: int) -> set[int]:
        if start in (stop, EXIT):
            return {start}
        seen, work = {start}, [start]
        while work:
            index = work.pop()
            if index in (stop, EXIT):
                continue
            for successor in self.blocks[index].successors:
                if successor not in seen:
                    seen.add(successor)
                    work.append(successor)
        return seen

    def _mark_divergent_branch(self, block: Block) -> None:
        """Values written between a divergent branch and where its lanes meet, and read from there on, differ between
        lanes that took different sides, or left a loop at different times."""
        stop = self.post_dominator[block.index]
        reaches = [self._reach(s, stop) for s in block.successors]
        region = set().union(*reaches) - {stop, EXIT}
        self.partial |= region
        joins = {stop} - {EXIT}
        for index, first in enumerate(reaches):
            for second in reaches[index + 1 :]:
                joins |= (first & second) - {EXIT}
        cyclic = any(block.index in reach for reach in reaches)
        inside = [
            w for w in self.webs if any(d[0] in region for d in w.definitions) and (cyclic or len(w.definitions) > 1)
        ]
        for web in inside:
            if any(web.register in self.live_in[join] for join in joins):
                web.uniform, web.blended = False, True

    def needs_independent_threads(self) -> bool:
        """Whether lanes of a warp may wait for each other: a divergent branch with work on both sides, or out of a
        loop, and a loop on the way that polls. Then lanes that parted must be able to take turns."""
        for index in self.divergent_branches:
            block, stop = self.blocks[index], self.post_dominator[index]
            reaches = [self._reach(s, stop) - {stop, EXIT} for s in block.successors]
            leaves_loop = any(index in reach for reach in reaches)
            if not leaves_loop and not all(reaches):
                continue
            for inner in set().union(*reaches):
                spinning = inner in set().union(*(self._reach(s, stop) for s in self.blocks[inner].successors))
                polling = [i for i in self.blocks[inner].instructions if polls(i)]
                if not all(reaches):  # lanes leave a loop: those still in it may want a lock that those outside hold
                    polling = [i for i in polling if i.parts[0] != "mbarrier"]
                if spinning and polling:
                    return True
        return False

    def let_threads_be_independent(self) -> None:
        """No value is shared between lanes and every block may run with any of them."""
        for web in self.webs:
            web.uniform, web.blended = False, True
        self.partial = {b.index for b in self.blocks}
        self.divergent_branches = {b.index for b in self.blocks if b.branch is not None}
