"""The picture of a first-contact report: speed by schedule, time with SMs held, and tiles on the device if traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_clc.bench import results
from jax_clc.bench.plots import COLOURS
from jax_clc.schedule import trace as trace_format
from jax_clc.schedule.picture import FAINT, IDLE, INK, draw_panel, new_figure, save_figure
from jax_clc.schedule.summary import common_end
from jax_clc.schedule.trace import TileTrace


def save(report: Mapping[str, Any], path: Path) -> None:
    """Draws what the report holds. Raises RuntimeError without matplotlib."""
    steps = report["steps"]
    panels: list[tuple[Callable[..., None], Any]] = []
    for name, draw in (("race", _race), ("held", _held)):
        if rows := steps.get(name, {}).get("rows"):
            panels.append((draw, rows))
    if "held" in steps.get("tiles", {}):
        traces = trace_format.from_json(steps["tiles"]["held"]["traces"])
        panels += [(_tiles, (trace, common_end(traces))) for trace in traces]
    figure = new_figure(9.6, 1.6 + 3.9 * len(panels))
    heights = [0.25 + 0.12 * len(steps), *([2.4] * len(panels))]
    axes = figure.subplots(1 + len(panels), 1, squeeze=False, height_ratios=heights)
    _verdicts(axes[0, 0], report)
    for axis, (draw, content) in zip(axes[1:, 0], panels, strict=True):
        draw(axis, content, report)
        if draw is _tiles:
            continue
        axis.tick_params(colors=INK, length=0)
        axis.grid(axis="y", color=IDLE)
        axis.set_axisbelow(True)
        for spine in axis.spines.values():
            spine.set_visible(False)
    save_figure(figure, path, dpi=130)


def _verdicts(axis: Any, report: Mapping[str, Any]) -> None:
    from jax_clc.cli.first_contact import summary

    axis.axis("off")
    head, *lines = summary(report).splitlines()
    axis.set_title(head, loc="left", color=INK, fontsize=12, fontweight="bold")
    axis.text(0, 1, "\n".join(line[:110] for line in lines), va="top", family="monospace", fontsize=9, color=INK,
              transform=axis.transAxes)  # fmt: skip


def _race(axis: Any, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> None:
    names = [
        name for name in dict.fromkeys(n for row in rows for n in row["contestants"]) if name in report["schedules"]
    ]
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        ratios = [(place, results.ratio(row, name)) for place, row in enumerate(rows)]
        points = [(place, ratio) for place, ratio in ratios if ratio is not None]
        places = [place + (index - (len(names) - 1) / 2) * width for place, _ in points]
        axis.bar(places, [ratio for _, ratio in points], width * 0.92, label=name, color=COLOURS.get(name))
    axis.axhline(1.0, color=INK, lw=1, ls=(0, (4, 2)))
    axis.set_xticks(range(len(rows)), [results.label(row).removesuffix(" kn").replace(" x ", "\nx ") for row in rows],
                    fontsize=8.5)  # fmt: skip
    axis.set_title("speed by schedule, jnp.dot = 1, device quiet", loc="left", color=INK, fontsize=10)
    axis.legend(frameon=False, fontsize=9, ncols=len(names), loc="lower right", bbox_to_anchor=(1, 1))


def _tiles(axis: Any, traced: tuple[TileTrace, float], report: Mapping[str, Any]) -> None:
    trace, end = traced
    draw_panel(axis, trace, end, "tile")
    axis.set_xlabel(f"us; a row is an SM, a box a tile; {len(trace.taken)} SMs held by other work", color=INK)


def _held(axis: Any, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> None:
    total = report["sm_count"]
    held = [row["held_sms"] for row in rows]
    for name in dict.fromkeys(name for row in rows for name in row["contestants"]):
        points = [(row["held_sms"], time) for row in rows if (time := results.median_us(row, name)) is not None]
        axis.plot(*zip(*points, strict=True), marker="o", ms=4, lw=1.8, label=name, color=COLOURS.get(name))
    quiet = min(time for name in rows[0]["contestants"] if (time := results.median_us(rows[0], name)) is not None)
    axis.plot(held, [quiet * total / (total - s) for s in held], ls="--", color=FAINT, label="in proportion")
    axis.set_ylim(0)
    axis.set_xticks(held)
    axis.set_xlabel(f"SMs held by other work, of {total}", color=INK)
    axis.set_ylabel("us", color=INK, rotation=0, ha="right")
    title = results.label(rows[0]).removesuffix(" kn")
    axis.set_title(f"{title}, SMs held by other work", loc="left", color=INK, fontsize=10)
    axis.legend(frameon=False, fontsize=9, loc="upper left", ncols=3)
