"""What the cost model assumes of a family beyond a device's rates. Fitted values are data: tuned/cost_FAMILY.json."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_clc.planning.catalog import Kernel

MMA_EFFICIENCY_BY_TILE_ELEMENTS = ((32768, 1.0), (24576, 0.98), (16384, 0.93), (8192, 0.78), (0, 0.55))
"""(elements of a CTA tile at least, share of the sustained tensor-core rate), for tiles without a measurement."""
ONE_SM_MMA_EFFICIENCY = 0.95
"""On Blackwell, of an MMA on one SM against one on a pair: JAX's Blackwell matmul page gives 56% and 59% of peak."""


@dataclasses.dataclass(frozen=True)
class CostParameters:
    """Times in microseconds, for one launch or one tile."""

    launch_us: float = 4.0
    """Start of a grid: launch, first loads until the first MMA, last store."""
    stage_us: float = 0.008
    """Initialising the barriers of one stage, before the first load: on an H200, 64x64 with 12 stages against 4."""
    memset_us: float = 1.5
    """A memory clear in front of the launch."""
    epilogue_fixed_us: float = 0.5
    """What an epilogue costs before its first store."""
    sm_store_bytes_per_us: float = 90_000.0
    """One SM's epilogue: registers through shared memory to L2."""
    cta_start_us: float = 1.6
    """What each CTA of a nonpersistent grid pays: barriers, descriptors, first loads, none of it overlapped."""
    request_us: float = 1.0
    """A run-time claim of the next tile; hidden unless the tile in hand is shorter."""
    schedule_us_per_tile: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"dynamic": 0.05, "clc": 0.05}
    )
    split_k_us: float = 0.3
    """What a kernel that can split k costs where it does not."""
    split_k_sync_us: float = 2.0
    stream_k_us: float = 2.0
    """What it takes longer to share tiles out by k tiles, where that happens: two meetings of each worker."""
    cluster_k_us: float = 1.0
    """Sums of the parts of k that a cluster's CTAs computed, through distributed shared memory."""
    element_copy_share_of_l2: float = 0.35
    """What a kernel that loads element by element reaches of the copy engine's rate from L2."""
    element_store_us: float = 0.4
    """What storing a tile element by element costs beyond a store by the copy engine."""
    memory_efficiency: float = 1.0
    """Share of the device's memory bandwidth that a kernel's loads reach."""
    l2_efficiency: float = 1.0
    """The same for loads from L2."""
    l2_share_for_reuse: float = 0.6
    """Share of L2 that panels can count on: the rest passes through."""
    unhidden_share: float = 0.0
    """Of the shorter of mainloop and memory time, what the longer does not hide."""
    tile_efficiency: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """tile_class -> measured share of the sustained tensor-core rate."""

    def mma_efficiency(self, kernel: Kernel) -> float:
        """Share of the sustained tensor-core rate that the kernel's mainloop reaches when its loads keep up."""
        measured = self.tile_efficiency.get(tile_class(kernel))
        if measured is not None:
            return measured
        elements = kernel.cta_tile[0] * kernel.cta_tile[1]
        share = next(share for least, share in MMA_EFFICIENCY_BY_TILE_ELEMENTS if elements >= least)
        return share * (ONE_SM_MMA_EFFICIENCY if kernel.family == "sm_100f" and not kernel.two_sm_mma else 1.0)


def tile_class(kernel: Kernel) -> str:
    """What kernels of one mainloop rate have in common: `128x256 c2x1`, `128x160 c2x1 pingpong`."""
    cluster = kernel.cluster if kernel.cluster_k == 1 else (*kernel.cluster, kernel.cluster_k)
    facts = [f"{kernel.cta_tile[0]}x{kernel.cta_tile[1]}", "c" + "x".join(map(str, cluster))]
    facts += [word for word, holds in (("pingpong", kernel.pingpong), ("2sm", kernel.two_sm_mma)) if holds]
    return " ".join(facts)


@functools.lru_cache(maxsize=8)
def parameters(family: str) -> CostParameters:
    """The family's parameters: those of its data file, the defaults for the rest."""
    path = Path(__file__).resolve().parent / "tuned" / f"cost_{family}.json"
    if not path.exists():
        return CostParameters()
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return CostParameters(**content["parameters"])
