"""`python -m benchmarks.launch`: wall time of each of 64 dependent 256^3 products, with and without command buffers."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import suite
from benchmarks.run import write

CHAIN, SIZE, REPEATS = 64, 256, 40
DONATED = ", donated"
COMMAND_BUFFERS = {"command buffers": None, "no command buffers": "--xla_gpu_enable_command_buffer="}
"""What to add to XLA_FLAGS; None leaves XLA's default."""


def measure() -> dict[str, Any]:
    """Microseconds per product for each contestant in this process, in turns: a chain is one jitted program."""
    import jax
    import jax.numpy as jnp

    import jax_clc
    from jax_clc.bench.environment import environment, running_family
    from jax_clc.planning import GemmProblem, plan

    products = {"jnp.dot": jnp.matmul, "jax_clc": jax_clc.matmul}
    problem = GemmProblem.compact(SIZE, SIZE, SIZE)
    for schedule in ("nonpersistent", "static", "dynamic", "clc"):
        try:
            if running_family() not in plan(problem, schedule=schedule).choices:
                continue  # no such schedule on this device
        except ValueError:  # nor on any
            continue
        products[f"jax_clc {schedule}"] = lambda a, b, schedule=schedule: jax_clc.matmul(a, b, schedule=schedule)

    # The same programs, which may take the memory of their first operand for a result.
    products |= {f"{name}{DONATED}": products[name] for name in ("jnp.dot", "jax_clc")}

    def chain(name: str) -> Any:
        product = products[name]

        def run(x: jax.Array, w: jax.Array) -> jax.Array:
            for _ in range(CHAIN):
                x = product(x, w)
            return x

        return jax.jit(run, donate_argnums=0 if name.endswith(DONATED) else ())

    x = jax.random.normal(jax.random.key(0), (SIZE, SIZE), "bfloat16")
    # Orthogonal up to rounding, so that 64 products neither grow nor vanish.
    w = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (SIZE, SIZE)))[0].astype("bfloat16")
    chains, found, failed = {}, {}, {}
    for name in products:
        try:
            chains[name] = chain(name)
            found[name] = jax.block_until_ready(chains[name](jnp.copy(x), w))
        except Exception as error:  # one schedule's failure must not hide the others' times
            failed[name] = f"{type(error).__name__}: {error}"[:500]
            chains.pop(name, None)
    reference = found["jnp.dot"].astype("float32")
    for name, result in found.items():
        error = float(jnp.linalg.norm(result.astype("float32") - reference) / jnp.linalg.norm(reference))
        if not error < 0.05:
            failed[name] = f"differs from jnp.dot by {error:.3f} in the norm"
            chains.pop(name)
    times: dict[str, list[float]] = {name: [] for name in chains}
    for repeat in range(REPEATS + 5):
        for name, run in chains.items():
            own = jax.block_until_ready(jnp.copy(x)) if name.endswith(DONATED) else x
            start = time.perf_counter()
            jax.block_until_ready(run(own, w))
            if repeat >= 5:
                times[name].append((time.perf_counter() - start) * 1e6 / CHAIN)
    quartiles = {name: statistics.quantiles(values, n=4, method="inclusive") for name, values in times.items()}
    return {
        "environment": environment("wall"),
        "us_per_product": {name: [round(value, 3) for value in q] for name, q in quartiles.items()},
        "failed": failed,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="measure in this process, print JSON")
    parser.add_argument("--out", type=Path, default=suite.RESULTS_FOLDER / "launch.json")
    args = parser.parse_args(argv)
    if args.here:
        suite.require_device(parser)
        print(json.dumps(measure()))
        return 0
    content: dict[str, Any] = {
        "format": 1,
        "set": "launch",
        "about": f"chain of {CHAIN} dependent {SIZE}^3 products in one program, wall time",
        "command": "python -m benchmarks.launch",
        "modes": {},
    }
    for mode, flag in COMMAND_BUFFERS.items():
        environment = dict(os.environ)
        if flag is not None:
            environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flag}".strip()
        command = [sys.executable, "-m", "benchmarks.launch", "--here"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            print(f"FAILED with {mode}:\n{done.stderr[-2000:]}")
            return done.returncode
        measured = json.loads(done.stdout.strip().splitlines()[-1])
        content["environment"] = measured.pop("environment")
        content["modes"][mode] = measured
        print(mode)
        for name, (q1, median, q3) in measured["us_per_product"].items():
            print(f"  {name:<24} {median:7.2f} us per product ({q1:.2f} to {q3:.2f})")
        for name, reason in measured["failed"].items():
            print(f"  {name:<24} FAILED: {reason[:160]}")
        write(args.out, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
