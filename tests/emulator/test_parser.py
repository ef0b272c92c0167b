"""The PTX parser: scopes, labels, operands, layouts, and errors with lines."""

import pytest

from jax_clc.emulator import errors
from jax_clc.emulator.ptx_parser import parse_ptx
from jax_clc.emulator.ptx_tree import (
    Address,
    Immediate,
    Instruction,
    Label,
    Negated,
    Pair,
    Register,
    Symbol,
    Vector,
)  # fmt: skip
from jax_clc.emulator.run import LaunchError, load_program

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def kernel(body: str, parameters: str = "", directives: str = ""):
    module = parse_ptx(f"{HEADER}.visible .entry k({parameters}) {directives}\n{{\n{body}\n}}\n")
    return module.kernels["k"]


def instructions(body: str) -> list[Instruction]:
    return [item for item in kernel(body).body if isinstance(item, Instruction)]


def test_inline_assembly_blocks_have_scopes_of_their_own():
    block = "{\n.reg .pred P1;\nWAIT:\n@P1 bra DONE;\nbra WAIT;\nDONE:\n}\n"
    body = kernel(block + block).body
    labels = [item.name for item in body if isinstance(item, Label)]
    branches = [item for item in body if isinstance(item, Instruction)]
    assert len(set(labels)) == 4
    assert branches[0].guard != branches[2].guard
    assert [b.operands[0].name for b in branches] == [labels[1], labels[0], labels[3], labels[2]]


def test_operands_of_every_kind():
    declared = ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>;\n"
    text = declared + (
        "shfl.sync.idx.b32 %r1|%p1, %r2, 0x1f, 31, -1;\n"
        "setp.lt.and.s32 %p1|%p2, %r1, 010, !%p3;\n"
        "ld.shared.v2.b32 {%r1, _}, [%rd1+-16];\n"
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r1, %r2}], [%r3];\n"
        "mov.f32 %r1, 0f3F800000;\n"
    )
    shuffle, compare, load, copy, move = instructions(text)
    assert shuffle.operands[0] == Pair(Register("%r1"), Register("%p1"))
    assert [o.value for o in shuffle.operands[2:]] == [31, 31, -1]
    assert compare.operands[2:] == (Immediate(8), Negated(Register("%p3")))
    assert load.operands == (Vector((Register("%r1"), Label("_"))), Address(Register("%rd1"), -16))
    assert copy.operands[0].extra == (Vector((Register("%r1"), Register("%r2"))),)
    assert move.operands[1] == Immediate(0x3F800000, 4)


def test_parameters_are_laid_out_by_alignment():
    found = kernel("ret;", ".param .u32 a, .param .align 64 .b8 b[128], .param .u64 .ptr .global .align 4 c").parameters
    assert [(p.name, p.offset, p.size) for p in found] == [("a", 0, 4), ("b", 64, 128), ("c", 192, 8)]


def test_the_alignment_behind_ptr_is_that_of_the_memory():
    parameters = ".param .u64 a, .param .u64 .ptr .global .align 16 b, .param .u64 .ptr .align 32 c"
    found = kernel("ret;", parameters).parameters
    assert [(p.name, p.offset, p.alignment) for p in found] == [("a", 0, 8), ("b", 8, 8), ("c", 16, 8)]


def test_lines_are_those_of_the_text():
    found = instructions("// a comment; with a semicolon\n\t.loc 1 2 3\n/* more\n*/ ret;")
    assert [i.line for i in found] == [9]


def test_thread_counts_are_kept():
    found = kernel("ret;", directives=".reqntid 384, 1, 1 .minnctapersm 1")
    assert found.reqntid == (384, 1, 1)


def test_symbols_take_offsets():
    assert instructions(".shared .b8 s[64]; .reg .b32 %r<2>;\nmov.u32 %r1, s+16;")[0].operands[1] == Symbol("s", 16)


@pytest.mark.parametrize(
    "body, line, words",
    [
        ("ret", 6, "without ';'"),
        (".reg .b32 %r<2>;\nadd.s32 %r1, %r7, 1;", 7, "%r7"),
        ("@%p1 bra END;\nEND:\nret;", 6, "%p1"),
    ],
)
def test_faults_name_their_line(body, line, words):
    with pytest.raises(errors.PtxSyntaxError, match=words) as caught:
        kernel(body)
    assert caught.value.location.line == line


def test_a_branch_to_nowhere_is_an_error():
    with pytest.raises(errors.PtxSyntaxError, match="NOWHERE"):
        load_program(HEADER + ".entry k()\n{\nbra NOWHERE;\n}\n", None, (32, 1, 1))


def test_an_unknown_form_is_named_with_its_line():
    with pytest.raises(errors.UnsupportedInstruction, match="frobnicate.b32") as caught:
        load_program(HEADER + ".entry k()\n{\n.reg .b32 %r<2>;\nfrobnicate.b32 %r1, %r1;\nret;\n}\n", None, (32, 1, 1))
    assert caught.value.location.line == 7


def test_a_block_that_the_kernel_forbids_is_refused():
    with pytest.raises(LaunchError, match=r"\(64, 1, 1\)"):
        load_program(HEADER + ".entry k() .reqntid 64\n{\nret;\n}\n", None, (32, 1, 1))
