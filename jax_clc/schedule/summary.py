"""What a timeline says in a line: makespan, and how much of the time that was free was used."""

from __future__ import annotations

from collections.abc import Sequence

from jax_clc.schedule.trace import SmWindow, TileTrace


def common_end(traces: Sequence[TileTrace]) -> float:
    """End of the longest trace, the common time scale; 1 if nothing takes any time."""
    return max((trace.makespan for trace in traces), default=0.0) or 1.0


def utilisation(trace: TileTrace) -> float:
    """Share of the SM time that was not taken by other work, launch to last exit, in which a tile was under way."""
    busy = sum(trace.busy().values())
    held = sum(_held(window, trace) for window in trace.taken)
    available = trace.sm_count * trace.makespan - held
    return min(1.0, busy / available) if available > 0 else 0.0


def _held(window: SmWindow, trace: TileTrace) -> float:
    """Time the other work really had the SM: nothing is evicted, so a tile under way delays it."""
    start = max(
        [window.taken] + [event.end for event in trace.events if event.sm == window.sm and event.start <= window.taken]
    )
    return max(0.0, min(window.given_back, trace.makespan) - start)


def time_text(value: float, unit: str) -> str:
    """A time with its unit, to three or four digits."""
    if unit == "steps":
        return f"{value:,.0f} steps"
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 2}f} us"


def headline(trace: TileTrace) -> str:
    """For example "static: 6.00 us, 67% of the free SM time in use"."""
    source = {"model": "", "emulated": ", emulated device", "device": f", {trace.about.get('device', 'device')}"}
    return (
        f"{trace.schedule}{source[trace.source]}: {time_text(trace.makespan, trace.unit)}, "
        f"{utilisation(trace):.0%} of the free SM time in use"
    )
