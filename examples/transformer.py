"""A decoder-only transformer that learns to predict the source text of Python's standard library, byte by byte.

It is trained twice from the same start on the same batches: every product by jax_clc, then every product by lax. The
two loss curves must agree; --plot draws both.

    python examples/transformer.py --steps 200 --width 512 --layers 6 --context 512 --batch 16 --plot losses.png
"""

import argparse
import json
import pathlib
import sys
import sysconfig
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jax_clc

MODULES = ("argparse.py", "ast.py", "datetime.py", "difflib.py", "doctest.py", "inspect.py", "pathlib.py", "pickle.py",
           "statistics.py", "subprocess.py", "tarfile.py", "textwrap.py", "threading.py", "typing.py")  # fmt: skip
HEADS = 4


def text() -> np.ndarray:
    """The bytes of a few modules of the running Python."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    found = [folder / name for name in MODULES if (folder / name).is_file()]
    return np.frombuffer(b"".join(path.read_bytes() for path in found), np.uint8)


def initial_weights(width: int, layers: int, context: int) -> dict:
    keys = iter(jax.random.split(jax.random.key(0), 3 + 6 * layers))

    def matrix(*shape, scale):
        return jax.random.normal(next(keys), shape) * scale

    head = width // HEADS
    block = lambda: {  # noqa: E731
        "query_key_value": [matrix(width, HEADS, head, scale=width**-0.5) for _ in range(3)],
        "out": matrix(HEADS, head, width, scale=width**-0.5 / (2 * layers) ** 0.5),
        "up": matrix(width, 4 * width, scale=width**-0.5),
        "down": matrix(4 * width, width, scale=(4 * width) ** -0.5 / (2 * layers) ** 0.5),
    }
    return {"bytes": matrix(256, width, scale=0.02), "places": matrix(context, width, scale=0.02),
            "blocks": [block() for _ in range(layers)], "logits": matrix(width, 256, scale=width**-0.5)}  # fmt: skip


def normalised(x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(jnp.bfloat16)


def logits(einsum, weights: dict, tokens: jax.Array) -> jax.Array:
    """Predictions of the next byte, (batch, context, 256). Weights are used in bfloat16; sums are in float32."""
    weights = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
    length = tokens.shape[1]
    x = weights["bytes"][tokens] + weights["places"][:length]
    visible = jnp.tril(jnp.ones((length, length), bool))
    for block in weights["blocks"]:
        query, key, value = (einsum("bsd,dhe->bhse", normalised(x), w) for w in block["query_key_value"])
        scores = einsum("bhqe,bhke->bhqk", query, key).astype(jnp.float32) * query.shape[-1] ** -0.5
        mixed = jax.nn.softmax(jnp.where(visible, scores, -1e30)).astype(jnp.bfloat16)
        x = x + einsum("bhse,hed->bsd", einsum("bhqk,bhke->bhqe", mixed, value), block["out"])
        x = x + einsum("bsf,fd->bsd", jax.nn.gelu(einsum("bsd,df->bsf", normalised(x), block["up"])), block["down"])
    return einsum("bsd,dv->bsv", normalised(x), weights["logits"]).astype(jnp.float32)


def train(einsum, options: argparse.Namespace) -> list[float]:
    data, chooser = text(), np.random.default_rng(0)
    weights = initial_weights(options.width, options.layers, options.context)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(
        0.0, 3e-3 * (128 / options.width) ** 0.5, max(1, options.steps // 10), max(2, options.steps))))  # fmt: skip

    @jax.jit
    def step(weights, state, tokens):
        def loss(weights):
            found = logits(einsum, weights, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(found, tokens[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state, value

    state, losses, start = optimizer.init(weights), [], time.perf_counter()
    for number in range(options.steps):
        begins = chooser.integers(0, len(data) - options.context - 1, options.batch)
        tokens = np.stack([data[i : i + options.context + 1] for i in begins]).astype(np.int32)
        weights, state, value = step(weights, state, tokens)
        losses.append(value)
        if number % 20 == 0:
            print(f"  step {number}: loss {float(value):.3f}, {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return [float(value) for value in losses]


def plot(record: dict, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, losses), style in zip(record["losses"].items(), ("-", "--"), strict=True):
        axes.plot(losses, style, label=f"{name}: {losses[-1]:.3f} at the end")
    axes.set(xlabel="step", ylabel="loss, nats per byte", title=f"Transformer on {record['device']}")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 20), ("width", 64), ("layers", 2), ("context", 64), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", help="write the losses to this file")
    parser.add_argument("--plot", help="draw both curves into this PNG file")
    options = parser.parse_args()
    curves = {}
    for name, einsum in (("jax_clc", jax_clc.einsum), ("lax", jnp.einsum)):
        print(f"training with {name}", file=sys.stderr)
        curves[name] = train(einsum, options)
    ours, theirs = (curves[name][-1] for name in ("jax_clc", "lax"))
    difference = abs(ours - theirs) / theirs
    print(f"{options.steps} steps: loss {ours:.4f} with jax_clc, {theirs:.4f} with lax, {100 * difference:.2f}% apart")
    record = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "options": vars(options),
        "losses": curves,
    }
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(record, indent=1))
    if options.plot:
        plot(record, options.plot)
    if difference > 0.01:
        raise SystemExit("the final losses differ by more than 1%")


if __name__ == "__main__":
    main()
