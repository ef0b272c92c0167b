"""The tree that PTX text becomes: kernels, parameters, variables, instructions and their operands."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

STATE_SPACES = (".param", ".shared", ".global", ".const", ".local")
TYPE_BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4,
    "f32": 4,
    "f16x2": 4, "bf16x2": 4, "tf32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16, "pred": 1,
}  # fmt: skip
SPECIAL_REGISTERS = frozenset(
    "tid ntid laneid warpid nwarpid ctaid nctaid smid nsmid gridid is_explicit_cluster clusterid nclusterid "
    "cluster_ctaid "
    "cluster_nctaid cluster_ctarank cluster_nctarank lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt "
    "clock clock_hi "
    "clock globaltimer globaltimer_lo globaltimer_hi total_smem_size aggr_smem_size dynamic_smem_size pm envreg "
    "current_graph_exec reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap".split()
)


@dataclass(frozen=True, slots=True)
class Register:
    name: str  # unique inside the kernel: names declared in an inner scope carry the scope's number


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    name: str  # "%tid.x"


@dataclass(frozen=True, slots=True)
class Immediate:
    value: int  # as written; floats as their bits
    float_bytes: int = 0  # 4 for 0f..., 8 for 0d... and decimal literals

    def bits(self, size: int) -> int:
        """The bits of a float of `size` bytes: a literal of the other width, or an integer, is converted."""
        if self.float_bytes == size:
            return self.value
        formats = {4: ("<f", "<I"), 8: ("<d", "<Q")}
        number = float(self.value)
        if self.float_bytes:
            as_float, as_int = formats[self.float_bytes]
            number = struct.unpack(as_float, struct.pack(as_int, self.value))[0]
        as_float, as_int = formats[size]
        return struct.unpack(as_int, struct.pack(as_float, number))[0]


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, or `[base, {coordinates}]` and `[base, coordinate...]` with more than one part."""

    base: object
    offset: int = 0
    extra: tuple = ()


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`."""

    first: object
    second: object


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    register: object


@dataclass(frozen=True, slots=True)
class Label:
    name: str


SINK = Label("_")


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    opcode: str  # "mbarrier.try_wait.parity.shared.b64"
    operands: tuple
    guard: Register | None = None
    guard_negated: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.opcode.split("."))

    def __str__(self) -> str:
        return self.opcode


@dataclass(slots=True)
class Variable:
    name: str
    space: str
    size: int
    alignment: int
    kind: str
    data: bytes = b""
    external: bool = False
    unread: str = ""  # an initial value that is no number: an error where the variable is used


@dataclass(slots=True)
class Parameter:
    name: str
    offset: int
    size: int
    alignment: int
    kind: str = "b8"


@dataclass(slots=True)
class Kernel:
    name: str
    line: int
    parameters: list[Parameter] = field(default_factory=list)
    body: list[Instruction | Label] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)  # unique name -> declared type
    variables: dict[str, Variable] = field(default_factory=dict)  # declared in the body
    reqntid: tuple[int, int, int] | None = None
    maxntid: tuple[int, int, int] | None = None
    reqnctapercluster: tuple[int, int, int] | None = None
    label_tables: dict[str, list[str]] = field(default_factory=dict)  # .branchtargets

    @property
    def parameter_bytes(self) -> int:
        return max((p.offset + p.size for p in self.parameters), default=0)


@dataclass(frozen=True, slots=True)
class Function:
    """A device function: the names of its results and parameters, and where its body starts in the text. It is
    expanded where it is called."""

    results: tuple[str, ...]
    parameters: tuple[str, ...]
    body: int


@dataclass(slots=True)
class Module:
    version: str = ""
    target: str = ""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    functions: dict[str, Function | None] = field(default_factory=dict)  # None: declared, not defined
    variables: dict[str, Variable] = field(default_factory=dict)
