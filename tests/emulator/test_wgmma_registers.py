"""Operand A of a wgmma in registers: they are fenced after they are written, and left alone until the group is done."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from jax_clc.emulator.errors import RegistersInFlight
from jax_clc.emulator.run import Buffer, run_ptx


def multiply(seed: int, fence: str = "wgmma.fence.sync.aligned;", between: str = "") -> None:
    """D (64 x 8) = A (64 x 16, from registers) B (16 x 8, all ones) + D."""
    text = f"""
    .version 8.6
    .target sm_90a
    .address_size 64
    .visible .entry k(.param .u64 a, .param .u64 d) {{
    .reg .pred %p; .reg .b32 %r<20>; .reg .f32 %f<5>; .reg .b64 %a, %d, %b;
    .shared .align 128 .b8 tile[256];
    ld.param.u64 %a, [a]; ld.param.u64 %d, [d];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 1; mov.u32 %r3, tile; add.u32 %r2, %r2, %r3;
    mov.b16 %h, 0x3F80; st.shared.b16 [%r2], %h;
    // row 16 warp + lane / 4 (+ 8), columns 2 (lane % 4) and the next (+ 8)
    shr.u32 %r4, %r1, 5; and.b32 %r5, %r1, 31; shr.u32 %r6, %r5, 2; and.b32 %r7, %r5, 3;
    mad.lo.u32 %r4, %r4, 16, %r6; mul.lo.u32 %r8, %r4, 32; mad.lo.u32 %r8, %r7, 4, %r8;
    cvt.u64.u32 %b, %r8; add.u64 %a, %a, %b;
    mul.lo.u32 %r8, %r4, 32; mad.lo.u32 %r8, %r7, 8, %r8; cvt.u64.u32 %b, %r8; add.u64 %d, %d, %b;
    ld.global.b32 %r10, [%a]; ld.global.b32 %r11, [%a+256]; ld.global.b32 %r12, [%a+16]; ld.global.b32 %r13, [%a+272];
    mov.f32 %f1, 0f3F800000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    shr.u32 %r3, %r3, 4; cvt.u64.u32 %b, %r3; or.b64 %b, %b, 68720001024;
    {fence}
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
        {{%f1, %f2, %f3, %f4}}, {{%r10, %r11, %r12, %r13}}, %b, 1, 1, 1, 0;
    wgmma.commit_group.sync.aligned;
    {between}
    wgmma.wait_group.sync.aligned 0;
    mul.f32 %f1, %f1, 0f40000000; mul.f32 %f2, %f2, 0f40000000;
    mul.f32 %f3, %f3, 0f40000000; mul.f32 %f4, %f4, 0f40000000;
    st.global.v2.f32 [%d], {{%f1, %f2}}; st.global.v2.f32 [%d+256], {{%f3, %f4}};
    ret;
    }}""".replace(".reg .b64 %a", ".reg .b16 %h; .reg .b64 %a")
    a = np.random.default_rng(seed).integers(-4, 5, (64, 16)).astype(ml_dtypes.bfloat16)
    d = np.zeros((64, 8), np.float32)
    run_ptx(text, grid=1, block=128, args=[a, Buffer(d, output=True)], seed=seed)
    np.testing.assert_array_equal(d, 2 + 2 * a.astype(np.float32).sum(1, keepdims=True).repeat(8, 1))


def test_the_product_in_float_registers_is_floats():
    for seed in range(20):
        multiply(seed)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"fence": "wgmma.fence.sync.aligned; mov.b32 %r11, %r11;"}, "%r11 was written after the last wgmma.fence"),
        ({"fence": "wgmma.fence.sync.aligned; mov.f32 %f3, %f1;"}, "%f3 was written after the last wgmma.fence"),
        ({"between": "add.u32 %r12, %r12, 0;"}, "%r12 is written while a wgmma still reads it"),
        ({"fence": ""}, "%f1 was written after the last wgmma.fence"),
    ],
)
def test_registers_of_a_wgmma_are_fenced_and_left_alone(fault, words):
    with pytest.raises(RegistersInFlight, match=words):
        multiply(0, **fault)
