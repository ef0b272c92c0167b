"""A Flax NNX regression network whose layers multiply with jax_clc.

python examples/flax_nnx_mlp.py --steps 100
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jax_clc


class Network(nnx.Module):
    def __init__(self, width: int, dot_general, rngs: nnx.Rngs):
        settings = dict(dtype=jnp.bfloat16, dot_general=dot_general, rngs=rngs)
        self.first = nnx.Linear(64, width, **settings)
        self.second = nnx.Linear(width, width, **settings)
        self.last = nnx.Linear(width, 16, **settings)

    def __call__(self, x):
        x = nnx.gelu(self.first(x))
        x = x + nnx.gelu(self.second(x))
        return self.last(x).astype(jnp.float32)


def train(dot_general, steps: int, width: int, batch: int) -> list[float]:
    """Losses of learning a fixed random map through a sine."""
    target = jax.random.normal(jax.random.key(0), (64, 16)) / 8
    model = Network(width, dot_general, nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, key):
        x = jax.random.normal(key, (batch, 64))

        def loss(model):
            return jnp.mean((model(x) - jnp.sin(x @ target)) ** 2)

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    return [float(step(model, optimizer, key)) for key in jax.random.split(jax.random.key(2), steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    ours, theirs = (
        train(d, options.steps, options.width, options.batch) for d in (jax_clc.dot_general, jax.lax.dot_general)
    )
    print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f} with jax_clc, {theirs[0]:.4f} -> {theirs[-1]:.4f} with lax")
    if abs(ours[-1] - theirs[-1]) > 0.02 * theirs[-1]:
        raise SystemExit("the two losses differ by more than 2%")


if __name__ == "__main__":
    main()
