"""The statements of a PTX kernel: scopes, labels, calls, operands."""

from __future__ import annotations

import re
import struct
from typing import Any

from .errors import PtxSyntaxError
from .ptx_tree import (
    SINK,
    SPECIAL_REGISTERS,
    STATE_SPACES,
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Negated,
    Pair,
    Register,
    SpecialRegister,
    Symbol,
    Vector,
)

_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT_BITS = re.compile(r"-?0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"[-+]?(\d+\.\d*([eE][-+]?\d+)?|\d+[eE][-+]?\d+)$")
_IDENTIFIER = re.compile(r"[A-Za-z_$%][\w$.]*$")
_DECLARATION = re.compile(r"([A-Za-z_$%][\w$]*)\s*(<\s*(\d+)\s*>|((\[\s*\w*\s*\])+))?$")


class Body:
    """A kernel's statements, with the scopes of `{ }` blocks resolved into unique names."""

    def __init__(self, parser: Any, kernel: Kernel):
        self.parser, self.kernel = parser, kernel
        self.scopes: list[dict[str, str]] = [{}]  # a value that starts with "=" is another name of a variable
        self.labels: list[dict[str, str]] = [{}]
        self.scope_count = 0
        self.calls: list[str] = []
        self.tables: list[tuple[str, list[str], list[dict[str, str]]]] = []

    def parse(self) -> None:
        """Two passes: labels may be used before they are met, so instructions are read once their scope is closed."""
        items: list = []
        self._statements(items, None)
        for table, names, labels in self.tables:
            self.kernel.label_tables[table] = [
                next((scope[name] for scope in reversed(labels) if name in scope), name) for name in names
            ]
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
                if name in self.labels[-1]:
                    raise parser.fail(f"label {name!r} stands twice in one scope", label.start(1))
                unique = name if self.outermost else f"{name}@{self.scope_count}"
                self.labels[-1][name] = unique
                items.append(Label(unique))
                parser.position = label.end()
                continue
            start = parser.position
            end = parser.statement_end(start)
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
        if len(actual[0]) != len(function.results) or len(actual[1]) != len(function.parameters):
            raise self.parser.fail(
                f"call of {name!r} with {len(actual[1])} arguments and {len(actual[0])} results, which has "
                f"{len(function.parameters)} and {len(function.results)}",
                position,
            )
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
            for variable in self.parser.variables(statement, position):
                if not self.outermost:
                    unique = f"{variable.name}@{self.scope_count}"
                    self.scopes[-1][variable.name] = "=" + unique
                    variable.name = unique
                self.kernel.variables[variable.name] = variable
        elif words[0] == ".branchtargets":
            label = items.pop()
            targets = [t.strip() for t in statement[len(words[0]) :].split(",")]
            self.tables.append((label.name, targets, list(self.labels)))
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
            if not isinstance(guard, Register) or self.kernel.registers[guard.name] != "pred":
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
