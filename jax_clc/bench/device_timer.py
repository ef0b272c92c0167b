"""Device time of a piece of work, from CUPTI's activity records; wall time where there is no CUPTI.

CUPTI notes start and end of every kernel, copy and fill on the device's own clock. A call's device time is the sum of
these between two readings of that clock taken around it on the host, so host time between launches does not count and
everything that the call puts on the device does. The records are read by offset: `kind` at 0, `start` at 16, `end` at
24 are the same in every version of the kernel, memcpy and memset records (cupti_activity.h), and so is a kernel's name.
"""

from __future__ import annotations

import ctypes
import dataclasses
import glob
import os
import site
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from jax_clc.bench.sm_holder import KERNEL_NAME

KIND_MEMCPY, KIND_MEMSET, KIND_KERNEL = 1, 2, 10
KIND_NAMES = {KIND_MEMCPY: "memcpy", KIND_MEMSET: "memset", KIND_KERNEL: "kernel"}
BUFFER_BYTES = 8 << 20
KERNEL_NAME_OFFSET = 104
FLUSH_FORCED = 1
CLOCK_SLACK_NS = 1000
"""How far the host's reading of the device clock may be off. Launching takes longer than that."""


class TimerError(RuntimeError):
    """Device time cannot be measured here; the text says why."""


@dataclasses.dataclass(frozen=True)
class Activity:
    """One thing the device did: `kind` is kernel, memcpy or memset; times in nanoseconds of the device's clock."""

    kind: str
    name: str
    start_ns: int
    end_ns: int


@dataclasses.dataclass(frozen=True)
class Sample:
    """One timed piece of work. `device_us` is the sum of `activities`, or the wall time without a device clock."""

    key: str
    device_us: float
    wall_us: float
    activities: tuple[Activity, ...]


class Session(Protocol):
    """Collects samples; they are complete when the session has ended."""

    samples: list[Sample]

    def sample(self, key: str, work: Callable[[], None]) -> None:
        """Times `work`, which must return only when the device has finished it."""


class Timer(Protocol):
    """A way to time; `name` goes into results."""

    name: str

    def session(self) -> AbstractContextManager[Session]: ...


class WallTimer:
    """Host clock around the work: launch and synchronisation included."""

    name = "wall"

    @contextmanager
    def session(self) -> Iterator[Session]:
        yield _WallSession()


class _WallSession:
    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def sample(self, key: str, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        work()
        wall_us = (time.perf_counter() - start) * 1e6
        self.samples.append(Sample(key, wall_us, wall_us, ()))


class CuptiTimer:
    """CUPTI's activity records. One per process, as CUPTI has one pair of callbacks. TimerError without CUPTI."""

    name = "cupti"

    def __init__(self, ignore: tuple[str, ...] = (KERNEL_NAME,)) -> None:
        """`ignore`: kernels whose name contains one of these texts are not counted (other work on the device)."""
        self._ignore = ignore
        self._library = _load_cupti()
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._full: list[tuple[int, int]] = []
        request = ctypes.CFUNCTYPE(
            None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
        )
        complete = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )
        # Kept: CUPTI calls them as long as the process lives.
        self._callbacks = (request(self._on_request), complete(self._on_complete))
        self._call("cuptiActivityRegisterCallbacks", *self._callbacks)
        # For good: enabling may wait for the device, and a session must be able to begin while other work holds SMs.
        for kind in KIND_NAMES:
            self._call("cuptiActivityEnable", ctypes.c_int(kind))

    def now_ns(self) -> int:
        """The clock that activity records are on."""
        value = ctypes.c_uint64()
        self._call("cuptiGetTimestamp", ctypes.byref(value))
        return value.value

    @contextmanager
    def session(self) -> Iterator[Session]:
        session = _CuptiSession(self)
        yield session
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(FLUSH_FORCED))
        session.attribute(self._take())

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuptiGetResultString(status, ctypes.byref(text))
            raise TimerError(f"{function}: {(text.value or b'?').decode()} (CUPTI status {status})")

    def _on_request(self, buffer, size, max_records) -> None:  # type: ignore[no-untyped-def]
        memory = ctypes.create_string_buffer(BUFFER_BYTES)
        address = ctypes.addressof(memory)
        self._buffers[address] = memory
        buffer[0], size[0], max_records[0] = address, BUFFER_BYTES, 0

    def _on_complete(self, context, stream, buffer, size, valid_size) -> None:  # type: ignore[no-untyped-def]
        self._full.append((buffer, valid_size))

    def _take(self) -> list[Activity]:
        """All records delivered so far, in order of their start."""
        found: list[Activity] = []
        while self._full:
            address, valid = self._full.pop(0)
            record = ctypes.c_void_p(None)
            while valid and not self._library.cuptiActivityGetNextRecord(
                ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
            ):
                activity = read_record(record.value or 0)
                if activity is not None and not any(text in activity.name for text in self._ignore):
                    found.append(activity)
            del self._buffers[address]
        return sorted(found, key=lambda activity: activity.start_ns)


def read_record(address: int) -> Activity | None:
    """The activity record at `address`; None for a kind that does not count or a record without times."""
    kind = ctypes.c_uint32.from_address(address).value
    if kind not in KIND_NAMES:
        return None
    start, end = (ctypes.c_uint64.from_address(address + offset).value for offset in (16, 24))
    if not start or end < start:
        return None
    name = KIND_NAMES[kind]
    if kind == KIND_KERNEL:
        pointer = ctypes.c_void_p.from_address(address + KERNEL_NAME_OFFSET).value
        name = ctypes.string_at(pointer).decode(errors="replace") if pointer else "?"
    return Activity(KIND_NAMES[kind], name, start, end)


class _CuptiSession:
    def __init__(self, timer: CuptiTimer) -> None:
        self._timer = timer
        self._marks: list[tuple[str, int, int]] = []
        self.samples: list[Sample] = []

    def sample(self, key: str, work: Callable[[], None]) -> None:
        start = self._timer.now_ns()
        work()
        self._marks.append((key, start, self._timer.now_ns()))

    def attribute(self, activities: list[Activity]) -> None:
        """Gives each activity to the sample in whose interval it started."""
        self.samples = attribute(self._marks, activities)
        empty = sum(not sample.activities for sample in self.samples)
        if empty:
            raise TimerError(f"CUPTI gave no device records for {empty} of {len(self.samples)} samples")


def attribute(marks: list[tuple[str, int, int]], activities: list[Activity]) -> list[Sample]:
    """One sample for each (key, start, end) mark, in nanoseconds. Marks are disjoint; activities sorted by start."""
    samples, position = [], 0
    for key, start, end in marks:
        while position < len(activities) and activities[position].start_ns < start - CLOCK_SLACK_NS:
            position += 1
        first = position
        while position < len(activities) and activities[position].start_ns <= end + CLOCK_SLACK_NS:
            position += 1
        own = tuple(activities[first:position])
        device_us = sum(activity.end_ns - activity.start_ns for activity in own) / 1e3
        samples.append(Sample(key, device_us, (end - start) / 1e3, own))
    return samples


def _load_cupti() -> ctypes.CDLL:
    """libcupti as this process already has it, else from CUDA's Python packages, else from the system."""
    names: list[str] = []
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            names += sorted({line.split()[-1] for line in maps if "libcupti.so" in line})
    except OSError:
        pass
    folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    for folder in dict.fromkeys(folders):
        for pattern in ("nvidia/cu*/lib/libcupti.so.*", "nvidia/cuda_cupti/lib/libcupti.so.*"):
            names += sorted(glob.glob(os.path.join(folder, pattern)), reverse=True)
    names += ["libcupti.so.13", "libcupti.so.12", "libcupti.so"]
    names += sorted(glob.glob("/usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.*"), reverse=True)
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise TimerError("libcupti is not there: install nvidia-cuda-cupti, or time with the wall clock")


_TIMERS: dict[str, Timer] = {}


def timer(kind: str = "auto") -> Timer:
    """The process's timer: `cupti`, `wall`, or `auto` (CUPTI where JAX's default device is a CUDA one)."""
    if kind == "auto":
        import jax

        kind = "cupti" if jax.default_backend() in ("gpu", "cuda") else "wall"
    if kind not in _TIMERS:
        if kind not in ("cupti", "wall"):
            raise ValueError(f"unknown timer {kind!r}; choose from auto, cupti, wall")
        _TIMERS[kind] = CuptiTimer() if kind == "cupti" else WallTimer()
    return _TIMERS[kind]
