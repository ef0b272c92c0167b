"""jax-clc: works without a GPU and in 60 columns, exits with a status that tells what happened."""

import importlib
import json
import subprocess
import sys

import pytest

from jax_clc import cli


def widest(text):
    return max(len(line) for line in text.splitlines())


def test_without_a_command_it_lists_the_commands(jax_clc_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    status, out, _ = jax_clc_command()
    assert status == 0
    for name in cli.COMMANDS:
        assert name in out
    assert widest(out) <= 60


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_of_the_table_has_a_parser_and_a_main(name):
    module = importlib.import_module(cli.COMMANDS[name][0])
    assert callable(module.main)
    help_text = cli.build_parser(name).format_help()
    assert name in help_text
    with pytest.raises(SystemExit) as stopped:
        cli.build_parser(name).parse_args([name, "--help"])
    assert stopped.value.code == 0


def test_an_unknown_command_is_an_error_that_lists_the_others(jax_clc_command, capsys):
    with pytest.raises(SystemExit):
        jax_clc_command("fly")
    assert "plan" in capsys.readouterr().err


def test_help_imports_no_command():
    code = "import sys, jax_clc.cli as c; c.build_parser(); print([m for m in sys.modules if 'jax_clc.cli.' in m])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_plan_prints_kernels_for_every_family_in_sixty_columns(jax_clc_command):
    status, out, _ = jax_clc_command("plan", 4096, 4096, 4096)
    assert status == 0
    assert "sm_90a" in out and "sm_100f" in out
    assert widest(out) <= 60


def test_plan_takes_types_majors_batch_and_arch(jax_clc_command):
    arguments = ("--dtype", "f16", "--majors", "mk", "--batch", 3, "--arch", "9.0", "--schedule", "dynamic")
    status, out, _ = jax_clc_command("plan", 256, 512, 128, *arguments)
    assert status == 0
    assert "3 x (256 x 512 x 128)" in out
    assert "f16 x f16 -> f16, a m-major, b k-major" in out
    assert "dynamic" in out and "sm_100f" not in out


def test_plan_of_a_request_that_does_not_fit_names_what_would(jax_clc_command):
    status, out, err = jax_clc_command("plan", 64, 64, 64, "--kernel", "nope")
    assert (status, out) == (2, "")
    assert "'nope' does not exist" in err and "Kernels that fit: sm" in err


def test_plan_of_a_fallback_gives_the_reason(jax_clc_command):
    status, out, _ = jax_clc_command("plan", 64, 64, 64, "--dtype", "f32")
    assert status == 0
    assert "lax.dot_general" in out and "computes f32 x f32 -> f32" in out


@pytest.mark.parametrize("arguments", [
    ("timeline", "--tiles", 0), ("timeline", "--sms", 0), ("demo", "--size", 0), ("verify", "--seeds", 0),
    ("plan", 64, 64, 64, "--arch", "sm_90a", "--sm-count", 0),
])  # fmt: skip
def test_a_count_of_nothing_is_refused(jax_clc_command, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        jax_clc_command(*arguments)
    assert stopped.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_verify_without_a_case_is_an_error_and_not_a_pass(jax_clc_command):
    status, _, err = jax_clc_command("verify", "--seed", -1)
    assert (status, "seeds count from 0" in err) == (2, True)


def test_plan_of_an_empty_product_says_that_no_kernel_runs(jax_clc_command):
    status, out, _ = jax_clc_command("plan", 0, 64, 64)
    assert status == 0
    assert "lax.dot_general" in out and "empty" in out and "sm_90a" not in out


@pytest.mark.parametrize("bad", [("--dtype", "f17"), ("--majors", "nk"), ("--majors", "k"), ("--schedule", "none")])
def test_malformed_arguments_are_refused_with_what_is_allowed(jax_clc_command, bad):
    with pytest.raises(SystemExit) as stopped:
        jax_clc_command("plan", 64, 64, 64, *bad)
    assert stopped.value.code == 2


def test_info_says_what_is_missing_and_how_to_get_it(jax_clc_command, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_CLC_CUBINS", str(tmp_path / "nowhere"))
    status, out, _ = jax_clc_command("info")
    assert status == 1
    assert "manifest.json" in out and "pip install" in out


def test_info_counts_the_kernels_of_each_family(jax_clc_command):
    status, out, _ = jax_clc_command("info", "--kernels")
    assert status == 0
    assert "sm_90a" in out and "dynamic" in out
    assert "sm90_bf16_bf16_f32_bf16_kkn_128x256x64_c2x1_s4_static" in out


def test_demo_runs_without_a_gpu_and_says_what_it_did_instead(jax_clc_command):
    status, out, _ = jax_clc_command("demo", "--size", 64)
    assert status == 0
    assert "ran: lax.dot_general" in out or "ran: kernel" in out
    assert "result: exact" in out


def test_bench_checks_then_times_and_writes_json_and_png(jax_clc_command, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib (extra 'plot') draws the picture")
    files = tmp_path / "bench.json", tmp_path / "bench.png"
    status, out, err = jax_clc_command(
        "bench", 64, 96, 128, 65, 7, 33, "--quick", "--timer", "wall", "--json", files[0], "--png", files[1]
    )
    assert status == 0
    assert "64 x 96 x 128 kn" in out and "geometric mean" in out
    assert "[1/2]" in err and "[2/2]" in err
    assert widest(out.split("written")[0]) <= 60
    content = json.loads(files[0].read_text())
    assert [row["m"] for row in content["rows"]] == [64, 65]
    assert set(content["rows"][0]["contestants"]) == {"jax_clc", "jnp.dot"}
    assert content["environment"]["packages"]["jax"]
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_bench_does_not_time_a_wrong_result(jax_clc_command, monkeypatch):
    import jax_clc

    right = jax_clc.matmul
    monkeypatch.setattr(jax_clc, "matmul", lambda a, b, **options: right(a, b, **options).at[3, 5].add(1))
    status, out, _ = jax_clc_command("bench", 64, 64, 64, "--quick", "--timer", "wall")
    assert status == 1
    assert "WRONG, nothing timed" in out and "the first at (3, 5)" in out


def test_bench_and_tune_want_triples(jax_clc_command):
    for command in ("bench", "tune"):
        status, _, err = jax_clc_command(command, 64, 64)
        assert status == 2
        assert "M N K triples" in err


def test_tune_needs_a_device_and_says_so(jax_clc_command):
    from jax_clc.bench.environment import running_family

    if running_family() is not None:
        pytest.skip("there is a device to tune on")
    status, _, err = jax_clc_command("tune", 64, 64, 64)
    assert status == 2
    assert "no device that kernels are built for" in err
