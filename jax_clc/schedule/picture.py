"""Timelines as pictures: one row per SM, one box per tile, hatched where other work holds the SM.

Needs matplotlib (extra `plot`), imported when a picture is drawn; pyplot is left alone. The background is opaque, so
that a picture reads the same on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_clc.schedule.summary import common_end, headline
from jax_clc.schedule.trace import TileEvent, TileTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, PAPER, IDLE, OTHER = "#1f2933", "#9aa5b1", "#ffffff", "#eef1f4", "#c3ccd5"
ORDER_COLOURS = ("#22577a", "#38a3a5", "#80c878", "#f2c14e", "#f08a4b", "#c8553d")
WORKER_COLOURS = (
    "#4477aa", "#ee8866", "#44aa99", "#ddaa33", "#aa4499", "#66aa44", "#88ccee", "#994455", "#777777", "#bbbb55",
)  # fmt: skip
LEGEND_THIN = "grey: held by other work    pale: free, but no tile under way    dashed: the last worker leaves"
LEGEND = "\u25b8 a worker starts its first tile    hatched" + LEGEND_THIN.removeprefix("grey")
STACKED_ROWS = 16  # with more SMs than this the panels stand side by side


def draw(traces: Sequence[TileTrace], *, title: str | None = None, colour: str = "tile") -> Figure:
    """One panel for each trace, all on one time scale. `colour`: "tile" (order in the grid) or "worker" (cluster)."""
    if not traces:
        raise ValueError("no traces to draw")
    if colour not in ("tile", "worker"):
        raise ValueError(f"colour {colour!r} is neither 'tile' nor 'worker'")
    if len({trace.unit for trace in traces}) > 1:
        raise ValueError("traces in different units do not fit on one time scale")
    rows = max(trace.sm_count for trace in traces)
    stacked = rows <= STACKED_ROWS
    panel = (9.2, 0.62 + 0.3 * rows) if stacked else (max(4.6, 12.0 / len(traces)), min(7.5, 2.0 + 0.045 * rows))
    shape = (len(traces), 1) if stacked else (1, len(traces))
    figure = new_figure(panel[0] * shape[1], panel[1] * shape[0] + (0.9 if title else 0.5))
    axes = figure.subplots(*shape, squeeze=False, sharex=True, sharey=not stacked)
    end = common_end(traces)
    for axis, trace in zip(axes.flat, traces, strict=True):
        draw_panel(axis, trace, end, colour)
    for axis in axes[-1]:
        axis.set_xlabel("time (us)" if traces[0].unit == "us" else "time (steps of the emulated device)", color=INK)
    figure.supxlabel(LEGEND if stacked else LEGEND_THIN, x=0.012, ha="left", color=INK, fontsize=8.5)
    if title:
        figure.suptitle(title, x=0.012, ha="left", color=INK, fontsize=12.5, fontweight="bold")
    figure.set_layout_engine("constrained", h_pad=0.08, hspace=0.03)
    return figure


def save(
    traces: Sequence[TileTrace], path: str | Path, *, title: str | None = None, colour: str = "tile", dpi: int = 150
) -> None:
    """Draws and writes one picture; the format follows the suffix."""
    save_figure(draw(traces, title=title, colour=colour), path, dpi=dpi)


def save_figure(figure: Figure, path: str | Path, *, dpi: int) -> None:
    """Writes a figure; the same one gives the same file, without the name of the software in it."""
    metadata = {"Software": None} if Path(path).suffix == ".png" else None
    figure.savefig(path, dpi=dpi, facecolor=PAPER, metadata=metadata)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches, apart from pyplot's global state. Raises RuntimeError naming the extra to install."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RuntimeError("pictures need matplotlib: pip install 'jax_clc[plot]'") from None
    return Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")


def draw_panel(axis: Axes, trace: TileTrace, end: float, colour: str) -> None:
    """One trace on one pair of axes, on a time scale that ends at `end`."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    rows = trace.sm_count
    thin = rows > STACKED_ROWS
    height = 1.0 if thin else 0.78
    fraction = end / 9.0
    axis.set_xlim(0, end * 1.02)
    axis.set_ylim(rows - 0.5, -0.5)
    axis.set_facecolor(PAPER)
    axis.add_collection(
        PatchCollection(
            [Rectangle((0, sm - height / 2), trace.makespan, height) for sm in range(rows)], facecolor=IDLE, lw=0
        )
    )
    for window in trace.taken:
        last = min(window.given_back, trace.makespan)
        if window.taken < last:
            axis.add_patch(
                Rectangle(
                    (window.taken, window.sm - height / 2),
                    last - window.taken,
                    height,
                    facecolor=OTHER,
                    edgecolor=PAPER,
                    hatch="" if thin else "////",
                    lw=0,
                )
            )
    launched: dict[tuple[int, int], float] = {}
    following = _next_starts(trace)
    for event in sorted(trace.events, key=lambda event: event.start):
        fill = _fill(event, trace, colour)
        axis.add_patch(
            Rectangle(
                (event.start, event.sm - height / 2),
                event.end - event.start,
                height,
                facecolor=fill,
                edgecolor=PAPER,
                lw=0.25 if thin else 1.0,
            )
        )
        launched.setdefault((event.cluster, event.sm), event.start)
        seen_to = min(event.end, following[event])  # the next tile may start under this one's epilogue
        if not thin and seen_to - event.start > 0.22 * fraction * (1 + len(str(event.tile)) / 2):
            axis.text(
                (event.start + seen_to) / 2,
                event.sm,
                str(event.tile),
                ha="center",
                va="center_baseline",
                fontsize=8.5,
                color=readable_on(fill),
            )
    if not thin:
        axis.plot(
            list(launched.values()),
            [sm for _, sm in launched],
            ls="",
            marker=">",
            ms=4.2,
            color=INK,
            mec=PAPER,
            mew=0.4,
            zorder=5,
            clip_on=False,
        )
    axis.axvline(trace.makespan, color=INK, lw=1.1, ls=(0, (4, 2)))
    # Two lines: panels side by side are too narrow for one.
    axis.set_title(headline(trace).replace(": ", ":\n", 1), loc="left", fontsize=10, color=INK)
    axis.tick_params(colors=INK, labelsize=8.5, length=0)
    ticks = range(rows) if not thin else range(0, rows, 20)
    axis.set_yticks(ticks, [f"SM {sm}" for sm in ticks])
    for spine in axis.spines.values():
        spine.set_visible(False)


def _next_starts(trace: TileTrace) -> dict[TileEvent, float]:
    """For each event, when the next one starts on its SM."""
    last: dict[int, float] = {}
    following = {}
    for event in sorted(trace.events, key=lambda event: event.start, reverse=True):
        following[event] = last.get(event.sm, math.inf)
        last[event.sm] = event.start
    return following


def _fill(event: TileEvent, trace: TileTrace, colour: str) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    if colour == "worker":
        return to_rgb(WORKER_COLOURS[event.cluster % len(WORKER_COLOURS)])
    order = LinearSegmentedColormap.from_list("order", ORDER_COLOURS)
    return order(event.tile / max(1, trace.tiles - 1))[:3]


def readable_on(fill: Sequence[float]) -> str:
    """The colour of a text on `fill`."""
    luminance = math.sqrt(0.299 * fill[0] ** 2 + 0.587 * fill[1] ** 2 + 0.114 * fill[2] ** 2)
    return INK if luminance > 0.6 else PAPER
