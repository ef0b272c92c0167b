"""`python -m benchmarks.two_gpus`: a tensor-parallel MLP, and products that run while an all-reduce holds SMs."""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_clc
from benchmarks import suite
from benchmarks.run import write
from jax_clc.bench.device_timer import Activity, Sample, timer
from jax_clc.bench.environment import environment, running_family
from jax_clc.bench.results import BASELINE, RESULTS_FORMAT
from jax_clc.planning import GemmProblem, plan

TOKENS, HIDDEN, FEED_FORWARD = 8192, 4096, 14336  # Llama-3 8B
GEMM = (8192, 8192, 4096)
STAGES, GEMMS = 4, 2  # GEMMS products beside one all-reduce, STAGES times
REDUCED_BYTES = 256 << 20
DEVICES = 2
OVERLAPPING = "--xla_gpu_enable_latency_hiding_scheduler=true"
Product = Callable[[jax.Array, jax.Array], jax.Array]


def products() -> dict[str, Product]:
    """jnp.dot, and ours under each schedule that serves this device."""
    found: dict[str, Product] = {BASELINE: jnp.matmul, "jax_clc": jax_clc.matmul}
    problem, family = GemmProblem.compact(*GEMM), running_family()
    for schedule in ("nonpersistent", "static", "dynamic", "clc"):
        try:
            served = family in plan(problem, schedule=schedule).choices
        except ValueError:  # no such schedule for any GPU
            served = False
        if served:
            found[schedule] = functools.partial(jax_clc.matmul, schedule=schedule)
    return found


def normal(mesh: Any, seed: int, shape: tuple[int, ...], spec: P, scale: float = 1.0) -> jax.Array:
    sharding = NamedSharding(mesh, spec)
    make = jax.jit(lambda key: scale * jax.random.normal(key, shape, jnp.bfloat16), out_shardings=sharding)
    return make(jax.random.key(seed))


def race(programs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Sample]]:
    """Every program once a round, the order turning; all samples of each."""
    for program in programs.values():
        for _ in range(3):
            jax.block_until_ready(program())
    names = list(programs)
    with timer().session() as session:
        for turned in range(rounds):
            for position in range(len(names)):
                name = names[(position + turned) % len(names)]
                session.sample(name, lambda name=name: jax.block_until_ready(programs[name]()))
    return {name: [sample for sample in session.samples if sample.key == name] for name in names}


def mlp(mesh: Any, rounds: int, smaller: int) -> dict[str, Any]:
    """Forward and backward of relu(x w1) w2, w1 split by columns and w2 by rows: microseconds per step, wall clock."""
    tokens, hidden, feed_forward = (size // smaller for size in (TOKENS, HIDDEN, FEED_FORWARD))
    x = normal(mesh, 0, (tokens, hidden), P())
    w1 = normal(mesh, 1, (hidden, feed_forward), P(None, "x"), hidden**-0.5)
    w2 = normal(mesh, 2, (feed_forward, hidden), P("x"), feed_forward**-0.5)

    def step(product: Product, x: jax.Array, w1: jax.Array, w2: jax.Array) -> Any:
        def loss(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
            return jnp.square(product(jax.nn.relu(product(x, w1)), w2).astype(jnp.float32)).mean()

        return jax.grad(loss, (0, 1, 2))(x, w1, w2)

    steps = {name: jax.jit(functools.partial(step, product)) for name, product in products().items()}
    reference = steps[BASELINE](x, w1, w2)
    for name, run in steps.items():  # never time what was not checked
        for mine, theirs in zip(run(x, w1, w2), reference, strict=True):
            mine, theirs = (np.asarray(value, np.float32) for value in (mine, theirs))
            error = float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))
            if not error < 2e-2:
                raise RuntimeError(f"{name}: gradients differ from jnp.dot's by {error:.3g} of their norm")
    samples = race({name: functools.partial(run, x, w1, w2) for name, run in steps.items()}, rounds)
    return {name: spread([sample.wall_us for sample in found]) for name, found in samples.items()}


def overlap(mesh: Any, rounds: int, smaller: int) -> dict[str, Any]:
    """Stages of products on each device beside one all-reduce of 256 MiB, in one program; alone and together.

    Barriers keep a stage's products beside its all-reduce: the next stage begins when both have ended. Every product
    has an operand of its own and every result leaves the program, so that XLA can merge or drop none.
    """
    m, n, k = (size // smaller for size in GEMM)
    a = normal(mesh, 3, (m, k), P())
    weights = [[normal(mesh, 10 * stage + i, (k, n), P()) for i in range(GEMMS)] for stage in range(1, STAGES + 1)]
    data = normal(mesh, 5, (DEVICES, REDUCED_BYTES // 2 // smaller), P("x"))

    def stages(product: Product | None, reduce: bool, a: jax.Array, weights: Any, data: jax.Array) -> Any:
        results = []
        for stage in weights:
            found = [product(a, b) for b in stage] if product else []
            reduced = jax.lax.psum(data, "x") if reduce else data
            a, data, found = jax.lax.optimization_barrier((a, reduced, found))
            results.append(found)
        return results, data

    def program(product: Product | None, reduce: bool) -> Callable[[], Any]:
        body = jax.shard_map(
            functools.partial(stages, product, reduce),
            mesh=mesh, in_specs=(P(), P(), P("x")), out_specs=(P(), P() if reduce else P("x")), check_vma=False,
        )  # fmt: skip
        return functools.partial(jax.jit(body), a, weights, data)

    programs = {"all-reduce alone": program(None, True)}
    for name, product in products().items():
        programs[f"{name} alone"] = program(product, False)
        programs[f"{name} with all-reduce"] = program(product, True)
    samples = race(programs, rounds)
    return {name: {"total_us": spread([s.wall_us for s in found]), **parts(found)} for name, found in samples.items()}


def parts(samples: list[Sample]) -> dict[str, Any]:
    """Device times of a program, of one product and of one collective, and the share of the collectives' time beside
    which products ran, by the names of the kernels (both devices'); None without device records."""
    found: dict[str, list[float]] = {"span_us": [], "gemm_us": [], "collective_us": [], "beside": []}
    for sample in samples:
        kernels = [activity for activity in sample.activities if activity.kind == "kernel"]
        collectives = [kernel for kernel in kernels if "nccl" in kernel.name.lower()]
        gemms = [kernel for kernel in kernels if kernel not in collectives and micros(kernel) > 100]
        if kernels:
            found["span_us"].append((max(k.end_ns for k in kernels) - min(k.start_ns for k in kernels)) / 1e3)
        if collectives:
            found["collective_us"].append(statistics.mean(map(micros, collectives)))
        if gemms:
            found["gemm_us"].append(statistics.mean(map(micros, gemms)))
        if collectives and gemms:
            found["beside"].append(covered(collectives, gemms))
    return {name: spread(values) if values else None for name, values in found.items()}


def micros(activity: Activity) -> float:
    return (activity.end_ns - activity.start_ns) / 1e3


def covered(collectives: Sequence[Activity], gemms: Sequence[Activity]) -> float:
    """Share of the time with a collective running that also had a product running, on any device."""
    events = sorted({time for kernel in (*collectives, *gemms) for time in (kernel.start_ns, kernel.end_ns)})
    both = reduced = 0
    for begin, end in itertools.pairwise(events):
        if any(kernel.start_ns <= begin and end <= kernel.end_ns for kernel in collectives):
            reduced += end - begin
            if any(kernel.start_ns <= begin and end <= kernel.end_ns for kernel in gemms):
                both += end - begin
    return both / reduced


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": round(median, 2), "q1": round(q1, 2), "q3": round(q3, 2)}


def plot(content: Mapping[str, Any], path: Path) -> None:
    """Two panels: one product beside the all-reduce against alone, and the whole program."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = content["overlap"]
    names = [name.removesuffix(" alone") for name in rows if name.endswith(" alone") and name != "all-reduce alone"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    panels = (
        ("gemm_us", f"one product {' x '.join(map(str, GEMM))}"),
        ("span_us", f"{STAGES} stages of {GEMMS} products and one all-reduce"),
    )
    for axis, (what, title) in zip(axes, panels, strict=True):
        for offset, suffix, colour in ((-0.2, "alone", "#9aa5b1"), (0.2, "with all-reduce", "#2f6fb0")):
            values = [(rows[f"{name} {suffix}"][what] or {"median": 0})["median"] for name in names]
            bars = axis.bar([i + offset for i in range(len(names))], values, 0.38, label=suffix, color=colour)
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
        axis.set_xticks(range(len(names)), names)
        axis.set_ylabel("microseconds")
        axis.set_title(title, fontsize=10)
        axis.margins(y=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"256 MiB all-reduce beside products, {DEVICES} x {content['environment']['device']}", fontsize=11)
    figure.savefig(path, dpi=150)


def table(content: Mapping[str, Any]) -> str:
    lines = ["tensor-parallel MLP, forward and backward, us per step (wall)"]
    for name, value in content["mlp"].items():
        lines.append(f"  {name:<16}{value['median']:9.0f}  [{value['q1']:.0f}, {value['q3']:.0f}]")
    lines += ["", f"{'overlap, us':<30}{'wall':>7}{'device':>8}{'gemm':>6}{'nccl':>6}{'beside':>8}"]
    for name, row in content["overlap"].items():
        wall, span, gemm, nccl, beside = (
            row[key]["median"] if row[key] else float("nan")
            for key in ("total_us", "span_us", "gemm_us", "collective_us", "beside")
        )
        lines.append(f"  {name:<28}{wall:7.0f}{span:8.0f}{gemm:6.0f}{nccl:6.0f}{beside:8.0%}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path, default=suite.RESULTS_FOLDER / "two_gpus.json")
    parser.add_argument("--png", type=Path)
    parser.add_argument("--smaller", type=int, default=1, help="divide every size by this, to try it without GPUs")
    parser.add_argument("--from-json", type=Path, help="draw and print a results file instead of measuring")
    args = parser.parse_args(argv)
    if args.from_json:
        import json

        content = json.loads(args.from_json.read_text(encoding="utf-8"))
    else:
        # XLA runs collectives beside other kernels only where its scheduler hides latencies; read when JAX starts.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {OVERLAPPING}".strip()
        if len(jax.devices()) < DEVICES:
            print(f"two_gpus: needs {DEVICES} devices, JAX sees {jax.devices()}")
            return 2
        mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES])
        content = {
            "format": RESULTS_FORMAT, "set": "two_gpus", "environment": environment(timer().name),
            "command": f"python -m benchmarks.two_gpus {' '.join(sys.argv[1:])}".strip(),
            "xla_flags": os.environ["XLA_FLAGS"], "mlp": mlp(mesh, args.rounds, args.smaller),
        }  # fmt: skip
        write(args.out, content)
        content["overlap"] = overlap(mesh, args.rounds, args.smaller)
        write(args.out, content)
    print(table(content))
    if args.png:
        plot(content, args.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
