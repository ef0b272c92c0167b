"""`jax.checkpoint` policies that know our products as dot products: JAX's own ones see only `lax.dot_general`.

    import jax_clc.checkpoint_policies
    jax.checkpoint(block, policy=jax_clc.checkpoint_policies.dots_saveable)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jax_clc.gemm_primitive import PRODUCTS

Policy = Callable[..., Any]


def dots_saveable(primitive: Any, *avals: Any, **parameters: Any) -> bool:
    """`jax.checkpoint_policies.dots_saveable`, for our products too: results of products are kept."""
    return primitive in PRODUCTS or bool(jax.checkpoint_policies.dots_saveable(primitive, *avals, **parameters))


def dots_with_no_batch_dims_saveable(primitive: Any, *avals: Any, **parameters: Any) -> bool:
    """`jax.checkpoint_policies.dots_with_no_batch_dims_saveable`, for our products too: those without a batch axis."""
    if primitive in PRODUCTS:
        return not parameters["contraction"].batch
    return bool(jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *avals, **parameters))


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """`jax.checkpoint_policies.offload_dot_with_no_batch_dims`, for our products too: what the policy above keeps goes
    from the memory of one kind to that of another, `"device"` to `"pinned_host"` for example, and back."""
    policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims(offload_src, offload_dst)

    def offloads(primitive: Any, *avals: Any, **parameters: Any) -> Any:
        if primitive in PRODUCTS:
            # The same answer as for a product of `lax` with these axes.
            numbers = parameters["contraction"].dimension_numbers()
            return policy(jax.lax.dot_general_p, *avals, dimension_numbers=numbers)
        return policy(primitive, *avals, **parameters)

    return offloads


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable
