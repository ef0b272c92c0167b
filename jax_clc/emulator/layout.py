"""Where the variables of a kernel lie: offsets in shared, param, const, global and local memory."""

from __future__ import annotations

from .errors import PtxSyntaxError, UnsupportedInstruction
from .ptx_tree import Address, Instruction, Kernel, Module, Pair, Symbol, Variable, Vector


class Layout:
    """Where a kernel's variables lie: offsets in shared, param, const, global and local memory."""

    def __init__(self, module: Module, kernel: Kernel):
        self.places: dict[str, tuple[str, int]] = {p.name: ("param", p.offset) for p in kernel.parameters}
        self.static_shared = 0
        self.local_bytes = 0
        self.data = bytearray()  # const and global variables, one block
        external: list[Variable] = []
        used = _symbols_used(kernel)
        for variable in [*kernel.variables.values(), *module.variables.values()]:
            if variable.name in self.places or (variable.name not in used and variable.name not in kernel.variables):
                continue
            if variable.unread:
                raise UnsupportedInstruction(
                    f"the initial value {variable.unread!r} of {variable.name}, which {kernel.name} uses, is no number",
                    line=kernel.line,
                )
            if variable.space == "shared":
                if variable.external or variable.size == 0:
                    external.append(variable)
                else:
                    self.static_shared = _align(self.static_shared, variable.alignment)
                    self.places[variable.name] = ("shared", self.static_shared)
                    self.static_shared += variable.size
            elif variable.space in ("local", "param"):  # a parameter of a call lives in the frame
                self.local_bytes = _align(self.local_bytes, variable.alignment)
                self.places[variable.name] = ("local", self.local_bytes)
                self.local_bytes += variable.size
            else:
                offset = _align(len(self.data), max(variable.alignment, 16))
                self.data += bytes(offset - len(self.data)) + variable.data.ljust(variable.size, b"\0")
                self.places[variable.name] = ("data", offset)
        # Dynamic shared memory starts after the static part, at its strictest alignment from address 0 of the window.
        self.dynamic_start = self.static_shared
        for variable in external:
            self.dynamic_start = _align(SHARED_BASE + self.dynamic_start, variable.alignment) - SHARED_BASE
        for variable in external:
            self.places[variable.name] = ("shared", self.dynamic_start)
        for name, (space, offset) in list(self.places.items()):
            if space == "shared":
                self.places[name] = ("shared", SHARED_BASE + offset)

    def place(self, name: str, instruction: Instruction) -> tuple[str, int]:
        if name not in self.places:
            raise PtxSyntaxError(f"unknown name {name!r}", line=instruction.line)
        return self.places[name]


SHARED_BASE = 1024  # the first kilobyte of a CTA's window belongs to the system, as on sm_90 and later


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _symbols_used(kernel: Kernel) -> set[str]:
    found = set()

    def visit(operand):
        if isinstance(operand, Symbol):
            found.add(operand.name)
        elif isinstance(operand, Vector):
            for item in operand.items:
                visit(item)
        elif isinstance(operand, Address):
            visit(operand.base)
            for item in operand.extra:
                visit(item)
        elif isinstance(operand, Pair):
            visit(operand.first)
            visit(operand.second)

    for item in kernel.body:
        if isinstance(item, Instruction):
            for operand in item.operands:
                visit(operand)
    return found
