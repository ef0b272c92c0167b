"""`jax-clc verify` takes the cases it says, and says what failed and how to run it alone."""

import argparse

import pytest

from jax_clc.cli import main as run_cli
from jax_clc.cli import verify
from jax_clc.emulator import verification
from jax_clc.emulator.kernel_run import Problem
from jax_clc.emulator.verification import Case, Outcome


def entry(name: str, **facts) -> dict:
    usual = {
        "name": name, "family": "sm_90a", "schedule": "static", "cluster": [2, 1], "cta_tile": [128, 256, 64],
        "two_sm_mma": False, "pingpong": False, "split_k": False, "operand_copies": "tma", "output_copies": "tma",
        "stages": 4,
    }  # fmt: skip
    return usual | facts


@pytest.mark.parametrize(
    "text, problem",
    [
        ("8x16x24", Problem(8, 16, 24)),
        ("8,16,24,2", Problem(8, 16, 24, l=2)),
        ("8x16x24x1x3", Problem(8, 16, 24, split_k=3)),
    ],
)
def test_shapes_are_read(text, problem):
    assert verification.parse_shape(text) == problem


@pytest.mark.parametrize("text", ["8x16", "8x16x0", "axbxc", "1x2x3x4x5x6"])
def test_wrong_shapes_are_refused(text):
    with pytest.raises(ValueError):
        verification.parse_shape(text)


def test_shapes_have_tails_batches_and_more_tiles_than_one_wave():
    shapes = verification.shapes_of(entry("k"))
    assert any(p.m % 256 and p.n % 256 and p.k % 64 for p in shapes)
    assert any(p.l > 1 for p in shapes)
    assert any(-(-p.m // 256) * -(-p.n // 256) > 4 for p in shapes)
    assert any(p.k > 64 * 4 for p in shapes), "longer than the load pipeline"
    assert all(v % 8 == 0 for p in shapes for v in (p.m, p.n, p.k)), "the copy engine wants 16-byte rows"


def test_narrow_tiles_have_shapes_too():
    shapes = verification.shapes_of(entry("k", cta_tile=[128, 16, 64], cluster=[1, 1]))
    assert all(min(p.m, p.n, p.k) > 0 for p in shapes)


def test_split_kernels_are_split():
    assert any(p.split_k > 1 for p in verification.shapes_of(entry("k", split_k=True)))


def test_representatives_are_few_and_show_every_fact():
    entries = [
        entry(f"{schedule}{cluster}{family}", schedule=schedule, cluster=cluster, family=family)
        for schedule in ("static", "dynamic", "nonpersistent")
        for cluster in ([1, 1], [2, 1], [1, 2], [2, 2])
        for family in ("sm_90a", "sm_100f")
    ]
    chosen = [e for e in entries if e["name"] in verification.representatives(entries)]
    for family in ("sm_90a", "sm_100f"):
        mine = [e for e in chosen if e["family"] == family]
        assert len(mine) <= verification.REPRESENTATIVES
        assert {e["schedule"] for e in mine} == {"static", "dynamic", "nonpersistent"}
        assert {tuple(e["cluster"]) for e in mine} == {(1, 1), (2, 1), (1, 2), (2, 2)}


def test_every_kernel_meets_every_shape():
    entries = [entry("often"), entry("seldom")]
    cases = verification.cases_of(entries, seeds=3, representative_seeds=10, chosen={"often"})
    assert len([c for c in cases if c.kernel == "often"]) == 10
    assert len({c.problem for c in cases if c.kernel == "seldom"}) == len(verification.shapes_of(entries[1]))


def test_a_case_that_cannot_run_is_a_fault_and_not_the_end(tmp_path):
    broken = entry("k", ptx="missing.ptx", dtypes={"a": "bfloat16", "b": "bfloat16", "d": "bfloat16"})
    outcome = verification.run_case(Case("k", Problem(8, 8, 8), 0), broken, tmp_path)
    assert outcome.fault is not None and "FileNotFoundError" in outcome.fault


def test_the_command_of_a_case_is_that_case():
    case = Case("some_kernel", Problem(8, 16, 24, l=2), 7)
    assert case.command == "jax-clc verify --kernel some_kernel --shape 8x16x24x2 --seed 7 --sm-count 8"


def test_the_table_says_what_failed():
    good, bad = (Case(name, Problem(8, 8, 8), 0) for name in ("good", "bad"))
    text = verify.table([Outcome(good, None, 1000, 0.01), Outcome(bad, "DataRace: ...", 0, 0.01)], {"good"})
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert lines["good"].endswith("passed") and " * " in lines["good"]
    assert lines["bad"].endswith("1 FAILED")


def test_a_pattern_that_matches_nothing_is_refused(capsys):
    assert run_cli(["verify", "--kernel", "no such kernel"]) == 2
    error = capsys.readouterr().err
    assert "no such kernel" in error or "Rebuild" in error, "either no kernel matches, or none is built"


@pytest.mark.parametrize("shape", ["8x8", "0x8x8", "axbxc", "8x-8x8", "8x8x8x1x1x1"])
def test_a_shape_that_is_none_is_refused_in_words_of_shapes(shape):
    with pytest.raises(ValueError, match="m, n, k"):
        verification.parse_shape(shape)


def test_a_kernel_that_does_not_split_k_is_not_asked_to():
    arguments = argparse.Namespace(shape="8x8x8x1x3", seed=0, seeds=1, sm_count=8)
    with pytest.raises(ValueError, match="which plain does not do"):
        verify.wanted_cases(arguments, {"plain": {}}, set())
    assert len(verify.wanted_cases(arguments, {"split": {"split_k": True}}, set())) == 1


def test_a_seed_below_zero_is_refused(capsys):
    with pytest.raises(SystemExit):
        run_cli(["verify", "--seed", "-1"])
    assert "argument --seed" in capsys.readouterr().err
