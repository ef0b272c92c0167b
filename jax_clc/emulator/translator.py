"""PTX kernel -> one Python generator function that runs a warp.

Each basic block becomes straight Python over NumPy vectors of 32 lanes and plain integers (`uniformity` says which);
blocks that only one place enters are inlined behind it, spin loops become `while` loops, the rest is dispatched on
`pc` through a binary tree of comparisons. `mask` is the set of active lanes as an integer; lanes that part at a
divergent branch meet again at its immediate post-dominator, through `stack`. An instruction that must wait is a helper
that returns None: the generator yields and asks again when the machine resumes the warp.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from . import lane_math
from .block_emitter import BlockEmitter
from .blocks import build_blocks
from .emitter import Emitter
from .layout import Layout
from .ptx_tree import Immediate, Instruction, Kernel, Module, Register, SpecialRegister
from .uniformity import Analysis


@dataclass(slots=True)
class Program:
    """A translated kernel: `run(warp)` is the generator; `lines[python line]` is the PTX line."""

    kernel: Kernel
    run: Callable[..., Generator]
    source: str
    lines: list[int]
    static_shared_bytes: int
    places: dict[str, tuple[str, int]]  # variable -> (state space, offset)
    constant_bytes: bytes
    local_bytes: int
    target: str
    text_lines: tuple[str, ...] = ()


def translate(module: Module, kernel: Kernel, block: tuple[int, int, int], text: str = "") -> Program:
    """Translate for a block shape (which warps' thread indices are known from). Raises UnsupportedInstruction,
    PtxSyntaxError.
    """
    blocks = build_blocks(kernel)
    analysis = Analysis(kernel, blocks, _warp_index_rule(block))
    independent = analysis.needs_independent_threads()
    if independent:
        analysis = Analysis(kernel, build_blocks(kernel, split_polls=True), _warp_index_rule(block))
        analysis.let_threads_be_independent()
    layout = Layout(module, kernel)
    emitter = Emitter(module, kernel, analysis, layout)
    BlockEmitter(emitter, independent).emit()
    source = "\n".join(emitter.out)
    names = dict(lane_math.NAMES)
    names.update(emitter.constants)
    exec(compile(source, f"<ptx {kernel.name[:60]}>", "exec"), names)
    return Program(
        kernel, names["run"], source, [0, *emitter.lines], layout.dynamic_start, layout.places, bytes(layout.data),
        layout.local_bytes, module.target, tuple(text.split("\n")),
    )  # fmt: skip


def _warp_index_rule(block: tuple[int, int, int]):
    """What is one value for a warp although it comes from the thread index, where rows of the block are whole warps:
    tid.x >> 5 (or more), tid.x & ~31, tid.x < 32 n; tid.y and tid.z."""
    rows_are_warps = block[0] % 32 == 0 or block[1] == block[2] == 1

    def rule(instruction: Instruction, analysis: Analysis, where: int, position: int) -> bool:
        if not rows_are_warps:
            return False
        parts, operands = instruction.parts, instruction.operands
        if parts[0] == "mov" and isinstance(operands[-1], SpecialRegister):
            return operands[-1].name in ("%tid.y", "%tid.z")
        if len(operands) != 3 or not isinstance(operands[2], Immediate) or not isinstance(operands[1], Register):
            return False
        number = operands[2].value
        whole_warps = {
            "shr": number >= 5, "and": not number & 31 and parts[-1] != "pred",
            "setp": not (number + (parts[1] in ("gt", "le", "hi", "ls"))) & 31 and parts[1] not in ("eq", "ne"),
        }  # fmt: skip
        if not whole_warps.get(parts[0], False):
            return False
        web = analysis.web(operands[1].name, where, position)
        if len(web.definitions) != 1:
            return False
        source = analysis.blocks[web.definitions[0][0]].instructions[web.definitions[0][1]]
        return source.parts[0] == "mov" and source.operands[-1] == SpecialRegister("%tid.x") and source.guard is None

    return rule


def place_of(program: Program, error: BaseException) -> dict[str, object]:
    """Line and text of the PTX instruction whose generated code an exception passed through."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code is program.run.__code__:
            line = program.lines[trace.tb_lineno] if trace.tb_lineno < len(program.lines) else 0
        trace = trace.tb_next
    text = program.text_lines[line - 1].strip() if 0 < line <= len(program.text_lines) else None
    return {"line": line or None, "text": text}
