"""Basic blocks of a kernel, where lanes part and meet again, and which registers hold one value for the whole warp.

A register is first split into *webs*: sets of definitions that reach a common use. A web is *uniform* when, at every
definition, all active lanes get the same value, and no two definitions of it meet where diverged lanes meet (the sync
dependence of LLVM's uniformity analysis). Uniform webs are kept as Python integers; the others as NumPy vectors of 32
lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .blocks import EXIT, Block, definitions, immediate_post_dominators, polls, registers_in, uses
from .instruction_table import form_of, reading
from .ptx_tree import Address, Instruction, Kernel, SpecialRegister


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
        for name in dict.fromkeys([*sites, *use_sites]):
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
                    with reading(instruction):
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
