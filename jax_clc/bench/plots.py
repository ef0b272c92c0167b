"""Pictures of results files. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_clc.bench import results

COLOURS = {
    "jax_clc": "#0b6e4f", "static": "#0b6e4f", "dynamic": "#d1495b", "nonpersistent": "#edae49", "clc": "#d1495b",
    "jnp.dot": "#30638e", "jnp.dot padded": "#7fb7be", "pallas": "#8d6a9f", "proportional": "#888888",
}  # fmt: skip
"""One colour for a contestant in every picture."""


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise RuntimeError("pictures need matplotlib: pip install 'jax_clc[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_rows(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Time of jnp.dot over each contestant's time, one group of bars for each problem; 1 is jnp.dot."""
    pyplot = _pyplot()
    names = [
        name for name in dict.fromkeys(name for row in rows for name in row["contestants"]) if name != results.BASELINE
    ]
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.6 + 0.5 * len(rows)), 4.8), layout="constrained")
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        ratios = [results.ratio(row, name) for row in rows]
        places = [i + (index - (len(names) - 1) / 2) * width for i, value in enumerate(ratios) if value is not None]
        heights = [value for value in ratios if value is not None]
        bars = axes.bar(places, heights, width, label=name, color=COLOURS.get(name))
        on_the_line = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
        axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=1.5, bbox=on_the_line)
    axes.axhline(1.0, color=COLOURS["jnp.dot"], linewidth=1.5, label=results.BASELINE)
    axes.set_xticks(range(len(rows)), [results.label(row) for row in rows], rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("speed relative to jnp.dot")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, frameon=False, loc="outside upper right", ncols=len(names) + 1)
    _save(figure, path)


def save_interference(content: Mapping[str, Any], path: Path) -> None:
    """Time against SMs held by other work, one line for each contestant, with the proportional time dashed."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    rows, total = content["rows"], content["sm_count"]
    for name in dict.fromkeys(name for row in rows for name in row["contestants"]):
        points = [(row["held_sms"], results.median_us(row, name)) for row in rows if name in row["contestants"]]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name, color=COLOURS.get(name))
    quiet = min(timing["median_us"] for timing in rows[0]["contestants"].values())
    held = [row["held_sms"] for row in rows]
    axes.plot(
        held, [quiet * total / (total - s) for s in held], "--", color=COLOURS["proportional"], label="proportional"
    )
    axes.set_xlabel(f"SMs of {total} held by other work")
    axes.set_ylabel("device time, us")
    axes.set_title(f"{results.label(rows[0])} on {content['environment']['device']}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    _save(figure, path)


def save_bars(values: Mapping[str, float], path: Path, title: str, unit: str) -> None:
    """One horizontal bar for each name."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6.4, 1.2 + 0.35 * len(values)), layout="constrained")
    names = list(values)[::-1]
    colours = [next((c for key, c in COLOURS.items() if name.startswith(key)), "#888888") for name in names]
    bars = axes.barh(names, [values[name] for name in names], color=colours)
    axes.bar_label(bars, fmt=" %.2f", fontsize=8)
    axes.set_xlabel(unit)
    figure.suptitle(title, fontsize=10)  # over the names, too: they take half of the width
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
