"""The schedule model against a measurement: one GEMM, other work on 0 to 66 of an H200's 132 SMs.

    python docs/figures/interference.py        prints the table of docs/choosing_a_schedule.md

Measured: 8192 x 8192 x 4096, bf16, random normal, jax 0.11.2, device time, median; a spinning kernel holds the SMs
with all their shared memory for the whole time. Static persistent kernel, and the same kernel with a work counter.
Fitted: the time of a tile with all SMs at work (714 us in 16 rounds), and the ramp of the clock.
Assumed: CTA tile 128 x 256 and cluster (2, 1), so 1,024 cluster tiles; GPCs of 16 and 18 SMs, over which the held SMs
are spread evenly, as the hardware spreads CTAs.
"""

from __future__ import annotations

import itertools

from jax_clc.schedule.model import Device, Tiles, simulate
from jax_clc.schedule.trace import SmWindow, TileTrace

HELD_SMS = (0, 4, 16, 32, 66)
MEASURED_US = {"static": (714, 1236, 1203, 1218, 1797), "dynamic": (729, 764, 806, 1017, 1389)}

GPC_SIZES = (16, 16, 16, 16, 16, 16, 18, 18)
CLUSTER_TILES = 8192 // 256 * (8192 // 256)
TILE_US = 714 / 16
# Few busy SMs run at the boost clock: 2 * 128 * 256 * 4096 FLOP at 4,096 FLOP a clock and 1.98 GHz are 33.1 us; with
# all busy the power limit makes it TILE_US.
SPEED = ((32, TILE_US / 33.1), (66, 1.0))


def held_windows(count: int) -> tuple[SmWindow, ...]:
    """`count` SMs, one GPC after another."""
    firsts = [0, *itertools.accumulate(GPC_SIZES)][:-1]
    gpcs = list(zip(firsts, GPC_SIZES, strict=True))
    order = [first + i for i in range(max(GPC_SIZES)) for first, size in gpcs if i < size]
    return tuple(SmWindow(sm) for sm in order[:count])


def predicted(schedule: str, held: int) -> TileTrace:
    """The model's trace with `held` SMs held throughout."""
    device = Device(132, 2, GPC_SIZES, held_windows(held), SPEED)
    return simulate(schedule, Tiles.constant(CLUSTER_TILES, TILE_US), device)


def table() -> str:
    """The comparison as a Markdown table."""
    lines = [
        "| SMs held | static measured | model | error | dynamic measured | model | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for index, held in enumerate(HELD_SMS):
        cells = [str(held)]
        for schedule, measured in MEASURED_US.items():
            model = predicted(schedule, held).makespan
            cells += [f"{measured[index]} us", f"{model:.0f} us", f"{model / measured[index] - 1:+.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
