"""Random programs with branches, loops, breaks and early exits give what each lane alone would compute."""

from __future__ import annotations

import random

import numpy as np
import pytest

from jax_clc.emulator import uniformity
from jax_clc.emulator.run import run_ptx

REGISTERS = 6  # r0 to r3 start per lane or uniform, as the program's seed decides
LANES = 32
TOP = 0xFFFFFFFF


class Program:
    """A random structured program: as PTX, and as Python for one lane."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        self.labels = 0
        self.uniform_inputs = self.draw.random() < 0.3
        self.tree = self.block(3)

    # the program as a tree of statements

    def block(self, depth: int) -> list[tuple]:
        return [self.statement(depth) for _ in range(self.draw.randint(1, 4))]

    def statement(self, depth: int) -> tuple:
        kind = self.draw.random()
        if depth == 0 or kind < 0.45:
            return self.assignment()
        if kind < 0.55:
            return ("guarded", self.condition(), self.assignment())
        if kind < 0.8:
            other = self.block(depth - 1) if self.draw.random() < 0.6 else []
            return ("if", self.condition(), self.block(depth - 1), other)
        if kind < 0.97:
            leave = self.condition() if self.draw.random() < 0.5 else None
            bound = self.draw.choice([("mod", self.draw.randrange(REGISTERS)), ("count", self.draw.randint(0, 4))])
            return ("loop", bound, self.block(depth - 1), leave)
        return ("exit", self.condition())

    def assignment(self) -> tuple:
        operation = self.draw.choice(["add", "sub", "mul.lo", "xor", "and", "min", "shr"])
        target, first = self.draw.randrange(REGISTERS), self.draw.randrange(REGISTERS)
        second = self.draw.choice([self.draw.randrange(REGISTERS), -self.draw.randint(1, 9)])  # negative: a constant
        return ("assign", operation, target, first, second)

    def condition(self) -> tuple:
        return (self.draw.choice(["lt", "ge", "eq"]), self.draw.randrange(REGISTERS), self.draw.randint(0, 7))

    # as PTX

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def test(self, condition: tuple) -> list[str]:
        comparison, register, limit = condition
        return [f"and.b32 %t, %r{register}, 7;", f"setp.{comparison}.u32 %p, %t, {limit};"]

    def lines(self, statement: tuple, depth: int = 0) -> list[str]:
        kind = statement[0]
        if kind == "assign":
            _, operation, target, first, second = statement
            operand = f"%r{second}" if second >= 0 else str(-second)
            if operation == "shr":
                operand = str(abs(second) % 5 + 1)
            suffix = "b32" if operation in ("xor", "and") else "u32"
            return [f"{operation}.{suffix} %r{target}, %r{first}, {operand};"]
        if kind == "guarded":
            return [*self.test(statement[1]), f"@%p {self.lines(statement[2])[0]}"]
        if kind == "exit":
            return [*self.test(statement[1]), "@%p bra DONE;"]
        if kind == "if":
            other, end = self.label(), self.label()
            code = [*self.test(statement[1]), f"@!%p bra {other};"]
            code += self.many(statement[2], depth) + [f"bra {end};", f"{other}:"]
            return code + self.many(statement[3], depth) + [f"{end}:"]
        _, (how, number), body, leave = statement
        head, end, counter, bound = self.label(), self.label(), f"%i{depth}", f"%n{depth}"
        code = [f"and.b32 {bound}, %r{number}, 3;" if how == "mod" else f"mov.u32 {bound}, {number};"]
        code += [f"mov.u32 {counter}, 0;", f"{head}:", f"setp.ge.u32 %p, {counter}, {bound};", f"@%p bra {end};"]
        code += self.many(body, depth + 1)
        if leave is not None:
            code += [*self.test(leave), f"@%p bra {end};"]
        return code + [f"add.u32 {counter}, {counter}, 1;", f"bra {head};", f"{end}:"]

    def many(self, block: list[tuple], depth: int) -> list[str]:
        return [line for statement in block for line in self.lines(statement, depth)]

    def ptx(self) -> str:
        body = "\n".join(self.many(self.tree, 0))
        start = "0" if self.uniform_inputs else "%lane"
        first = "\n".join(f"mad.lo.u32 %r{i}, {start}, {2 * i + 1}, {i + 3};" for i in range(REGISTERS))
        stores = "\n".join(f"st.global.u32 [%out+{4 * i}], %r{i};" for i in range(REGISTERS))
        return f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{{
.reg .pred %p; .reg .b32 %r<{REGISTERS}>, %i<5>, %n<5>, %t, %lane; .reg .b64 %out, %place;
ld.param.u64 %out, [out];
mov.u32 %lane, %laneid;
mul.wide.u32 %place, %lane, {4 * REGISTERS};
add.s64 %out, %out, %place;
{first}
{body}
DONE:
{stores}
ret;
}}
"""

    # as Python, for one lane

    def run(self, lane: int) -> list[int]:
        start = 0 if self.uniform_inputs else lane
        registers = [(start * (2 * i + 1) + i + 3) & TOP for i in range(REGISTERS)]
        self.execute(self.tree, registers)
        return registers

    @staticmethod
    def holds(condition: tuple, registers: list[int]) -> bool:
        comparison, register, limit = condition
        value = registers[register] & 7
        return {"lt": value < limit, "ge": value >= limit, "eq": value == limit}[comparison]

    def execute(self, block: list[tuple], registers: list[int]) -> bool:
        """True when the lane has left the program."""
        for statement in block:
            kind = statement[0]
            if kind == "assign":
                self.assign(statement, registers)
            elif kind == "guarded":
                if self.holds(statement[1], registers):
                    self.assign(statement[2], registers)
            elif kind == "exit":
                if self.holds(statement[1], registers):
                    return True
            elif kind == "if":
                if self.execute(statement[2] if self.holds(statement[1], registers) else statement[3], registers):
                    return True
            else:
                _, (how, number), body, leave = statement
                for _ in range(registers[number] & 3 if how == "mod" else number):
                    if self.execute(body, registers):
                        return True
                    if leave is not None and self.holds(leave, registers):
                        break
        return False

    @staticmethod
    def assign(statement: tuple, registers: list[int]) -> None:
        _, operation, target, first, second = statement
        a, b = registers[first], registers[second] if second >= 0 else -second
        results = {"add": a + b, "sub": a - b, "mul.lo": a * b, "xor": a ^ b, "and": a & b, "min": min(a, b)}
        registers[target] = (a >> (abs(second) % 5 + 1) if operation == "shr" else results[operation]) & TOP


def check(seed: int) -> None:
    program = Program(seed)
    out = np.zeros((LANES, REGISTERS), np.uint32)
    run_ptx(program.ptx(), grid=1, block=LANES, args=[out], seed=seed)
    np.testing.assert_array_equal(out, [program.run(lane) for lane in range(LANES)], err_msg=f"seed {seed}")


@pytest.mark.parametrize("seed", range(150))
def test_lanes_compute_what_each_alone_would(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_so_do_independent_threads(seed, monkeypatch):
    monkeypatch.setattr(uniformity.Analysis, "needs_independent_threads", lambda self: True)
    check(seed)
