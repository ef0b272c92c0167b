// Cubin images -> loaded kernels, one for each (image, context); and the names by which programs ask for them.
#pragma once

#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_driver.h"
#include "kernel_spec.h"

namespace jax_clc {

struct LoadedKernel {
  CUfunction function = nullptr;
  int max_active_clusters = 0;  // on an otherwise idle device
};

// The launch of some clusters of a kernel, in a one-dimensional grid.
struct ClusterLaunch {
  ClusterLaunch(const KernelSpec& spec, int64_t clusters, CUstream stream);
  ClusterLaunch(const ClusterLaunch&) = delete;  // the configuration points at the attribute
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  CUlaunchAttribute cluster = {};
  CUlaunchConfig config = {};
};

// A registered kernel. Threads of several devices use it at once.
class Kernel {
 public:
  explicit Kernel(KernelSpec spec) : spec(std::move(spec)) {}

  // The kernel as loaded in `context`, or null if Load has not been there.
  const LoadedKernel* Find(const Driver& driver, CUcontext context) const;

  // Loads the kernel into `context` and sets its shared-memory limit, once; later calls find it. The context must be
  // current. The result lives as long as this object.
  xla::ffi::Error Load(const Driver& driver, CUcontext context, const LoadedKernel** loaded);

  const KernelSpec spec;

 private:
  xla::ffi::Error Fail(const std::string& what) const;
  xla::ffi::Error LoadUnderLock(const Driver& driver, LoadedKernel* loaded);
  xla::ffi::Error ReadImage(std::string* image) const;
  xla::ffi::Error CheckParameters(const Driver& driver, CUfunction function) const;

  mutable std::shared_mutex mutex_;
  std::map<std::pair<const Driver*, CUcontext>, std::unique_ptr<LoadedKernel>> loaded_;
};

// The kernels of this process, by name. Registering a name again replaces it for programs yet to be instantiated.
void RegisterKernel(KernelSpec spec);
void ClearKernels();
std::shared_ptr<Kernel> FindKernel(std::string_view name);
std::vector<std::shared_ptr<Kernel>> AllKernels();  // in order of names

}  // namespace jax_clc
