"""Matrix products for JAX on persistent GEMM kernels: static, dynamic and Cluster Launch Control schedules."""

__version__ = "0.1.0"
