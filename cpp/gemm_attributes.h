// The attributes of a GEMM call (docs/design.md, 7.2), read and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernel_spec.h"
#include "xla/ffi/api/ffi.h"

namespace jax_clc {

// How a call's operand lies in its buffer. Strides are in elements; the major axis has stride 1.
struct OperandLayout {
  char major;
  int64_t batch_stride, outer_stride;
};

// A kernel that the call may run, and what the planner chose for it.
struct KernelRequest {
  std::string name;
  bool swapped;  // the kernel computes D^T = B^T A^T: its a is the call's b, its m the call's n
  int64_t raster_group, raster_along, split_k;

  // The call's operand that the kernel sees as its `operand`, and the kernel's name for an axis of the call.
  Operand CallOperand(Operand operand) const { return !swapped || operand == kD ? operand : operand == kA ? kB : kA; }
  char KernelAxis(char axis) const { return !swapped || axis == 'k' ? axis : axis == 'm' ? 'n' : 'm'; }
};

// The widest panel of the raster that a call may ask for; jax_clc/planning/constraints.py has the same. Panels that pay
// are far narrower: more is a mistake.
inline constexpr int64_t kMaxRasterGroup = int64_t{1} << 15;

struct GemmAttributes {
  Sizes sizes;
  std::array<OperandLayout, 3> layouts;
  int64_t sm_limit;  // 0: none
  std::vector<KernelRequest> kernels;

  static xla::ffi::ErrorOr<GemmAttributes> Read(const xla::ffi::Dictionary& dictionary);
};

}  // namespace jax_clc
