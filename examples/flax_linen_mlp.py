"""A Flax Linen classifier whose layers multiply with jax_clc: one argument, `dot_general=`, and nothing else changes.

python examples/flax_linen_mlp.py --steps 100
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jax_clc


class Classifier(nn.Module):
    width: int
    classes: int
    dot_general: object

    @nn.compact
    def __call__(self, x):
        dense = lambda features: nn.Dense(features, dtype=jnp.bfloat16, dot_general=self.dot_general)  # noqa: E731
        x = nn.gelu(dense(self.width)(x))
        x = nn.gelu(dense(self.width)(x))
        return dense(self.classes)(x).astype(jnp.float32)


def train(dot_general, steps: int, width: int, batch: int) -> list[float]:
    """Losses of learning which of eight fixed directions an input lies nearest to."""
    directions = jax.random.normal(jax.random.key(0), (8, 64))
    model, optimizer = Classifier(width, 8, dot_general), optax.adamw(1e-3)
    variables = model.init(jax.random.key(1), jnp.zeros((1, 64)))
    state = optimizer.init(variables)

    @jax.jit
    def step(variables, state, key):
        x = jax.random.normal(key, (batch, 64))
        labels = jnp.argmax(x @ directions.T, axis=-1)

        def loss(variables):
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(variables, x), labels).mean()

        value, gradient = jax.value_and_grad(loss)(variables)
        updates, state = optimizer.update(gradient, state, variables)
        return optax.apply_updates(variables, updates), state, value

    losses = []
    for key in jax.random.split(jax.random.key(2), steps):
        variables, state, value = step(variables, state, key)
        losses.append(float(value))
    return losses


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
