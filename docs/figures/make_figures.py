"""Draws every picture of docs/ from the schedule model and the raster: python docs/figures/make_figures.py [NAME ...]

Needs the package's `plot` extra. Each function below is one picture and is named after its file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import interference
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from jax_clc.schedule import picture
from jax_clc.schedule.choose import choose_schedule
from jax_clc.schedule.model import Costs, Device, Tiles, simulate
from jax_clc.schedule.picture import FAINT, IDLE, INK, ORDER_COLOURS, PAPER
from jax_clc.schedule.trace import SmWindow, TileTrace
from kernels.raster import cluster_tile

FOLDER = Path(__file__).parent
DPI = 130
ORDER = LinearSegmentedColormap.from_list("order", ORDER_COLOURS)
SCHEDULE_COLOURS = {"nonpersistent": "#9aa5b1", "static": "#22577a", "dynamic": "#f08a4b", "clc": "#38a3a5"}


def tiles_and_their_order() -> Figure:
    """A 12 x 10 grid of cluster tiles, row by row and in the raster's panels, with one wave of 24 workers marked."""
    tiles_m, tiles_n, workers, panel_width = 10, 12, 24, 4
    orders = {
        "row by row: a wave of 24 tiles reads 2 + 12 panels": [
            (i // tiles_n, i % tiles_n) for i in range(tiles_m * tiles_n)
        ],
        "the raster, panels 4 wide: a wave reads 6 + 4": [
            cluster_tile(i, tiles_m, tiles_n, panel_width, 0)[:2] for i in range(tiles_m * tiles_n)
        ],
    }
    figure = picture.new_figure(10.4, 4.9)
    axes = figure.subplots(1, 2)
    for axis, (title, order) in zip(axes, orders.items(), strict=True):
        for linear, (m, n) in enumerate(order):
            fill = ORDER(linear / (len(order) - 1))
            axis.add_patch(
                Rectangle((n, m), 1, 1, facecolor=fill, edgecolor=PAPER, lw=1, alpha=1.0 if linear < workers else 0.45)
            )
            axis.text(
                n + 0.5,
                m + 0.5,
                str(linear),
                ha="center",
                va="center_baseline",
                fontsize=8,
                color=PAPER if linear < workers else INK,
            )
        axis.plot([n + 0.5 for _, n in order], [m + 0.5 for m, _ in order], color=INK, lw=0.5, alpha=0.35)
        _bare(axis, title, (0, tiles_n), (tiles_m, 0))
        axis.set_aspect("equal")
        axis.set_xlabel("n: columns of B", color=INK)
        axis.set_ylabel("m: rows of A", color=INK)
    return figure


def one_tile_per_cta() -> Figure:
    """What a persistent worker saves on a quiet device."""
    tiles, device = Tiles.constant(16, 5.0, 1.5), Device(4)
    costs = Costs(launch_us=0.5, prologue_us=1.0, request_us=1.0)
    return picture.draw(
        [simulate(name, tiles, device, costs) for name in ("nonpersistent", "static")],
        title="16 tiles on 4 SMs: launch, set-up and epilogue stand between the tiles, or do not",
    )


def an_sm_is_taken() -> Figure:
    """The classic example."""
    return picture.draw(_classic(("static", "nonpersistent", "clc")), title="12 tiles, 4 workers planned, room for 3")


def sms_come_and_go() -> Figure:
    """Workers are launched late where SMs come back, and leave where SMs are wanted."""
    device = Device(6, taken=(SmWindow(3, 4.5), SmWindow(4, 0.0, 2.6), SmWindow(5, 0.0)))
    tiles, costs = Tiles.constant(36, 1.0), Costs(launch_us=0.1, prologue_us=0.15, request_us=0.2)
    return picture.draw(
        [simulate(name, tiles, device, costs) for name in ("static", "clc")],
        colour="worker",
        title="SM 5 is held, SM 4 is given back, SM 3 is wanted (one colour: one worker)",
    )


def many_tiles() -> Figure:
    """8192 x 8192 x 4096 on an H200 of which 16 SMs are held."""
    return picture.draw(
        [interference.predicted("static", 16), interference.predicted("dynamic", 16)],
        title="8192 x 8192 x 4096 in 1,024 cluster tiles, 132 SMs, 16 of them held (model)",
    )


def a_request_and_its_record() -> Figure:
    """Four tiles of one worker: the next tile is asked for early, and its record is read late."""
    mainloop, epilogue, request, count, stages = 5.0, 3.6, 1.4, 4, 3
    trace = simulate("clc", Tiles.constant(count, mainloop, epilogue), Device(1), Costs(request_us=request))
    starts = sorted(event.start for event in trace.events)
    ends = sorted(event.end for event in trace.events)
    lanes = ["hardware", *(f"record stage {stage}" for stage in range(stages)), "load and MMA warps", "epilogue warps"]
    load_lane, epilogue_lane = len(lanes) - 2, len(lanes) - 1
    figure = picture.new_figure(10.8, 4.6)
    axis = figure.subplots()
    for tile, (start, end) in enumerate(zip(starts, ends, strict=True)):
        colour, following = ORDER(tile / (count - 1)), ORDER(min(1.0, (tile + 1) / (count - 1)))
        refused = tile == count - 1
        stage = 1 + tile % stages
        _bar(axis, load_lane, start, mainloop, colour, f"tile {tile}")
        _bar(axis, epilogue_lane, end - epilogue, epilogue, colour, f"tile {tile}")
        _bar(axis, 0, start, request, FAINT, "")
        axis.text(
            start + request + 0.15,
            0,
            "no: nothing is pending" if refused else f"yes: tile {tile + 1}",
            fontsize=9,
            va="center_baseline",
            color=INK,
        )
        _arrow(axis, (start + request, 0.32), (start + request, stage - 0.22))
        answer, load_reads, epilogue_reads = start + request, start + mainloop, end
        axis.add_patch(
            Rectangle(
                (answer, stage - 0.17), epilogue_reads - answer, 0.34, lw=0, facecolor=IDLE if refused else following
            )
        )
        axis.plot([answer, load_reads, epilogue_reads], [stage] * 3, ls="", marker="o", ms=6, color=INK, mec=PAPER)
        for reads, lane in ((load_reads, load_lane), (epilogue_reads, epilogue_lane)):
            axis.plot([reads, reads], [stage + 0.1, lane - 0.3], color=INK, lw=0.8, ls=":")
    _bare(axis, "", (-0.2, trace.makespan + 0.3), (len(lanes) - 0.5, -0.6))
    axis.set_yticks(range(len(lanes)), lanes)
    axis.tick_params(length=0, colors=INK)
    axis.set_xlabel(
        "time. Grey: a request on its way. Dots: the record is read by the scheduler warp at once, by the load "
        "and MMA warps and the\nepilogue warps when they have done the tile before. After the last dot the "
        "stage is free.",
        color=INK,
        fontsize=9,
        loc="left",
    )
    return figure


def interference_h200() -> Figure:
    """Measured against predicted, other work on 0 to 66 of 132 SMs."""
    figure = picture.new_figure(10.4, 3.8)
    axes = figure.subplots(1, len(interference.SCHEDULES), sharey=True)
    for axis, schedule in zip(axes, interference.SCHEDULES, strict=True):
        measured = interference.measured_us(schedule)
        held = list(measured)
        fair = [measured[0] * interference.SMS / (interference.SMS - sms) for sms in held]
        model = [interference.predicted(schedule, sms).makespan for sms in held]
        axis.plot(held, fair, color=FAINT, lw=1.2, ls="--", label="in proportion to the free SMs")
        axis.plot(held, model, color=SCHEDULE_COLOURS[schedule], lw=2, label="model")
        axis.plot(held, list(measured.values()), color=INK, ls="", marker="o", ms=5.5, label="measured")
        axis.set_title(schedule, loc="left", color=INK, fontsize=11, fontweight="bold")
        axis.set_xticks([sms for sms in held if sms not in (1, 4)])
        axis.grid(axis="y", color=IDLE)
        axis.tick_params(colors=INK, length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    axes[0].set_ylabel("us", color=INK, rotation=0, ha="right")
    axes[1].set_xlabel(f"SMs held by other work, of {interference.SMS}", color=INK)
    axes[2].legend(frameon=False, fontsize=9, loc="lower right")
    axes[0].set_ylim(0)  # shared by all, once all are drawn
    return figure


def what_auto_takes() -> Figure:
    """The rule's choice over number of tiles and time of a tile."""
    tiles = [round(10 ** (0.5 + 3.7 * i / 119)) for i in range(120)]
    times = [10 ** (-0.7 + 2.9 * i / 99) for i in range(100)]
    families: Sequence[tuple[str, str, tuple[str, ...], int]] = (
        ("Hopper, 66 workers", "sm_90a", ("nonpersistent", "static", "dynamic"), 66),
        ("Blackwell, 74 workers", "sm_100f", ("nonpersistent", "static", "clc"), 74),
    )
    names = list(SCHEDULE_COLOURS)
    figure = picture.new_figure(10.4, 3.9)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (title, family, available, resident) in zip(axes, families, strict=True):
        grid = [
            [
                names.index(
                    choose_schedule(
                        available, family=family, tiles=count, resident_clusters=resident, tile_us=time
                    ).schedule
                )
                for count in tiles
            ]
            for time in times
        ]
        axis.pcolormesh(
            tiles,
            times,
            grid,
            cmap=ListedColormap(list(SCHEDULE_COLOURS.values())),
            vmin=-0.5,
            vmax=3.5,
            shading="nearest",
            rasterized=True,
        )
        axis.set(xscale="log", yscale="log")
        axis.axvline(resident, color=PAPER, lw=1, ls="--")
        axis.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
        axis.set_xlabel("cluster tiles (dashed: one for each worker)", color=INK)
        axis.tick_params(colors=INK)
        seen = sorted({value for row in grid for value in row})
        axis.legend(
            handles=[Patch(color=SCHEDULE_COLOURS[names[value]], label=names[value]) for value in seen],
            loc="upper left",
            fontsize=9,
            framealpha=0.95,
        )
    axes[0].set_ylabel("time of a tile, us", color=INK)
    return figure


def _classic(schedules: Sequence[str]) -> list[TileTrace]:
    return [simulate(name, Tiles.constant(12, 1.0), Device(4, taken=(SmWindow(3),))) for name in schedules]


def _bare(axis: Any, title: str, xlim: tuple[float, float], ylim: tuple[float, float]) -> None:
    axis.set_xlim(*xlim)
    axis.set_ylim(*ylim)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_title(title, loc="left", color=INK, fontsize=10)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _bar(axis: Any, lane: int, start: float, length: float, colour: Any, text: str) -> None:
    axis.add_patch(Rectangle((start, lane - 0.3), length, 0.6, facecolor=colour, edgecolor=PAPER, lw=1))
    axis.text(
        start + length / 2,
        lane,
        text,
        ha="center",
        va="center_baseline",
        fontsize=9,
        color=picture.readable_on(to_rgb(colour)),
    )


def _arrow(axis: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=INK, lw=1, shrinkA=0, shrinkB=0)
    )


FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__: function
    for function in (
        tiles_and_their_order,
        one_tile_per_cta,
        an_sm_is_taken,
        a_request_and_its_record,
        sms_come_and_go,
        many_tiles,
        interference_h200,
        what_auto_takes,
    )
}


def main(names: Sequence[str]) -> None:
    """Draws the named pictures, or all."""
    if unknown := set(names) - set(FIGURES):
        raise SystemExit(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    for name in names or FIGURES:
        picture.save_figure(FIGURES[name](), FOLDER / f"{name}.png", dpi=DPI)
        print(f"docs/figures/{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
