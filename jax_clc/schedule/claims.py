"""What a trace tells of how tiles were claimed: launches, grants, refusals before the end, order, latency."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax_clc.schedule.trace import TileEvent, TileTrace


@dataclass(frozen=True)
class Latency:
    """Of the requests that were granted, in the trace's unit."""

    requests: int
    median: float
    p90: float
    longest: float


@dataclass(frozen=True)
class Claims:
    """How the tiles of one launch were claimed.

    launched: clusters that computed a tile. granted: tiles that a worker asked for. refused_while_pending: workers that
    had left before another cluster started its first tile: on `clc` each was refused while clusters were pending.
    grants_in_order, late_launches_in_order: share of neighbours in time whose numbers ascend, None if there are fewer
    than two; late are those after the first tile's end. hidden: share of requests answered before the worker's tile in
    hand ended. latency: None without requests.
    """

    schedule: str
    launched: int
    granted: int
    refused_while_pending: int
    grants_in_order: float | None
    late_launches_in_order: float | None
    hidden: float | None
    latency: Latency | None


def claims(trace: TileTrace) -> Claims:
    """Reads the claims off a trace; its first CTAs carry the requests."""
    first_ctas = sorted((event for event in trace.events if event.cta == 0), key=lambda event: event.start)
    workers: dict[int, list[TileEvent]] = {}
    for event in first_ctas:
        workers.setdefault(event.cluster, []).append(event)
    asked = sorted(
        (event.asked, event.tile, event.answered - event.asked)
        for event in first_ctas
        if event.asked is not None and event.answered is not None
    )
    last_launch = max((events[0].start for events in workers.values()), default=0.0)
    first_end = min((event.end for event in first_ctas), default=0.0)
    left = [max(event.end for event in events) for events in workers.values()]
    waits = sorted(latency for *_, latency in asked)
    return Claims(
        schedule=trace.schedule,
        launched=len(workers),
        granted=len(asked),
        refused_while_pending=sum(end <= last_launch for end in left),
        grants_in_order=_ascending([tile for _, tile, _ in asked]),
        late_launches_in_order=_ascending(
            [cluster for cluster, events in workers.items() if events[0].start >= first_end]
        ),
        hidden=_hidden(workers.values()),
        latency=Latency(len(waits), statistics.median(waits), waits[math.ceil(0.9 * len(waits)) - 1], waits[-1])
        if waits
        else None,
    )


def _ascending(numbers: Sequence[int]) -> float | None:
    pairs = list(itertools.pairwise(numbers))
    return sum(first < second for first, second in pairs) / len(pairs) if pairs else None


def _hidden(workers: Iterable[list[TileEvent]]) -> float | None:
    """A request is hidden if its answer was there before the tile before it ended."""
    hidden = [
        later.answered <= earlier.end
        for events in workers
        for earlier, later in itertools.pairwise(events)
        if later.answered is not None
    ]
    return sum(hidden) / len(hidden) if hidden else None
