"""Timelines: the text, the picture, the file format and the command."""

import json
import math

import numpy as np
import pytest

from jax_clc.cli import main as command_line
from jax_clc.cli import timeline
from jax_clc.schedule import trace as trace_format
from jax_clc.schedule.claims import claims
from jax_clc.schedule.model import Costs, Device, Tiles, simulate
from jax_clc.schedule.summary import utilisation
from jax_clc.schedule.text_picture import text_timeline
from jax_clc.schedule.trace import SmWindow, TileEvent, TileTrace, TraceError, rows_of_scratch, trace_from_buffer

CLASSIC = Device(4, taken=(SmWindow(3),))


def classic(schedule):
    return simulate(schedule, Tiles.constant(12, 1.0), CLASSIC)


def run(*arguments):
    return command_line(["timeline", *arguments])


def test_text_shows_the_gap_of_static_and_the_sm_that_is_taken():
    text = text_timeline([classic("static"), classic("clc")], width=60)
    static, clc = text.split("\n\n")
    assert static.splitlines()[1:5] == [
        "SM 0 |000000000444444444888888888333333333777777777bbbbbbbbb",
        "SM 1 |111111111555555555999999999···························",
        "SM 2 |222222222666666666aaaaaaaaa···························",
        "SM 3 |//////////////////////////////////////////////////////",
    ]
    assert clc.splitlines()[1] == "SM 0 |000000000333333333666666666999999999"
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("width", [40, 60, 100])
@pytest.mark.parametrize("sms", [1, 24, 25, 148])
def test_text_fits_its_width_and_a_screen(width, sms):
    text = text_timeline([simulate("clc", Tiles.drawn(600, 1.0, 0.3, seed=1), Device(sms))], width=width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 27


def test_too_narrow_a_terminal_is_an_error():
    with pytest.raises(ValueError, match="20 columns are too few"):
        text_timeline([classic("clc")], width=20)


def test_utilisation_counts_only_the_time_that_was_free():
    assert utilisation(classic("static")) == pytest.approx(12 / 18)
    assert utilisation(classic("clc")) == 1.0
    # SM 1 is wanted from 0.5 on, but its tile is not evicted: other work has it from 1.0 on
    trace = simulate("nonpersistent", Tiles.constant(4, 1.0), Device(2, taken=(SmWindow(1, 0.5),)))
    assert trace.makespan == 3.0
    assert utilisation(trace) == 1.0


def test_traces_survive_the_file(tmp_path):
    traces = [classic(schedule) for schedule in trace_format.SCHEDULES]
    trace_format.save(tmp_path / "traces.json", traces)
    assert trace_format.load(tmp_path / "traces.json") == traces


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(format="other"), "not a file of tile traces"),
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d["traces"][0].pop("events"), "trace 0 is damaged"),
        (lambda d: d["traces"][0]["events"]["sm"].pop(), "differ in length"),
        (lambda d: d["traces"][0].update(schedule="magic"), "'magic' is none of"),
        (lambda d: d["traces"][0].update(tiles=13), "tile 12, CTA 0: 0 times"),
        (lambda d: d["traces"][0]["events"]["tile"].__setitem__(0, 5), "tile 5, CTA 0: 2 times"),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, message):
    document = trace_format.to_json([classic("static")])
    damage(document)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match=message):
        trace_format.load(path)


def test_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("tiles")
    with pytest.raises(TraceError, match="not JSON"):
        trace_format.load(tmp_path / "x.json")


def buffer_of(trace, origin_ns=10**18):
    rows = np.zeros((trace.tiles, trace.cluster_size, 6), np.int64)
    for event in trace.events:
        rows[event.tile, event.cta] = (
            event.sm,
            event.cluster,
            origin_ns + round(event.start * 1000),
            origin_ns + round(event.end * 1000),
            origin_ns + round(event.asked * 1000) if event.asked is not None else 0,
            origin_ns + round(event.answered * 1000) if event.answered is not None else 0,
        )
    return rows


def test_buffer_of_a_traced_kernel_gives_the_trace_that_was_recorded():
    recorded = simulate("dynamic", Tiles.drawn(30, 5.0, 0.2, seed=3), Device(8, 2), Costs(request_us=1.0))
    read = trace_from_buffer(buffer_of(recorded), schedule="dynamic", sm_count=8, launch_ns=10**18)
    assert read.makespan == pytest.approx(recorded.makespan, abs=2e-3)
    assert {(e.tile, e.cta, e.sm, e.cluster) for e in read.events} == {
        (e.tile, e.cta, e.sm, e.cluster) for e in recorded.events
    }
    assert claims(read).latency.longest == pytest.approx(1.0, abs=2e-3)


def test_rows_come_after_the_counter_and_too_many_tiles_are_named():
    scratch = np.concatenate([np.zeros(128, np.uint8), np.arange(7 * 6, dtype=np.int64).view(np.uint8)])
    assert rows_of_scratch(scratch, 3, 2).tolist() == np.arange(36).reshape(3, 2, 6).tolist()
    with pytest.raises(TraceError, match="4 tiles of 2 CTAs are too many: a traced kernel keeps 7 rows"):
        rows_of_scratch(scratch, 4, 2)


def test_tile_that_nobody_computed_is_named():
    rows = buffer_of(classic("static"))
    rows[7] = 0
    with pytest.raises(TraceError, match=r"never written, first \(tile, cta\): \[\(7, 0\)\]"):
        trace_from_buffer(rows, schedule="static", sm_count=4)


def test_buffer_of_another_shape_is_named():
    with pytest.raises(TraceError, match=r"not int32\[3, 4\]"):
        trace_from_buffer(np.zeros((3, 4), np.int32), schedule="static", sm_count=4)


def test_one_tile_split_between_two_clusters_is_named():
    events = (TileEvent(0, 0, 0, 0, 0.0, 1.0), TileEvent(0, 1, 1, 1, 0.0, 1.0))
    with pytest.raises(TraceError, match=r"tile 0: by clusters \[0, 1\]"):
        TileTrace("clc", "device", 2, 1, events, cluster_size=2).check()


def test_command_draws_the_classic_example(capsys):
    assert run() == 0
    out = capsys.readouterr().out
    assert "static: 6.00 us" in out
    assert "clc: 4.00 us" in out


def test_command_writes_traces_and_pictures_and_reads_traces_back(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="pictures need the extra `plot`")
    assert (
        run(
            "--tiles",
            "48",
            "--sms",
            "8",
            "--take",
            "5@2:9",
            "--png",
            str(tmp_path / "a.png"),
            "--json",
            str(tmp_path / "a.json"),
        )
        == 0
    )
    first = capsys.readouterr().out
    assert run("--device", str(tmp_path / "a.json"), "--png", str(tmp_path / "b.png"), "--colour", "worker") == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "b.png").stat().st_size > 10_000


def test_windows_are_parsed_and_bad_ones_named(capsys):
    assert timeline.parse_windows(["3", "0-1@2:9.5", "4@1:", "none"]) == (
        SmWindow(3),
        SmWindow(0, 2.0, 9.5),
        SmWindow(1, 2.0, 9.5),
        SmWindow(4, 1.0, math.inf),
    )
    with pytest.raises(ValueError, match="'3@' is not"):
        timeline.parse_windows(["3@"])
    with pytest.raises(ValueError, match="no device has so many SMs"):
        timeline.parse_windows(["0-100000000000000000000"])
    assert run("--take", "3@") == 2
    assert "'3@' is not" in capsys.readouterr().err


def test_schedule_package_imports_neither_jax_nor_matplotlib():
    import subprocess
    import sys

    code = (
        "import sys, types\n"
        "package = sys.modules['jax_clc'] = types.ModuleType('jax_clc')\n"
        "package.__path__ = [sys.argv[1]]\n"
        "import jax_clc.schedule.model, jax_clc.schedule.choose, jax_clc.schedule.picture, "
        "jax_clc.schedule.text_picture\n"
        "assert not {'jax', 'matplotlib'} & set(sys.modules)\n"
    )
    package = str(__import__("pathlib").Path(trace_format.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code, package], check=True)
