// Loads a kernel, checks that it is the one its manifest entry describes, and keeps it.
#include "kernel_library.h"

#include <fstream>
#include <iterator>
#include <mutex>

#include "sha256.h"

namespace jax_clc {
namespace {

namespace ffi = xla::ffi;

struct Registry {
  std::shared_mutex mutex;
  std::map<std::string, std::shared_ptr<Kernel>, std::less<>> kernels;
};

Registry& TheRegistry() {
  // Never destroyed: XLA's threads may still run handlers while static objects go.
  static auto* registry = new Registry;
  return *registry;
}

// Allows loading while this thread records a graph: a first call may come inside a capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

ClusterLaunch::ClusterLaunch(const KernelSpec& spec, int64_t clusters, CUstream stream) {
  const auto size = static_cast<unsigned>(spec.cluster_size);
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {size, 1, 1};
  config.gridDimX = static_cast<unsigned>(clusters) * size, config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = spec.block[0], config.blockDimY = spec.block[1], config.blockDimZ = spec.block[2];
  config.sharedMemBytes = spec.dynamic_smem_bytes;
  config.hStream = stream;
  config.attrs = &cluster, config.numAttrs = 1;
}

ffi::Error Kernel::Fail(const std::string& what) const {
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "jax_clc kernel " + spec.name + ": " + what);
}

const LoadedKernel* Kernel::Find(const Driver& driver, CUcontext context) const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  auto found = loaded_.find({&driver, context});
  return found == loaded_.end() ? nullptr : found->second.get();
}

ffi::Error Kernel::Load(const Driver& driver, CUcontext context, const LoadedKernel** loaded) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  auto& slot = loaded_[{&driver, context}];
  if (slot == nullptr) {
    auto fresh = std::make_unique<LoadedKernel>();
    RelaxedCapture relaxed(driver);
    if (ffi::Error error = LoadUnderLock(driver, fresh.get()); error.failure()) {
      loaded_.erase({&driver, context});
      return error;
    }
    slot = std::move(fresh);
  }
  *loaded = slot.get();
  return ffi::Error::Success();
}

ffi::Error Kernel::LoadUnderLock(const Driver& driver, LoadedKernel* loaded) {
  auto failed = [&](const char* call, CUresult result) {
    return Fail(std::string(call) + " failed with " + driver.Describe(result) + " for " + spec.image_path);
  };
  int driver_version = 0;
  if (CUresult result = driver.DriverGetVersion(&driver_version); result != CUDA_SUCCESS) {
    return failed("cuDriverGetVersion", result);
  }
  if (driver_version < spec.minimum_driver) {
    auto dotted = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
    return Fail("it needs a driver for CUDA " + dotted(spec.minimum_driver) +
                " or later, the installed one is for CUDA " + dotted(driver_version) + "; update the NVIDIA driver");
  }

  std::string image = spec.name;
  if (!driver.loads_by_name) {
    if (ffi::Error error = ReadImage(&image); error.failure()) return error;
  }
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  if (CUresult result = driver.LibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
      result != CUDA_SUCCESS) {
    return failed("cuLibraryLoadData", result);
  }
  auto complete = [&]() -> ffi::Error {
    if (CUresult result = driver.LibraryGetKernel(&kernel, library, spec.symbol.c_str()); result != CUDA_SUCCESS) {
      return failed(("cuLibraryGetKernel(" + spec.symbol + ")").c_str(), result);
    }
    if (CUresult result = driver.KernelGetFunction(&loaded->function, kernel); result != CUDA_SUCCESS) {
      return failed("cuKernelGetFunction", result);
    }
    if (driver.FuncLoad != nullptr) {  // now, not lazily at a launch that may be recorded into a graph
      if (CUresult result = driver.FuncLoad(loaded->function); result != CUDA_SUCCESS)
        return failed("cuFuncLoad", result);
    }
    if (ffi::Error error = CheckParameters(driver, loaded->function); error.failure()) return error;
    if (CUresult result = driver.FuncSetAttribute(loaded->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                  static_cast<int>(spec.dynamic_smem_bytes));
        result != CUDA_SUCCESS) {
      return failed(("setting " + std::to_string(spec.dynamic_smem_bytes) + " bytes of dynamic shared memory").c_str(),
                    result);
    }
    const ClusterLaunch one(spec, 1, nullptr);
    if (CUresult result =
            driver.OccupancyMaxActiveClusters(&loaded->max_active_clusters, loaded->function, &one.config);
        result != CUDA_SUCCESS) {
      return failed("cuOccupancyMaxActiveClusters", result);
    }
    if (loaded->max_active_clusters < 1) return Fail("not one cluster of it fits on this device");
    return ffi::Error::Success();
  };
  ffi::Error error = complete();
  if (error.failure()) driver.LibraryUnload(library);
  return error;
}

ffi::Error Kernel::ReadImage(std::string* image) const {
  const std::string rebuild = "; reinstall jax_clc (`pip install .` in the source folder)";
  std::ifstream file(spec.image_path, std::ios::binary);
  if (!file) return Fail("its cubin " + spec.image_path + " cannot be read" + rebuild);
  image->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (file.bad()) return Fail("reading its cubin " + spec.image_path + " failed" + rebuild);
  if (const std::string digest = Sha256(image->data(), image->size()); digest != spec.image_sha256) {
    return Fail("its cubin " + spec.image_path + " is damaged: sha256 is " + digest + ", the manifest says " +
                spec.image_sha256 + rebuild);
  }
  return ffi::Error::Success();
}

ffi::Error Kernel::CheckParameters(const Driver& driver, CUfunction function) const {
  if (driver.FuncGetParamInfo == nullptr) return ffi::Error::Success();
  size_t gap = 0;  // of the cubin's whole list before its first parameter, see GemmCall::Run
  for (size_t i = 0; i <= spec.params.size(); ++i) {
    size_t offset = 0, size = 0;
    const bool present = driver.FuncGetParamInfo(function, i, &offset, &size) == CUDA_SUCCESS;
    const bool expected = i < spec.params.size();
    if (i == 0) gap = offset;
    offset -= gap;
    if (present != expected) {
      return Fail("the manifest lists " + std::to_string(spec.params.size()) + " parameters, the cubin " +
                  spec.image_path + " has " + (present ? "more" : "only " + std::to_string(i)));
    }
    if (expected && (offset != spec.params[i].offset || size != spec.params[i].size)) {
      return Fail("parameter " + std::to_string(i) + " of the cubin " + spec.image_path + " is " +
                  std::to_string(size) + " bytes at offset " + std::to_string(offset) + ", the manifest says " +
                  std::to_string(spec.params[i].size) + " at " + std::to_string(spec.params[i].offset));
    }
  }
  return ffi::Error::Success();
}

void RegisterKernel(KernelSpec spec) {
  auto kernel = std::make_shared<Kernel>(std::move(spec));
  std::unique_lock<std::shared_mutex> lock(TheRegistry().mutex);
  TheRegistry().kernels[kernel->spec.name] = kernel;
}

void ClearKernels() {
  std::unique_lock<std::shared_mutex> lock(TheRegistry().mutex);
  TheRegistry().kernels.clear();
}

std::shared_ptr<Kernel> FindKernel(std::string_view name) {
  std::shared_lock<std::shared_mutex> lock(TheRegistry().mutex);
  auto found = TheRegistry().kernels.find(name);
  return found == TheRegistry().kernels.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Kernel>> AllKernels() {
  std::shared_lock<std::shared_mutex> lock(TheRegistry().mutex);
  std::vector<std::shared_ptr<Kernel>> all;
  for (const auto& [name, kernel] : TheRegistry().kernels) all.push_back(kernel);
  return all;
}

}  // namespace jax_clc
