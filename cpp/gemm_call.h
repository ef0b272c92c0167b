// One GEMM call: its attributes checked, its kernel picked and loaded, its launch put on a stream.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "gemm_attributes.h"
#include "kernel_library.h"
#include "kernel_spec.h"
#include "xla/ffi/api/ffi.h"

namespace jax_clc {

// Where a call runs. CUDA and emulated calls differ in nothing else.
struct Device {
  const Driver* driver;
  CUcontext context;
  CUstream stream;
};

// A buffer as XLA hands it over.
struct Buffer {
  void* data;
  int64_t bytes;
  xla::ffi::DataType dtype;
};

class GemmCall {
 public:
  // Reads the attributes (docs/design.md, 7.2) and finds the kernels by name.
  static xla::ffi::ErrorOr<std::unique_ptr<GemmCall>> FromAttributes(const xla::ffi::Dictionary& attributes);

  // Loads what the call may launch on the device of `context`, which is current. Idempotent. What cannot be loaded is
  // no error: Execute tries it again if it is needed, and reports.
  void Load(const Driver& driver, CUcontext context) const;

  // Puts D = A B on the device's stream, whose context is current. Allocates nothing and waits for nothing.
  xla::ffi::Error Execute(const Device& device, const std::array<Buffer, 4>& buffers) const;

  static xla::ffi::TypeId id;  // XLA keeps the call as the state of its custom call

 private:
  struct Choice {
    KernelRequest request;
    std::shared_ptr<Kernel> kernel;
    std::unique_ptr<Choice> any_alignment;  // same sum from operands of any alignment, or null
  };
  struct Launch;  // one launch in the kernel's own terms

  explicit GemmCall(const GemmAttributes& attributes)
      : sizes_(attributes.sizes), layouts_(attributes.layouts), sm_limit_(attributes.sm_limit) {}
  xla::ffi::Error FindKernels(const std::vector<KernelRequest>& requests);
  xla::ffi::Error CheckChoice(const Choice& choice) const;
  std::unique_ptr<Choice> StandIn(const Choice& choice) const;
  Launch InKernelTerms(const Choice& choice, const std::array<Buffer, 4>& buffers) const;
  xla::ffi::Error CheckBuffers(const KernelSpec& spec, const Choice& choice,
                               const std::array<Buffer, 4>& buffers) const;
  xla::ffi::Error ChoiceFor(const Driver& driver, CUcontext context, const Choice** choice) const;
  xla::ffi::Error FillParameters(const Launch& launch, const Driver& driver, std::byte* block) const;
  xla::ffi::ErrorOr<int64_t> Clusters(const Launch& launch, const LoadedKernel& loaded) const;
  xla::ffi::Error Run(const Launch& launch, const Device& device, const LoadedKernel& loaded) const;
  Sizes KernelSizes(const Choice& choice) const;
  int64_t ScratchBytes(const KernelSpec& spec, const Choice& choice) const;
  std::string Describe() const;
  xla::ffi::Error Fail(const std::string& what, const Kernel* kernel = nullptr,
                       xla::ffi::ErrorCode code = xla::ffi::ErrorCode::kInvalidArgument) const;

  const Sizes sizes_;
  const std::array<OperandLayout, 3> layouts_;
  const int64_t sm_limit_;
  std::vector<Choice> choices_;
};

}  // namespace jax_clc
