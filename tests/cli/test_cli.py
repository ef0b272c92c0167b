"""jax-clc: works without a GPU and in 60 columns, exits with a status that tells what happened."""

import importlib
import json
import re
import subprocess
import sys

import pytest

import jax_clc
from jax_clc import cli
from jax_clc.bench import measure
from jax_clc.bench.check import Inexact
from jax_clc.bench.contestants import NotApplicable
from jax_clc.cli import output_arguments


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


@pytest.mark.parametrize(("arguments", "name"), [
    (("demo", "--size", 10**20), "--size"), (("bench", 10**20, 1, 1), "M N K"), (("tune", 10**20, 1, 1), "M N K"),
    (("plan", 64, 64, 64, "--arch", "sm_90a", "--sm-count", "9" * 400), "--sm-count"),
    (("plan", "9" * 5000, 64, 64), "argument m"), (("plan", 64, 64, 64, "--batch", 10**20), "--batch"),
    (("plan", 64, 64, 64, "--sm-limit", 10**20), "--sm-limit"),
    (("timeline", "--tiles", 10**20), "--tiles"), (("timeline", "--device", "--shape", 10**20, 1, 1), "--shape"),
])  # fmt: skip
def test_a_number_that_no_device_could_count_to_is_refused_by_name(jax_clc_command, capsys, arguments, name):
    with pytest.raises(SystemExit) as stopped:
        jax_clc_command(*arguments)
    message = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2
    assert name in message and "a whole number of at most" in message and len(message) < 140


@pytest.mark.parametrize("text", ["-1", "x", "", "1.5", "1e3"])
def test_a_size_that_is_no_whole_number_is_refused_by_name(jax_clc_command, capsys, text):
    with pytest.raises(SystemExit) as stopped:
        jax_clc_command("plan", "--", 64, text, 64)
    assert stopped.value.code == 2
    assert f"argument n: {text!r}: a whole number of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--version",), ("--version", "plan"), ("--version", "fly")])
def test_the_version_is_told_whatever_else_is_asked(jax_clc_command, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        jax_clc_command(*arguments)
    assert not stopped.value.code
    assert capsys.readouterr().out == f"{jax_clc.__version__}\n"


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


@pytest.mark.parametrize(("command", "text"), [
    (("bench", 64, 64, 64, "--json", "{}/none/x.json"), "cannot be written"),
    (("bench", 64, 64, 64, "--json", "{}"), "cannot be written"), (("tune", 64, 64, 64, "--table", "{}"), "cannot be"),
    (("timeline", "--json", "{}/none/x.json"), "cannot be written"),
    (("bench", 64, 64, 64, "--png", "{}/x.foo"), "suffix|matplotlib"),
])  # fmt: skip
def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(jax_clc_command, capsys, tmp_path, command,
                                                                          text):  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        jax_clc_command(*(str(word).format(tmp_path) for word in command))
    captured = capsys.readouterr()
    assert stopped.value.code == 2 and captured.out == ""
    assert re.search(text, captured.err)


def test_asking_for_an_output_leaves_no_file_behind_and_keeps_what_is_there(tmp_path):
    present = tmp_path / "present.json"
    present.write_text("kept")
    assert output_arguments.output_file(str(present)).read_text() == "kept"
    assert not output_arguments.output_file(str(tmp_path / "absent.json")).exists()


def test_bench_of_a_kernel_that_cannot_run_says_why(jax_clc_command):
    status, out, _ = jax_clc_command("bench", 64, 64, 64, "--quick", "--timer", "wall", "--kernel", "nope")
    assert status == 2
    assert "jax_clc did not run: kernel='nope' does not exist" in out


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("INTERNAL: kernel x: KeyboardInterrupt: ")])
def test_an_interrupted_command_says_so_in_one_word(jax_clc_command, monkeypatch, error):
    def stop(args):
        raise error

    monkeypatch.setattr(importlib.import_module("jax_clc.cli.plan"), "main", stop)
    assert jax_clc_command("plan", 64, 64, 64) == (130, "", "interrupted\n")


def test_a_reader_that_leaves_early_is_no_error():
    code = "import sys, jax_clc.cli as c; sys.exit(c.main(['timeline', '--tiles', '2000', '--sms', '400']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (141, b"")
    process.stderr.close()


@pytest.mark.parametrize("text", ["foo", "8x8", "0x8x8", "8x8x8x1x1x1", "8x-8x8"])
def test_a_malformed_shape_is_refused_with_an_example(jax_clc_command, text):
    status, _, err = jax_clc_command("verify", "--shape", text)
    assert status == 2 and "as in 520x392x136x2" in err


def test_bench_does_not_time_a_wrong_result(jax_clc_command, monkeypatch):
    right = jax_clc.matmul
    monkeypatch.setattr(jax_clc, "matmul", lambda a, b, **options: right(a, b, **options).at[3, 5].add(1))
    status, out, _ = jax_clc_command("bench", 64, 64, 64, "--quick", "--timer", "wall")
    assert status == 1
    assert "not measured: 64 x 64 x 64 kn: WRONG: jax_clc on" in out and "the first at (3, 5)" in out
    assert "ours us" not in out


@pytest.mark.parametrize(("error", "expected_status"), [
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 2), (NotApplicable("nothing runs it"), 2),
    (ValueError("array of size exceeding 2 ** 64"), 2), (Inexact("1 of 4225 elements differ"), 1),
])  # fmt: skip
def test_bench_keeps_what_it_measured_when_another_problem_fails(jax_clc_command, monkeypatch, tmp_path, error,
                                                                 expected_status):  # fmt: skip
    right = measure.measure

    def failing(problem, clock, **options):
        if problem.m == 65:
            raise error
        return right(problem, clock, **options)

    monkeypatch.setattr(measure, "measure", failing)
    sizes = [64, 64, 64, 65, 65, 65, 66, 66, 66]
    status, out, _ = jax_clc_command("bench", *sizes, "--quick", "--timer", "wall", "--json", tmp_path / "bench.json")
    assert status == expected_status
    assert "\n64 x 64 x 64 kn" in out and "\n66 x 66 x 66 kn" in out
    reason = next(line for line in out.splitlines() if line.startswith("not measured: 65 x 65 x 65 kn: "))
    assert reason.endswith(str(error))
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [row["m"] for row in content["rows"]] == [64, 66]
    assert [failure["problem"] for failure in content["failed"]] == ["65 x 65 x 65 kn"]


def test_bench_of_integers_times_what_jax_does(jax_clc_command, tmp_path):
    """64 products of up to 16 leave int8: JAX wraps."""
    path = tmp_path / "bench.json"
    status, out, _ = jax_clc_command(
        "bench", 64, 64, 64, "--dtype", "s8", "--quick", "--timer", "wall", "--json", path
    )  # fmt: skip
    assert status == 2
    assert "computes s8 x s8 -> s8" in out and "WRONG" not in out
    assert set(json.loads(path.read_text())["rows"][0]["contestants"]) == {"jnp.dot"}


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
