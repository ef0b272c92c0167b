"""What `jax-clc verify` runs: which kernels at which shapes and seeds, and one case of it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .kernel_run import Problem, exact_operands, read_ptx, reference, run_kernel
from .options import Hostility

REPRESENTATIVES = 8
REPRESENTATIVE_FACTS = (
    "schedule",
    "cluster",
    "cluster_k",
    "two_sm_mma",
    "pingpong",
    "split_k",
    "stream_k",
    "operand_copies",
    "output_copies",
)
SM_COUNT = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One run: everything that decides it."""

    kernel: str
    problem: Problem
    seed: int
    sm_count: int = SM_COUNT

    @property
    def shape(self) -> str:
        """The problem as `--shape` takes it."""
        p = self.problem
        return f"{p.m}x{p.n}x{p.k}x{p.l}" + (f"x{p.split_k}" if p.split_k > 1 else "")

    @property
    def command(self) -> str:
        """The command that runs this case alone."""
        return (
            f"jax-clc verify --kernel {self.kernel} --shape {self.shape} --seed {self.seed} --sm-count {self.sm_count}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended. `fault` is None where the result was exact and no rule was broken."""

    case: Case
    fault: str | None
    instructions: int
    seconds: float  # of processor time


def parse_shape(text: str) -> Problem:
    """`m x n x k [x l [x split_k]]`, joined by `x` or commas. Raises ValueError."""
    parts = text.replace("x", ",").split(",")
    numbers = [int(part) for part in parts if part.isdecimal()]
    if len(numbers) != len(parts) or not 3 <= len(numbers) <= 5 or min(numbers) < 1:
        raise ValueError(f"shape {text!r}: m, n, k and if need be l and split_k are wanted, as in 520x392x136x2")
    m, n, k, *rest = numbers
    return Problem(m, n, k, l=rest[0] if rest else 1, split_k=rest[1] if len(rest) > 1 else 1)


def shapes_of(entry: Mapping) -> list[Problem]:
    """Shapes that a kernel must get right: less than one tile; tails in each axis with a batch; more tiles than
    workers with a single K step; K longer than the load pipeline; for stream-K, tiles that are cut, in long shares and
    in short ones. In the kernel's own terms."""
    tile_m, tile_n, tile_k = entry["cta_tile"]
    tile_m, tile_n = tile_m * entry["cluster"][0], tile_n * entry["cluster"][1]
    odd = entry.get("operand_copies") == "elements"
    unit = 1 if odd else 8
    split = 3 if entry.get("split_k") else 1
    long_k = tile_k * (entry["stages"] + 2) * split + unit
    cut = [(3 * tile_m - unit, 2 * tile_n - 3 * unit, 20 * tile_k + unit), (3 * tile_m, 2 * tile_n, 48 * tile_k)]
    return [
        Problem(max(tile_m - 5 * unit, unit), max(tile_n - 3 * unit, unit), tile_k - unit, l=1, split_k=1),
        Problem(tile_m + 3 * unit, tile_n + unit, 2 * tile_k + 3 * unit, l=2, split_k=split),
        Problem(3 * tile_m - unit, max(3 * tile_n - 7 * unit, unit), tile_k, l=1, split_k=1),
        Problem(tile_m, tile_n + unit, long_k, l=1, split_k=split),
        *(Problem(*sizes) for sizes in cut if entry.get("stream_k")),
    ]


def representatives(entries: Sequence[Mapping]) -> set[str]:
    """At most 8 kernels of each family that together show as many pairs of values as they can of the facts in which
    kernels differ most, and so every single value that 8 kernels can show; of equals the one of the smallest tile,
    which the emulated device runs through soonest."""

    def pairs(entry: Mapping) -> set[tuple]:
        values = [(fact, repr(entry.get(fact))) for fact in REPRESENTATIVE_FACTS]
        return {(x, y) for i, x in enumerate(values) for y in values[i:]}

    chosen: set[str] = set()
    for family in sorted({e["family"] for e in entries}):
        mine = [e for e in entries if e["family"] == family]
        wanted = set().union(*(pairs(e) for e in mine))
        for _ in range(REPRESENTATIVES):
            best = max(mine, key=lambda e: (len(wanted & pairs(e)), -math.prod(e["cta_tile"])), default=None)
            if best is None or not wanted & pairs(best):
                break
            chosen.add(best["name"])
            mine = [e for e in mine if e is not best]
            wanted -= pairs(best)
    return chosen


def cases_of(
    entries: Iterable[Mapping], *, seeds: int, representative_seeds: int, chosen: set[str], sm_count: int = SM_COUNT
) -> list[Case]:
    """All cases: seeds are dealt to the shapes in turn, every shape at least once."""
    cases = []
    for entry in entries:
        shapes = shapes_of(entry)
        count = max(representative_seeds if entry["name"] in chosen else seeds, len(shapes))
        cases += [Case(entry["name"], shapes[seed % len(shapes)], seed, sm_count) for seed in range(count)]
    return cases


def hostility_of(seed: int) -> Hostility:
    """The manner of a seed: as usual, late copies, hurried ones, or SMs that come and go with refusals. In 16 seeds
    each of four shapes meets each manner."""
    manner = (seed + seed // 4) % 4
    if manner == 1:
        return Hostility(copy_delay=(0, 400), mma_delay=(0, 5), turn=(1, 2), spurious_failures=0.2, clc_delay=(0, 300))
    if manner == 2:
        return Hostility(copy_delay=(0, 2), mma_delay=(0, 300), turn=(1, 60), clc_refusals=0.2, launch_delay=(0, 200))
    if manner == 3:
        return Hostility(clc_refusals=0.4, sm_changes=8, sm_change_interval=(10, 200), shuffle_launches=16)
    return Hostility()


def run_case(case: Case, entry: Mapping, folder: Path) -> Outcome:
    """Run a case: integer inputs whose result is exact, every output element once, no rule broken."""
    start = time.process_time()
    draw = random.Random(case.seed)
    p = case.problem
    problem = Problem(p.m, p.n, p.k, p.l, draw.randint(1, 3), draw.randint(0, 1), p.split_k)
    a, b = exact_operands(entry, problem, case.seed)
    instructions, fault = 0, None
    try:
        run = run_kernel(
            entry,
            read_ptx(entry, folder),
            problem,
            a,
            b,
            sm_count=case.sm_count,
            seed=case.seed,
            hostility=hostility_of(case.seed),
        )
        instructions = run.instructions
        wrong = int((run.d != reference(entry, a, b)).sum())
        if wrong:
            fault = f"WrongResult: {wrong} of {run.d.size} elements differ from the exact product"
    except Exception as error:  # whatever it is, the other cases still run
        fault = f"{type(error).__name__}: {error}"
    return Outcome(case, fault, instructions, time.process_time() - start)
