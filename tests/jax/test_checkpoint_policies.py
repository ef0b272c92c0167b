"""Checkpoint policies keep our products exactly where JAX's keep `lax.dot_general`'s."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jax_clc import checkpoint_policies
from jax_clc.matmul import matmul


def products(call, name, policy, a, b) -> int:
    """Products in a gradient: a kept one is not computed again."""

    def loss(a, b):
        return jnp.sin(call(jnp.sin(call(a, b)), jnp.swapaxes(b, -1, -2))).astype(jnp.float32).sum()

    jaxpr = str(jax.make_jaxpr(jax.grad(jax.checkpoint(loss, policy=policy), (0, 1)))(a, b))
    return jaxpr.count(name)


KEEPING = ["dots_saveable", "dots_with_no_batch_dims_saveable"]


@pytest.mark.parametrize("name", [*KEEPING, "checkpoint_dots", "checkpoint_dots_with_no_batch_dims"])
@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 8)])
def test_policy_keeps_what_jaxs_policy_keeps(name, shape) -> None:
    a = jnp.ones(shape, jnp.bfloat16)
    ours = products(matmul, "= gemm[", getattr(checkpoint_policies, name), a, a)
    theirs = products(jnp.matmul, "= dot_general[", getattr(jax.checkpoint_policies, name), a, a)
    nothing = products(matmul, "= gemm[", None, a, a)
    assert ours == theirs
    kept = not name.endswith(("no_batch_dims", "no_batch_dims_saveable")) or len(shape) == 2
    assert (ours < nothing) == kept


@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 8)])
def test_results_go_to_the_host_where_jaxs_policy_sends_them(shape) -> None:
    a = jnp.ones(shape, jnp.bfloat16)
    policies = (
        module.offload_dot_with_no_batch_dims("device", "pinned_host")
        for module in (checkpoint_policies, jax.checkpoint_policies)
    )

    def moved(call, policy) -> int:
        loss = jax.checkpoint(lambda a: jnp.sin(call(a, a)).astype(jnp.float32).sum(), policy=policy)
        return str(jax.make_jaxpr(jax.grad(loss))(a)).count("device_put[")

    ours, theirs = (moved(call, policy) for call, policy in zip((matmul, jnp.matmul), policies, strict=True))
    assert ours == theirs
    assert bool(ours) == (len(shape) == 2)
