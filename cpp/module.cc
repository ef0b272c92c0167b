// The nanobind surface of jax_clc._native.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "cuda_driver.h"
#include "emulated_driver.h"
#include "ffi_handlers.h"
#include "gemm_call.h"
#include "kernel_library.h"
#include "sha256.h"

namespace nb = nanobind;

namespace jax_clc {
namespace {

nb::capsule HandlerCapsule(XLA_FFI_Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

nb::dict Handlers(const std::string& platform) {
  nb::dict stages;
  if (platform == "CUDA") {
    stages["instantiate"] = HandlerCapsule(kCudaInstantiate);
    stages["execute"] = HandlerCapsule(kCudaExecute);
  } else if (platform == "cpu") {
    stages["execute"] = HandlerCapsule(kCpuExecute);
  } else {
    throw nb::value_error(("platform '" + platform + "' has no handlers; known are CUDA and cpu").c_str());
  }
  return stages;
}

nb::dict StateType() {
  nb::dict type;
  type["type_id"] = nb::capsule(static_cast<void*>(&GemmCall::id));
  type["type_info"] = nb::capsule(static_cast<const void*>(GemmCallTypeInfo()));
  return type;
}

nb::object DriverVersion() {
  std::string why;
  const Driver* driver = CudaDriver(&why);
  int version = 0;
  if (driver == nullptr || driver->DriverGetVersion(&version) != CUDA_SUCCESS) return nb::none();
  return nb::int_(version);
}

// (reason, []) without a driver, else (None, [(name, major, minor, SMs, bytes of memory), ...]). Creates no context.
nb::tuple Devices() {
  std::string why;
  nb::list devices;
  const Driver* driver = CudaDriver(&why);
  if (driver == nullptr) return nb::make_tuple(why, devices);
  int count = 0;
  driver->DeviceGetCount(&count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    char name[256] = {};
    int major = 0, minor = 0, sm_count = 0;
    size_t memory_bytes = 0;
    if (driver->DeviceGet(&device, ordinal) != CUDA_SUCCESS) continue;
    driver->DeviceGetName(name, sizeof name - 1, device);
    driver->DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    driver->DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    driver->DeviceGetAttribute(&sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    driver->DeviceTotalMem(&memory_bytes, device);
    devices.append(nb::make_tuple(static_cast<const char*>(name), major, minor, sm_count, memory_bytes));
  }
  return nb::make_tuple(nb::none(), devices);
}

}  // namespace
}  // namespace jax_clc

NB_MODULE(_native, m) {
  using namespace jax_clc;
  m.doc() = "Launches GEMM cubins for XLA. Used through jax_clc.native.";
  m.attr("abi_version") = kAbiVersion;
  m.attr("size_margin") = kSizeMargin;
  m.attr("max_size") = kMaxSize;
  m.attr("max_raster_group") = kMaxRasterGroup;
  m.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  m.def(
      "register_kernel",
      [](const nb::dict& entry, const std::string& image_path) { RegisterKernel(ParseKernelSpec(entry, image_path)); },
      nb::arg("entry"), nb::arg("image_path"), "Makes a kernel of the manifest known by its name.");
  m.def("clear_kernels", &ClearKernels, "Forgets all kernels; programs already instantiated keep theirs.");
  m.def("handlers", &Handlers, nb::arg("platform"), "FFI handlers by stage, for jax.ffi.register_ffi_target.");
  m.def("state_type", &StateType, "The handlers' state, for jax.ffi.register_ffi_type.");
  m.def("set_emulator", &SetEmulator, nb::arg("device").none(), "The device that CPU calls run on; None for none.");
  m.def("driver_version", &DriverVersion, "cuDriverGetVersion, or None without a driver.");
  m.def("devices", &Devices, "(reason why there are none or None, [(name, major, minor, SMs, bytes), ...]).");
  m.def("set_driver_library", &SetDriverLibrary, nb::arg("path"), "For tests: the library to open as libcuda.");
  m.def(
      "sha256", [](const nb::bytes& data) { return Sha256(data.c_str(), data.size()); }, nb::arg("data"),
      "The digest that images are checked by.");
}
