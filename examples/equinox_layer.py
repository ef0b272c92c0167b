"""An Equinox layer on jax_clc, under `eqx.filter_jit`, `eqx.filter_grad` and a `vmap` over examples.

python examples/equinox_layer.py --steps 100
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp

import jax_clc


class Layer(eqx.Module):
    """A linear layer for one example; `vmap` over a batch folds into the rows of one product."""

    weight: jax.Array
    multiply: object = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, multiply, key):
        self.weight = (jax.random.normal(key, (inputs, outputs)) / inputs**0.5).astype(jnp.bfloat16)
        self.multiply = multiply

    def __call__(self, x):
        return self.multiply(x, self.weight)


def train(multiply, steps: int, width: int, batch: int) -> list[float]:
    """Losses of two layers that learn the absolute value of their inputs."""
    first, last = jax.random.split(jax.random.key(0))
    model = (Layer(32, width, multiply, first), Layer(width, 32, multiply, last))

    @eqx.filter_value_and_grad
    def loss(model, x):
        out = jax.vmap(lambda row: model[1](jax.nn.relu(model[0](row))))(x)
        return jnp.mean((out.astype(jnp.float32) - jnp.abs(x).astype(jnp.float32)) ** 2)

    @eqx.filter_jit
    def step(model, key):
        value, gradient = loss(model, jax.random.normal(key, (batch, 32), jnp.bfloat16))
        return eqx.apply_updates(model, jax.tree.map(lambda g: (-0.5 * g).astype(g.dtype), gradient)), value

    losses = []
    for key in jax.random.split(jax.random.key(1), steps):
        model, value = step(model, key)
        losses.append(float(value))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    ours, theirs = (train(f, options.steps, options.width, options.batch) for f in (jax_clc.matmul, jnp.matmul))
    print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f} with jax_clc, {theirs[0]:.4f} -> {theirs[-1]:.4f} with lax")
    if abs(ours[-1] - theirs[-1]) > 0.02 * theirs[-1]:
        raise SystemExit("the two losses differ by more than 2%")


if __name__ == "__main__":
    main()
