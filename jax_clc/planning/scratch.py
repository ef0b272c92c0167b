"""Scratch bytes of one launch: the dynamic schedule's counter and the partial sums of split-K."""

from __future__ import annotations

from jax_clc.planning.catalog import Kernel


def scratch_bytes(kernel: Kernel, batch: int, m: int, n: int, split_k: int) -> int:
    """Bytes of scratch, with m and n in the kernel's own terms.

    The counters come first. Partials follow, one per element of the result and per split, with m and n rounded up to
    whole cluster tiles: each CTA writes its whole tile, so that no store of a partial needs a bound.
    """
    if split_k <= 1:
        return kernel.counter_bytes
    tile_m, tile_n = kernel.cluster_tile
    elements = batch * (-(-m // tile_m) * tile_m) * (-(-n // tile_n) * tile_n)
    return kernel.counter_bytes + split_k * elements * kernel.partial_bytes_per_element
