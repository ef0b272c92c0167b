"""The SM clock while something is measured: GPUs of one kind differ in what they hold under the power limit."""

from __future__ import annotations

import os
import statistics
import threading

try:
    import pynvml  # nvidia-ml-py
except ImportError:
    pynvml = None

PERIOD_S = 0.02


class SmClock:
    """Context manager that samples the clock of the process' first visible GPU every 20 ms.

    The clock is NVML's, the one that is set. Under tensor load cycles take longer than it says: see
    docs/notes/hopper_kernels.md.
    """

    def __init__(self) -> None:
        self.samples: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> SmClock:
        if pynvml is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self) -> None:
        """Forgets what was sampled so far: from here on it counts."""
        self.samples.clear()

    def quartiles_mhz(self) -> list[int] | None:
        """First quartile, median and third; None where NVML is not there or time was too short."""
        if len(self.samples) < 2:
            return None
        return [round(value) for value in statistics.quantiles(self.samples, n=4, method="inclusive")]

    def _sample(self) -> None:
        try:
            pynvml.nvmlInit()
            gpu = first_visible()
            while not self._end.wait(PERIOD_S):
                self.samples.append(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))
        except pynvml.NVMLError:
            return


def first_visible():
    """NVML's handle of the GPU that CUDA counts as 0, where all are of one kind, so that both count them alike."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    if first.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(first))
    return pynvml.nvmlDeviceGetHandleByUUID(first)
