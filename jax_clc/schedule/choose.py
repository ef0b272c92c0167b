"""Which schedule `schedule="auto"` takes, and why in words: one rule for every GPU family.

The rule weighs two runs of the same tiles: alone on the GPU, and with some SMs held by other work for the whole time.
The expected time is `(1 - p) * quiet + p * disturbed`; the shortest wins, and within `TIE` of each other the order is
`PREFERENCE`. With no more tiles than workers nothing is left to hand out: `static`. One tile per CTA is taken only when
nothing else is there, as its epilogue overlaps nothing. The two times are closed forms of `model.simulate`, to which
tests compare them. Pure Python, no JAX: safe to call while a program is lowered.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass

from jax_clc.schedule.model import Costs

# In order of preference when the expected times tie: CLC keeps its pace under disturbances that the rule does not
# foresee, and needs no counter.
PREFERENCE = ("clc", "static", "dynamic", "nonpersistent")
TIE = 1e-3


# A request takes about 1 us (quack's notes on CLC); a cluster's launch and prologue 1.5 us together, a rough figure.
# `reset_us` is the memset node before a `dynamic` launch: with the first request 2.1 us, what `dynamic` cost more than
# `static` in launches below 110 us on an H200. Sweeps since then say 1.4 (`python docs/figures/cost_of_asking.py`).
DEFAULT_COSTS = {
    "sm_90a": Costs(launch_us=0.5, prologue_us=1.0, request_us=1.0, reset_us=1.1),
    "sm_100f": Costs(launch_us=0.5, prologue_us=1.0, request_us=1.0, reset_us=1.1),
}


@dataclass(frozen=True)
class Disturbance:
    """How much the rule cares for other work on the GPU: with `probability`, `held_fraction` of the SMs are held."""

    probability: float = 0.05
    held_fraction: float = 0.125


@dataclass(frozen=True)
class ScheduleChoice:
    """The chosen schedule, the reason in words, and what was weighed: schedule -> (quiet, disturbed) microseconds."""

    schedule: str
    reason: str
    weighed: dict[str, tuple[float, float]]


def choose_schedule(
    available: Collection[str],
    *,
    family: str,
    tiles: int,
    resident_clusters: int,
    tile_us: float,
    sm_limit: int | None = None,
    costs: Costs | None = None,
    disturbance: Disturbance = Disturbance(),
) -> ScheduleChoice:
    """Chooses among the schedules that a kernel comes in.

    available: schedules for which a kernel serves the problem, from {"nonpersistent", "static", "dynamic", "clc"}.
    family: as in the manifest, "sm_90a" or "sm_100f". tiles: cluster tiles of the problem, batch included.
    resident_clusters: clusters that fit the device at once, before `sm_limit`. tile_us: predicted time of one cluster
    tile on one worker, all K. sm_limit: as the user gave it, None or 0 for none.
    Raises ValueError when nothing is available, or nothing that honours `sm_limit`.
    """
    if tiles < 1 or resident_clusters < 1 or not tile_us >= 0:
        raise ValueError(f"tiles={tiles}, resident_clusters={resident_clusters}, tile_us={tile_us}")
    candidates = [name for name in PREFERENCE if name in available]
    if sm_limit:
        candidates = [name for name in candidates if name in ("static", "dynamic")]
        if not candidates:
            raise ValueError(f"sm_limit={sm_limit} needs a static or dynamic kernel, not {sorted(available)}")
        # A limit leaves the rest of the GPU to other work: both keep to their SMs, so nothing is to be redistributed.
        return ScheduleChoice(
            candidates[0],
            f"{candidates[0]}: sm_limit={sm_limit} fixes the number of workers, which CLC's grid cannot do",
            {},
        )
    if not candidates:
        raise ValueError(f"no known schedule among {sorted(available)}")
    costs = costs or DEFAULT_COSTS["sm_90a" if family.startswith("sm_9") else "sm_100f"]
    if len(candidates) > 1:
        candidates = [name for name in candidates if name != "nonpersistent"]
    room = max(1, resident_clusters - math.ceil(resident_clusters * disturbance.held_fraction))
    weighed = {
        name: (
            predicted_us(name, tiles, resident_clusters, resident_clusters, tile_us, costs),
            predicted_us(name, tiles, resident_clusters, room, tile_us, costs),
        )
        for name in candidates
    }

    def expected(name: str) -> float:
        quiet, disturbed = weighed[name]
        return (1 - disturbance.probability) * quiet + disturbance.probability * disturbed

    best = min(map(expected, candidates))
    chosen = (
        "static"
        if tiles <= resident_clusters and "static" in candidates
        else next(name for name in candidates if expected(name) <= best * (1 + TIE))
    )
    return ScheduleChoice(chosen, _reason(chosen, weighed, tiles, resident_clusters, room, tile_us, costs), weighed)


def predicted_us(schedule: str, tiles: int, planned: int, room: int, tile_us: float, costs: Costs) -> float:
    """Makespan of equal tiles: `planned` workers, of which `room` fit at once for the whole time. Closed form."""
    start = costs.launch_us + costs.prologue_us
    if schedule == "nonpersistent":
        return math.ceil(tiles / room) * (start + tile_us)
    if schedule == "static":
        workers = min(tiles, planned)
        more, least = tiles % workers, tiles // workers
        if room >= workers:
            return start + math.ceil(tiles / workers) * tile_us
        return _last_end([0.0] * room, [start + (least + (worker < more)) * tile_us for worker in range(workers)])
    # A request is made when the tile in hand starts, so it is hidden behind a tile that is at least as long. The
    # last one, a refusal, is waited for too.
    step = max(tile_us, costs.request_us)
    rounds = math.ceil(tiles / min(room, tiles))
    if schedule == "clc":
        return start + rounds * step
    end = costs.reset_us + start + costs.request_us + rounds * step
    busy_to_the_end = tiles - (rounds - 1) * room
    ends = [end] * busy_to_the_end + [end - step] * (room - busy_to_the_end)
    # Workers that did not fit are launched when others leave; they find nothing to do, and leave too.
    return _last_end(ends, [start + costs.request_us] * (min(tiles, planned) - room))


def _last_end(free: list[float], jobs: list[float]) -> float:
    """When the last of `jobs` ends, each on the first of the places that are free from `free` on."""
    heapq.heapify(free)
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


def _reason(
    chosen: str,
    weighed: dict[str, tuple[float, float]],
    tiles: int,
    resident: int,
    room: int,
    tile_us: float,
    costs: Costs,
) -> str:
    if tiles <= resident and (chosen == "static" or len(weighed) > 1):
        counted = "1 tile" if tiles == 1 else f"{tiles} tiles"
        return f"{chosen}: {counted} for {resident} workers, so nothing is left to hand out"
    if len(weighed) == 1:
        only = "no kernel" if chosen == "nonpersistent" else "no other kernel"
        return f"{chosen}: {only} of this tile is persistent"
    if chosen == "static" and tile_us < costs.request_us:
        why = f"a tile takes {tile_us:.2f} us, less than asking for the next"
    elif chosen == "static":
        why = "few or short tiles: handing them out at run time costs more than it is likely to save"
    elif chosen in ("clc", "dynamic"):
        why = "tiles go to whichever worker is free, which costs little alone and saves much when SMs are taken"
    else:
        why = "shortest expected time"
    numbers = ", ".join(f"{name} {quiet:.0f}/{disturbed:.0f} us" for name, (quiet, disturbed) in weighed.items())
    return f"{chosen}: {why} (predicted with {resident}/{room} workers: {numbers})"
