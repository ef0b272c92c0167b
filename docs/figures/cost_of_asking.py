"""What asking for tiles costs on a quiet GPU: the same kernel under `dynamic` and `static`, from the sweep's results.

    python docs/figures/cost_of_asking.py        prints the numbers of docs/choosing_a_schedule.md

Reads the sweeps in benchmarks/results (`python -m benchmarks.sweep`), those of earlier builds too: every pair of
kernels that differ in their schedule alone and ran the same problem, interleaved, best raster of each.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SHORT_US = 110.0


def sweeps() -> list[dict]:
    """The sweeps that are there, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.rglob("sweep*.json"))]


def pairs() -> list[tuple[float, float]]:
    """(static, dynamic) microseconds of the same kernel on the same problem."""
    found = []
    for row in (row for content in sweeps() for row in content["rows"]):
        times: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for candidate in row["candidates"]:
            name = re.fullmatch(r"(.*)_s\d+((?:_streamk)?)_(static|dynamic)", candidate["kernel"])
            if name and candidate["measured_us"]:
                best = times[name[1] + name[2], candidate["split_k"]]
                best[name[3]] = min(candidate["measured_us"], best.get(name[3], float("inf")))
        found += [(time["static"], time["dynamic"]) for time in times.values() if len(time) == 2]
    return found


def summary() -> str:
    """The comparison in a sentence of Markdown."""
    device = " and ".join(sorted({content["environment"]["device"] for content in sweeps()}))
    ratios = [dynamic / static for static, dynamic in pairs()]
    short = [dynamic - static for static, dynamic in pairs() if static < SHORT_US]
    mean = statistics.geometric_mean(ratios) - 1
    return (
        f"{device}: in {len(ratios)} pairs `dynamic` takes {mean:+.1%} (geometric mean); "
        f"of the {len(short)} below {SHORT_US:.0f} us, a median of {statistics.median(short):+.1f} us."
    )


if __name__ == "__main__":
    print(summary())
