"""The CUDA handlers on a driver that computes nothing: loading, attributes, launches, contexts, threads, errors."""

from __future__ import annotations

import threading

import pytest
from calls import STREAM, FakeDriver, Gemm
from fake_kernels import fake_entry
from fake_xla import HandlerError, Runtime

SECOND_DEVICE_STREAM = 0x2_0007


def shipped(driver, ship, **options):
    entry = fake_entry(**options)
    ship(entry)
    driver.has_params_of(entry)
    return entry


def test_instantiate_loads_checks_and_sizes_the_kernel_and_execute_only_launches(native, driver, ship):
    shipped(driver, ship)
    driver.open_devices(0)
    call = Gemm()
    handlers, runtime = native.handlers("CUDA"), Runtime(STREAM)
    runtime.call(handlers["instantiate"], "instantiate", call.attributes)
    assert driver.log() == [
        "cuInit 0", "cuLibraryLoadData fake cubin", "cuLibraryGetKernel kernel_fake", "cuFuncLoad",
        "cuFuncSetAttribute shared=200000", "cuOccupancyMaxActiveClusters cluster=2 shared=200000",
    ]  # fmt: skip
    before = len(driver.log())
    call._execute(runtime, handlers["execute"], {})
    calls = [line.split()[0] for line in driver.log()[before:]]
    assert calls == ["cuTensorMapEncodeTiled"] * 3 + ["cuLaunchKernelEx"] + ["param"] * 5
    assert driver.log("cuLaunchKernelEx") == [
        f"cuLaunchKernelEx device=0 grid=4,1,1 block=384,1,1 cluster=2,1,1 shared=200000 stream={STREAM}"
    ]
    starts = [*(call.addresses[name] for name in ("a", "b", "d", "scratch")), 256 | 512 << 32]  # maps, pointer, m and n
    assert driver.log("param") == [f"param {i}: {start}" for i, start in enumerate(starts)]
    assert driver.log("cuTensorMapEncodeTiled")[0] == (
        "cuTensorMapEncodeTiled type=9 rank=3 dims=64,256,1 strides=128,16 box=64,64,1 steps=1,1,1 interleave=0 "
        "swizzle=3 promotion=2 fill=0"
    )


@pytest.mark.parametrize("gap", [0, 48])
def test_parameters_may_lie_behind_a_gap_in_the_cubin(native, driver, ship, gap):
    entry = fake_entry()
    ship(entry)
    driver.has_params_of(entry, gap)
    Gemm().run_on_cuda(native)
    assert len(driver.log("cuLaunchKernelEx")) == 1


@pytest.mark.parametrize("open_at_first", [True, False])
def test_a_loaded_kernel_is_found_again_and_each_execute_encodes_its_own_maps(native, driver, ship, open_at_first):
    shipped(driver, ship)
    driver.open_devices(*([0] if open_at_first else []))
    for _ in range(3):
        Gemm().run_on_cuda(native)
        driver.open_devices(0)
    assert len(driver.log("cuLibraryLoadData")) == len(driver.log("cuFuncSetAttribute")) == 1
    assert len(driver.log("cuOccupancyMaxActiveClusters")) == 1
    assert len(driver.log("cuTensorMapEncodeTiled")) == 9 and len(driver.log("cuLaunchKernelEx")) == 3


def test_there_is_no_stage_that_xla_would_call_at_every_run(native):
    assert set(native.handlers("CUDA")) == {"instantiate", "execute"}


def test_execute_loads_on_a_device_opened_after_instantiate_even_inside_a_capture(native, driver, ship):
    """The fake driver refuses to load unless the thread's capture mode is relaxed, as a driver does in a capture."""
    shipped(driver, ship)
    Gemm().run_on_cuda(native)
    assert len(driver.log("cuLibraryLoadData")) == len(driver.log("cuLaunchKernelEx")) == 1


def test_instantiate_loads_on_each_open_device(native, driver, ship):
    shipped(driver, ship)
    driver.open_devices(1)
    Gemm().run_on_cuda(native, stream=SECOND_DEVICE_STREAM)
    assert len(driver.log("cuLibraryLoadData")) == 1
    driver.open_devices(0, 1)
    Runtime(STREAM).call(native.handlers("CUDA")["instantiate"], "instantiate", Gemm().attributes)
    assert len(driver.log("cuLibraryLoadData")) == 2


@pytest.mark.parametrize("what", ["cuDeviceGet", "cuLibraryLoadData", "cuDeviceGetAttribute"])
def test_a_device_that_fails_at_instantiate_fails_only_what_runs_on_it(native, driver, ship, what):
    shipped(driver, ship)
    driver.open_devices(0, 1)
    driver.fail(what, 1)
    call, runtime = Gemm(), Runtime(STREAM)
    runtime.call(native.handlers("CUDA")["instantiate"], "instantiate", call.attributes)
    driver.fail("", 0)
    call._execute(runtime, native.handlers("CUDA")["execute"], {})
    assert len(driver.log("cuLaunchKernelEx")) == 1


def test_each_device_gets_its_own_function_and_its_stream(native, driver, ship):
    shipped(driver, ship)
    Gemm().run_on_cuda(native, stream=SECOND_DEVICE_STREAM)  # the second device first
    Gemm().run_on_cuda(native)
    first, second = driver.log("cuLaunchKernelEx")
    assert "device=1" in first and f"stream={SECOND_DEVICE_STREAM}" in first
    assert "device=0" in second and f"stream={STREAM}" in second
    assert len(driver.log("cuFuncSetAttribute")) == 2


def test_memsets_go_to_the_calls_stream(native, driver, ship):
    shipped(driver, ship, schedule="dynamic", counter_bytes=128)
    call, empty = Gemm(scratch_bytes=128), Gemm(m=4, n=6, k=0)
    call.run_on_cuda(native)
    empty.run_on_cuda(native)
    assert driver.log("cuMemsetD8Async") == [
        f"cuMemsetD8Async address={call.addresses['scratch']} value=0 count=128 stream={STREAM}",
        f"cuMemsetD8Async address={empty.addresses['d']} value=0 count=48 stream={STREAM}",
    ]
    assert len(driver.log("cuLaunchKernelEx")) == 1


def test_threads_with_kernels_of_different_size_on_two_devices_never_share_a_limit(native, driver, ship):
    """Case 28: the limit is set once for each kernel, at load; a limit set at each launch would race."""
    entries = {name: fake_entry(name, smem=smem, cta_tile=(128, 128, 64)) for name, smem in
               (("small", 100_000), ("large", 230_000))}  # fmt: skip
    for entry in entries.values():
        ship(entry)
    driver.has_params_of(entries["small"])
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(name: str, stream: int) -> None:
        try:
            start.wait()
            for _ in range(50):
                Gemm(kernels=name).run_on_cuda(native, stream=stream)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(name, stream))
        for name in ("small", "large")
        for stream in (STREAM, SECOND_DEVICE_STREAM)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(driver.log("cuLaunchKernelEx")) == 200
    once_on_each_device = ["cuFuncSetAttribute shared=100000"] * 2 + ["cuFuncSetAttribute shared=230000"] * 2
    assert sorted(driver.log("cuFuncSetAttribute")) == once_on_each_device


@pytest.mark.parametrize("call,result,text", [
    ("cuLibraryLoadData", 200, r"cuLibraryLoadData failed with CUDA_ERROR_INVALID_IMAGE .*fake\.cubin"),
    ("cuLibraryGetKernel", 400, r"cuLibraryGetKernel\(kernel_fake\) failed with CUDA_ERROR_INVALID_HANDLE"),
    ("cuKernelGetFunction", 201, "cuKernelGetFunction failed with CUDA_ERROR_INVALID_CONTEXT"),
    ("cuFuncSetAttribute", 1, "200000 bytes of dynamic shared memory failed with CUDA_ERROR_INVALID_VALUE"),
    ("cuOccupancyMaxActiveClusters", 1, "cuOccupancyMaxActiveClusters failed with CUDA_ERROR_INVALID_VALUE"),
    ("cuDeviceGetAttribute", 1, "asking for the compute capability failed with CUDA_ERROR_INVALID_VALUE"),
    ("cuStreamGetCtx", 400, "cuStreamGetCtx failed with CUDA_ERROR_INVALID_HANDLE"),
    ("cuTensorMapEncodeTiled", 1, r"tensor map of operand a: .*CUDA_ERROR_INVALID_VALUE .* sizes 64 256 1, strides"),
    ("cuLaunchKernelEx", 719, r"A\[1,256,64\] .* kernel fake: cuLaunchKernelEx of 4 CTAs .*CUDA_ERROR_LAUNCH_FAILED"),
    ("cuLaunchKernelEx", 12345, "CUDA error 12345"),
])  # fmt: skip
def test_driver_errors_come_back_with_kernel_and_error_name_and_are_not_kept(native, driver, ship, call, result, text):
    shipped(driver, ship)
    driver.fail(call, result)
    with pytest.raises(HandlerError, match=text):
        Gemm().run_on_cuda(native)
    driver.fail("", 0)
    Gemm().run_on_cuda(native)  # a failed load is tried again
    assert len(driver.log("cuLaunchKernelEx")) == 1


def test_failed_memset_names_its_error(native, driver, ship):
    shipped(driver, ship)
    driver.fail("cuMemsetD8Async", 719)
    with pytest.raises(HandlerError, match="cuMemsetD8Async failed with CUDA_ERROR_LAUNCH_FAILED"):
        Gemm(k=0).run_on_cuda(native)


def test_failed_cuinit_is_reported_by_every_call(native, driver, ship):
    shipped(driver, ship)
    driver.fail("cuInit", 719)
    for _ in range(2):
        with pytest.raises(HandlerError, match="cuInit failed with CUDA_ERROR_LAUNCH_FAILED|cuInit failed: CUDA"):
            Gemm().run_on_cuda(native)


def test_driver_too_old_for_the_cubin_names_both_versions(native, driver, ship):
    shipped(driver, ship, minimum_driver=13000)
    with pytest.raises(HandlerError, match=r"needs a driver for CUDA 13\.0 or later, the installed one .* CUDA 12\.4"):
        Gemm().run_on_cuda(native)
    assert driver.log("cuLibraryLoadData") == []


@pytest.mark.parametrize("params,text", [
    ([(0, 128), (128, 128)], "lists 5 parameters, the cubin .* has only 2"),
    ([(0, 128), (128, 128), (256, 128), (384, 8), (392, 28), (420, 4)], "lists 5 parameters, the cubin .* has more"),
    ([(0, 128), (128, 128), (256, 128), (384, 4), (388, 28)], "parameter 3 .* 4 bytes at offset 384, .* says 8 at 384"),
])  # fmt: skip
def test_cubin_with_other_parameters_than_its_manifest_is_refused(native, driver, ship, params, text):
    ship(fake_entry())
    for offset, size in params:
        driver.library.fake_param(offset, size)
    with pytest.raises(HandlerError, match=text):
        Gemm().run_on_cuda(native)
    assert driver.log("cuLibraryUnload") == ["cuLibraryUnload"] and driver.log("cuLaunchKernelEx") == []


def test_kernel_that_fits_nowhere_on_the_device_is_an_error(native, driver, ship):
    shipped(driver, ship)
    driver.device(clusters=0)
    with pytest.raises(HandlerError, match="kernel fake: not one cluster of it fits"):
        Gemm().run_on_cuda(native)


def test_older_gpu_is_a_clear_error(native, driver, ship):
    shipped(driver, ship)
    driver.device(major=8, minor=6)
    with pytest.raises(HandlerError, match=r"device of compute capability 8\.6; it names fake \(sm_90a\)"):
        Gemm().run_on_cuda(native)


@pytest.mark.parametrize("damage,text", [
    (lambda path: path.write_bytes(b"fake cubiN"), "is damaged: sha256 is"),
    (lambda path: path.write_bytes(b""), "is damaged: sha256 is"),
    (lambda path: path.unlink(), "cannot be read"),
])  # fmt: skip
def test_damaged_cubin_is_found_before_the_driver_sees_it(native, driver, ship, kernel_folder, damage, text):
    shipped(driver, ship)
    damage(kernel_folder / "fake.cubin")
    with pytest.raises(HandlerError, match=text) as error:
        Gemm().run_on_cuda(native)
    assert str(kernel_folder / "fake.cubin") in str(error.value) and "pip install" in str(error.value)
    assert driver.log("cuLibraryLoadData") == []


@pytest.mark.parametrize("open_at_first", [True, False])
@pytest.mark.parametrize("missing,works,fails", [("elementwise", 0, 2), ("fake", 2, 0)])
def test_of_a_kernel_and_its_stand_in_only_what_is_launched_must_load(
    native, driver, ship, kernel_folder, missing, works, fails, open_at_first
):
    """`works` and `fails` are bytes by which the address of A is off."""
    entries = {"fake": fake_entry(), "elementwise": fake_entry("elementwise", elements=True)}
    for entry in entries.values():
        ship(entry)
    (kernel_folder / f"{missing}.cubin").unlink()
    driver.has_params_of(next(entry for name, entry in entries.items() if name != missing))
    driver.open_devices(*([0] if open_at_first else []))
    call = Gemm()
    call.addresses["a"] += works
    call.run_on_cuda(native)
    assert len(driver.log("cuLaunchKernelEx")) == 1
    call.addresses["a"] += fails - works
    with pytest.raises(HandlerError, match=rf"kernel {missing}: its cubin .*{missing}\.cubin cannot be read") as error:
        call.run_on_cuda(native)
    assert error.value.code == 9 and len(driver.log("cuLaunchKernelEx")) == 1


def test_instantiate_loads_the_stand_in_too(native, driver, ship):
    """Which kernel is needed is known only when it is too late to load without waiting."""
    ship(fake_entry(image=b"tensor maps"), image=b"tensor maps")
    ship(fake_entry("elementwise", elements=True, image=b"elements"), image=b"elements")
    driver.open_devices(0)
    Runtime(STREAM).call(native.handlers("CUDA")["instantiate"], "instantiate", Gemm().attributes)
    assert driver.log("cuLibraryLoadData") == ["cuLibraryLoadData tensor maps", "cuLibraryLoadData elements"]


def test_without_libcuda_the_error_says_so(native, ship):
    ship(fake_entry())
    native.set_driver_library("libcuda-that-is-not-there.so.1")
    try:
        with pytest.raises(HandlerError, match="no CUDA driver: .*libcuda-that-is-not-there"):
            Gemm().run_on_cuda(native)
        assert native.driver_version() is None
        assert native.devices()[1] == []
    finally:
        native.set_driver_library("libcuda.so.1")


def test_library_without_the_entry_points_is_called_too_old(native, ship):
    ship(fake_entry())
    native.set_driver_library("libm.so.6")
    try:
        with pytest.raises(HandlerError, match="too old .*it lacks cuInit, cuDriverGetVersion"):
            Gemm().run_on_cuda(native)
    finally:
        native.set_driver_library("libcuda.so.1")


def test_devices_and_driver_version_are_read_without_a_context(native, driver: FakeDriver):
    from jax_clc import native as native_module

    assert native_module.driver_version() == 12040
    found = native_module.devices()
    assert [(d.ordinal, d.name, d.compute_capability, d.sm_count, d.memory_bytes) for d in found] == [
        (0, "Fake GPU 0", (9, 0), 132, 1 << 37), (1, "Fake GPU 1", (9, 0), 132, 1 << 37),
    ]  # fmt: skip
    assert native_module.why_no_devices() is None


def test_handlers_are_built_on_the_oldest_ffi_and_execute_may_be_recorded(native):
    version, traits = Runtime(STREAM).traits(native.handlers("CUDA")["execute"])
    assert version == native.ffi_api_version and version <= (0, 3)
    assert traits == 1  # kCmdBufferCompatible
