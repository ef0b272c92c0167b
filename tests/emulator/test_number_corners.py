"""Corners of PTX's arithmetic: subnormals and .ftz, NaN, signed zeros, sums that round twice, conversions beyond the
range. Expected bits are what the ISA says, written as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from jax_clc.emulator.errors import UnsupportedInstruction
from jax_clc.emulator.run import run_ptx

WIDTHS = {"%h": 16, "%r": 32, "%d": 64}


def compute(code: str, *operands: int, result: str) -> set[int]:
    """The result's bits by both paths: operands that differ between lanes (all but lane 0 hold zeros), and one for the
    warp."""
    names = [f"{register}{place}" for register in WIDTHS for place in "abcx"]
    declared = "".join(f".reg .b{WIDTHS[n[:2]]} {n};\n" for n in names)
    cut = "".join(f"cvt.u16.u64 %h{p}, %d{p};\ncvt.u32.u64 %r{p}, %d{p};\n" for p in "abc")
    bits = WIDTHS[result[:2]]
    found = set()
    for load in ("ld.param.u64 %d{0}, [{0}];\n", "ld.global.u64 %d{0}, [%in+{1}];\n"):
        loads = "".join(load.format(p, 256 * i) for i, p in enumerate("abc"))
        text = f"""
        .version 8.8
        .target sm_90a
        .address_size 64
        .visible .entry k(.param .u64 in, .param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c) {{
        .reg .b64 %in, %out, %step; .reg .b32 %lane; .reg .pred %p;
        {declared}
        ld.param.u64 %in, [in]; ld.param.u64 %out, [out];
        mov.u32 %lane, %laneid; mul.wide.u32 %step, %lane, 8; add.s64 %in, %in, %step; add.s64 %out, %out, %step;
        {loads}{cut}{code}
        st.global.b{bits} [%out], {result};
        ret;
        }}"""
        values, out = np.zeros((3, 32), np.uint64), np.zeros(32, np.uint64)
        values[: len(operands), 0] = operands
        given = [*operands, 0, 0, 0][:3]
        run_ptx(text, grid=1, block=32, args=[values, out, *given], referee=False)
        found.add(int(out[0]))
    return found


CORNERS = [
    # .ftz takes subnormal operands for zeros, not only results
    ("mul.ftz.f32 %rx, %ra, %rb;", (0x71000000, 0x007FFFFF), 0),
    ("fma.rn.ftz.f32 %rx, %ra, %rb, %rc;", (0x5F000000, 1, 0x00800000), 0x00800000),
    ("add.ftz.f32 %rx, %ra, %rb;", (0x80000001, 0), 0),
    ("max.ftz.f32 %rx, %ra, %rb;", (1, 0x80000000), 0),
    ("rsqrt.approx.ftz.f32 %rx, %ra;", (1,), 0x7F800000),
    ("setp.eq.ftz.f32 %p, %ra, %rb; selp.b32 %rx, 1, 0, %p;", (1, 0), 1),
    ("slct.ftz.b32.f32 %rx, %ra, %rb, %rc;", (7, 8, 0x80000001), 7),
    ("mul.ftz.f16 %hx, %ha, %hb;", (0x0001, 0x3C00), 0),
    ("mul.f16 %hx, %ha, %hb;", (0x0001, 0x3C00), 1),
    ("cvt.rn.ftz.f32.f64 %rx, %da;", (0x3780000000000000,), 0),
    # NaN and signed zeros
    ("min.f32 %rx, %ra, %rb;", (0x7F800001, 0xFFC00000), 0x7FFFFFFF),
    ("max.NaN.f32 %rx, %ra, %rb;", (0xFFC00000, 0x3F800000), 0x7FFFFFFF),
    ("max.f32 %rx, %ra, %rb;", (0xFFC00000, 0x3F800000), 0x3F800000),
    ("min.f32 %rx, %ra, %rb;", (0, 0x80000000), 0x80000000),
    ("max.f32 %rx, %ra, %rb;", (0x80000000, 0), 0),
    ("min.NaN.f16 %hx, %ha, %hb;", (0x7E00, 0x3C00), 0x7FFF),
    ("fma.rn.relu.f16 %hx, %ha, %hb, %hc;", (0x7E00, 0x3C00, 0), 0x7FFF),
    ("cvt.rn.relu.bf16.f32 %hx, %ra;", (0x7FC00000,), 0x7FFF),
    ("cvt.rn.relu.f16x2.f32 %rx, %ra, %rb;", (0x7FC00000, 0xBF800000), 0x7FFF0000),
    ("mul.sat.f32 %rx, %ra, %rb;", (0, 0xBF800000), 0),
    ("add.sat.f32 %rx, %ra, %rb;", (0x7FC00000, 0), 0),
    # one rounding: the exact sum lies just beside a tie, or beside a float
    ("fma.rn.f32 %rx, %ra, %rb, %rc;", (0x3F800001, 0x33800000, 0x3F800000), 0x3F800001),
    ("fma.rn.f32 %rx, %ra, %rb, %rc;", (0x40000001, 0x3F000001, 0x00000001), 0x3F800002),
    ("fma.rm.f32 %rx, %ra, %rb, %rc;", (0x9E3CE508, 0x3BBB989D, 0x4B400001), 0x4B400000),
    ("add.rp.f32 %rx, %ra, %rb;", (0x3F800000, 0x1E3CE508), 0x3F800001),
    ("sub.rz.f32 %rx, %ra, %rb;", (0x3F800000, 0x1E3CE508), 0x3F7FFFFF),
    ("fma.rn.f16 %hx, %ha, %hb, %hc;", (0x4401, 0x4401, 0x0001), 0x4C02),
    ("fma.rn.f64 %dx, %da, %db, %dc;", (0x7FEFFFFFFFFFFFFF, 0x4000000000000000, 0), 0x7FF0000000000000),
    ("fma.rn.f64 %dx, %da, %db, %dc;", (0x8000000000000000, 0x3FF0000000000000, 0x8000000000000000), 1 << 63),
    # float to integer
    ("cvt.rzi.u64.f32 %dx, %ra;", (0x5F000000,), 1 << 63),
    ("cvt.rzi.u64.f32 %dx, %ra;", (0x7F800000,), (1 << 64) - 1),
    ("cvt.rzi.s32.f32 %rx, %ra;", (0x7FC00000,), 0),
    ("cvt.rzi.s64.f32 %dx, %ra;", (0x7FC00000,), 1 << 63),
    ("cvt.rzi.s32.f64 %rx, %da;", (0x7FF8000000000000,), 1 << 31),
    ("cvt.rzi.u16.f64 %hx, %da;", (0x7FF8000000000000,), 1 << 15),
    # integers
    ("cvt.sat.s8.s32 %rx, %ra;", (0xFFFFFF00,), 0xFFFFFF80),
    ("cvt.sat.u64.s32 %dx, %ra;", (0xFFFFFFFF,), 0),
    ("cvt.sat.s64.u64 %dx, %da;", ((1 << 64) - 1,), (1 << 63) - 1),
    ("div.s64 %dx, %da, %db;", (1 << 63, (1 << 64) - 1), 1 << 63),
    ("shl.b32 %rx, %ra, -1;", (5,), 0),
    ("shr.s32 %rx, %ra, -1;", (1 << 31,), 0xFFFFFFFF),
    ("bmsk.wrap.b32 %rx, %ra, %rb;", (0x100, 0x80000001), 1),
    ("set.lt.f16.f16 %hx, %ha, %hb;", (0, 0x3C00), 0x3C00),
    ("set.lt.bf16.bf16 %hx, %ha, %hb;", (0, 0x3F80), 0x3F80),
    ("set.lt.u16.f16 %hx, %ha, %hb;", (0, 0x3C00), 0xFFFF),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "operands", "expected"), CORNERS, ids=[f"{c[0].split()[0]}-{i}" for i, c in enumerate(CORNERS)]
)
def test_a_corner_has_the_bits_of_the_isa(code, operands, expected):
    result = next(name for name in ("%hx", "%rx", "%dx") if name in code)
    assert {hex(bits) for bits in compute(code, *operands, result=result)} == {hex(expected)}


@pytest.mark.parametrize(
    "code",
    [
        "fma.rn.oob.f16 %hx, %ha, %hb, %hc;",
        "mad.hi.sat.s32 %rx, %ra, %rb, %rc;",
        "mad24.hi.sat.s32 %rx, %ra, %rb, %rc;",
        "add.new.u32 %rx, %ra, %rb;",
        "cvt.rn.new.f16.f32 %hx, %ra;",
        "shl.new.b32 %rx, %ra, %rb;",
    ],
)
def test_a_modifier_that_would_change_the_result_is_refused(code):
    with pytest.raises(UnsupportedInstruction, match="PTX line"):
        compute(code, 1, 2, 3, result="%hx" if "%hx" in code else "%rx")
