// Opens libcuda at run time and fills the driver table.
#include "cuda_driver.h"

#include <dlfcn.h>

#include <mutex>

namespace jax_clc {
namespace {

struct LoadedDriver {
  std::mutex mutex;
  std::string path = "libcuda.so.1";
  bool tried = false;
  const Driver* driver = nullptr;
  std::string why;
};

LoadedDriver& Loaded() {
  // Never destroyed: XLA's threads may still run handlers while static objects go.
  static auto* loaded = new LoadedDriver;
  return *loaded;
}

const Driver* Open(const std::string& path, std::string* why) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    *why = "no CUDA driver: " + std::string(reason ? reason : path.c_str());
    return nullptr;
  }
  auto* driver = new Driver;
  std::string missing;
#define JAX_CLC_LOOK_UP(member, symbol, declaration) \
  driver->member = reinterpret_cast<decltype(driver->member)>(dlsym(library, symbol));
#define JAX_CLC_REQUIRE(member, symbol, declaration) \
  JAX_CLC_LOOK_UP(member, symbol, declaration)       \
  if (driver->member == nullptr) missing += std::string(missing.empty() ? "" : ", ") + symbol;
  JAX_CLC_DRIVER_ENTRIES(JAX_CLC_REQUIRE)
  JAX_CLC_OPTIONAL_DRIVER_ENTRIES(JAX_CLC_LOOK_UP)
#undef JAX_CLC_REQUIRE
#undef JAX_CLC_LOOK_UP
  if (!missing.empty()) {
    *why = "the CUDA driver " + path + " is too old (CUDA 12.0 or later is needed): it lacks " + missing;
    delete driver;
    return nullptr;
  }
  if (CUresult result = driver->Init(0); result != CUDA_SUCCESS) {
    *why = "cuInit failed: " + driver->Describe(result);
    delete driver;
    return nullptr;
  }
  return driver;
}

}  // namespace

std::string Driver::Describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUDA error " + std::to_string(static_cast<int>(result));
  }
  std::string description = name;
  if (GetErrorString(result, &text) == CUDA_SUCCESS && text != nullptr) description += " (" + std::string(text) + ")";
  return description;
}

const Driver* CudaDriver(std::string* why) {
  LoadedDriver& loaded = Loaded();
  std::lock_guard<std::mutex> lock(loaded.mutex);
  if (!loaded.tried) {
    loaded.tried = true;
    loaded.driver = Open(loaded.path, &loaded.why);
  }
  if (loaded.driver == nullptr) *why = loaded.why;
  return loaded.driver;
}

void SetDriverLibrary(const std::string& path) {
  LoadedDriver& loaded = Loaded();
  std::lock_guard<std::mutex> lock(loaded.mutex);
  loaded.path = path;
  loaded.tried = false;
  loaded.driver = nullptr;
}

ContextGuard::ContextGuard(const Driver& driver, CUcontext context) : driver_(driver) {
  CUcontext current = nullptr;
  status_ = driver.CtxGetCurrent(&current);
  if (status_ != CUDA_SUCCESS || current == context) return;
  status_ = driver.CtxPushCurrent(context);
  pushed_ = status_ == CUDA_SUCCESS;
}

ContextGuard::~ContextGuard() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.CtxPopCurrent(&popped);
}

}  // namespace jax_clc
