"""Calls with any attributes and addresses, and the fake CUDA driver they may run on."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from fake_xla import Runtime

STREAM = 0x1_0042  # of device 0, as the fake driver numbers them


class FakeDriver:
    """The fake libcuda: what the test sets in it and reads from it."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fake_log.restype = ctypes.c_char_p
        self.library.fake_reset()

    def log(self, call: str = "") -> list[str]:
        return [line for line in self.library.fake_log().decode().splitlines() if line.startswith(call)]

    def fail(self, call: str, result: int) -> None:
        self.library.fake_fail(call.encode(), result)

    def device(self, major: int = 9, minor: int = 0, count: int = 2, version: int = 12040, clusters: int = 66) -> None:
        self.library.fake_device(major, minor, count, version, clusters)

    def open_devices(self, *ordinals: int) -> None:
        """The devices whose primary context this process has; at first there are none."""
        self.library.fake_open_devices(sum(1 << ordinal for ordinal in ordinals))

    def has_params_of(self, entry: dict[str, Any], gap: int = 48) -> None:
        """The cubin's parameters: those of the manifest, behind a gap, as assemblers were seen to place them."""
        for param in entry["params"]:
            self.library.fake_param(ctypes.c_size_t(gap + param["offset"]), ctypes.c_size_t(param["size"]))


class Gemm:
    """One GEMM call: attributes and buffers, row-major and dense unless changed. Memory is real, contents arbitrary."""

    def __init__(
        self,
        l: int = 1,  # noqa: E741
        m: int = 256,
        n: int = 512,
        k: int = 64,
        *,
        a_major: str = "k",
        b_major: str = "k",
        dtype: str = "bfloat16",
        scratch_bytes: int = 0,
        **attributes: Any,
    ) -> None:
        a_outer, b_outer = (k if a_major == "k" else m), (k if b_major == "k" else n)
        self.attributes: dict[str, Any] = {
            "abi": 1, "l": l, "m": m, "n": n, "k": k, "a_major": a_major, "b_major": b_major,
            "a_strides": [m * k, a_outer], "b_strides": [n * k, b_outer], "d_strides": [m * n, n],
            "kernels": "fake", "swapped": [0], "raster_group": [8], "raster_along": [0], "split_k": [1], "sm_limit": 0,
        }  # fmt: skip
        self.attributes.update(attributes)
        self.shapes = {"a": (l, m, k), "b": (l, k, n), "d": (l, m, n), "scratch": (scratch_bytes,)}
        self.dtypes = {"a": dtype, "b": dtype, "d": dtype, "scratch": "uint8"}
        size = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1, "int8": 1, "float64": 8}
        self._memory, self.addresses = [], {}
        for name, shape in self.shapes.items():
            count = 1
            for axis in shape:
                count *= axis
            count *= size[self.dtypes[name]]
            memory = ctypes.create_string_buffer(min(count, 1 << 24) + 256)  # never read: large ones need no more
            self._memory.append(memory)
            self.addresses[name] = -(-ctypes.addressof(memory) // 128) * 128

    def buffer(self, name: str) -> tuple[int, str, tuple[int, ...]]:
        return self.addresses[name], self.dtypes[name], self.shapes[name]

    def run_on_cpu(self, native: Any) -> None:
        """Execute of the CPU handler, on the emulated device."""
        self._execute(Runtime(), native.handlers("cpu")["execute"], self.attributes)

    def run_on_cuda(self, native: Any, *, stream: int = STREAM) -> None:
        """Instantiate and Execute of the CUDA handlers, on the fake driver."""
        handlers, runtime = native.handlers("CUDA"), Runtime(stream)
        runtime.call(handlers["instantiate"], "instantiate", self.attributes)
        self._execute(runtime, handlers["execute"], {})

    def _execute(self, runtime: Runtime, handler: Any, attributes: dict[str, Any]) -> None:
        operands, results = [self.buffer("a"), self.buffer("b")], [self.buffer("d"), self.buffer("scratch")]
        runtime.call(handler, "execute", attributes, operands, results)
