"""`jax-clc timeline`: who computed which tile when, as text and as a picture."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from jax_clc.cli.output_arguments import output_file, picture_file
from jax_clc.cli.problem_arguments import columns, positive
from jax_clc.schedule import trace as trace_format
from jax_clc.schedule.model import Costs, Device, Tiles, simulate
from jax_clc.schedule.text_picture import text_timeline
from jax_clc.schedule.trace import SCHEDULES, SmWindow, TileTrace

RUN_HERE = Path()
EMULATED_SHAPE, DEVICE_SHAPE = (768, 1024, 1024), (8192, 8192, 4096)
EMULATED_SMS, MODEL_SMS = 8, 4
SM_DIGITS = 4  # of an SM's number
EXAMPLES = """examples:
  jax-clc timeline                                     12 tiles, 4 workers planned, room for 3
  jax-clc timeline --tiles 48 --sms 8 --take 5@2.2:9 --spread 0.25 --png timeline.png
  jax-clc timeline --tiles 1024 --tile-us 44.6 --sms 132 --cluster 2 --take 0-15 --schedules static dynamic
  jax-clc timeline --emulated sm_100 --take 6-7        traced kernels on the emulated device
  jax-clc timeline --device --held 16 --png t.png      traced kernels on this machine's GPU, 16 SMs held
  jax-clc timeline --device trace.json                 traces that --json wrote
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `timeline` to the table of subcommands."""
    parser = subparsers.add_parser(
        "timeline",
        help="draw who computed which tile when",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--emulated", metavar="ARCH", help="run traced kernels on the emulated device (sm_90a, sm_100)")
    source.add_argument(
        "--device", metavar="FILE", nargs="?", type=Path, const=RUN_HERE,
        help="run traced kernels on this machine's GPU; with FILE draw the traces of that JSON file",
    )  # fmt: skip
    parser.add_argument(
        "--schedules",
        nargs="+",
        choices=SCHEDULES,
        metavar="SCHEDULE",
        help=f"of {', '.join(SCHEDULES)}; default: static, nonpersistent and clc in the model, all in a run",
    )
    parser.add_argument(
        "--png", metavar="FILE", type=picture_file, help="write a picture; the suffix decides (.png, .svg, .pdf)"
    )
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write the traces")
    parser.add_argument("--colour", choices=("tile", "worker"), default="tile", help="what a colour stands for")
    parser.add_argument("--title", help="title of the picture")
    parser.add_argument("--width", type=columns, default=60, help="columns of the text (default 60)")
    parser.add_argument(
        "--take",
        action="append",
        metavar="SMS[@T0:T1]",
        help="other work holds these SMs, e.g. 3, 0-19, 5@2:9 (us, or steps of the emulated device); repeatable. "
        "Default: the model's last SM; none: none",
    )
    parser.add_argument("--seed", type=int, default=0, help="of drawn tile times, and of the emulated device")
    parser.add_argument(
        "--sms", type=positive, help=f"SMs of the model ({MODEL_SMS}) or emulated device ({EMULATED_SMS})"
    )
    runs = parser.add_argument_group("runs (--emulated, --device)")
    runs.add_argument("--shape", type=positive, nargs=3, metavar=("M", "N", "K"), help="the product that is run")
    runs.add_argument("--held", type=int, default=0, metavar="S", help="a kernel holds S SMs meanwhile (--device)")
    runs.add_argument("--hostile", action="store_true", help="delays and orders at their worst (--emulated)")
    model = parser.add_argument_group("the model (without --emulated, --device)")
    model.add_argument("--tiles", type=positive, default=12, help="cluster tiles")
    model.add_argument("--tile-us", type=float, default=1.0, help="time of a tile's mainloop")
    model.add_argument("--epilogue-us", type=float, default=0.0, help="time of a tile's epilogue")
    model.add_argument("--spread", type=float, default=0.0, help="coefficient of variation of the tile times")
    model.add_argument("--cluster", type=positive, default=1, help="CTAs per cluster")
    model.add_argument("--workers", type=positive, help="workers of static and dynamic (default: all that fit)")
    model.add_argument("--launch-us", type=float, default=0.0, help="from free SMs to a cluster's first instruction")
    model.add_argument("--prologue-us", type=float, default=0.0, help="set-up of a worker before its first tile")
    model.add_argument("--request-us", type=float, default=0.0, help="from asking for a tile to the answer")
    model.add_argument("--record-stages", type=positive, default=3, help="answers that may wait to be read")
    model.add_argument("--no-throttle", action="store_true", help="ask for tiles as early as the record stages allow")
    return parser


def main(args: argparse.Namespace) -> int:
    """Prints the text, writes what was asked for; returns the exit status."""
    if args.device is not RUN_HERE and args.held:
        raise ValueError("--held needs --device without a file")
    if args.device not in (None, RUN_HERE) and args.shape:
        raise ValueError("--shape needs a run, not a file")
    if args.emulated:
        from jax_clc.cli import traced_runs

        traces = traced_runs.on_emulated_device(
            args.emulated, tuple(args.shape or EMULATED_SHAPE), args.schedules, sm_count=args.sms or EMULATED_SMS,
            seed=args.seed, taken=parse_windows(args.take or []), hostile=args.hostile,
        )  # fmt: skip
    elif args.device == RUN_HERE:
        from jax_clc.cli import traced_runs

        traces = traced_runs.on_device(tuple(args.shape or DEVICE_SHAPE), args.schedules, args.held)
    elif args.device is not None:
        traces = [
            trace
            for trace in trace_format.load(args.device)
            if args.schedules is None or trace.schedule in args.schedules
        ]
    else:
        traces = model_traces(args)
    if not traces:
        raise ValueError("no traces to draw")
    print(text_timeline(traces, width=args.width))
    if args.json:
        trace_format.save(args.json, traces)
    if args.png:
        from jax_clc.schedule import picture

        picture.save(traces, args.png, title=args.title, colour=args.colour)
    return 0


def model_traces(args: argparse.Namespace) -> list[TileTrace]:
    """The traces of the makespan model for the command's options."""
    sms = args.sms or MODEL_SMS
    device = Device(sms, args.cluster, taken=parse_windows(args.take or [str(sms - 1)]))
    tiles = (
        Tiles.drawn(args.tiles, args.tile_us, args.spread, seed=args.seed, epilogue_us=args.epilogue_us)
        if args.spread
        else Tiles.constant(args.tiles, args.tile_us, args.epilogue_us)
    )
    costs = Costs(
        launch_us=args.launch_us,
        prologue_us=args.prologue_us,
        request_us=args.request_us,
        record_stages=args.record_stages,
        throttle=not args.no_throttle,
    )
    return [
        simulate(schedule, tiles, device, costs, workers=args.workers)
        for schedule in args.schedules or ("static", "nonpersistent", "clc")
    ]


def parse_windows(texts: list[str]) -> tuple[SmWindow, ...]:
    """The SMs of "3", "0-19", "5@2:9", "5@2:" or "none", and from when to when they are held; ValueError for others."""
    windows = []
    for text in texts:
        if text == "none":
            continue
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?:@([\d.]+):([\d.]*))?", text)
        if not match:
            raise ValueError(f"--take {text!r} is not SM, SM-SM or SMs@T0:T1")
        first, last, start, end = match.groups()
        if max(len(first), len(last or "")) > SM_DIGITS:
            raise ValueError(f"--take {text[:40]!r}: no device has so many SMs")
        windows += [
            SmWindow(sm, float(start or 0), float(end) if end else math.inf)
            for sm in range(int(first), int(last or first) + 1)
        ]
    return tuple(windows)
