"""`jax.checkpoint` policies that know our products as dot products: JAX's own ones see only `lax.dot_general`.

    import jax_clc.checkpoint_policies
    jax.checkpoint(block, policy=jax_clc.checkpoint_policies.dots_saveable)
"""

from __future__ import annotations

from typing import Any

import jax

from jax_clc.gemm_primitive import gemm_p


def dots_saveable(primitive: Any, *avals: Any, **parameters: Any) -> bool:
    """`jax.checkpoint_policies.dots_saveable`, for our products too: results of products are kept."""
    return primitive is gemm_p or bool(jax.checkpoint_policies.dots_saveable(primitive, *avals, **parameters))


def dots_with_no_batch_dims_saveable(primitive: Any, *avals: Any, **parameters: Any) -> bool:
    """`jax.checkpoint_policies.dots_with_no_batch_dims_saveable`, for our products too: those without a batch axis."""
    if primitive is gemm_p:
        return not parameters["contraction"].batch
    return bool(jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *avals, **parameters))
