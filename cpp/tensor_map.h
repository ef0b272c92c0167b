// CUtensorMap encoding from a manifest entry and a buffer.
#pragma once

#include <cstdint>
#include <string>

#include "cuda_driver.h"
#include "kernel_spec.h"

namespace jax_clc {

// One operand of a call, in the kernel's terms. Strides are in elements; the major axis has stride 1.
struct OperandView {
  void* data = nullptr;
  int64_t bytes = 0;  // of the buffer behind `data`
  int64_t element_bytes = 0;
  char major = 0;
  int64_t outer_stride = 0;
  int64_t batch_stride = 0;
};

// Why the operand cannot be moved 16 bytes at a time as it lies; empty if it can.
std::string AlignmentObstacle(Operand operand, const OperandView& view, const Sizes& sizes);

// Encodes the map into `map`. On failure returns false and says why in `*error`.
bool EncodeTensorMap(const Driver& driver, const TensorMapSpec& spec, const OperandView& view, const Sizes& sizes,
                     CUtensorMap* map, std::string* error);

}  // namespace jax_clc
