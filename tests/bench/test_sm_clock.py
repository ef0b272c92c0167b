"""The clock that benchmarks record, with NVML played by an object."""

import time
import types

from benchmarks import sm_clock


class Error(Exception):
    pass


def nvml(clocks, **more):
    """A module that gives one clock after the other, the last one for ever."""
    left = list(clocks)
    return types.SimpleNamespace(
        NVMLError=Error,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: ("index", index),
        nvmlDeviceGetHandleByUUID=lambda uuid: ("uuid", uuid),
        nvmlDeviceGetClockInfo=lambda gpu, kind: left.pop(0) if len(left) > 1 else left[0],
        **more,
    )


def sampled(count):
    with sm_clock.SmClock() as clock:
        deadline = time.monotonic() + 20
        while len(clock.samples) < count and time.monotonic() < deadline:
            time.sleep(0.005)
    return clock


def test_quartiles(monkeypatch):
    monkeypatch.setattr(sm_clock, "pynvml", nvml([1500, 1600, 1700, 1800, 1900]))
    clock = sampled(5)
    clock.samples = clock.samples[:5]
    assert clock.quartiles_mhz() == [1600, 1700, 1800]
    assert not clock._thread.is_alive()
    clock.begin()
    assert clock.quartiles_mhz() is None


def test_without_nvml(monkeypatch):
    monkeypatch.setattr(sm_clock, "pynvml", None)
    with sm_clock.SmClock() as clock:
        pass
    assert clock.quartiles_mhz() is None


def test_an_error_ends_the_sampling_alone(monkeypatch):
    def refuses():
        raise Error("no driver")

    fake = nvml([1500])
    fake.nvmlInit = refuses
    monkeypatch.setattr(sm_clock, "pynvml", fake)
    with sm_clock.SmClock() as clock:
        clock._thread.join(timeout=20)
    assert clock.quartiles_mhz() is None


def test_the_visible_gpu(monkeypatch):
    monkeypatch.setattr(sm_clock, "pynvml", nvml([1500]))
    for visible, gpu in (("", ("index", 0)), ("3,1", ("index", 3)), ("GPU-12ab", ("uuid", "GPU-12ab"))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert sm_clock.first_visible() == gpu
