"""Tile traces: which cluster computed which tile, on which SM, from when to when.

One format for three sources: the makespan model, the emulated device, and traced kernels on a GPU. Plain Python and
NumPy, no JAX. The raw buffer that a traced kernel fills is described at `trace_from_buffer`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "jax_clc.tile_traces"
VERSION = 1
SCHEDULES = ("nonpersistent", "static", "dynamic", "clc")
SOURCES = ("model", "emulated", "device")
COUNTER_BYTES = 128  # of a traced kernel's scratch, before the rows
EVENT_FIELDS = ("tile", "cluster", "cta", "sm", "start", "end", "asked", "answered")
BUFFER_WORDS = 6
EMULATED_NS_PER_STEP = 20  # by which the emulated device's %globaltimer advances


class TraceError(ValueError):
    """A trace that is damaged, or that says a tile was computed never or twice."""


@dataclass(frozen=True, slots=True)
class TileEvent:
    """One CTA's work on one cluster tile. Times are in the trace's unit, counted from the start of the launch.

    `asked` and `answered` are when the request that brought this tile was made, and when its record had been read; None
    for a tile that needed none, and in all CTAs but the cluster's first.
    """

    tile: int
    cluster: int
    cta: int
    sm: int
    start: float
    end: float
    asked: float | None = None
    answered: float | None = None


@dataclass(frozen=True, slots=True)
class SmWindow:
    """An SM that other work holds from `taken` to `given_back`: no cluster is launched there in that time."""

    sm: int
    taken: float = 0.0
    given_back: float = math.inf

    def __post_init__(self) -> None:
        if self.sm < 0 or not self.taken < self.given_back:
            raise ValueError(f"SM {self.sm} taken at {self.taken} and given back at {self.given_back}")


@dataclass(frozen=True)
class TileTrace:
    """All tile events of one launch.

    `unit` is "us" on the model and on a device and "steps" on the emulated device, whose clock is not a time.
    `end` is when the last worker left, at least the last event's end. `about` says what ran: device, problem, kernel.
    """

    schedule: str
    source: str
    sm_count: int
    tiles: int
    events: tuple[TileEvent, ...]
    cluster_size: int = 1
    unit: str = "us"
    end: float = 0.0
    taken: tuple[SmWindow, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise TraceError(f"schedule {self.schedule!r} is none of {', '.join(SCHEDULES)}")
        if self.source not in SOURCES:
            raise TraceError(f"source {self.source!r} is none of {', '.join(SOURCES)}")
        last = max((event.end for event in self.events), default=0.0)
        object.__setattr__(self, "end", max(float(self.end), last))

    @property
    def makespan(self) -> float:
        """Time from the launch to the last worker's exit."""
        return self.end

    @property
    def workers(self) -> int:
        """Number of clusters that computed at least one tile."""
        return len({event.cluster for event in self.events})

    def busy(self) -> dict[int, float]:
        """For each SM that computed a tile, the time covered by its tiles; overlapping tiles are counted once."""
        spans: dict[int, list[tuple[float, float]]] = {}
        for event in self.events:
            spans.setdefault(event.sm, []).append((event.start, event.end))
        return {sm: _covered(intervals) for sm, intervals in spans.items()}

    def check(self) -> None:
        """Raises TraceError unless each cluster tile was computed once, by every CTA of one cluster."""
        seen = Counter((event.tile, event.cta) for event in self.events)
        problems = []
        for tile in range(self.tiles):
            for cta in range(self.cluster_size):
                if (count := seen[tile, cta]) != 1:
                    problems.append(f"tile {tile}, CTA {cta}: {count} times")
        owners: dict[int, set[int]] = {}
        for event in self.events:
            owners.setdefault(event.tile, set()).add(event.cluster)
            if not (0 <= event.tile < self.tiles and 0 <= event.cta < self.cluster_size and event.end >= event.start):
                problems.append(f"event out of range: {event}")
        problems += [f"tile {tile}: by clusters {sorted(by)}" for tile, by in owners.items() if len(by) > 1]
        if problems:
            raise TraceError(f"{self.schedule}: {len(problems)} faults, first: " + "; ".join(problems[:5]))


def _covered(intervals: list[tuple[float, float]]) -> float:
    total, reach = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def rows_of_scratch(scratch: np.ndarray, tiles: int, cluster_size: int) -> np.ndarray:
    """The rows int64[tiles, cluster_size, 6] in a traced kernel's scratch, uint8. Raises TraceError if too few."""
    rows = np.asarray(scratch, np.uint8)[COUNTER_BYTES:].view(np.int64).reshape(-1, BUFFER_WORDS)
    if tiles * cluster_size > len(rows):
        raise TraceError(f"{tiles} tiles of {cluster_size} CTAs are too many: a traced kernel keeps {len(rows)} rows")
    return rows[: tiles * cluster_size].reshape(tiles, cluster_size, BUFFER_WORDS)


def trace_from_buffer(
    buffer: np.ndarray,
    *,
    schedule: str,
    sm_count: int,
    source: str = "device",
    launch_ns: int | None = None,
    taken: tuple[SmWindow, ...] = (),
    about: dict[str, Any] | None = None,
) -> TileTrace:
    """Reads what a traced kernel wrote.

    `buffer` is int64[tiles, cluster_size, 6], cleared to zero before the launch. Row [tile, cta] is written once, by
    the CTA that computed that part of the cluster tile, and holds

        %smid, linear index of the launched cluster, start, end, asked, answered

    with times from `%globaltimer` in ns. Start: the load warp takes the tile; end: the tile's last store has been
    issued; asked, answered: by the scheduler warp of the first CTA, around the request that brought this tile, zero if
    there was none. End is not zero, so a tile that nobody computed is seen. Tile and cluster are linear
    indices before the raster. Times are counted from `launch_ns`, or from the first start. On the emulated device
    (`source` "emulated") the clock counts its steps.
    """
    rows = np.asarray(buffer)
    if rows.dtype != np.int64 or rows.ndim != 3 or rows.shape[2] != BUFFER_WORDS:
        raise TraceError(
            f"trace buffer must be int64[tiles, cluster_size, {BUFFER_WORDS}], "
            f"not {rows.dtype}[{', '.join(map(str, rows.shape))}]"
        )
    missing = np.argwhere(rows[:, :, 3] == 0)
    if len(missing):
        raise TraceError(
            f"{len(missing)} rows of the trace were never written, first (tile, cta): "
            f"{[tuple(map(int, row)) for row in missing[:5]]}"
        )
    origin = int(rows[:, :, 2].min()) if launch_ns is None and rows.size else int(launch_ns or 0)

    def time(nanoseconds: int) -> float:
        return (nanoseconds - origin) / (EMULATED_NS_PER_STEP if source == "emulated" else 1e3)

    events = []
    for tile, ctas in enumerate(rows.tolist()):
        for cta, (sm, cluster, start, end, asked, answered) in enumerate(ctas):
            request = (time(asked), time(answered)) if asked else (None, None)
            events.append(TileEvent(tile, cluster, cta, sm, time(start), time(end), *request))
    trace = TileTrace(
        schedule,
        source,
        sm_count,
        rows.shape[0],
        tuple(events),
        cluster_size=rows.shape[1],
        unit="steps" if source == "emulated" else "us",
        taken=taken,
        about=dict(about or {}),
    )
    trace.check()
    return trace


def to_json(traces: list[TileTrace]) -> dict[str, Any]:
    """The JSON form of one or more traces: events as columns, infinite times as null."""

    def one(trace: TileTrace) -> dict[str, Any]:
        return {
            "schedule": trace.schedule,
            "source": trace.source,
            "unit": trace.unit,
            "sm_count": trace.sm_count,
            "tiles": trace.tiles,
            "cluster_size": trace.cluster_size,
            "end": trace.end,
            "about": trace.about,
            "taken": [[w.sm, w.taken, None if math.isinf(w.given_back) else w.given_back] for w in trace.taken],
            "events": {name: [getattr(event, name) for event in trace.events] for name in EVENT_FIELDS},
        }

    return {"format": FORMAT, "version": VERSION, "traces": [one(trace) for trace in traces]}


def from_json(document: dict[str, Any]) -> list[TileTrace]:
    """The inverse of `to_json`. Raises TraceError for another format, and for damaged or incomplete traces."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TraceError(f'not a file of tile traces: "format" is not "{FORMAT}"')
    if document.get("version") != VERSION:
        raise TraceError(f"tile traces of version {document.get('version')!r}; this package reads {VERSION}")
    traces = []
    for index, item in enumerate(document.get("traces", [])):
        try:
            columns = [item["events"][name] for name in EVENT_FIELDS]
            if len({len(column) for column in columns}) > 1:
                raise TraceError(f"trace {index}: event columns differ in length")
            trace = TileTrace(
                item["schedule"],
                item["source"],
                item["sm_count"],
                item["tiles"],
                tuple(TileEvent(*row) for row in zip(*columns, strict=True)),
                cluster_size=item["cluster_size"],
                unit=item["unit"],
                end=item["end"],
                about=dict(item["about"]),
                taken=tuple(
                    SmWindow(sm, taken, math.inf if back is None else back) for sm, taken, back in item["taken"]
                ),
            )
        except (KeyError, TypeError) as error:
            raise TraceError(f"trace {index} is damaged: {type(error).__name__}: {error}") from error
        trace.check()
        traces.append(trace)
    return traces


def save(path: str | Path, traces: list[TileTrace]) -> None:
    """Writes traces as one JSON file."""
    Path(path).write_text(json.dumps(to_json(traces)) + "\n", encoding="utf-8")


def load(path: str | Path) -> list[TileTrace]:
    """Reads a JSON file of traces. Raises TraceError for anything else."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    return from_json(document)
