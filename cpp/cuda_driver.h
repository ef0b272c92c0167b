// The driver entry points this extension calls, as a table: filled by dlopen on a GPU, by an emulator elsewhere.
#pragma once

#include <cuda.h>

#include <string>

namespace jax_clc {

// X(member, exported symbol, the declaration in cuda.h that gives its type). Symbols are spelled with their version
// suffix because the macros of cuda.h do not reach a string.
#define JAX_CLC_DRIVER_ENTRIES(X)                                                                            \
  X(Init, "cuInit", cuInit)                                                                                  \
  X(DriverGetVersion, "cuDriverGetVersion", cuDriverGetVersion)                                              \
  X(GetErrorName, "cuGetErrorName", cuGetErrorName)                                                          \
  X(GetErrorString, "cuGetErrorString", cuGetErrorString)                                                    \
  X(DeviceGetCount, "cuDeviceGetCount", cuDeviceGetCount)                                                    \
  X(DeviceGet, "cuDeviceGet", cuDeviceGet)                                                                   \
  X(DeviceGetName, "cuDeviceGetName", cuDeviceGetName)                                                       \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", cuDeviceGetAttribute)                                        \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", cuDeviceTotalMem)                                                 \
  X(DevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState)                      \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain)                            \
  X(CtxGetCurrent, "cuCtxGetCurrent", cuCtxGetCurrent)                                                       \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", cuCtxPushCurrent)                                                 \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", cuCtxPopCurrent)                                                    \
  X(CtxGetDevice, "cuCtxGetDevice", cuCtxGetDevice)                                                          \
  X(StreamGetCtx, "cuStreamGetCtx", cuStreamGetCtx)                                                          \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode) \
  X(LibraryLoadData, "cuLibraryLoadData", cuLibraryLoadData)                                                 \
  X(LibraryUnload, "cuLibraryUnload", cuLibraryUnload)                                                       \
  X(LibraryGetKernel, "cuLibraryGetKernel", cuLibraryGetKernel)                                              \
  X(KernelGetFunction, "cuKernelGetFunction", cuKernelGetFunction)                                           \
  X(FuncSetAttribute, "cuFuncSetAttribute", cuFuncSetAttribute)                                              \
  X(OccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters", cuOccupancyMaxActiveClusters)                \
  X(TensorMapEncodeTiled, "cuTensorMapEncodeTiled", cuTensorMapEncodeTiled)                                  \
  X(MemsetD8Async, "cuMemsetD8Async", cuMemsetD8Async)                                                       \
  X(LaunchKernelEx, "cuLaunchKernelEx", cuLaunchKernelEx)

// Entries younger than the oldest driver we serve (CUDA 12.0); null where the driver has none.
#define JAX_CLC_OPTIONAL_DRIVER_ENTRIES(X)                      \
  X(FuncGetParamInfo, "cuFuncGetParamInfo", cuFuncGetParamInfo) \
  X(FuncLoad, "cuFuncLoad", cuFuncLoad)

struct Driver {
#define JAX_CLC_MEMBER(member, symbol, declaration) decltype(&::declaration) member = nullptr;
  JAX_CLC_DRIVER_ENTRIES(JAX_CLC_MEMBER)
  JAX_CLC_OPTIONAL_DRIVER_ENTRIES(JAX_CLC_MEMBER)
#undef JAX_CLC_MEMBER

  // True for an emulator: LibraryLoadData is given the kernel's name instead of its cubin.
  bool loads_by_name = false;

  // "CUDA_ERROR_INVALID_IMAGE (device kernel image is invalid)".
  std::string Describe(CUresult result) const;
};

// The CUDA driver, loaded and initialised at the first call. Null without libcuda; then `*why` says what failed.
// Tables live as long as the process: loaded kernels keep pointing at theirs.
const Driver* CudaDriver(std::string* why);

// Replaces the library that CudaDriver opens ("libcuda.so.1"); takes effect at its next call.
void SetDriverLibrary(const std::string& path);

// Makes `context` current for the lifetime of the object, if it is not already.
class ContextGuard {
 public:
  ContextGuard(const Driver& driver, CUcontext context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  CUresult status() const { return status_; }

 private:
  const Driver& driver_;
  CUresult status_;
  bool pushed_ = false;
};

}  // namespace jax_clc
