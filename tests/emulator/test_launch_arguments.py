"""What is wrong with a call of `run_ptx` is said in words of the call, before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

from jax_clc.emulator.launch_arguments import LaunchError, check_target
from jax_clc.emulator.options import Hostility
from jax_clc.emulator.run import Buffer, run_ptx

HEAD = ".version 8.8\n.target sm_90\n.address_size 64\n"
PTX = (
    HEAD
    + """
.visible .entry k(.param .u64 out, .param .u32 n, .param .f32 x, .param .f64 y, .param .s8 b)
{
.reg .b64 %out; .reg .b32 %r<3>; .reg .f32 %x; .reg .f64 %y; .reg .pred %p;
ld.param.u64 %out, [out];
mov.u32 %r1, %tid.x;
setp.ne.u32 %p, %r1, 0;
@%p bra END;
ld.param.u32 %r1, [n];
ld.param.f32 %x, [x];
ld.param.f64 %y, [y];
ld.param.s8 %r2, [b];
st.global.u32 [%out], %r1;
st.global.f32 [%out+4], %x;
st.global.f64 [%out+8], %y;
st.global.s32 [%out+16], %r2;
END: ret;
}
"""
)
CLUSTER = HEAD + ".visible .entry k() .explicitcluster .reqnctapercluster 2, 1, 1 { ret; }"


def memory() -> np.ndarray:
    return np.zeros(8, np.int32)


def launch(ptx=PTX, args=None, **changed):
    given = [memory(), 7, 1.5, 2.5, -3] if args is None else args
    return run_ptx(ptx, args=given, **{"grid": 1, "block": 32, **changed})


def with_argument(place: int, value) -> dict:
    args = [memory(), 7, 1.5, 2.5, -3]
    args[place] = value
    return {"args": args}


@pytest.mark.parametrize("numbers", [(7, 1.5, 2.5, -3), (np.int64(7), np.float32(1.5), np.float64(2.5), np.int8(-3))])
def test_numbers_are_passed_by_the_types_of_the_parameters(numbers):
    out = memory()
    launch(args=[out, *numbers])
    assert (out[0], out[1:2].view(np.float32)[0], out[2:4].view(np.float64)[0], out[4]) == (7, 1.5, 2.5, -3)
    launch(args=[out, 1, 2, 3, 255])
    assert (out[1:2].view(np.float32)[0], out[2:4].view(np.float64)[0], out[4]) == (2.0, 3.0, -1)


SHARED = memory()
FROZEN = memory()
FROZEN.setflags(write=False)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"block": 0}, "1 or more"),
        ({"block": 32.0}, "integer"),
        ({"block": ()}, "one to three sizes"),
        ({"block": (32, 1, 1, 1)}, "one to three sizes"),
        ({"block": 2048}, "limits"),
        ({"block": (8, 1, 100)}, "limits"),
        ({"block": (64, 32)}, "2048 threads"),
        ({"grid": 0}, "1 or more"),
        ({"grid": (1, 70000)}, "limits"),
        ({"cluster": 0}, "1 or more"),
        ({"grid": 4, "cluster": 3}, "whole number of clusters"),
        ({"grid": 32, "cluster": (8, 4)}, "32 CTAs"),
        ({"dynamic_smem_bytes": -8}, "0 or more"),
        ({"dynamic_smem_bytes": 1e3}, "integer"),
        ({"sm_count": 0}, "1 or more"),
        ({"seed": None}, "integer"),
        ({"arch": "sm_80"}, "not emulated"),
        ({"ptx": PTX.encode()}, "PTX is text"),
        ({"ptx": PTX.replace("sm_90", "sm_100a")}, "sm_100a does not run on sm_90a"),
        ({"args": [memory()]}, "1 arguments for the 5 parameters"),
        (with_argument(0, [1, 2]), "cannot pass list"),
        (with_argument(0, 1.0), "cannot pass the float 1.0"),
        (with_argument(0, Buffer([1])), "holds a NumPy array"),  # type: ignore[arg-type]
        (with_argument(0, np.array([None])), "objects"),
        (with_argument(0, memory()[::2]), "C-contiguous"),
        (with_argument(0, FROZEN), "writeable"),
        (with_argument(0, Buffer(memory(), offset_bytes=-4)), "0 or more"),
        (with_argument(1, 1.0), "cannot pass the float"),
        (with_argument(1, 1 << 40), "does not fit"),
        (with_argument(1, -(1 << 32)), "does not fit"),
        (with_argument(1, b"abc"), "has 4 bytes, the argument 3"),
        (with_argument(2, 1e300), "beyond its range"),
        (with_argument(4, 256), "does not fit"),
        ({**with_argument(0, SHARED), "buffers": [Buffer(SHARED, output=True)]}, "given twice"),
        ({**with_argument(0, SHARED), "buffers": [SHARED[2:4]]}, "overlap"),
    ],
)
def test_a_launch_that_cannot_be_meant_is_refused(changed, words):
    with pytest.raises(LaunchError, match=words):
        launch(**changed)


def test_a_kernel_brings_its_cluster():
    report = run_ptx(CLUSTER, grid=4, block=32)
    assert [len(run.sms) for run in report.launches] == [2, 2]
    with pytest.raises(LaunchError, match=r"requires clusters of \(2, 1, 1\)"):
        run_ptx(CLUSTER, grid=4, block=32, cluster=4)


@pytest.mark.parametrize(
    ("target", "arch", "runs"),
    [
        ("sm_75", "sm_90a", True),
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_90", True),
        ("sm_90a", "sm_100a", False),
        ("sm_90", "sm_100a", True),
        ("sm_100", "sm_90a", False),
        ("sm_100f", "sm_103a", True),
        ("sm_100a", "sm_103a", False),
        ("sm_100a", "sm_100f", True),
        ("sm_103f", "sm_100a", False),
    ],
)
def test_targets(target, arch, runs):
    if runs:
        check_target(target, arch)
        return
    with pytest.raises(LaunchError, match="does not run on"):
        check_target(target, arch)


@pytest.mark.parametrize("wrong", [{"turn": (5, 1)}, {"turn": (0, 3)}, {"copy_delay": (-1, 3)}, {"clc_refusals": 1.5}])
def test_hostility_has_ranges_and_chances(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Hostility(**wrong)
