// XLA FFI handlers of the target jax_clc.gemm.v1: thin entries over GemmCall, one set for each platform.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jax_clc {

// CUDA: instantiate checks and loads, execute launches on XLA's stream. No other stage: XLA would call it for every
// call of every run of a program, also where a recorded graph is all that runs.
extern XLA_FFI_Handler* const kCudaInstantiate;
extern XLA_FFI_Handler* const kCudaExecute;

// CPU: execute does it all, on the emulated device (XLA's CPU client calls no other stage, and has no stream).
extern XLA_FFI_Handler* const kCpuExecute;

const XLA_FFI_TypeInfo* GemmCallTypeInfo();

}  // namespace jax_clc
