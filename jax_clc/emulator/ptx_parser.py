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

from .errors import PtxSyntaxError
from .ptx_body import Body, parse_number
from .ptx_tree import STATE_SPACES, TYPE_BYTES, Function, Immediate, Kernel, Module, Parameter, Variable

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(loc|file)\b[^\n]*", re.M)


def parse_ptx(text: str) -> Module:
    """Parse a PTX module. Raises PtxSyntaxError naming the line."""
    return _Parser(text).module()


def _initialise(variable: Variable, text: str, kind: str) -> None:
    """The initial value of a variable, from numbers; `unread` of one that is made of addresses or expressions."""
    size, data = TYPE_BYTES[kind], bytearray()
    for item in (part.strip() for part in re.sub(r"[{}]", " ", text).split(",")):
        number = parse_number(item) if item else Immediate(0)
        if number is None or number.float_bytes and kind not in ("f32", "f64"):
            variable.unread = item
            return
        bits = number.bits(size) if kind in ("f32", "f64") else number.value
        data += (bits & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    variable.data = bytes(data.ljust(variable.size, b"\0"))


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
                end = self.statement_end(start)
                for variable in self.variables(self.text[start:end], start):
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

    def statement_end(self, start: int) -> int:
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

    def variables(self, statement: str, position: int) -> list[Variable]:
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
            variable = Variable(match.group(1), space, count * size, max(alignment, size), kind, external=external)
            if initial.strip():
                _initialise(variable, initial, kind)
            result.append(variable)
        return result

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
        Body(self, kernel).parse()
        self.out.kernels[kernel.name] = kernel

    def _parameters(self, kernel: Kernel, text: str, position: int) -> None:
        offset = 0
        for item in text.split(","):
            if not item.strip():
                continue
            # What follows .ptr, an alignment too, is said of the memory that is pointed to.
            item = re.sub(r"\.ptr(\s+\.(global|shared|const|local))?(\s+\.align\s+\d+)?", "", item)
            variable = self.variables(item, position)[0]
            offset = -(-offset // variable.alignment) * variable.alignment
            kernel.parameters.append(Parameter(variable.name, offset, variable.size, variable.alignment, variable.kind))
            offset += variable.size
