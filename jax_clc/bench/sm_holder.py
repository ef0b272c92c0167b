"""Other work on the device: a kernel that holds a number of SMs with all their shared memory until it is released.

Each of its CTAs asks for so much shared memory that no second CTA fits beside it, says that it is resident, and waits
for a flag in device memory, which the host sets by a copy on a stream of its own: polling must not load the bus. It
leaves by itself after a while, so that a program that dies cannot keep the device.
Uses the driver through ctypes, in the primary context, which is XLA's too; the driver compiles the PTX below.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager

KERNEL_NAME = "jax_clc_sm_holder"
MAX_HOLD_S = 30
NON_BLOCKING_STREAM = 1
FLAGS_BYTES = 8  # two 32-bit words: released, and how many CTAs are resident
MAX_DYNAMIC_SHARED_MEMORY = 8
DEVICE_SHARED_MEMORY_OPTIN = 97

PTX = f"""
.version 7.8
.target sm_90
.address_size 64
.visible .entry {KERNEL_NAME}(.param .u64 flags, .param .u64 limit_ns)
{{
  .reg .pred %p<3>;
  .reg .u32 %r<4>;
  .reg .u64 %d<6>;
  ld.param.u64 %d0, [flags];
  ld.param.u64 %d1, [limit_ns];
  mov.u64 %d2, %globaltimer;
  add.u64 %d2, %d2, %d1;
  add.u64 %d3, %d0, 4;
  mov.u32 %r0, 1;
  red.relaxed.sys.global.add.u32 [%d3], %r0;
wait:
  ld.relaxed.sys.global.u32 %r1, [%d0];
  setp.ne.u32 %p0, %r1, 0;
  @%p0 bra done;
  nanosleep.u32 20000;
  mov.u64 %d4, %globaltimer;
  setp.lt.u64 %p1, %d4, %d2;
  @%p1 bra wait;
done:
  ret;
}}
"""


class HolderError(RuntimeError):
    """The driver refused; the text names the call."""


class SmHolder:
    """Loads the kernel once; `holding(s)` keeps s SMs busy for the length of a with-block."""

    def __init__(self, device: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        ordinal = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(ordinal), device)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self._call("cuCtxSetCurrent", context)
        shared = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(shared), DEVICE_SHARED_MEMORY_OPTIN, ordinal)
        self._shared_bytes = shared.value
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX.encode()))
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, KERNEL_NAME.encode())
        self._call("cuFuncSetAttribute", self._function, MAX_DYNAMIC_SHARED_MEMORY, self._shared_bytes)
        self._stream, self._control = ctypes.c_void_p(), ctypes.c_void_p()
        for stream in (self._stream, self._control):
            self._call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING_STREAM)
        self._address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(FLAGS_BYTES))

    @contextmanager
    def holding(self, sms: int) -> Iterator[None]:
        """Returns from entering when all `sms` CTAs are resident; raises HolderError if they are not within 5 s."""
        if sms == 0:
            yield
            return
        self._set_flags(released=0)
        limit = ctypes.c_uint64(MAX_HOLD_S * 10**9)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(self._address), ctypes.addressof(limit))
        self._call(
            "cuLaunchKernel", self._function, sms, 1, 1, 1, 1, 1, self._shared_bytes, self._stream, parameters, None
        )
        try:
            deadline = time.monotonic() + 5
            while (resident := self._resident()) < sms:
                if time.monotonic() > deadline:
                    raise HolderError(f"{resident} of {sms} CTAs became resident within 5 s")
                time.sleep(0.001)
            started = time.monotonic()
            yield
            if time.monotonic() - started > MAX_HOLD_S - 2:
                raise HolderError(f"the SMs may have been given back: held for more than {MAX_HOLD_S - 2} s")
        finally:
            self._set_flags(released=1)
            self._call("cuStreamSynchronize", self._stream)

    def _set_flags(self, released: int) -> None:
        """Also takes the number of resident CTAs back to 0: nobody asks for it once they are released."""
        words = (ctypes.c_uint32 * 2)(released, 0)
        self._call("cuMemcpyHtoDAsync_v2", self._address, words, ctypes.c_size_t(FLAGS_BYTES), self._control)
        self._call("cuStreamSynchronize", self._control)

    def _resident(self) -> int:
        words = (ctypes.c_uint32 * 2)()
        self._call("cuMemcpyDtoHAsync_v2", words, self._address, ctypes.c_size_t(FLAGS_BYTES), self._control)
        self._call("cuStreamSynchronize", self._control)
        return words[1]

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            raise HolderError(f"{name} failed with CUDA error {status}")
