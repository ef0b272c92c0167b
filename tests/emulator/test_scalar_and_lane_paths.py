"""Registers that hold one value for the warp are Python integers, others NumPy vectors: both give the same bits, those
that the ISA defines."""

from __future__ import annotations

import numpy as np
import pytest

from jax_clc.emulator.run import run_ptx

LANES = 32
CHECKED = (0, 1, 2, 3, 5, 8, 13, 21, 31)


def kernel(body: str, width: int, sources: str) -> str:
    """A kernel that computes %d from %a, %b, %c of `width` bits: from parameters, or from one triple for each lane."""
    register = f".b{width}"
    if sources == "parameters":
        load = "\n".join(f"ld.param.b{width} %{x}, [{x}];" for x in "abc")
    else:
        load = "\n".join(f"ld.global.b{width} %{x}, [%in+{i * LANES * 8}];" for i, x in enumerate("abc"))
    return f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c)
{{
.reg {register} %a, %b, %c, %x, %y;
.reg .b64 %in, %out, %lane8, %d;
.reg .b32 %lane, %w, %n;
.reg .b16 %h;
.reg .pred %p, %q;
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
mov.u32 %lane, %laneid;
mul.wide.u32 %lane8, %lane, 8;
add.s64 %in, %in, %lane8;
add.s64 %out, %out, %lane8;
{load}
mov.b64 %d, 0;
cvt.u32.u{width} %n, %b;
{body}
st.global.b64 [%out], %d;
ret;
}}
"""


def triples(width: int) -> np.ndarray:
    """(3, 32) operands: corners and random bits."""
    draw = np.random.default_rng(width)
    top = (1 << width) - 1
    corners = [0, 1, 2, top, top - 1, 1 << (width - 1), (1 << (width - 1)) - 1, 3, 31, width, width - 1, 255, 5]
    values = draw.integers(0, top, (3, LANES), dtype=np.uint64, endpoint=True)
    for row in range(3):
        places = draw.permutation(LANES)[: len(corners)]
        values[row, places] = np.array(corners, np.uint64)
    small = draw.permutation(LANES)[:12]
    values[1, small] = draw.integers(0, width + 4, 12)
    return values


def widen(register: str, width: int) -> str:
    return f"cvt.u64.u{width} %d, {register};" if width < 64 else f"mov.b64 %d, {register};"


def forms() -> list[tuple[str, int, str]]:
    """(name, width, body) of every instruction under test."""
    found = []

    def add(name: str, width: int, code: str, result: str = "%x") -> None:
        finish = {"%w": "cvt.u64.u32 %d, %w;", "%d": "", "%p": "selp.b64 %d, 1, 0, %p;"}.get(result) or widen(
            result, width
        )
        found.append((name, width, code + "\n" + ("" if result == "%d" else finish)))

    for width in (16, 32, 64):
        for sign in "us":
            kind = f"{sign}{width}"
            for name in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"):
                add(f"{name}.{kind}", width, f"{name}.{kind} %x, %a, %b;")
            add(f"mad.lo.{kind}", width, f"mad.lo.{kind} %x, %a, %b, %c;")
            add(f"shr.{kind}", width, f"shr.{kind} %x, %a, %n;")
            for comparison in ("eq", "ne", "lt", "le", "gt", "ge"):
                add(f"setp.{comparison}.{kind}", width, f"setp.{comparison}.{kind} %p, %a, %b;", "%p")
            if width < 64:
                wide = {16: "%w", 32: "%d"}[width]
                add(f"mul.wide.{kind}", width, f"mul.wide.{kind} {wide}, %a, %b;", wide)
            if width > 16:
                add(f"bfe.{kind}", width, f"cvt.u32.u{width} %w, %c;\nbfe.{kind} %x, %a, %n, %w;")
            for to in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
                add(f"cvt.{to}.{kind}", width, f"cvt.{to}.{kind} %d, %a;", "%d")
        for sign in ("s",):
            add(f"neg.{sign}{width}", width, f"neg.{sign}{width} %x, %a;")
            add(f"abs.{sign}{width}", width, f"abs.{sign}{width} %x, %a;")
        for name in ("and", "or", "xor"):
            add(f"{name}.b{width}", width, f"{name}.b{width} %x, %a, %b;")
        add(f"not.b{width}", width, f"not.b{width} %x, %a;")
        add(f"cnot.b{width}", width, f"cnot.b{width} %x, %a;")
        add(f"shl.b{width}", width, f"shl.b{width} %x, %a, %n;")
        add(f"selp.b{width}", width, f"setp.lt.u{width} %p, %b, %c;\nselp.b{width} %x, %a, %c, %p;")
        if width > 16:
            for name in ("popc", "clz"):
                add(f"{name}.b{width}", width, f"{name}.b{width} %w, %a;", "%w")
            add(f"brev.b{width}", width, f"brev.b{width} %x, %a;")
            add(f"bfind.u{width}", width, f"bfind.u{width} %w, %a;", "%w")
            add(f"bfind.s{width}", width, f"bfind.s{width} %w, %a;", "%w")
            add(f"bfi.b{width}", width, f"cvt.u32.u{width} %w, %c;\nbfi.b{width} %x, %a, %c, %n, %w;")
    for table in (0x96, 0xE8, 0xCA, 0x1B, 0x00, 0xFF):
        add(f"lop3 {table:#x}", 32, f"lop3.b32 %x, %a, %b, %c, {table};")
    for mode in ("l.wrap", "r.wrap", "l.clamp", "r.clamp"):
        add(f"shf.{mode}", 32, f"shf.{mode}.b32 %x, %a, %b, %c;")
    add("prmt", 32, "prmt.b32 %x, %a, %b, %c;")
    add("dp4a", 32, "dp4a.s32.u32 %x, %a, %b, %c;")
    add("setp with a second result", 32, "setp.lt.and.s32 %p|%q, %a, %b, %q;\nselp.b64 %d, 1, 0, %p;", "%d")
    add(
        "predicate logic",
        32,
        "setp.lt.s32 %p, %a, %b;\nsetp.gt.u32 %q, %a, %c;\nxor.pred %p, %p, %q;\nnot.pred %p, %p;",
        "%p",
    )
    add("guarded move", 32, "setp.lt.s32 %p, %a, %b;\nmov.b32 %x, %a;\n@%p mov.b32 %x, %c;")
    add("pack and unpack", 64, "mov.b64 {%w, %n}, %a;\nmov.b64 %x, {%n, %w};")
    add(
        "branch",
        32,
        "setp.lt.s32 %p, %a, %b;\n@%p bra LESS;\nadd.s32 %x, %a, %c;\nbra DONE;\nLESS:\nsub.s32 %x, %b, %c;\nDONE:",
    )
    return found


def signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def defined(name: str, width: int, a: int, b: int, c: int) -> int | None:
    """What the ISA says, written out again for the plain forms; None where only the two paths are compared."""
    top = (1 << width) - 1
    operation, _, kind = name.rpartition(".")
    if not kind[1:].isdigit():
        return None
    x, y, z = (signed(v, width) if kind[0] == "s" else v for v in (a, b, c))
    shift = b & 0xFFFFFFFF
    results = {
        "add": lambda: x + y, "sub": lambda: x - y, "mul.lo": lambda: x * y, "mul.hi": lambda: x * y >> width,
        "mad.lo": lambda: x * y + z, "min": lambda: min(x, y), "max": lambda: max(x, y), "and": lambda: a & b,
        "or": lambda: a | b, "xor": lambda: a ^ b, "not": lambda: ~a, "neg": lambda: -x, "abs": lambda: abs(x),
        "shl": lambda: a << shift if shift < width else 0, "shr": lambda: x >> min(shift, width),
        "cnot": lambda: a == 0,
        "setp.lt": lambda: x < y, "setp.le": lambda: x <= y, "setp.gt": lambda: x > y, "setp.ge": lambda: x >= y,
        "setp.eq": lambda: x == y, "setp.ne": lambda: x != y, "popc": lambda: a.bit_count(),
        "clz": lambda: width - a.bit_length(),
    }  # fmt: skip
    if operation in results:
        return int(results[operation]()) & top
    if operation == "mul.wide":
        return x * y & ((1 << 2 * width) - 1)
    if operation in ("div", "rem") and y:
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return (quotient if operation == "div" else x - quotient * y) & top
    return None


@pytest.mark.parametrize("name, width, body", [pytest.param(*form, id=form[0]) for form in forms()])
def test_both_paths_agree(name, width, body):
    values = triples(width)
    lanes = np.zeros(LANES, np.uint64)
    run_ptx(kernel(body, width, "lanes"), grid=1, block=LANES, args=[values, lanes, 0, 0, 0], referee=False)
    for lane in CHECKED:
        a, b, c = (int(v) for v in values[:, lane])
        one = np.zeros(LANES, np.uint64)
        run_ptx(kernel(body, width, "parameters"), grid=1, block=LANES, args=[values, one, a, b, c], referee=False)
        assert set(one.tolist()) == {int(lanes[lane])}, (name, hex(a), hex(b), hex(c))
        expected = defined(name, width, a, b, c)
        assert expected is None or int(one[0]) == expected, (name, hex(a), hex(b), hex(c))
