"""The table of instruction forms: opcode -> how many operands it writes, what keeps a warp uniform, how to emit it.

The modules `instructions_*.py` fill the table with the `form` decorator. An opcode that is not in the table, or a
modifier its emitter does not know, is an UnsupportedInstruction with its line.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import PtxSyntaxError, UnsupportedInstruction
from .ptx_tree import TYPE_BYTES, Instruction

MODULES = (
    "instructions_integer", "instructions_bits", "instructions_compare", "instructions_float", "instructions_convert",
    "instructions_warp", "instructions_memory", "instructions_sync", "instructions_copy", "instructions_matrix",
    "instructions_tcgen05",
)  # fmt: skip


ARITHMETIC_MODULES = frozenset(MODULES[:5])
ARITHMETIC_MODIFIERS = frozenset(
    "rn rz rm rp rna rni rzi rmi rpi ftz sat satfinite relu approx full NaN abs xorsign oob lo hi wide cc "
    "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor l r wrap clamp shiftamt "
    "finite infinite number notanumber normal subnormal f4e b4e rc8 ecl ecr rc16 pack "
    "e4m3x2 e5m2x2 tf32 to global shared shared::cta shared::cluster local const param param::entry".split()
)
"""What may stand in an opcode of arithmetic besides its name and its types. Other instructions check their own."""


@dataclass(frozen=True, slots=True)
class Form:
    """One row. `results`: leading operands that are written; `uniform`: "auto" (equal inputs give an equal result),
    "never", "always", or a rule (analysis, instruction, block, position) -> bool."""

    name: str
    emit: Callable
    results: int = 1
    reads_results: bool = False
    uniform: Any = "auto"


FORMS: dict[str, Form] = {}


def form(*names: str, results: int = 1, reads_results: bool = False, uniform: object = "auto"):
    """Adds the decorated emitter (emitter, instruction) -> None under each name (leading parts of the opcode)."""

    def add(function: Callable) -> Callable:
        for name in names:
            assert name not in FORMS, f"two rows for {name}"
            FORMS[name] = Form(name, function, results, reads_results, uniform)
        return function

    return add


@lru_cache(maxsize=1)
def _load() -> None:
    for module in MODULES:
        importlib.import_module(f"{__package__}.{module}")


@lru_cache(maxsize=65536)
def _lookup(opcode: str) -> Form | None:
    _load()
    parts = opcode.split(".")
    for length in range(len(parts), 0, -1):
        found = FORMS.get(".".join(parts[:length]))
        if found is not None:
            return found
    return None


def form_of(instruction: Instruction) -> Form:
    """The row of an instruction. Raises UnsupportedInstruction with its line."""
    found = _lookup(instruction.opcode)
    if found is None:
        raise unsupported(instruction)
    return found


def check_modifiers(instruction: Instruction, found: Form) -> None:
    """No part of an arithmetic opcode is passed over. Raises UnsupportedInstruction."""
    if found.emit.__module__.rpartition(".")[2] not in ARITHMETIC_MODULES:
        return
    for part in instruction.parts[len(found.name.split(".")) :]:
        if part not in ARITHMETIC_MODIFIERS and part not in TYPE_BYTES:
            raise unsupported(instruction, f"modifier .{part}")


@contextmanager
def reading(instruction: Instruction) -> Iterator[None]:
    """Around code that takes an instruction apart: operands of another number or kind than the form has are an error
    with a line."""
    try:
        yield
    except (ValueError, IndexError, KeyError, AttributeError, TypeError, StopIteration) as error:
        raise PtxSyntaxError(
            f"cannot read the operands of `{instruction.opcode}`", line=instruction.line, text=instruction.opcode
        ) from error


def unsupported(instruction: Instruction, why: str = "") -> UnsupportedInstruction:
    """The error for a form that the table, or an emitter, does not know."""
    message = f"`{instruction.opcode}` is not emulated" + (f": {why}" if why else "")
    return UnsupportedInstruction(message, line=instruction.line, text=instruction.opcode)
