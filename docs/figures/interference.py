"""The schedule model against a measurement: one GEMM, other work on 0 to 66 of an H200's 132 SMs.

    python docs/figures/interference.py            prints the table of docs/choosing_a_schedule.md
    python docs/figures/interference.py --write    writes it there

Measured: benchmarks/results/interference.json (`python -m benchmarks.interference`), 8192 x 8192 x 4096, bf16. A kernel
holds the SMs with all their shared memory for the whole time.
Fitted: each schedule's tile time from its own run with no SM held, and the speed of the SMs at two loads (below).
Assumed: GPCs of 16 and 18 SMs, over which the held SMs are spread evenly, as the hardware spreads CTAs.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from pathlib import Path

from jax_clc.schedule.model import Device, Tiles, simulate
from jax_clc.schedule.trace import SmWindow, TileTrace
from kernels.shares import leading_tiles, shared_tiles

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "choosing_a_schedule.md"
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "interference.json").read_text(encoding="utf-8"))
SCHEDULES = ("nonpersistent", "static", "dynamic")
SMS = MEASURED["sm_count"]
GPC_SIZES = (16, 16, 16, 16, 16, 16, 18, 18)
SIZE, DEPTH = 8192, 4096
BEGIN, END = "<!-- interference: begin -->", "<!-- interference: end -->"


def kernel(schedule: str) -> str:
    return MEASURED["rows"][0]["kernels"][schedule]


def cta_tile(schedule: str) -> tuple[int, int, int]:
    """Rows, columns, and CTAs of a cluster, which lie below one another; from the name of the kernel measured."""
    rows, columns, cluster = re.search(r"_(\d+)x(\d+)x64_(?:pingpong_)?c(\d)x1_", kernel(schedule)).groups()
    return int(rows), int(columns), int(cluster)


def pieces(schedule: str) -> list[float]:
    """What the schedule hands out, in cluster tiles: whole ones, and what stream-K makes of those of the last round,
    equal shares for as many workers as the launch planned."""
    tile_m, tile_n, cluster = cta_tile(schedule)
    tiles, workers = -(-SIZE // (cluster * tile_m)) * -(-SIZE // tile_n), SMS // cluster
    shared = shared_tiles(tiles, workers, SMS, DEPTH // 64) if "streamk" in kernel(schedule) else 0
    lead = leading_tiles(tiles, workers, shared)
    shares = [shared / workers] * workers if shared else []
    return [1.0] * lead + shares + [1.0] * (tiles - shared - lead)


def rounds(schedule: str, clusters: int) -> float:
    """How many tiles in a row that many clusters take, where shares fill what whole tiles leave."""
    handed_out = pieces(schedule)
    count = sum(handed_out) / clusters
    return math.ceil(count) if set(handed_out) == {1.0} else count


def measured_us(schedule: str) -> dict[int, float]:
    """Held SMs -> microseconds."""
    return {row["held_sms"]: row["contestants"][schedule]["median_us"] for row in MEASURED["rows"]}


def tile_us(schedule: str) -> float:
    """Time of a tile with all SMs at work."""
    return measured_us(schedule)[0] / rounds(schedule, SMS // cta_tile(schedule)[2])


def speed() -> tuple[tuple[int, float], ...]:
    """(busy SMs, relative speed): the clock falls as more SMs draw power.

    Few SMs run at the boost clock, 1.98 GHz, at 4,096 FLOP a clock. In between stands `dynamic` with the most SMs held,
    whose rounds are full.
    """
    tile_m, tile_n, _ = cta_tile("static")
    boosted_us = 2 * tile_m * tile_n * DEPTH / 4096 / 1980
    times = measured_us("dynamic")
    held = max(times)
    cluster = cta_tile("dynamic")[2]
    free = (SMS - held) // cluster - 1  # the odd SMs of two GPCs hold no cluster
    at_half = tile_us("dynamic") / (times[held] / rounds("dynamic", free))
    return (32, tile_us("static") / boosted_us), (free * cluster, at_half), (SMS, 1.0)


def held_windows(count: int) -> tuple[SmWindow, ...]:
    """`count` SMs, one GPC after another."""
    firsts = [0, *itertools.accumulate(GPC_SIZES)][:-1]
    gpcs = list(zip(firsts, GPC_SIZES, strict=True))
    order = [first + i for i in range(max(GPC_SIZES)) for first, size in gpcs if i < size]
    return tuple(SmWindow(sm) for sm in order[:count])


def predicted(schedule: str, held: int) -> TileTrace:
    """The model's trace with `held` SMs held throughout."""
    device = Device(SMS, cta_tile(schedule)[2], GPC_SIZES, held_windows(held), speed())
    times = tuple(piece * tile_us(schedule) for piece in pieces(schedule))
    return simulate(schedule, Tiles(times, (0.0,) * len(times)), device)


def table() -> str:
    """The comparison as a Markdown table."""
    lines = [
        "| SMs held | " + " | ".join(f"{name}: measured | model | error" for name in SCHEDULES) + " |",
        "|---:|" + "---:|---:|---:|" * len(SCHEDULES),
    ]
    for held in measured_us("static"):
        cells = [str(held)]
        for schedule in SCHEDULES:
            measured, model = measured_us(schedule)[held], predicted(schedule, held).makespan
            cells += [f"{measured:.0f} us", f"{model:.0f} us", f"{model / measured - 1:+.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
