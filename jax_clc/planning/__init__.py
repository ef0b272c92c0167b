"""Which kernel serves which problem, and why. Imports neither JAX nor the extension."""

from jax_clc.planning.catalog import CatalogError, Kernel, kernels
from jax_clc.planning.device_model import DeviceModel, reference_devices
from jax_clc.planning.planner import plan
from jax_clc.planning.problem import GemmProblem
from jax_clc.planning.report import GemmPlan, KernelChoice

__all__ = [
    "CatalogError",
    "DeviceModel",
    "GemmPlan",
    "GemmProblem",
    "Kernel",
    "KernelChoice",
    "kernels",
    "plan",
    "reference_devices",
]
