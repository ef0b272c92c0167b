"""Writes the Python source of one kernel: operands as expressions, results as assignments."""

from __future__ import annotations

import numpy as np

from .blocks import registers_in
from .errors import PtxSyntaxError
from .instruction_table import form_of, unsupported
from .layout import Layout
from .ptx_tree import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Negated,
    Register,
    SpecialRegister,
    Symbol,
)
from .uniformity import Analysis, Web

FULL = 0xFFFFFFFF
STORAGE = {1: "U8", 2: "U16", 4: "U32", 8: "U64", 16: "U128"}
NUMPY_TYPE = {
    "b8": "U8", "u8": "U8", "s8": "I8", "b16": "U16", "u16": "U16", "s16": "I16", "f16": "F16", "b32": "U32",
    "u32": "U32",
    "s32": "I32", "f32": "F32", "b64": "U64", "u64": "U64", "s64": "I64", "f64": "F64",
}  # fmt: skip
FLOATS = ("f16", "f32", "f64", "bf16")


NOWHERE = Instruction(0, "", ())
"""Stands for the instruction where code belongs to none."""


class Emitter:
    """Writes the Python source of one kernel."""

    def __init__(self, module: Module, kernel: Kernel, analysis: Analysis, layout: Layout):
        self.module, self.kernel, self.analysis, self.layout = module, kernel, analysis, layout
        self.out: list[str] = []
        self.lines: list[int] = []
        self.depth = 1
        self.instruction: Instruction = NOWHERE
        self.block = 0
        self.position = 0
        self.mask = "mask"
        self.guarded = False
        self.temporaries = 0
        self.constants: dict[str, object] = {}
        self.names: dict[int, str] = {}
        self.bits_webs = _bit_predicates(analysis)
        self.mma_registers = _mma_registers(analysis)

    # writing

    def write(self, code: str) -> None:
        self.out.append("  " * self.depth + code)
        self.lines.append(self.instruction.line)

    def temporary(self) -> str:
        self.temporaries += 1
        return f"t{self.temporaries}"

    def constant(self, value, key: str | None = None) -> str:
        name = f"C{len(self.constants)}" if key is None else key
        self.constants[name] = value
        return name

    def unsupported(self, why: str = ""):
        return unsupported(self.instruction, why)

    def misread(self, why: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"`{self.instruction.opcode}`: {why}", line=self.line)

    @property
    def line(self) -> int:
        return self.instruction.line

    # registers

    def name(self, web: Web) -> str:
        key = id(web)
        if key not in self.names:
            base = "".join(c if c.isalnum() else "_" for c in web.register.lstrip("%"))
            self.names[key] = f"v_{base}" + (f"_{web.index}" if web.index else "")
        return self.names[key]

    def use(self, register: Register) -> Web:
        return self.analysis.web(register.name, self.block, self.position)

    def definition(self, register: Register) -> Web:
        return self.analysis.web(register.name, self.block, self.position, True)

    def declared(self, register: Register) -> str:
        return self.kernel.registers[register.name]

    def bytes_of(self, register: Register) -> int:
        return TYPE_BYTES[self.declared(register)]

    # reading operands

    def is_scalar(self, *operands) -> bool:
        """True when each operand is one Python integer for the warp."""
        for operand in operands:
            if isinstance(operand, SpecialRegister):
                if not Analysis.special_uniform(Instruction(0, "", (operand,))):
                    return False
            elif not all(self.use(r).uniform for r in registers_in(operand)):
                return False
        return True

    def raw(self, operand, kind: str) -> str:
        """An operand as unsigned bits: an integer expression if scalar, else an unsigned array."""
        size = TYPE_BYTES[kind]
        if isinstance(operand, Register):
            web = self.use(operand)
            name = self.name(web)
            if self.declared(operand) == "pred":
                raise self.misread(f"predicate {operand.name} stands for a value")
            if web.uniform:
                if self.bytes_of(operand) > size:
                    return f"({name} & {(1 << 8 * size) - 1})"
                return name
            declared = self.declared(operand)
            if declared in ("f32", "f64"):
                name = f"{name}.view({STORAGE[TYPE_BYTES[declared]]})"
            if self.bytes_of(operand) != size:
                return f"{name}.astype({STORAGE[size]})"
            return name
        if isinstance(operand, Immediate):
            value = operand.value
            if operand.float_bytes == 8 and size == 4:  # a decimal or double literal where a float is meant
                value = int(np.float64(np.uint64(value).view(np.float64)).astype(np.float32).view(np.uint32))
            return str(value & ((1 << 8 * size) - 1))
        if isinstance(operand, Symbol):
            return self.symbol_address(operand)
        if isinstance(operand, SpecialRegister):
            return self.special(operand)
        if isinstance(operand, Address) and not operand.extra:
            return self.address(operand)[0]
        raise self.unsupported(f"operand {operand}")

    def signed(self, operand, kind: str) -> str:
        """An integer operand as a signed value."""
        bits = 8 * TYPE_BYTES[kind]
        raw = self.raw(operand, kind)
        if self.is_scalar(operand):
            if isinstance(operand, Immediate):
                value = int(raw)
                return str(value - (1 << bits) if value >> (bits - 1) else value)
            half = 1 << (bits - 1)
            return f"(({raw} ^ {half}) - {half})"
        return f"{raw}.view(I{bits})"

    def value(self, operand, kind: str, vector: bool = False) -> str:
        """An operand as a value of the type: signed, unsigned or float. `vector` forces an array of lanes."""
        if kind in ("f32", "f64", "f16"):
            kept = isinstance(operand, Register) and self.declared(operand) == kind and kind != "f16"
            if kept and not self.use(operand).uniform:
                return self.name(self.use(operand))
            raw = self.raw(operand, kind)
            size = TYPE_BYTES[kind]
            if self.is_scalar(operand):
                if isinstance(operand, Immediate):
                    number = np.array([int(raw)], dtype=f"u{size}").view(f"f{size}")
                    return self.constant(np.repeat(number, 32) if vector else number[0])
                return f"FULL_{kind.upper()}({raw})" if vector else f"{kind.upper()}_({raw})"
            return f"{raw}.view({kind.upper()})"
        if kind == "bf16":
            raw = self.raw(operand, "b16")
            return f"BF16_TO_F32({raw})" if not self.is_scalar(operand) else f"FULL_BF16({raw})"
        text = self.signed(operand, kind) if kind[0] == "s" else self.raw(operand, kind)
        if vector and self.is_scalar(operand):
            return f"FULL_INT({text}, {NUMPY_TYPE[kind]})"
        return text

    def vector(self, operand, kind: str) -> str:
        return self.value(operand, kind, vector=True)

    def is_predicate(self, operand) -> bool:
        register = operand.register if isinstance(operand, Negated) else operand
        return isinstance(register, Register) and self.declared(register) == "pred"

    def predicate(self, operand) -> tuple[str, str]:
        """(expression, "scalar" | "bool" | "bits")."""
        if isinstance(operand, Negated):
            text, how = self.predicate(operand.register)
            return {"scalar": f"(not {text})", "bool": f"(~{text})", "bits": f"({text} ^ {FULL})"}[how], how
        if isinstance(operand, Immediate):
            return ("True" if operand.value else "False"), "scalar"
        if isinstance(operand, SpecialRegister):
            return self.special(operand), "scalar"
        if self.declared(operand) != "pred":
            raise self.misread(f"{operand.name} is no predicate")
        web = self.use(operand)
        if web.uniform:
            return self.name(web), "scalar"
        return self.name(web), "bits" if id(web) in self.bits_webs else "bool"

    def predicate_bits(self, operand) -> str:
        text, how = self.predicate(operand)
        if how == "bool":
            return f"BITS({text})"
        return text if how == "bits" else f"({FULL} if {text} else 0)"

    def predicate_lanes(self, operand) -> str:
        text, how = self.predicate(operand)
        if how == "bits":
            return f"LANES[{text}]"
        return text

    def deliver(self, registers, at: tuple[int, int], source: str) -> None:
        """Assign arrays of 32-bit words, or stand-ins, to registers defined at (block, position)."""
        names = [self.name(self.analysis.web(r.name, *at, True)) for r in registers]
        floats = any(self.declared(r) == "f32" for r in registers)
        self.write(f"{', '.join(names)}, = {f'AS_FLOATS({source})' if floats else source}")

    # addresses and names

    def symbol_address(self, symbol: Symbol) -> str:
        space, offset = self.layout.place(symbol.name, self.instruction)
        offset += symbol.offset
        if space == "shared":
            return f"(shared_window | {offset})" if offset >= 0 else f"(shared_window + {offset})"
        if space == "param":
            return str(offset)
        if space == "local":
            return str(offset)
        return f"({space}_base + {offset})"

    def symbol_space(self, operand) -> str | None:
        return self.layout.place(operand.name, self.instruction)[0] if isinstance(operand, Symbol) else None

    def address(self, operand: Address) -> tuple[str, bool]:
        """(expression of base + offset, scalar?). Addresses are not wrapped: a negative offset stays a number."""
        base, offset = operand.base, operand.offset
        if isinstance(base, Symbol):
            return self.symbol_address(Symbol(base.name, base.offset + offset)), True
        if isinstance(base, Immediate):
            return str(base.value + offset), True
        assert isinstance(base, Register)
        kind = "b64" if self.bytes_of(base) == 8 else "b32"
        text = self.raw(base, kind)
        scalar = self.is_scalar(base)
        if not scalar:
            text = f"{text}.astype(I64)"
        if offset:
            text = f"({text} + {offset})" if offset > 0 else f"({text} - {-offset})"
        return text, scalar

    def special(self, register: SpecialRegister) -> str:
        name = register.name[1:]
        if name in ("tid", "ntid", "ctaid", "nctaid"):
            raise self.unsupported("vector special registers")
        return f"warp.special_{name.replace('.', '_')}" if name in STATIC_SPECIALS else f"warp.read_special({name!r})"

    # writing results

    def put(self, operand, expression: str, kind: str, scalar: bool) -> None:
        """Assign a result. A scalar expression is unsigned bits (bool for predicates); a vector has `kind`'s NumPy
        type.
        """
        if operand == Label("_"):
            if "(" in expression:
                self.write(expression)
            return
        if not isinstance(operand, Register):
            raise self.unsupported(f"cannot write to {operand}")
        web = self.definition(operand)
        name, declared = self.name(web), self.declared(operand)
        if kind == "pred":
            self._put_predicate(web, name, expression, "scalar" if scalar else "bool")
            return
        size, have = TYPE_BYTES[declared], TYPE_BYTES[kind]
        if web.uniform:
            if not scalar:
                expression = f"int(({self._as_unsigned(expression, kind)})[FIRST[{self.mask}]])"
            self.write(f"{name} = {expression}")
            return
        storage = NUMPY_TYPE[declared] if declared in ("f32", "f64") else STORAGE[size]
        if scalar:
            expression = f"FULL_INT({expression}, {STORAGE[size]})"
            if storage[0] == "F":
                expression += f".view({storage})"
        elif have == size:
            if NUMPY_TYPE.get(kind, "") != storage and kind != "bf16" and kind != "b128":
                expression = f"({expression}).view({storage})"
        else:
            if kind[0] == "s" and have < size:
                expression = f"({expression}).astype(I{8 * size}).view(U{8 * size})"
            else:
                expression = f"({self._as_unsigned(expression, kind)}).astype({STORAGE[size]})"
        self._assign_lanes(web, name, expression)

    def _assign_lanes(self, web: Web, name: str, expression: str) -> None:
        if self.guarded or (web.blended and self.block in self.analysis.partial):
            self.write(f"{name} = WHERE(LANES[{self.mask}], {expression}, {name})")
        else:
            self.write(f"{name} = {expression}")

    @staticmethod
    def _as_unsigned(expression: str, kind: str) -> str:
        wanted = STORAGE[TYPE_BYTES[kind]]
        return expression if NUMPY_TYPE[kind] == wanted else f"({expression}).view({wanted})"

    def put_predicate(self, operand, expression: str, how: str) -> None:
        """Assign a predicate given as "scalar" (bool), "bool" (array) or "bits" (integer of lanes)."""
        if operand == Label("_"):
            return
        web = self.definition(operand)
        self._put_predicate(web, self.name(web), expression, how)

    def _put_predicate(self, web: Web, name: str, expression: str, how: str) -> None:
        if web.uniform:
            if how == "bool":
                expression = f"bool(({expression})[FIRST[{self.mask}]])"
            elif how == "bits":
                expression = f"bool({expression} & {self.mask})"
            self.write(f"{name} = {expression}")
        elif id(web) in self.bits_webs:
            if how == "scalar":
                expression = f"({FULL} if {expression} else 0)"
            elif how == "bool":
                expression = f"BITS({expression})"
            if self.guarded or (web.blended and self.block in self.analysis.partial):
                expression = f"({name} & ~{self.mask}) | ({expression} & {self.mask})"
            self.write(f"{name} = {expression}")
        else:
            if how == "scalar":
                expression = f"(TRUE_LANES if {expression} else FALSE_LANES)"
            elif how == "bits":
                expression = f"LANES[{expression}]"
            self._assign_lanes(web, name, expression)

    def sites(self, prefix: str):
        """(instruction, block, position) of every instruction whose opcode starts so."""
        for block in self.analysis.blocks:
            for position, instruction in enumerate(block.instructions):
                if instruction.opcode.startswith(prefix):
                    yield instruction, block.index, position

    def wait(self, call: str) -> str:
        """Emit a helper that may have to wait: None means ask again after a yield. Returns the name of its result."""
        name = self.temporary()
        self.write(f"while ({name} := {call}) is None: yield")
        return name

    def pause(self) -> None:
        """A place where another warp may go first."""
        self.write("if warp.pause(): yield")


STATIC_SPECIALS = {
    "tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x", "nctaid.y",
    "nctaid.z", "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "clusterid.x", "clusterid.y", "clusterid.z",
    "nclusterid.x", "nclusterid.y", "nclusterid.z", "cluster_ctaid.x", "cluster_ctaid.y", "cluster_ctaid.z",
    "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z", "cluster_ctarank", "cluster_nctarank",
    "is_explicit_cluster", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt",
    "dynamic_smem_size", "total_smem_size", "aggr_smem_size",
}  # fmt: skip


def _mma_registers(analysis: Analysis) -> frozenset[str]:
    """Registers that some wgmma reads or writes."""
    return frozenset(
        register.name
        for block in analysis.blocks
        for instruction in block.instructions
        if instruction.opcode.startswith("wgmma.mma_async")
        for operand in instruction.operands[:2]
        for register in registers_in(operand)
    )


def _bit_predicates(analysis: Analysis) -> set[int]:
    """Divergent predicate webs best kept as an integer of lanes: results of elect and logic on such."""
    definitions: dict[int, list[tuple[Instruction, int, int]]] = {}
    webs = {}
    for block in analysis.blocks:
        for position, instruction in enumerate(block.instructions):
            form = form_of(instruction)
            for operand in instruction.operands[: form.results]:
                for register in registers_in(operand):
                    if analysis.kernel.registers.get(register.name) == "pred":
                        web = analysis.web(register.name, block.index, position, True)
                        definitions.setdefault(id(web), []).append((instruction, block.index, position))
                        webs[id(web)] = web
    found: set[int] = set()
    changed = True
    while changed:
        changed = False
        for key, places in definitions.items():
            if key in found or webs[key].uniform:
                continue
            if all(_keeps_bits(analysis, found, *place) for place in places):
                found.add(key)
                changed = True
    return found


def _keeps_bits(analysis: Analysis, found: set[int], instruction: Instruction, block: int, position: int) -> bool:
    if instruction.parts[0] == "elect":
        return True
    if instruction.parts[0] not in ("not", "and", "or", "xor", "mov") or instruction.parts[-1] != "pred":
        return False
    for operand in instruction.operands[1:]:
        for register in registers_in(operand):
            web = analysis.web(register.name, block, position)
            if not web.uniform and id(web) not in found:
                return False
    return True


#
#
#
#
