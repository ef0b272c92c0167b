"""CUPTI's records: read at the right offsets, and given to the call during which they started."""

import ctypes
import struct

import pytest

from jax_clc.bench import device_timer
from jax_clc.bench.device_timer import Activity, CuptiTimer, TimerError, attribute, read_record

RECORD_BYTES = 200


def record(kind, start, end, name=None):
    """The bytes of an activity record: kind, start, end, and for a kernel the address of its name."""
    content = bytearray(RECORD_BYTES)
    struct.pack_into("<I", content, 0, kind)
    struct.pack_into("<QQ", content, 16, start, end)
    if name is not None:
        struct.pack_into("<Q", content, 104, ctypes.addressof(name))
    return bytes(content)


def test_records_are_read_by_kind():
    name = ctypes.create_string_buffer(b"gemm")
    for content, expected in [
        (record(10, 100, 250, name), Activity("kernel", "gemm", 100, 250)),
        (record(2, 5, 6), Activity("memset", "memset", 5, 6)),
        (record(1, 5, 6), Activity("memcpy", "memcpy", 5, 6)),
        (record(10, 100, 0, name), None),  # not finished
        (record(7, 100, 200), None),  # another kind
    ]:
        buffer = ctypes.create_string_buffer(content, RECORD_BYTES)
        assert read_record(ctypes.addressof(buffer)) == expected


def test_activities_belong_to_the_call_during_which_they_started():
    kernel = lambda start, end: Activity("kernel", "k", start, end)  # noqa: E731
    marks = [("a", 10_000, 20_000), ("b", 30_000, 40_000), ("a", 50_000, 60_000)]
    activities = [
        kernel(1, 2),
        kernel(12_000, 13_000),
        kernel(14_000, 14_500),
        kernel(25_000, 26_000),
        kernel(31_000, 41_000),
    ]
    samples = attribute(marks, activities)
    assert [(s.key, s.device_us, len(s.activities)) for s in samples] == [("a", 1.5, 2), ("b", 10.0, 1), ("a", 0.0, 0)]
    assert samples[0].wall_us == 10.0


class FakeCupti:
    """A library with CUPTI's calling protocol: asks for a buffer, fills it, gives it back on a flush."""

    def __init__(self, records):
        self.records, self.clock, self.enabled = list(records), 0, []

    def cuptiActivityRegisterCallbacks(self, request, complete):  # noqa: N802
        self.request, self.complete = request, complete
        return 0

    def cuptiActivityEnable(self, kind):  # noqa: N802
        self.enabled.append(kind.value)
        return 0

    def cuptiGetTimestamp(self, pointer):  # noqa: N802
        self.clock += 10_000
        pointer._obj.value = self.clock
        return 0

    def cuptiActivityFlushAll(self, flag):  # noqa: N802
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.request(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
        content = b"".join(self.records)
        assert len(content) <= size.value
        ctypes.memmove(buffer.value, content, len(content))
        self.end = buffer.value + len(content)
        self.complete(None, 0, buffer.value, size.value, len(content))
        return 0

    def cuptiActivityGetNextRecord(self, buffer, valid, pointer):  # noqa: N802
        current = pointer._obj.value
        following = buffer.value if current is None else current + RECORD_BYTES
        if following >= self.end:
            return 12
        pointer._obj.value = following
        return 0

    def cuptiGetResultString(self, status, pointer):  # noqa: N802
        pointer._obj.value = b"NOT_NOW"
        return 0


@pytest.fixture
def fake(monkeypatch):
    gemm, other = ctypes.create_string_buffer(b"gemm"), ctypes.create_string_buffer(device_timer.KERNEL_NAME.encode())
    records = [record(10, 12_000, 15_000, gemm), record(10, 13_000, 99_000, other), record(2, 32_000, 32_500)]
    library = FakeCupti(records)
    library.names = gemm, other
    monkeypatch.setattr(device_timer, "_load_cupti", lambda: library)
    return library


def test_a_session_sums_what_each_call_put_on_the_device(fake):
    timer = CuptiTimer()
    assert fake.enabled == [1, 2, 10]
    with timer.session() as session:
        session.sample("first", lambda: None)
        session.sample("second", lambda: None)
    assert [(s.key, s.device_us, s.wall_us) for s in session.samples] == [("first", 3.0, 10.0), ("second", 0.5, 10.0)]


def test_a_call_without_records_is_an_error_not_a_zero(fake):
    fake.records = fake.records[:1]
    timer = CuptiTimer()
    with pytest.raises(TimerError, match="no device records for 1 of 2 samples"), timer.session() as session:
        session.sample("first", lambda: None)
        session.sample("second", lambda: None)


def test_a_refusal_of_cupti_is_named(fake):
    fake.cuptiActivityEnable = lambda kind: 15
    with pytest.raises(TimerError, match=r"cuptiActivityEnable: NOT_NOW \(CUPTI status 15\)"):
        CuptiTimer()
