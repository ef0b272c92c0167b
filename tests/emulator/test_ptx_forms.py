"""Forms of PTX that compilers and people write: jump tables, initial values, pointers to local memory; and text that is
no PTX, which is refused with its line."""

from __future__ import annotations

import numpy as np
import pytest

from jax_clc.emulator.errors import AddressOutOfRange, BranchOutOfRange, PtxSyntaxError, UnsupportedInstruction
from jax_clc.emulator.run import run_ptx

TABLE = """
@!%p bra AFTER;
targets: .branchtargets A, B, C;
brx.idx %r2, targets;
A: mov.u32 %r1, 10; bra AFTER;
B: mov.u32 %r1, 11; bra AFTER;
C: mov.u32 %r1, 12;
AFTER:"""
FUNCTION = """
.func (.param .b32 result) parity(.param .b32 value)
{
.reg .b32 %x, %y;
ld.param.b32 %x, [value]; and.b32 %x, %x, 1;
targets: .branchtargets EVEN, ODD;
brx.idx %x, targets;
EVEN: mov.b32 %y, 5; bra DONE;
ODD: mov.b32 %y, 6;
DONE: st.param.b32 [result], %y;
ret;
}"""
LOCAL = ".local .align 8 .b8 frame[64]; mov.u64 %d1, frame;"
PLACES = "setp.lt.u32 %p, %lane, 16; mul.wide.u32 %d2, %lane, 4; add.u64 %d1, %d1, %d2;"


def run(body: str, declarations: str = "") -> list[int]:
    """%r1 of each lane."""
    text = f"""
    .version 8.8
    .target sm_90a
    .address_size 64
    {declarations}
    .visible .entry k(.param .u64 out) {{
    .reg .b64 %out, %place, %d<9>; .reg .b32 %lane, %r<10>; .reg .pred %p;
    ld.param.u64 %out, [out];
    mov.u32 %lane, %laneid; mul.wide.u32 %place, %lane, 4; add.u64 %out, %out, %place; mov.u32 %r1, 0;
    {body}
    st.global.u32 [%out], %r1;
    ret;
    }}"""
    out = np.zeros(32, np.uint32)
    run_ptx(text, grid=1, block=32, args=[out])
    return out.tolist()


def test_lanes_part_at_a_jump_table():
    assert run("rem.u32 %r2, %lane, 3; setp.lt.u32 %p, %lane, 30;" + TABLE) == [10, 11, 12] * 10 + [0, 0]


def test_a_jump_table_in_a_function_that_is_called_twice():
    call = "{{ .param .b32 a, r; st.param.b32 [a], {0}; call.uni (r), parity, (a); ld.param.b32 {0}, [r]; }}"
    body = "mov.u32 %r1, %lane;" + 2 * call.format("%r1").replace(".param .b32 a, r;", ".param .b32 a; .param .b32 r;")
    assert run(body, FUNCTION) == [6, 5] * 16


@pytest.mark.parametrize("index", ["3", "-1"])
def test_a_jump_beyond_the_table_is_named(index):
    with pytest.raises(BranchOutOfRange, match=r"table of 3 targets.*PTX line"):
        run(f"mov.u32 %r2, {index}; setp.lt.u32 %p, %lane, 30;" + TABLE)


@pytest.mark.parametrize(
    ("declaration", "bits"),
    [
        (".const .align 4 .f32 x[2] = {9.0, 1.5};", 0x3FC00000),
        (".const .align 4 .f32 x[2] = {0f00000000, -2.25};", 0xC0100000),
        (".const .align 4 .f32 x[2] = {0f00000000, 0d3FF0000000000000};", 0x3F800000),
        (".global .align 8 .f64 x[1] = {-1.0};", 0xBFF00000),
        (".global .align 4 .u32 x[2] = {1, 0x17U};", 0x17),
        (".global .align 4 .b8 x[8] = {1, 2, 3, 4, 255};", 255),
    ],
)
def test_initial_values(declaration, bits):
    space = declaration.split()[0]
    assert run(f"ld{space}.u32 %r1, [x+4];", declaration) == [bits] * 32


def test_an_initial_value_that_is_no_number_is_refused_where_it_is_used():
    declarations = ".global .u32 x = 7; .global .align 8 .u64 pointer = x;"
    assert run("ld.global.u32 %r1, [x];", declarations) == [7] * 32
    with pytest.raises(UnsupportedInstruction, match="initial value 'x' of pointer"):
        run("ld.global.u64 %d1, [pointer];", declarations)


def test_a_pointer_to_local_memory_is_one_address_and_many_values():
    body = LOCAL + "cvta.local.u64 %d1, %d1; st.u32 [%d1+4], %lane; ld.u32 %r1, [%d1+4];"
    assert run(body) == list(range(32))


def test_lanes_that_take_no_part_may_hold_any_local_address():
    body = LOCAL + PLACES + "@%p st.local.u32 [%d1], %lane; @%p ld.local.u32 %r1, [%d1];"
    assert run(body) == list(range(16)) + [0] * 16
    with pytest.raises(AddressOutOfRange, match="beyond 64 bytes"):
        run(LOCAL + PLACES + "st.local.u32 [%d1], %lane;")


@pytest.mark.parametrize(("condition", "kept"), [("%lane, 16", range(16, 32)), ("%r9, 1", ()), ("%r9, 0", range(32))])
def test_cp_async_that_ignores_its_source(condition, kept):
    body = f"""
    mov.u32 %r9, 0; setp.lt.u32 %p, {condition};
    mov.u32 %r2, 77; st.global.u32 [%out], %r2;
    mov.u32 %r3, buffer; shl.b32 %r4, %lane, 2; add.u32 %r3, %r3, %r4;
    cp.async.ca.shared.global [%r3], [%out], 4, %p;
    cp.async.wait_all;
    ld.shared.u32 %r1, [%r3];"""
    assert run(body, ".shared .align 16 .b8 buffer[128];") == [77 * (lane in kept) for lane in range(32)]


def test_a_special_register_that_is_a_predicate():
    assert run("mov.pred %p, %is_explicit_cluster; selp.u32 %r1, 7, 8, %p;") == [8] * 32


@pytest.mark.parametrize(
    "body",
    [
        "add.u32 %r1, %r2;",
        "add.u32 %r1, %r2, %r3, %r4;",
        "shfl.sync.idx.b32 %r1, %r2;",
        "add.u32 %r1, %p, %r3;",
        "@%r1 mov.u32 %r2, 1;",
        "selp.u32 %r1, 1, 2, %r3;",
        "SAME: mov.u32 %r1, 1; SAME: mov.u32 %r2, 1;",
        "mov.u32 %r2, 0; brx.idx %r2, nowhere;",
        "{ .param .b32 a; .param .b32 r; call.uni (r), parity, (a, a); }",
        "bra NOWHERE;",
    ],
)
def test_what_is_no_ptx_is_refused_with_its_line(body):
    with pytest.raises(PtxSyntaxError, match="PTX line"):
        run(body, FUNCTION)
