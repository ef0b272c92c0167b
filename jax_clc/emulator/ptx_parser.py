"""PTX text to a small tree: kernels, parameters, variables, instructions with their lines.

Why a parser of our own. PyPI's `pyptx` 0.1.1 reads the kernels this project makes, but it keeps neither PTX line
numbers per instruction (every error of the emulator names one) nor the scopes of inline-assembly blocks: two blocks
that both say `.reg .pred P1; LAB_WAIT: ...` become one register and one label. PTX is regular enough that splitting
statements at `;`, `{`, `}` and labels, and operands at top-level commas, is the whole grammar; what an instruction
means is the table's business (`instructions*.py`), not the parser's.
"""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass, field

from .errors import PtxSyntaxError

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
    data: bytes = b""
    external: bool = False


@dataclass(slots=True)
class Parameter:
    name: str
    offset: int
    size: int
    alignment: int


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


def parse_ptx(text: str) -> Module:
    """Parse a PTX module. Raises PtxSyntaxError naming the line."""
    return _Parser(text).module()


#
#
#
#
# --------------------------------------------------------------------------------------------------------------------

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(loc|file)\b[^\n]*", re.M)
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT_BITS = re.compile(r"-?0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"[-+]?(\d+\.\d*([eE][-+]?\d+)?|\d+[eE][-+]?\d+)$")
_IDENTIFIER = re.compile(r"[A-Za-z_$%][\w$.]*$")
_DECLARATION = re.compile(r"([A-Za-z_$%][\w$]*)\s*(<\s*(\d+)\s*>|((\[\s*\w*\s*\])+))?$")


class _Parser:
    def __init__(self, text: str):
        text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        text = _LINE_DIRECTIVE.sub(lambda m: " " * len(m.group()), text)
        debug = re.search(r"^\s*\.section\b", text, re.M)  # DWARF: nothing to execute after it
        self.text = text[: debug.start()] if debug else text
        self.position = 0
        self.out = Module()
        self.newlines = [m.start() for m in re.finditer("\n", self.text)]

    def line(self, position: int) -> int:
        return bisect.bisect_left(self.newlines, position) + 1

    def fail(self, message: str, position: int) -> PtxSyntaxError:
        return PtxSyntaxError(message, line=self.line(position))

    def skip_space(self) -> bool:
        match = re.compile(r"\s*").match(self.text, self.position)
        self.position = match.end() if match else self.position
        return self.position < len(self.text)

    # module level

    def module(self) -> Module:
        header = re.compile(r"\.(version|target|address_size)\s+([^\n]*)")
        pending: list[int] = []  # kernels are read last: they may call functions defined after them
        while self.skip_space():
            match = header.match(self.text, self.position)
            if match:
                if match.group(1) == "version":
                    self.out.version = match.group(2).strip()
                elif match.group(1) == "target":
                    self.out.target = match.group(2).split(",")[0].strip()
                self.position = match.end()
                continue
            start = self.position
            end = self._find(";{", start)
            head = self.text[start:end]
            if re.search(r"\.entry\b", head):
                pending.append(start)
                self._skip_body(start)
            elif re.search(r"\.func\b", head):
                self._function(start)
            elif head.lstrip().startswith(".pragma") or head.lstrip().startswith(".alias"):
                self.position = self._find(";", start) + 1
            else:
                end = self._statement_end(start)
                for variable in self._variables(self.text[start:end], start):
                    self.out.variables[variable.name] = variable
                self.position = end + 1
        for start in pending:
            self._kernel(start)
        return self.out

    def _find(self, characters: str, start: int) -> int:
        match = re.compile("[" + re.escape(characters) + "]").search(self.text, start)
        if not match:
            raise self.fail("unexpected end of file", min(start, len(self.text) - 1))
        return match.start()

    def _skip_body(self, start: int) -> None:
        """Go past a function or kernel, or past its declaration."""
        end = self._find(";{", start)
        depth, position = int(self.text[end] == "{"), end + 1
        while depth:
            position = self._find("{}", position)
            depth += 1 if self.text[position] == "{" else -1
            position += 1
        self.position = position

    def _function(self, start: int) -> None:
        pattern = re.compile(r"[^;{]*?\.func\s*(\(([^)]*)\))?\s*([\w$]+)\s*(\(([^)]*)\))?[^;{]*([;{])", re.S)
        match = pattern.match(self.text, start)
        if not match:
            raise self.fail("cannot read .func", start)
        if match.group(6) == ";":
            self.out.functions.setdefault(match.group(3), None)
        else:
            names = [
                tuple(re.findall(r"([\w$%]+)\s*(?:\[\d*\])?\s*(?:,|$)", part or ""))
                for part in (match.group(2), match.group(5))
            ]
            self.out.functions[match.group(3)] = Function(names[0], names[1], match.end())
        self._skip_body(start)

    def _statement_end(self, start: int) -> int:
        """The `;` that ends a statement, outside braces (initialisers, vector operands) and strings."""
        depth = 0
        for match in re.compile(r'[;{}]|"[^"]*"').finditer(self.text, start):
            character = match.group()[0]
            if character == "{":
                depth += 1
            elif character == "}":
                depth -= 1
            elif character == ";" and depth == 0:
                return match.start()
        raise self.fail("statement without ';'", start)

    def _variables(self, statement: str, position: int) -> list[Variable]:
        declaration, _, initial = statement.partition("=")
        words = declaration.split(None)
        space, alignment, kind, external = None, 0, None, False
        index = 0
        while index < len(words) and words[index].startswith("."):
            word = words[index]
            if word in STATE_SPACES or word.split("::")[0] in STATE_SPACES:
                space = word.split("::")[0][1:]
            elif word == ".align":
                index += 1
                alignment = int(words[index])
            elif word in (".extern",):
                external = True
            elif word in (".visible", ".weak", ".common", ".managed", ".attribute(.managed)", ".v2", ".v4", ".unified"):
                pass
            elif word[1:] in TYPE_BYTES:
                kind = word[1:]
            else:
                raise self.fail(f"unknown directive {word!r} in a declaration", position)
            index += 1
        if space is None or kind is None:
            raise self.fail(f"not a declaration: {statement.strip()[:60]!r}", position)
        size = TYPE_BYTES[kind]
        result = []
        for name in " ".join(words[index:]).split(","):
            match = re.match(r"([A-Za-z_$%][\w$]*)\s*((\[\s*\w*\s*\]\s*)*)$", name.strip())
            if not match:
                raise self.fail(f"cannot read declaration {name!r}", position)
            count = 1
            for extent in re.findall(r"\[\s*(\w*)\s*\]", match.group(2)):
                count *= int(extent, 0) if extent else 0
            data = self._initialiser(initial, size, count * size) if initial.strip() else b""
            result.append(Variable(match.group(1), space, count * size, max(alignment, size), data, external))
        return result

    @staticmethod
    def _initialiser(text: str, size: int, total: int) -> bytes:
        data = bytearray()
        for item in re.findall(r"[^\s,{}]+", text):
            if match := _FLOAT_BITS.match(item):
                value = int(match.group(2), 16)
            elif _INTEGER.match(item):
                value = int(item.rstrip("U"), 0)
            else:
                value = 0  # an address: patched by nothing here; reads of it find a null pointer
            data += (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        return bytes(data.ljust(total, b"\0"))

    # kernels

    def _kernel(self, start: int) -> None:
        match = re.compile(r"[^;{]*?\.entry\s+([\w$]+)\s*").match(self.text, start)
        if not match:
            raise self.fail("cannot read .entry", start)
        kernel = Kernel(match.group(1), self.line(match.start(1)))
        position = match.end()
        if self.text[position] == "(":
            close = self.text.index(")", position)
            self._parameters(kernel, self.text[position + 1 : close], position)
            position = close + 1
        open_brace = self._find("{", position)
        for name, value in re.findall(
            r"\.(reqntid|maxntid|reqnctapercluster)\s+([\d,\s]+)", self.text[position:open_brace]
        ):
            numbers = [int(v) for v in value.replace(",", " ").split()]
            setattr(kernel, name, tuple(numbers + [1] * (3 - len(numbers))))
        self.position = open_brace + 1
        _Body(self, kernel).parse()
        self.out.kernels[kernel.name] = kernel

    def _parameters(self, kernel: Kernel, text: str, position: int) -> None:
        offset = 0
        for item in text.split(","):
            if not item.strip():
                continue
            item = re.sub(r"\.ptr(\s+\.(global|shared|const|local))?", "", item)
            variable = self._variables(item, position)[0]
            offset = -(-offset // variable.alignment) * variable.alignment
            kernel.parameters.append(Parameter(variable.name, offset, variable.size, variable.alignment))
            offset += variable.size


class _Body:
    """A kernel's statements, with the scopes of `{ }` blocks resolved into unique names."""

    def __init__(self, parser: _Parser, kernel: Kernel):
        self.parser, self.kernel = parser, kernel
        self.scopes: list[dict[str, str]] = [{}]  # a value that starts with "=" is another name of a variable
        self.labels: list[dict[str, str]] = [{}]
        self.scope_count = 0
        self.calls: list[str] = []

    def parse(self) -> None:
        """Two passes: labels may be used before they are met, so instructions are read once their scope is closed."""
        items: list = []
        self._statements(items, None)
        for item in items:
            self.kernel.body.append(item if isinstance(item, Label) else self._instruction(*item))

    def _statements(self, items: list, end_label: str | None) -> None:
        """Everything up to the closing brace. In an expanded function `ret` goes to `end_label`."""
        parser = self.parser
        outermost = len(self.scopes)
        while True:
            if not parser.skip_space():
                raise parser.fail("kernel without closing '}'", len(parser.text) - 1)
            character = parser.text[parser.position]
            if character == "{":
                self.scope_count += 1
                self.scopes.append({})
                self.labels.append({})
                parser.position += 1
                continue
            if character == "}":
                parser.position += 1
                if len(self.scopes) == outermost:
                    return
                self.scopes.pop()
                self.labels.pop()
                continue
            if character == ";":
                parser.position += 1
                continue
            label = _LABEL.match(parser.text, parser.position)
            if label:
                name = label.group(1)
                unique = name if self.outermost else f"{name}@{self.scope_count}"
                self.labels[-1][name] = unique
                items.append(Label(unique))
                parser.position = label.end()
                continue
            start = parser.position
            end = parser._statement_end(start)
            statement = parser.text[start:end]
            parser.position = end + 1
            if statement.startswith("."):
                self._directive(statement, start, items)
            elif re.match(r"call\b", statement):
                self._call(statement, start, items)
            else:
                if end_label is not None and re.search(r"(^|\s)ret(\.uni)?\s*$", statement):
                    statement = re.sub(r"ret(\.uni)?\s*$", f"bra {end_label}", statement)
                items.append((start, statement, list(self.scopes), list(self.labels)))

    def _call(self, statement: str, position: int, items: list) -> None:
        """Expand a device function in a scope of its own, with its parameters bound to the caller's variables."""
        match = re.match(r"call(?:\.uni)?\s+(?:\(([^)]*)\)\s*,)?\s*([\w$]+)\s*(?:,\s*\(([^)]*)\))?", statement, re.S)
        functions = self.parser.out.functions
        if not match or match.group(2) not in functions:
            raise self.parser.fail(f"cannot read call {' '.join(statement.split())!r}", position)
        name = match.group(2)
        actual = [
            [v.strip() for v in (part or "").split(",") if v.strip()] for part in (match.group(1), match.group(3))
        ]
        function = functions[name]
        if function is None:
            items.append((position, f"call.extern {name}", list(self.scopes), list(self.labels)))
            return
        if name in self.calls:
            raise self.parser.fail(f"recursive call of {name!r}", position)
        bound = {}
        for formal, given in zip([*function.results, *function.parameters], [*actual[0], *actual[1]], strict=True):
            resolved = self._name(given, self.scopes, self.labels, self.parser.line(position))
            if not isinstance(resolved, Symbol):
                raise self.parser.fail(f"argument {given!r} of {name!r} is no parameter variable", position)
            bound[formal] = "=" + resolved.name
        self.scope_count += 1
        end_label = f"{name}_end"
        unique = f"{end_label}@{self.scope_count}"
        outer_scopes, outer_labels, back = self.scopes, self.labels, self.parser.position
        self.scopes, self.labels = [bound], [{end_label: unique}]
        self.calls.append(name)
        self.parser.position = function.body
        self._statements(items, end_label)
        self.calls.pop()
        self.scopes, self.labels, self.parser.position = outer_scopes, outer_labels, back
        items.append(Label(unique))

    @property
    def outermost(self) -> bool:
        """In the kernel's own scope, where names stay as they are."""
        return len(self.scopes) == 1 and not self.calls

    def _directive(self, statement: str, position: int, items: list) -> None:
        words = statement.split(None, 2)
        if words[0] == ".reg":
            kind = words[1].lstrip(".")
            names = words[2]
            if kind in ("v2", "v4"):
                raise self.parser.fail("vector registers are not supported", position)
            for name in names.split(","):
                self._declare(name.strip(), kind, position)
        elif words[0] == ".pragma":
            return
        elif words[0].split("::")[0] in STATE_SPACES:
            for variable in self.parser._variables(statement, position):
                if not self.outermost:
                    unique = f"{variable.name}@{self.scope_count}"
                    self.scopes[-1][variable.name] = "=" + unique
                    variable.name = unique
                self.kernel.variables[variable.name] = variable
        elif words[0] == ".branchtargets":
            label = items.pop()
            self.kernel.label_tables[label.name] = [t.strip() for t in statement[len(words[0]) :].split(",")]
        else:
            raise self.parser.fail(f"unknown directive {words[0]!r}", position)

    def _declare(self, name: str, kind: str, position: int) -> None:
        match = _DECLARATION.match(name)
        if not match or kind not in TYPE_BYTES:
            raise self.parser.fail(f"cannot read register declaration .{kind} {name!r}", position)
        names = (
            [match.group(1)] if match.group(3) is None else [f"{match.group(1)}{i}" for i in range(int(match.group(3)))]
        )
        for one in names:
            unique = one if self.outermost else f"{one}@{self.scope_count}"
            self.scopes[-1][one] = unique
            self.kernel.registers[unique] = kind

    def _instruction(self, position: int, statement: str, scopes, labels) -> Instruction:
        line = self.parser.line(position)
        text = " ".join(statement.split())
        guard, negated = None, False
        match = re.match(r"@\s*(!?)\s*([%\w$]+)\s*", text)
        if match:
            negated, guard = bool(match.group(1)), self._name(match.group(2), scopes, labels, line)
            if not isinstance(guard, Register):
                raise PtxSyntaxError(f"guard {match.group(2)!r} is not a declared predicate", line=line)
            text = text[match.end() :]
        opcode = re.match(r"[^\s{\[(]*", text).group()  # type: ignore[union-attr]
        operands = tuple(self._operand(part, scopes, labels, line) for part in split_operands(text[len(opcode) :]))
        return Instruction(line, opcode, operands, guard, negated)

    def _operand(self, text: str, scopes, labels, line: int):
        text = text.strip()
        if text.startswith("[") and text.endswith("]"):
            parts = split_operands(text[1:-1])
            base, offset = self._base_and_offset(parts[0], scopes, labels, line)
            return Address(base, offset, tuple(self._operand(p, scopes, labels, line) for p in parts[1:]))
        if text.startswith("{") and text.endswith("}"):
            return Vector(tuple(self._operand(p, scopes, labels, line) for p in split_operands(text[1:-1])))
        if text.startswith("(") and text.endswith(")"):
            return Vector(tuple(self._operand(p, scopes, labels, line) for p in split_operands(text[1:-1])))
        if text.startswith("!"):
            return Negated(self._operand(text[1:], scopes, labels, line))
        if "|" in text:
            first, second = text.split("|")
            return Pair(self._operand(first, scopes, labels, line), self._operand(second, scopes, labels, line))
        number = parse_number(text)
        if number is not None:
            return number
        match = re.match(r"([%\w$.]+)\s*([+-])\s*(.+)$", text)
        if match:
            base, offset = self._base_and_offset(text, scopes, labels, line)
            if isinstance(base, Symbol):
                return Symbol(base.name, offset)
        return self._name(text, scopes, labels, line)

    def _base_and_offset(self, text: str, scopes, labels, line: int):
        text = text.strip()
        number = parse_number(text)
        if number is not None:
            return Immediate(0), number.value
        match = re.match(r"([%\w$.]+)\s*(?:\+\s*(-?\w+)|(-)\s*(\w+))?$", text)
        if not match:
            raise PtxSyntaxError(f"cannot read address [{text}]", line=line)
        offset = int(match.group(2), 0) if match.group(2) else -int(match.group(4), 0) if match.group(4) else 0
        base = self._name(match.group(1), scopes, labels, line)
        if isinstance(base, Symbol):
            base = Symbol(base.name, base.offset)
        return base, offset

    def _name(self, name: str, scopes, labels, line: int):
        if name == "_":
            return SINK
        for scope in reversed(scopes):
            if name in scope:
                return Symbol(scope[name][1:]) if scope[name][0] == "=" else Register(scope[name])
        for scope in reversed(labels):
            if name in scope:
                return Label(scope[name])
        if name.startswith("%"):
            if name[1:].split(".")[0].rstrip("0123456789") in SPECIAL_REGISTERS:
                return SpecialRegister(name)
            raise PtxSyntaxError(f"register {name!r} is not declared", line=line)
        if _IDENTIFIER.match(name):
            return Symbol(name)
        raise PtxSyntaxError(f"cannot read operand {name!r}", line=line)


def parse_number(text: str) -> Immediate | None:
    """An integer or float literal, or None."""
    if _INTEGER.match(text):
        body = text.rstrip("U")
        if re.match(r"[-+]?0\d+$", body):  # C's octal
            return Immediate(int(body, 8))
        return Immediate(int(body, 0))
    match = _FLOAT_BITS.match(text)
    if match:
        width = 4 if match.group(1) in "fF" else 8
        bits = int(match.group(2), 16)
        if text.startswith("-"):
            bits ^= 1 << (8 * width - 1)
        return Immediate(bits, width)
    if _DECIMAL.match(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 8)
    if text == "WARP_SZ":
        return Immediate(32)
    return None


def split_operands(text: str) -> list[str]:
    """Split at commas outside brackets, braces and parentheses."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    if last:
        parts.append(last)
    return parts
