"""Predicted time of a kernel on a problem: waves of tiles, mainloop rate, L2 and memory traffic by raster.

The model exists to rank kernels, not to foretell clocks: rates are sustained ones (DeviceModel), and what they do not
say is a handful of parameters for each family (cost_parameters.py).
"""

from __future__ import annotations

import dataclasses
import math

from jax_clc.planning.catalog import Kernel
from jax_clc.planning.cost_parameters import CostParameters, parameters
from jax_clc.planning.device_model import DeviceModel
from jax_clc.planning.problem import GemmProblem, dtype_bytes

RASTER_GROUPS = (8, 4, 16, 2, 1)
"""Group sizes tried, in cluster tiles; the earlier wins a tie."""
GROUP_EXTENT = {"sm_90a": 2048}
"""Rows or columns of a group that measured best, by family: on four H200s over 44 large problems, whatever the kernel,
groups of about so many columns for kernels that share out their last round, of so many rows for the others, were 0.2%
from the best raster on average, and the one with the least traffic 0.6%. A family that was not measured is not here."""
MEETING_AT_THE_END_US = 8.0
"""What stream-K pays where all tiles are cut, so that no whole tile hides the last meeting: the pauses of a part that
is left and of one that is added, eight of 500 ns each (docs/design.md, 7.8). Not measured."""
MOST_TRAFFIC = 1.5
"""So many times the least traffic is still taken for that."""


@dataclasses.dataclass(frozen=True)
class KernelSizes:
    """A problem in a kernel's own terms: operands exchanged where the kernel computes D transposed."""

    batch: int
    m: int
    n: int
    k: int
    operand_bytes: int
    out_bytes: int

    @classmethod
    def of(cls, problem: GemmProblem, swapped: bool) -> KernelSizes:
        m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
        return cls(problem.batch, m, n, problem.k, dtype_bytes(problem.a_dtype), dtype_bytes(problem.out_dtype))

    def tiles(self, kernel: Kernel) -> tuple[int, int]:
        """Cluster tiles along the kernel's m and n."""
        tile_m, tile_n = kernel.cluster_tile
        return -(-self.m // tile_m), -(-self.n // tile_n)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A prediction and the parts it was made of. Times in microseconds, traffic in bytes of device memory."""

    total_us: float
    tile_us: float
    """One cluster tile on one worker, its share of K."""
    mainloop_us: float
    memory_us: float
    memory_bytes: int
    work_items: int
    resident_clusters: int
    raster_group: int
    raster_along: int

    @property
    def waves(self) -> float:
        """Work items for each resident cluster; a fraction is a last wave that leaves clusters idle."""
        return self.work_items / self.resident_clusters

    @property
    def bound(self) -> str:
        return "memory" if self.memory_us > self.mainloop_us else "tensor cores"


def resident_clusters(kernel: Kernel, device: DeviceModel, sm_limit: int) -> int:
    """Clusters that work at once, with `sm_limit` SMs at most (0: no limit)."""
    resident = device.resident_clusters(kernel.cluster_size, kernel.ctas_per_sm)
    if sm_limit and kernel.launch_grid == "workers":
        resident = min(resident, max(1, sm_limit * kernel.ctas_per_sm // kernel.cluster_size))
    return resident


def k_step_us(kernel: Kernel, sizes: KernelSizes, device: DeviceModel, costs: CostParameters) -> float:
    """One K block of one CTA: the longer of its matrix instructions and its loads from L2, multicast counted once."""
    tile_m, tile_n, tile_k = kernel.cta_tile
    cluster_m, cluster_n = kernel.cluster
    tflops = device.tflops_per_sm * costs.mma_efficiency(kernel) * 2 / sizes.operand_bytes
    mma_us = 2 * tile_m * tile_n * tile_k / (tflops * 1e6)
    loaded = tile_k * sizes.operand_bytes * (tile_m / cluster_n + tile_n / cluster_m)
    share = costs.l2_efficiency
    if not {"a", "b"} <= kernel.aligned_operands:
        share *= costs.element_copy_share_of_l2
    load_us = loaded / (share * device.l2_tb_per_s / device.sm_count * 1e6)
    return max(mma_us, load_us)


def memory_bytes(kernel: Kernel, sizes: KernelSizes, device: DeviceModel, resident: int, group: int, along: int) -> int:
    """Device-memory traffic of the operands under a raster, plus the result written once.

    `along` 0 walks along m inside groups of `group` columns of tiles; 1 walks along n inside groups of rows. The
    grouped operand's panels stay in L2 while the walk passes, if they fit; the walked operand is read once a group.
    """
    tile_m, tile_n = kernel.cluster_tile
    tiles_m, tiles_n = sizes.tiles(kernel)
    a_bytes, b_bytes = sizes.m * sizes.k * sizes.operand_bytes, sizes.n * sizes.k * sizes.operand_bytes
    reusable = parameters(kernel.family).l2_share_for_reuse * device.l2_mb * 1e6
    if along == 0:
        grouped, walked, tiles_grouped, tiles_walked, tile = b_bytes, a_bytes, tiles_n, tiles_m, tile_n
    else:
        grouped, walked, tiles_grouped, tiles_walked, tile = a_bytes, b_bytes, tiles_m, tiles_n, tile_m
    group = max(1, min(group, tiles_grouped))
    wave_walked = max(1, min(tiles_walked, resident // group))
    if group * tile * sizes.k * sizes.operand_bytes <= reusable:
        grouped_reads = 1
    else:
        grouped_reads = -(-tiles_walked // wave_walked)
    walked_reads = 1 if walked <= reusable else -(-tiles_grouped // group)
    operands = grouped * grouped_reads + walked * walked_reads
    return sizes.batch * (operands + sizes.m * sizes.n * sizes.out_bytes)


def best_raster(
    kernel: Kernel, sizes: KernelSizes, device: DeviceModel, resident: int, hidden_bytes: float
) -> tuple[int, int, int]:
    """(bytes, group, along) of the raster that moves the least through device memory, or of the one that measured best
    (GROUP_EXTENT) if it moves no more than `hidden_bytes`, which the tensor cores' time hides."""
    rasters = [
        (memory_bytes(kernel, sizes, device, resident, group, along), group, along)
        for group in RASTER_GROUPS
        for along in (0, 1)
    ]
    least = min(rasters, key=lambda raster: raster[0])
    extent = GROUP_EXTENT.get(kernel.family)
    if extent is None or kernel.launch_grid != "workers":
        return least
    along = 0 if kernel.stream_k else 1
    tile = kernel.cluster_tile[1 - along]
    same_way = [raster for raster in rasters if raster[2] == along]
    measured = min(same_way, key=lambda raster: abs(math.log2(raster[1] * tile / extent)))
    return measured if measured[0] <= min(hidden_bytes, MOST_TRAFFIC * least[0]) else least


def estimate(
    kernel: Kernel,
    problem: GemmProblem,
    device: DeviceModel,
    *,
    split_k: int = 1,
    sm_limit: int = 0,
    raster: tuple[int, int] | None = None,
    costs: CostParameters | None = None,
) -> Estimate:
    """Predicted device time of one call on an idle device, memory clears included.

    `raster` is (group, along), by default `best_raster`; `costs` those of the kernel's family.
    """
    costs = costs or parameters(kernel.family)
    sizes = KernelSizes.of(problem, kernel.swapped)
    tile_m, tile_n, tile_k = kernel.cta_tile
    tiles_m, tiles_n = sizes.tiles(kernel)
    work_items = sizes.batch * tiles_m * tiles_n * split_k
    resident = resident_clusters(kernel, device, sm_limit)
    k_steps = max(1, -(-sizes.k // (tile_k * split_k * kernel.cluster_k)))
    # CTAs that an SM holds share its tensor cores and its way to L2; few of them get an SM each.
    ctas = min(kernel.ctas_per_sm, -(-work_items * kernel.cluster_size // device.sm_count))
    tile_us = k_steps * k_step_us(kernel, sizes, device, costs) * max(1, ctas)
    epilogue_us = costs.epilogue_fixed_us + tile_m * tile_n * sizes.out_bytes / costs.sm_store_bytes_per_us
    if kernel.cluster_k > 1:
        epilogue_us += costs.cluster_k_us
    if "d" not in kernel.aligned_operands:
        store_us = costs.element_store_us
        if kernel.pingpong:
            # One tile is stored while the other is computed, which may be the shorter of the two; the last one is not.
            tile_us = max(tile_us, (tile_us + store_us) / 2)
            epilogue_us += store_us
        else:
            tile_us += store_us
    tile_us += costs.schedule_us_per_tile.get(kernel.schedule, 0.0)
    first_us = tile_us  # of a cluster's first tile: its start is the grid's
    if kernel.schedule == "nonpersistent":
        tile_us += epilogue_us + costs.cta_start_us
    elif kernel.family == "sm_90a" and not kernel.pingpong:
        # Both consumer warpgroups stage their accumulators before the next tile starts; only the store overlaps.
        tile_us += costs.epilogue_fixed_us
    if kernel.schedule in ("dynamic", "clc"):
        tile_us = max(tile_us, costs.request_us)
    waves: float = -(-work_items // resident)
    shares = kernel.stream_k and resident < work_items < waves * resident
    if shares:
        waves = work_items / resident
    if kernel.schedule == "nonpersistent":
        mainloop_us = first_us + (waves - 1) * tile_us + epilogue_us
    else:
        mainloop_us = waves * tile_us + epilogue_us
    bytes_per_us = costs.memory_efficiency * device.memory_tb_per_s * 1e6
    if raster is None:
        traffic, group, along = best_raster(kernel, sizes, device, resident, mainloop_us * bytes_per_us)
    else:
        group, along = raster
        traffic = memory_bytes(kernel, sizes, device, resident, group, along)
    memory_us = traffic / bytes_per_us
    longer, shorter = max(mainloop_us, memory_us), min(mainloop_us, memory_us)
    total_us = costs.launch_us + costs.stage_us * kernel.stages + longer + costs.unhidden_share * shorter
    if kernel.zeroed_bytes:
        total_us += costs.memset_us
    if shares:
        total_us += costs.stream_k_us
        if cuts_every_tile(work_items, resident, k_steps):
            total_us += MEETING_AT_THE_END_US
    if kernel.split_k:
        total_us += costs.split_k_us
    if split_k > 1:
        # Every split's float32 partials are written and read once more, mostly in L2.
        partial_bytes = 2 * split_k * sizes.batch * sizes.m * sizes.n * kernel.partial_bytes_per_element
        total_us += costs.split_k_sync_us + partial_bytes / (device.l2_tb_per_s / 2 * 1e6)
    return Estimate(total_us, tile_us, mainloop_us, memory_us, traffic, work_items, resident, group, along)


def cuts_every_tile(tiles: int, workers: int, k_steps: int) -> bool:
    """Whether stream-K leaves no tile whole: `shared_tiles` of kernels/shares.py, which is not installed."""
    return workers < tiles < 2 * workers and (3 * (tiles - workers) < workers or k_steps < 48)


def parts_us(problem: GemmProblem, parts: int, device: DeviceModel, costs: CostParameters | None = None) -> float:
    """Adding up the results of `parts` parts of k, as a kernel of its own, mostly from L2."""
    if parts == 1:
        return 0.0
    nbytes = problem.m * problem.n * (parts * dtype_bytes(problem.accumulator_dtype) + dtype_bytes(problem.out_dtype))
    return (costs or parameters(device.family)).launch_us + nbytes / (device.l2_tb_per_s / 2 * 1e6)


def copy_us(nbytes: int, device: DeviceModel) -> float:
    """A copy that reads and writes `nbytes`, as its own kernel: what padding an operand costs."""
    return parameters(device.family).launch_us + 2 * nbytes / (device.memory_tb_per_s * 1e6)
