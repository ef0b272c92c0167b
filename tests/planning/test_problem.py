"""GemmProblem: what it refuses, what it says about alignment and padding."""

import pytest

from jax_clc.planning import GemmProblem


def test_compact_problem_has_the_strides_of_freshly_made_arrays():
    problem = GemmProblem.compact(6, 10, 4, batch=3, a_major="m", b_major="k")
    assert (problem.a_strides, problem.b_strides, problem.d_strides) == ((24, 6), (40, 4), (60, 10))
    assert problem.flops == 2 * 3 * 6 * 10 * 4
    assert problem.compulsory_bytes == 2 * 3 * (6 * 4 + 4 * 10 + 6 * 10)


def test_problem_is_hashable_and_equal_by_value():
    assert len({GemmProblem.compact(8, 8, 8), GemmProblem.compact(8, 8, 8)}) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [({"m": -1}, "m is -1"), ({"a_major": "n"}, "a_major is 'n'"), ({"b_major": "m"}, "b_major is 'm'")],
)
def test_malformed_problem_is_a_value_error_that_names_the_field(change, text):
    sizes = {"m": 8, "n": 8, "k": 8} | {key: value for key, value in change.items() if key in "mnk"}
    with pytest.raises(ValueError, match=text):
        GemmProblem.compact(**sizes, **{key: value for key, value in change.items() if key not in "mnk"})


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "unaligned"),
    [
        (64, 64, 64, 1, ""),
        (64, 64, 65, 1, "a"),
        (64, 65, 64, 1, "bd"),
        (1, 64, 65, 1, ""),  # a single row has no stride
        (1, 64, 65, 2, "a"),  # but its batches do
        (64, 65, 1, 1, "ad"),  # b has one row
        (1, 65, 64, 1, "bd"),  # d has one row, but is stored in whole granules
    ],
)
def test_misalignment_is_of_the_strides_that_exist(m, n, k, batch, unaligned):
    problem = GemmProblem.compact(m, n, k, batch=batch)
    assert "".join(operand for operand in "abd" if problem.misalignment(operand)) == unaligned


def test_misalignment_counts_bytes_not_elements():
    assert GemmProblem.compact(64, 12, 64, out_dtype="float32").misalignment("d") is None
    assert "24 bytes, not a multiple of 16" in GemmProblem.compact(64, 12, 64).misalignment("d")


def test_padding_makes_room_for_the_last_granule_of_a_single_row():
    problem = GemmProblem.compact(1, 257, 64)
    assert "d's only row has 514 bytes" in problem.misalignment("d")
    padded, row = problem.padded("d")
    assert row == 320
    assert padded.misalignment("d") is None


def test_padding_changes_strides_only_and_cures_the_misalignment():
    problem = GemmProblem.compact(7, 9, 65, batch=2)
    padded, row = problem.padded("a")
    assert row == 128, "whole lines of 128 bytes"
    assert padded.a_strides == (7 * 128, 128)
    assert (padded.m, padded.n, padded.k) == (7, 9, 65)
    assert padded.misalignment("a") is None


def test_padding_keeps_a_shared_operand_shared_and_the_order_of_axes():
    problem = GemmProblem(4, 7, 9, 65, *["bfloat16"] * 3, "k", "n", (65, 4 * 65), (0, 9), (63, 9))
    assert problem.padded("a")[0].a_strides == (128, 4 * 128)
    assert problem.padded("b")[0].b_strides == (0, 64)
