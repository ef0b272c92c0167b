"""Control flow of a translated kernel: dispatch, inlined blocks, spin loops, divergence and reconvergence."""

from __future__ import annotations

from .blocks import EXIT, Block, definitions, polls
from .emitter import NOWHERE, NUMPY_TYPE, STORAGE, Emitter
from .instruction_table import check_modifiers, form_of, reading
from .ptx_tree import TYPE_BYTES

PROLOGUE_NAMES = ("shared_window", "param_base", "data_base")


class BlockEmitter:
    """Emits the generator function `run(warp)` around the instructions of an Emitter's kernel."""

    def __init__(self, emitter: Emitter, independent: bool = False):
        self.emitter, self.independent = emitter, independent
        self.analysis = emitter.analysis
        self.blocks = self.analysis.blocks
        self.meeting: set[int] = set()  # where lanes that parted through the stack meet
        parting = self.analysis.divergent_branches - {b.index for b in self.blocks if self._leaf(b) is not None}
        self.meeting = {self.analysis.post_dominator[b] for b in parting} - {EXIT}
        self.bodies: dict[int, tuple[list[str], list[int]]] = {}

    # the whole function

    def emit(self) -> None:
        emitter = self.emitter
        heads = [0]
        done: set[int] = set()
        while heads:
            head = heads.pop()
            if head in done:
                continue
            done.add(head)
            emitter.out, emitter.lines, emitter.depth = [], [], 0
            self.targets: set[int] = set()
            self._chain(head, {head})
            self.bodies[head] = (emitter.out, emitter.lines)
            heads.extend(self.targets - done)
        emitter.out, emitter.lines, emitter.depth, emitter.instruction = [], [], 0, NOWHERE
        emitter.write("def run(warp):")
        emitter.depth = 1
        for name in PROLOGUE_NAMES:
            emitter.write(f"{name} = warp.{name}")
        emitter.write("params = warp.params; mask = warp.live; stack = []; pc = 0; turned = False")
        self._initialise()
        emitter.write("if not mask: yield  # a generator even where nothing waits")
        emitter.write("while True:")
        emitter.depth = 2
        self._dispatch(sorted(self.bodies))

    def _initialise(self) -> None:
        """Registers that may be read before, or merged with, a first value start at zero."""
        emitter = self.emitter
        for web in self.analysis.webs:
            kind = emitter.kernel.registers[web.register]
            name = emitter.name(web)
            if web.uniform:
                emitter.write(f"{name} = {'False' if kind == 'pred' else 0}")
            elif kind == "pred":
                emitter.write(f"{name} = {'0' if id(web) in emitter.bits_webs else 'FALSE_LANES'}")
            elif kind == "b128":
                emitter.write(f"{name} = ZERO_U128")
            else:
                storage = NUMPY_TYPE[kind] if kind in ("f32", "f64") else STORAGE[TYPE_BYTES[kind]]
                emitter.write(f"{name} = ZERO_{storage}")

    def _dispatch(self, heads: list[int]) -> None:
        emitter = self.emitter
        if len(heads) == 1:
            out, lines = self.bodies[heads[0]]
            for text, line in zip(out, lines, strict=True):
                emitter.out.append("  " * emitter.depth + text)
                emitter.lines.append(line)
            return
        middle = len(heads) // 2
        emitter.write(f"if pc < {heads[middle]}:")
        emitter.depth += 1
        self._dispatch(heads[:middle])
        emitter.depth -= 1
        emitter.write("else:")
        emitter.depth += 1
        self._dispatch(heads[middle:])
        emitter.depth -= 1

    # one dispatched body

    def _chain(self, index: int, covered: set[int]) -> None:
        """Emit block `index` and whatever can follow without dispatch; ends in `continue` or `return`."""
        emitter = self.emitter
        while True:
            block = self.blocks[index]
            if index in self.meeting:
                emitter.write(f"if stack and stack[-1][0] == {index}:")
                emitter.write(f"  pc, mask = warp.reconverge(stack, {index})")
                emitter.write(f"  if pc != {index}: continue")
            if self.independent and block.instructions and polls(block.instructions[0]):
                emitter.write("if not turned:")
                emitter.write(f"  pc, mask = warp.rotate(stack, {index}, mask); turned = True")
                emitter.write("  yield")
                emitter.write("  continue")
                emitter.write("turned = False")
            spin = self._spin_target(block)
            if spin is not None:
                emitter.write("while True:")
                emitter.depth += 1
                self._body(block)
                self._spin_exit(block, spin)
                emitter.write("if warp.count > warp.limit: yield")
                emitter.depth -= 1
                covered = covered | {index}
                following = spin
            else:
                self._body(block)
                covered = covered | {index}
                if block.branch is None:
                    following = block.successors[0]
                else:
                    following = self._branch(block, covered)
                    if isinstance(following, tuple):
                        following, extra = following
                        covered = covered | extra
            if following is None:
                return
            if following == EXIT:
                if not (block.instructions and block.instructions[-1].parts[0] in ("ret", "exit", "trap")):
                    self._leave()
                return
            if (
                not self.independent
                and following not in covered
                and set(self.blocks[following].predecessors) <= covered
                and following != 0
            ):
                index = following
                continue
            self._jump(following)
            return

    def _jump(self, index: int) -> None:
        self.targets.add(index)
        if index <= self.emitter.block:
            self.emitter.write("if warp.count > warp.limit: yield")
        self.emitter.write(f"pc = {index}")
        self.emitter.write("continue")

    def _leave(self) -> None:
        emitter = self.emitter
        emitter.write("warp.leave(mask)")
        emitter.write("if not stack: return")
        emitter.write("pc, mask = warp.resume_others(stack)")
        emitter.write("if not mask: return")
        emitter.write("continue")

    def _body(self, block: Block) -> None:
        emitter = self.emitter
        emitter.block = block.index
        count = len(block.instructions) + (1 if block.branch is not None else 0)
        if count:
            emitter.instruction = self.analysis.sites(block)[0]
            emitter.write(f"warp.count += {count}")
        for position, instruction in enumerate(block.instructions):
            emitter.position, emitter.instruction = position, instruction
            self._instruction(instruction)
        emitter.position = len(block.instructions)

    def _instruction(self, instruction) -> None:
        with reading(instruction):
            self._emit_instruction(instruction)

    def _emit_instruction(self, instruction) -> None:
        emitter = self.emitter
        emit = self._emit_form
        if instruction.parts[0] in ("ret", "exit"):
            self._return(instruction)
            return
        if instruction.guard is None:
            emit(emitter, instruction)
            return
        text, how = emitter.predicate(instruction.guard)
        depth = emitter.depth
        if how == "scalar":
            emitter.write(f"if {'not ' if instruction.guard_negated else ''}{text}:")
            emitter.depth += 1
            emit(emitter, instruction)
        else:
            bits = emitter.predicate_bits(instruction.guard)
            if instruction.guard_negated:
                bits = f"~{bits}"
            emitter.write(f"if (guard := mask & {bits}):")
            emitter.depth += 1
            emitter.mask, emitter.guarded = "guard", True
            emit(emitter, instruction)
            emitter.mask, emitter.guarded = "mask", False
        if emitter.out[-1].endswith(":"):
            emitter.write("pass")
        emitter.depth = depth

    def _emit_form(self, emitter: Emitter, instruction) -> None:
        if not instruction.opcode.startswith("wgmma"):
            written = tuple(n for n in definitions(instruction) if n in emitter.mma_registers)
            if written:
                emitter.write(f"warp.mma_written({written!r})")
        form = form_of(instruction)
        check_modifiers(instruction, form)
        form.emit(emitter, instruction)

    def _return(self, instruction) -> None:
        emitter = self.emitter
        if instruction.guard is None:
            self._leave()
            return
        text, how = emitter.predicate(instruction.guard)
        if how == "scalar":
            emitter.write(f"if {'not ' if instruction.guard_negated else ''}{text}:")
            emitter.depth += 1
            self._leave()
            emitter.depth -= 1
            return
        bits = emitter.predicate_bits(instruction.guard)
        emitter.write(f"if (guard := mask & {'~' if instruction.guard_negated else ''}{bits}):")
        emitter.write("  warp.leave(guard); mask &= ~guard")
        emitter.write("  if not mask:")
        emitter.write("    if not stack: return")
        emitter.write("    pc, mask = warp.resume_others(stack)")
        emitter.write("    if not mask: return")
        emitter.write("    continue")

    # branches

    def _condition(self, block: Block) -> tuple[str, str]:
        """(expression that says the branch is taken, "scalar" or "bits")."""
        emitter = self.emitter
        branch = self.analysis.sites(block)[-1]
        emitter.position, emitter.instruction, emitter.block = len(block.instructions), branch, block.index
        text, how = emitter.predicate(branch.guard)
        if how == "scalar":
            return (f"not {text}" if branch.guard_negated else text), "scalar"
        bits = emitter.predicate_bits(branch.guard)
        return f"mask & {'~' if branch.guard_negated else ''}{bits}", "bits"

    def _spin_target(self, block: Block) -> int | None:
        """Where a block goes that loops to itself on a uniform condition."""
        if self.independent or block.branch is None or block.index not in block.successors:
            return None
        if block.index in self.analysis.divergent_branches or block.index in self.meeting:
            return None
        others = [s for s in block.successors if s != block.index]
        return others[0] if len(others) == 1 else None

    def _spin_exit(self, block: Block, target: int) -> None:
        text, _ = self._condition(block)
        taken = block.successors[0]
        self.emitter.write(f"if {text if taken == target else f'not ({text})'}: break")

    def _leaf(self, block: Block) -> tuple[int, int] | None:
        """(side block, block where both paths meet) when one side of a branch is a single block, or None."""
        if self.independent or block.branch is None:
            return None
        taken, fall = block.successors
        for side, meet in ((fall, taken), (taken, fall)):
            if side == EXIT or side == block.index or side == 0:
                continue
            inner = self.blocks[side]
            if inner.predecessors != [block.index] or inner.branch is not None or inner.successors != [meet]:
                continue
            if any(i.parts[0] in ("ret", "exit", "trap") for i in inner.instructions) or side in self.meeting:
                continue
            return side, meet
        return None

    def _branch(self, block: Block, covered: set[int]):
        """Emit a conditional branch; returns the block to go on with, or (block, blocks now covered), or None."""
        emitter = self.emitter
        text, how = self._condition(block)
        leaf = self._leaf(block)
        if leaf is not None:
            side, meet = leaf
            taken_is_side = block.successors[0] == side
            if how == "scalar":
                emitter.write(f"if {text if taken_is_side else f'not ({text})'}:")
                emitter.depth += 1
                self._body(self.blocks[side])
            else:
                name = emitter.temporary()
                emitter.write(f"{name} = mask")
                emitter.write(f"if (mask := {text if taken_is_side else f'mask & ~({text})'}):")
                emitter.depth += 1
                self._body(self.blocks[side])
            if emitter.out[-1].endswith(":"):
                emitter.write("pass")
            emitter.depth -= 1
            if how != "scalar":
                emitter.write(f"mask = {name}")
            return meet, {side}
        taken, fall = block.successors
        if how == "scalar":
            emitter.write(f"if {text}:")
            emitter.depth += 1
            self._go(taken)
            emitter.depth -= 1
            return fall
        meet = self.analysis.post_dominator[block.index]
        for successor in (taken, fall, meet):
            if successor != EXIT:
                self.targets.add(successor)
        emitter.write(f"if (some := {text}):")
        emitter.write("  if some != mask:")
        emitter.write(f"    pc, mask = warp.diverge(stack, some, mask, {taken}, {fall}, {meet})")
        emitter.write("    continue")
        emitter.depth += 1
        self._go(taken)
        emitter.depth -= 1
        self._go(fall)
        return None

    def _go(self, index: int) -> None:
        if index == EXIT:
            self._leave()
        else:
            self._jump(index)
