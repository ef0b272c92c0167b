// Driver entries that call a Python object; its exceptions become the text of a driver error.
#include "emulated_driver.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace jax_clc {
namespace {

namespace nb = nanobind;

// A device given to SetEmulator. Contexts are told apart by number: addresses may be used again.
struct EmulatedDevice {
  nb::object object;
  CUcontext context;

  ~EmulatedDevice() {
    nb::gil_scoped_acquire gil;
    object.reset();
  }
};

struct EmulatedKernel {
  std::string name;
};

std::mutex current_mutex;

// The device that calls start on; a call in flight keeps its own. Never destroyed: Python is gone by then.
std::shared_ptr<EmulatedDevice>& CurrentDevice() {
  static auto* current = new std::shared_ptr<EmulatedDevice>;
  return *current;
}

struct ThreadState {
  std::shared_ptr<EmulatedDevice> device;
  const std::array<Buffer, 4>* buffers = nullptr;
  std::string error;
};
thread_local ThreadState thread_state;

// Runs `function` with the GIL; a Python exception becomes `failure`, and its text what GetErrorString gives.
template <typename Function>
CUresult InPython(CUresult failure, Function function) {
  nb::gil_scoped_acquire gil;
  try {
    function(thread_state.device->object);
    return CUDA_SUCCESS;
  } catch (const std::exception& error) {
    thread_state.error = error.what();
    return failure;
  }
}

CUresult Reject(CUresult result, const std::string& why) {
  thread_state.error = why;
  return result;
}

CUresult DriverGetVersion(int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }

CUresult GetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE: return *name = "CUDA_ERROR_INVALID_VALUE", CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_IMAGE: return *name = "CUDA_ERROR_INVALID_IMAGE", CUDA_SUCCESS;
    case CUDA_ERROR_LAUNCH_FAILED: return *name = "CUDA_ERROR_LAUNCH_FAILED", CUDA_SUCCESS;
    default: return *name = nullptr, CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult GetErrorString(CUresult, const char** text) { return *text = thread_state.error.c_str(), CUDA_SUCCESS; }

CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return InPython(CUDA_ERROR_INVALID_VALUE, [&](nb::object& device) {
    const auto capability = nb::cast<std::tuple<int, int>>(device.attr("compute_capability"));
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = std::get<0>(capability); break;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = std::get<1>(capability); break;
      case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = nb::cast<int>(device.attr("sm_count")); break;
      default: throw nb::value_error("the emulated device has no such attribute");
    }
  });
}

CUresult CtxGetCurrent(CUcontext* context) { return *context = thread_state.device->context, CUDA_SUCCESS; }
CUresult CtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }
CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }

// The image is the kernel's name (Driver::loads_by_name): the device reads the PTX of that kernel by itself.
CUresult LibraryLoadData(CUlibrary* library, const void* name, CUjit_option*, void**, unsigned, CUlibraryOption*,
                         void**, unsigned) {
  return InPython(CUDA_ERROR_INVALID_IMAGE, [&](nb::object& device) {
    const std::string kernel = static_cast<const char*>(name);
    device.attr("load")(kernel);
    *library = reinterpret_cast<CUlibrary>(new EmulatedKernel{kernel});
  });
}

CUresult LibraryUnload(CUlibrary library) { return delete reinterpret_cast<EmulatedKernel*>(library), CUDA_SUCCESS; }

CUresult LibraryGetKernel(CUkernel* kernel, CUlibrary library, const char*) {
  return *kernel = reinterpret_cast<CUkernel>(library), CUDA_SUCCESS;
}

CUresult KernelGetFunction(CUfunction* function, CUkernel kernel) {
  return *function = reinterpret_cast<CUfunction>(kernel), CUDA_SUCCESS;
}

CUresult FuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

using Triple = std::tuple<unsigned, unsigned, unsigned>;

Triple Cluster(const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    return {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
  }
  return {1, 1, 1};
}

Triple Grid(const CUlaunchConfig& config) { return {config.gridDimX, config.gridDimY, config.gridDimZ}; }
Triple Block(const CUlaunchConfig& config) { return {config.blockDimX, config.blockDimY, config.blockDimZ}; }

CUresult OccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  return InPython(CUDA_ERROR_INVALID_VALUE, [&](nb::object& device) {
    *clusters = nb::cast<int>(device.attr("max_active_clusters")(reinterpret_cast<EmulatedKernel*>(function)->name,
                                                                 Grid(*config), Block(*config), Cluster(*config),
                                                                 config->sharedMemBytes));
  });
}

// The rules are those of the driver API's page on cuTensorMapEncodeTiled; the layout is docs/design.md, 7.4.
CUresult TensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                              const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                              const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                              CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2_promotion,
                              CUtensorMapFloatOOBfill fill) {
  constexpr uint64_t kElementBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // by CUtensorMapDataType
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  auto reject = [](const std::string& why) { return Reject(CUDA_ERROR_INVALID_VALUE, why); };
  if (type > CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ) return reject("element type " + std::to_string(type));
  if (rank < 1 || rank > 5) return reject("rank " + std::to_string(rank));
  const uint64_t alignment = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  if (start % alignment != 0) return reject("the address is not a multiple of " + std::to_string(alignment));
  for (cuuint32_t i = 0; i < rank; ++i) {
    const std::string axis = "axis " + std::to_string(i) + ": ";
    if (dims[i] == 0 || dims[i] > (uint64_t{1} << 32)) return reject(axis + "size " + std::to_string(dims[i]));
    if (box[i] == 0 || box[i] > 256) return reject(axis + "box " + std::to_string(box[i]));
    if (element_strides[i] == 0 || element_strides[i] > 8) return reject(axis + "element stride");
    if (i + 1 < rank && (strides[i] % alignment != 0 || strides[i] >= (uint64_t{1} << 40))) {
      return reject("axis " + std::to_string(i + 1) + ": stride of " + std::to_string(strides[i]) + " bytes");
    }
  }
  const uint64_t inner_bytes = box[0] * kElementBytes[type];
  if (interleave == CU_TENSOR_MAP_INTERLEAVE_NONE) {
    if (inner_bytes % 16 != 0) return reject("the box is " + std::to_string(inner_bytes) + " bytes wide");
    const uint64_t span = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 256 * 8 : uint64_t{16} << swizzle;
    if (swizzle <= CU_TENSOR_MAP_SWIZZLE_128B && inner_bytes > span) return reject("the box is wider than its swizzle");
  }

  std::byte bytes[sizeof(CUtensorMap)] = {};
  auto put = [&](size_t offset, auto value) { std::memcpy(bytes + offset, &value, sizeof value); };
  std::memcpy(bytes, "JCTM", 4);
  put(4, static_cast<uint8_t>(type)), put(5, static_cast<uint8_t>(rank)), put(6, static_cast<uint8_t>(interleave));
  put(7, static_cast<uint8_t>(swizzle)), put(8, static_cast<uint8_t>(l2_promotion)), put(9, static_cast<uint8_t>(fill));
  put(16, start);
  for (cuuint32_t i = 0; i < rank; ++i) {
    put(24 + 8 * i, static_cast<uint64_t>(dims[i]));
    if (i + 1 < rank) put(64 + 8 * i, static_cast<uint64_t>(strides[i]));
    put(96 + 2 * i, static_cast<uint16_t>(box[i]));
    put(106 + i, static_cast<uint8_t>(element_strides[i]));
  }
  std::memcpy(map, bytes, sizeof bytes);
  return CUDA_SUCCESS;
}

CUresult MemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream) {
  return InPython(CUDA_ERROR_INVALID_VALUE, [&](nb::object& device) {
    device.attr("memset")(static_cast<uint64_t>(address), static_cast<int>(value), count);
  });
}

CUresult LaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void**, void** extra) {
  return InPython(CUDA_ERROR_LAUNCH_FAILED, [&](nb::object& device) {
    const char* params = nullptr;
    size_t size = 0;
    for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) params = static_cast<const char*>(extra[1]);
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<const size_t*>(extra[1]);
    }
    std::vector<std::tuple<uint64_t, int64_t, std::string>> buffers;
    for (size_t i = 0; i < thread_state.buffers->size(); ++i) {
      const Buffer& buffer = (*thread_state.buffers)[i];
      buffers.emplace_back(reinterpret_cast<uint64_t>(buffer.data), buffer.bytes, kOperandNames[i]);
    }
    device.attr("launch")(reinterpret_cast<EmulatedKernel*>(function)->name, Grid(*config), Block(*config),
                          Cluster(*config), config->sharedMemBytes, nb::bytes(params, size), buffers);
  });
}

const Driver& EmulatedDriver() {
  static const Driver driver = [] {
    Driver d;  // entries that only find devices stay null: the core does not call them
    d.DriverGetVersion = DriverGetVersion;
    d.GetErrorName = GetErrorName;
    d.GetErrorString = GetErrorString;
    d.DeviceGetAttribute = DeviceGetAttribute;
    d.CtxGetCurrent = CtxGetCurrent;
    d.CtxGetDevice = CtxGetDevice;
    d.ThreadExchangeStreamCaptureMode = ThreadExchangeStreamCaptureMode;
    d.LibraryLoadData = LibraryLoadData;
    d.LibraryUnload = LibraryUnload;
    d.LibraryGetKernel = LibraryGetKernel;
    d.KernelGetFunction = KernelGetFunction;
    d.FuncSetAttribute = FuncSetAttribute;
    d.OccupancyMaxActiveClusters = OccupancyMaxActiveClusters;
    d.TensorMapEncodeTiled = TensorMapEncodeTiled;
    d.MemsetD8Async = MemsetD8Async;
    d.LaunchKernelEx = LaunchKernelEx;
    d.loads_by_name = true;
    return d;
  }();
  return driver;
}

}  // namespace

void SetEmulator(nb::object device) {
  static uintptr_t contexts = 0;
  std::shared_ptr<EmulatedDevice> next;
  if (!device.is_none()) {
    next = std::make_shared<EmulatedDevice>();
    next->object = std::move(device);
  }
  std::lock_guard<std::mutex> lock(current_mutex);
  if (next != nullptr) next->context = reinterpret_cast<CUcontext>(++contexts);
  CurrentDevice().swap(next);  // the one before goes after the lock: it may run Python code
}

EmulatedCall::EmulatedCall(const std::array<Buffer, 4>& buffers, std::string* why) {
  std::shared_ptr<EmulatedDevice> device;
  {
    std::lock_guard<std::mutex> lock(current_mutex);
    device = CurrentDevice();
  }
  if (device == nullptr) {
    *why = "this program was lowered for an emulated device; run it inside `with jax_clc.emulated(...)`";
    return;
  }
  thread_state = {device, &buffers, {}};
  device_ = Device{&EmulatedDriver(), device->context, nullptr};
}

EmulatedCall::~EmulatedCall() { thread_state = {}; }

}  // namespace jax_clc
