"""The few numbers of a device that choosing a kernel needs, and the reference device of each family."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from jax_clc.planning.catalog import FAMILIES, family_of


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """A device as the cost model sees it. Rates are sustained ones, for the whole device."""

    name: str
    family: str
    sm_count: int
    tensor_tflops: float
    """Dense 16-bit tensor-core rate under sustained load, not the datasheet's boost figure."""
    memory_tb_per_s: float
    l2_tb_per_s: float
    """What all SMs together load through the copy engine from L2."""
    l2_mb: float
    measured: bool
    """Whether the rates come from measurements of ours; otherwise from public figures."""

    @property
    def tflops_per_sm(self) -> float:
        return self.tensor_tflops / self.sm_count

    def resident_clusters(self, cluster_size: int, ctas_per_sm: int) -> int:
        """Clusters resident at once. SMs come in pairs; above that, a processing cluster's last SMs stay idle."""
        slots = self.sm_count * ctas_per_sm
        if cluster_size <= 2:
            return max(1, slots // cluster_size)
        stranded = 1.0 - 0.03 * math.log2(cluster_size / 2)
        return max(1, int(slots * stranded) // cluster_size)

    def with_sm_count(self, sm_count: int) -> DeviceModel:
        """The same kind of device with another number of SMs: its tensor cores and L2 ports scale, memory does not."""
        scale = sm_count / self.sm_count
        return dataclasses.replace(
            self,
            sm_count=sm_count,
            tensor_tflops=self.tensor_tflops * scale,
            l2_tb_per_s=self.l2_tb_per_s * scale,
        )


H200 = DeviceModel(
    name="NVIDIA H200", family="sm_90a", sm_count=132, tensor_tflops=815.0, memory_tb_per_s=4.3, l2_tb_per_s=11.0,
    l2_mb=50.0, measured=True,
)  # fmt: skip
H100 = dataclasses.replace(H200, name="NVIDIA H100 SXM", memory_tb_per_s=3.0, measured=False)
B200 = DeviceModel(
    name="NVIDIA B200", family="sm_100f", sm_count=148, tensor_tflops=1700.0, memory_tb_per_s=7.0, l2_tb_per_s=20.0,
    l2_mb=126.0, measured=False,
)  # fmt: skip
B300 = dataclasses.replace(B200, name="NVIDIA B300")

REFERENCE_DEVICES: Mapping[str, DeviceModel] = {"sm_90a": H200, "sm_100f": B200}
KNOWN_DEVICES: tuple[DeviceModel, ...] = (H200, H100, B200, B300)


def reference_devices(families: tuple[str, ...] | None = None) -> tuple[DeviceModel, ...]:
    """One device for each family (all by default): a plan for them runs on any device of these families."""
    return tuple(REFERENCE_DEVICES[family] for family in (families or tuple(FAMILIES)))


def device_model(arch: str, sm_count: int | None = None, name: str | None = None) -> DeviceModel:
    """The model of a device at hand, from its architecture or compute capability, SM count and name.

    Raises ValueError, in words, for an architecture that no kernel is built for, and for a device without SMs.
    """
    family = family_of(arch)
    if sm_count is not None and sm_count < 1:
        raise ValueError(f"sm_count={sm_count}: a device has at least 1 SM")
    model = next((m for m in KNOWN_DEVICES if m.family == family and m.name == name), REFERENCE_DEVICES[family])
    if sm_count is not None and sm_count != model.sm_count:
        model = model.with_sm_count(sm_count)
    return model if name is None else dataclasses.replace(model, name=name)
