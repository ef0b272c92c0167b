"""Matrix products for JAX on persistent GEMM kernels: static, dynamic and Cluster Launch Control schedules."""

import contextlib

from jax_clc import native
from jax_clc.emulation import emulated
from jax_clc.matmul import dot_general, einsum, matmul, plan
from jax_clc.planning import kernels

__version__ = "0.1.0"
__all__ = ["dot_general", "einsum", "emulated", "kernels", "matmul", "plan"]

# So that a program lowered or exported elsewhere finds its kernels. What is missing, the call that needs it reports.
with contextlib.suppress(native.NativeError):
    native.register()
