// Decodes what XLA passes, finds the device, calls the core; lets no exception out.
#include "ffi_handlers.h"

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "emulated_driver.h"
#include "gemm_call.h"

namespace jax_clc {
namespace {

namespace ffi = xla::ffi;
using Dictionary = ffi::Dictionary;
using Result = ffi::Result<ffi::AnyBuffer>;

// Nothing in the core throws by design; what the standard library may throw ends here.
template <typename Function>
auto Guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    ffi::Error failure = ffi::Error::Internal(std::string("jax_clc.gemm: ") + error.what());
    if constexpr (std::is_same_v<decltype(function()), ffi::Error>) {
      return failure;
    } else {
      return ffi::Unexpected(std::move(failure));
    }
  }
}

std::array<Buffer, 4> Buffers(ffi::AnyBuffer a, ffi::AnyBuffer b, Result d, Result scratch) {
  auto buffer = [](const ffi::AnyBuffer& any) {
    return Buffer{any.untyped_data(), static_cast<int64_t>(any.size_bytes()), any.element_type()};
  };
  return {buffer(a), buffer(b), buffer(*d), buffer(*scratch)};
}

ffi::Error DriverError(const Driver& driver, const char* call, CUresult result) {
  return ffi::Error::Internal(std::string("jax_clc.gemm: ") + call + " failed with " + driver.Describe(result));
}

ffi::Error NoDriver(const std::string& why) {
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "jax_clc.gemm: " + why);
}

// Loads the call's kernels on every device that this process has opened. What fails here is left to Execute, which
// loads what it misses and reports: a device or a kernel that the program will never need must not stop it.
void LoadOnOpenDevices(const GemmCall& call) {
  std::string why;
  const Driver* driver = CudaDriver(&why);
  int count = 0;
  if (driver == nullptr || driver->DeviceGetCount(&count) != CUDA_SUCCESS) return;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    unsigned flags = 0;
    int active = 0;
    if (driver->DeviceGet(&device, ordinal) != CUDA_SUCCESS) continue;
    if (driver->DevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active) continue;
    // Retained for good: XLA holds the same context as long as the process lives.
    if (driver->DevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) continue;
    ContextGuard guard(*driver, context);
    if (guard.status() == CUDA_SUCCESS) call.Load(*driver, context);
  }
}

ffi::ErrorOr<std::unique_ptr<GemmCall>> CudaInstantiate(Dictionary attributes) {
  return Guarded([&] {
    auto call = GemmCall::FromAttributes(attributes);
    if (call.has_value()) LoadOnOpenDevices(**call);
    return call;
  });
}

ffi::Error CudaExecute(CUstream stream, GemmCall* call, ffi::AnyBuffer a, ffi::AnyBuffer b, Result d, Result scratch) {
  return Guarded([&]() -> ffi::Error {
    std::string why;
    const Driver* driver = CudaDriver(&why);
    if (driver == nullptr) return NoDriver(why);
    CUcontext context = nullptr;
    if (CUresult result = driver->StreamGetCtx(stream, &context); result != CUDA_SUCCESS) {
      return DriverError(*driver, "cuStreamGetCtx", result);
    }
    ContextGuard guard(*driver, context);
    if (guard.status() != CUDA_SUCCESS) return DriverError(*driver, "cuCtxPushCurrent", guard.status());
    return call->Execute({driver, context, stream}, Buffers(a, b, d, scratch));
  });
}

ffi::Error CpuExecute(Dictionary attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, Result d, Result scratch) {
  return Guarded([&]() -> ffi::Error {
    auto call = GemmCall::FromAttributes(attributes);
    if (!call.has_value()) return call.error();
    const std::array<Buffer, 4> buffers = Buffers(a, b, d, scratch);
    std::string why;
    EmulatedCall emulated(buffers, &why);
    if (!emulated.device().has_value()) return NoDriver(why);
    return (*call)->Execute(*emulated.device(), buffers);
  });
}

XLA_FFI_DEFINE_HANDLER(kCudaInstantiateHandler, CudaInstantiate, ffi::Ffi::BindInstantiate().Attrs<Dictionary>());

XLA_FFI_DEFINE_HANDLER(kCudaExecuteHandler, CudaExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<CUstream>>()
                           .Ctx<ffi::State<GemmCall>>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>(),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(kCpuExecuteHandler, CpuExecute,
                       ffi::Ffi::Bind()
                           .Attrs<Dictionary>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

XLA_FFI_Handler* const kCudaInstantiate = kCudaInstantiateHandler;
XLA_FFI_Handler* const kCudaExecute = kCudaExecuteHandler;
XLA_FFI_Handler* const kCpuExecute = kCpuExecuteHandler;

const XLA_FFI_TypeInfo* GemmCallTypeInfo() {
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<GemmCall>();
  return &info;
}

}  // namespace jax_clc
