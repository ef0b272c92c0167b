"""Timelines as text, for a terminal of 60 columns and up."""

from __future__ import annotations

import math
import string
import textwrap
from collections.abc import Sequence

from jax_clc.schedule.summary import common_end, headline, time_text
from jax_clc.schedule.trace import TileTrace

TILE_GLYPHS = string.digits + string.ascii_lowercase + string.ascii_uppercase
IDLE, TAKEN = "·", "/"
SHADES = "·░▒▓█"
MOST_ROWS = 24


def text_timeline(traces: Sequence[TileTrace], *, width: int = 60) -> str:
    """One block for each trace on one time scale.

    Up to 24 SMs get a row each, and a tile is the glyph of its number (0-9, a-z, A-Z, then again). More SMs are
    put together in rows, shaded by the share of their time in which a tile was under way.
    """
    if width < 30:
        raise ValueError(f"{width} columns are too few for a timeline; at least 30")
    end = common_end(traces)
    return "\n\n".join(_block(trace, end, width) for trace in traces)


def _block(trace: TileTrace, end: float, width: int) -> str:
    rows_per_line = math.ceil(trace.sm_count / MOST_ROWS)
    labels = [
        _label(first, min(first + rows_per_line, trace.sm_count) - 1)
        for first in range(0, trace.sm_count, rows_per_line)
    ]
    margin = max(map(len, labels))
    columns = width - margin - 2
    rows = [_row(trace, sm, end, columns) for sm in range(trace.sm_count)]
    lines = textwrap.wrap(headline(trace), width)
    for line, label in enumerate(labels):
        group = rows[line * rows_per_line : (line + 1) * rows_per_line]
        lines.append(f"{label:>{margin}} |{group[0] if rows_per_line == 1 else _shade(group)}".rstrip())
    scale = time_text(end, trace.unit)
    lines.append(" " * (margin + 1) + "0" + scale.rjust(columns))
    return "\n".join(lines)


def _label(first: int, last: int) -> str:
    return f"SM {first}" if first == last else f"SM {first}-{last}"


def _row(trace: TileTrace, sm: int, end: float, columns: int) -> str:
    """What the SM does in the middle of each column's time."""
    glyphs = [" "] * columns
    events = [event for event in trace.events if event.sm == sm]
    windows = [window for window in trace.taken if window.sm == sm]
    for column in range(columns):
        time = (column + 0.5) * end / columns
        running = [event for event in events if event.start <= time < event.end]
        if running:
            glyphs[column] = TILE_GLYPHS[max(running, key=lambda event: event.start).tile % len(TILE_GLYPHS)]
        elif any(window.taken <= time < window.given_back for window in windows):
            glyphs[column] = TAKEN
        elif time < trace.makespan:
            glyphs[column] = IDLE
    return "".join(glyphs)


def _shade(group: Sequence[str]) -> str:
    """One line for several SMs: taken if all are, else the share that computes of those not taken."""
    line = []
    for glyphs in zip(*group, strict=True):
        free = [glyph for glyph in glyphs if glyph != TAKEN]
        if not free:
            line.append(TAKEN)
        elif set(free) == {" "}:
            line.append(" ")
        else:
            share = sum(glyph not in (IDLE, " ") for glyph in free) / len(free)
            line.append(SHADES[math.ceil(share * (len(SHADES) - 1))])
    return "".join(line)
