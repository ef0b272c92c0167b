// A driver table over a Python object that executes launches in software (docs/design.md, 7.4).
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <string>

#include "cuda_driver.h"
#include "gemm_call.h"

namespace jax_clc {

// The device that calls on the CPU run on from now on; None for none. Called with the GIL held.
void SetEmulator(nanobind::object device);

// One call in flight on this thread. While it lives, the emulated driver's entries act on its device and buffers, as
// the CUDA driver's act on the current context. Used without the GIL; the entries take it as they need it.
class EmulatedCall {
 public:
  EmulatedCall(const std::array<Buffer, 4>& buffers, std::string* why);
  ~EmulatedCall();
  EmulatedCall(const EmulatedCall&) = delete;
  EmulatedCall& operator=(const EmulatedCall&) = delete;
  const std::optional<Device>& device() const { return device_; }

 private:
  std::optional<Device> device_;
};

}  // namespace jax_clc
