// Fills cuTensorMapEncodeTiled's arguments axis by axis.
#include "tensor_map.h"

#include <cstdio>

namespace jax_clc {

std::string AlignmentObstacle(Operand operand, const OperandView& view, const Sizes& sizes) {
  const char* axes = kOperandAxes[operand];
  const int64_t outer_size = sizes.Of(axes[0] == view.major ? axes[1] : axes[0]);
  const int64_t outer_bytes = view.outer_stride * view.element_bytes;
  const int64_t batch_bytes = view.batch_stride * view.element_bytes;
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (address % kAccessBytes != 0 || (outer_size > 1 && outer_bytes % kAccessBytes != 0) ||
      (sizes.l > 1 && batch_bytes % kAccessBytes != 0)) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", view.data);
    return std::string("its address ") + text + ", or its strides of " + std::to_string(batch_bytes) + " and " +
           std::to_string(outer_bytes) + " bytes, are not multiples of 16 bytes";
  }
  // A store writes whole granules: behind the end of a row there must be room for the rest of the last one.
  const int64_t row_bytes = sizes.Of(view.major) * view.element_bytes;
  const int64_t granules_bytes = (row_bytes + kAccessBytes - 1) / kAccessBytes * kAccessBytes;
  if (operand != kD || granules_bytes == row_bytes) return "";
  const auto end = static_cast<__int128>(sizes.l - 1) * batch_bytes +
                   static_cast<__int128>(outer_size - 1) * outer_bytes + granules_bytes;
  if ((outer_size > 1 && outer_bytes < granules_bytes) || (sizes.l > 1 && batch_bytes < granules_bytes) ||
      end > view.bytes) {
    return "its rows of " + std::to_string(row_bytes) +
           " bytes are no multiple of 16 bytes, and nothing separates them";
  }
  return "";
}

bool EncodeTensorMap(const Driver& driver, const TensorMapSpec& spec, const OperandView& view, const Sizes& sizes,
                     CUtensorMap* map, std::string* error) {
  if (spec.axes[0] != view.major) {
    *error = std::string("the kernel wants ") + spec.axes[0] + " contiguous, the operand has " + view.major;
    return false;
  }
  if (spec.axes.find('l') == std::string::npos && sizes.l != 1) {
    *error = "the kernel has no batch axis, the batch is " + std::to_string(sizes.l);
    return false;
  }
  uint64_t dims[5] = {};
  uint64_t stride_bytes[4] = {};
  for (int i = 0; i < spec.rank; ++i) {
    const int64_t size = sizes.Of(spec.axes[i]);
    dims[i] = static_cast<uint64_t>(size);
    if (i == 0) continue;
    const int64_t stride = spec.axes[i] == 'l' ? view.batch_stride : view.outer_stride;
    // The stride of an axis of one element is never used, but the driver checks it all the same.
    stride_bytes[i - 1] = size == 1 ? kAccessBytes : static_cast<uint64_t>(stride * view.element_bytes);
  }
  const CUresult result = driver.TensorMapEncodeTiled(map, spec.element_type, spec.rank, view.data, dims, stride_bytes,
                                                      spec.box.data(), spec.element_strides.data(), spec.interleave,
                                                      spec.swizzle, spec.l2_promotion, spec.fill);
  if (result == CUDA_SUCCESS) return true;
  *error = "cuTensorMapEncodeTiled failed with " + driver.Describe(result) + " for axes " + spec.axes + ", sizes";
  for (int i = 0; i < spec.rank; ++i) *error += " " + std::to_string(dims[i]);
  *error += ", strides in bytes";
  for (int i = 0; i + 1 < spec.rank; ++i) *error += " " + std::to_string(stride_bytes[i]);
  return false;
}

}  // namespace jax_clc
