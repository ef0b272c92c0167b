"""Member masks of warp-wide instructions: who takes part, who is missing, what absent lanes give."""

from __future__ import annotations

import numpy as np
import pytest

from jax_clc.emulator.errors import BrokenAligned, UnsupportedInstruction
from jax_clc.emulator.run import run_ptx

HALF = "setp.lt.u32 %low, %lane, 16; @!%low bra END;"
GROUPS = "and.b32 %r2, %lane, 3; match.any.sync.b32 %r3, %r2, 0xFFFFFFFF;"


def run(body: str) -> np.ndarray:
    """%r1 of each lane."""
    text = f"""
    .version 8.8
    .target sm_90a
    .address_size 64
    .visible .entry k(.param .u64 out) {{
    .reg .b64 %out, %place; .reg .b32 %lane, %r<9>; .reg .pred %low, %p;
    ld.param.u64 %out, [out];
    mov.u32 %lane, %laneid; mul.wide.u32 %place, %lane, 4; add.u64 %out, %out, %place;
    {body}
    st.global.u32 [%out], %r1;
    END: ret;
    }}"""
    out = np.zeros(32, np.uint32)
    run_ptx(text, grid=1, block=32, args=[out])
    return out


@pytest.mark.parametrize(
    "instruction",
    [
        "elect.sync %r1|%p, 0xFFFFFFFF;",
        "shfl.sync.idx.b32 %r1, %lane, 3, 31, 0xFFFFFFFF;",
        "match.any.sync.b32 %r1, %lane, 0xFFFFFFFF;",
        "vote.sync.ballot.b32 %r1, %low, 0xFFFFFFFF;",
        "redux.sync.add.u32 %r1, %lane, 0xFFFFFFFF;",
        "bar.warp.sync 0xFFFFFFFF;",
    ],
)
def test_a_missing_lane_is_named(instruction):
    with pytest.raises(BrokenAligned, match="do not take part"):
        run(HALF + instruction)


@pytest.mark.parametrize(
    "instruction",
    ["elect.sync %r1|%p, 0xFFFF;", "match.any.sync.b32 %r1, %lane, 0xFFFF;", "bar.warp.sync 0xFFFF;"],
)
def test_a_lane_outside_of_its_mask_is_named(instruction):
    with pytest.raises(BrokenAligned, match="member mask is"):
        run(instruction)


def test_absent_lanes_give_nothing_of_use():
    down = run(HALF + "shfl.sync.down.b32 %r1, %lane, 8, 31, 0xFFFF;")
    assert down[:8].tolist() == list(range(8, 16))
    assert (down[8:16] == 0xFFFFFFFF).all()
    assert (run(HALF + "shfl.sync.idx.b32 %r1, %lane, 20, 31, 0xFFFF;")[:16] == 0xFFFFFFFF).all()


def test_lanes_may_name_different_groups():
    assert run(GROUPS + "bar.warp.sync %r3; shfl.sync.idx.b32 %r1, %lane, %r2, 31, %r3;").tolist() == [0, 1, 2, 3] * 8
    with pytest.raises(BrokenAligned, match="do not take part"):
        run(GROUPS + HALF + "shfl.sync.idx.b32 %r1, %lane, %r2, 31, %r3;")


@pytest.mark.parametrize("instruction", ["vote.sync.ballot.b32 %r1, %low, %r3;", "redux.sync.add.u32 %r1, %lane, %r3;"])
def test_one_result_for_the_warp_needs_one_mask(instruction):
    with pytest.raises(UnsupportedInstruction, match="differ between lanes"):
        run(GROUPS + "setp.lt.u32 %low, %lane, 16;" + instruction)
