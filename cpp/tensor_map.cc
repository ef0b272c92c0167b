// Fills cuTensorMapEncodeTiled's arguments axis by axis.
#include "tensor_map.h"

namespace jax_clc {
namespace {

constexpr int64_t kTmaAlignment = 16;

}  // namespace

bool TensorMapAligned(const OperandView& view, int64_t outer_size, int64_t batch) {
  auto aligned = [&](int64_t stride) { return (stride * view.element_bytes) % kTmaAlignment == 0; };
  return reinterpret_cast<uintptr_t>(view.data) % kTmaAlignment == 0 &&
         (outer_size == 1 || aligned(view.outer_stride)) && (batch == 1 || aligned(view.batch_stride));
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
    stride_bytes[i - 1] = size == 1 ? kTmaAlignment : static_cast<uint64_t>(stride * view.element_bytes);
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
