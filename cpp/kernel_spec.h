// A manifest entry as the launcher needs it: what a kernel is, what it wants, what its parameters mean.
#pragma once

#include <cuda.h>
#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace jax_clc {

// Sizes of D[l,m,n] = sum_k A[l,m,k] B[l,k,n].
struct Sizes {
  int64_t l, m, n, k;
  int64_t Of(char axis) const { return axis == 'l' ? l : axis == 'm' ? m : axis == 'n' ? n : k; }
};

// A, B, D are indexed 0, 1, 2 throughout; scratch is 3.
enum Operand : int { kA = 0, kB = 1, kD = 2, kScratch = 3 };
inline constexpr std::array<const char*, 4> kOperandNames = {"a", "b", "d", "scratch"};
inline constexpr std::array<const char*, 3> kOperandAxes = {"mk", "kn", "mn"};

struct TensorMapSpec {
  CUtensorMapDataType element_type;
  int rank;
  std::string axes;  // innermost first, for example "kml"
  std::array<uint32_t, 5> box;
  std::array<uint32_t, 5> element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion l2_promotion;
  CUtensorMapFloatOOBfill fill;
};

// What an integer parameter may hold: the vocabulary of the manifest's `values`.
enum class Value {
  kM,
  kN,
  kK,
  kL,
  kRasterGroup,
  kRasterAlong,
  kSplitK,
  kAOuter,
  kABatch,
  kBOuter,
  kBBatch,
  kDOuter,
  kDBatch,
};

struct ParamSpec {
  enum Kind { kTensorMap, kPointer, kInt32, kInt64 } kind;
  size_t offset, size;
  Operand operand;            // of a tensor map or a pointer
  bool aligned;               // the operand is moved 16 bytes at a time: by a tensor map, or through such a pointer
  TensorMapSpec tensor_map;   // of a tensor map
  std::vector<Value> values;  // of integers
};

struct KernelSpec {
  std::string name, family, symbol, image_path, image_sha256;
  std::vector<std::pair<int, int>> compute_capabilities;
  int minimum_driver;
  std::array<xla::ffi::DataType, 3> dtypes;
  std::array<char, 3> majors;
  int64_t tile_m, tile_n;  // of the cluster tile, in elements
  int64_t tile_k;          // of what is loaded at a time
  int cluster_size;        // CTAs
  std::array<unsigned, 3> block;
  unsigned dynamic_smem_bytes;
  bool grid_of_workers;  // else one cluster per cluster tile
  bool split_k;
  bool any_alignment;  // it moves nothing 16 bytes at a time
  int64_t counter_bytes, partial_bytes_per_element, zeroed_bytes;
  std::vector<ParamSpec> params;
  size_t param_bytes;

  bool Serves(std::pair<int, int> compute_capability) const;
};

// The largest size, and number of cluster tiles, that a kernel is called with; jax_clc/planning/constraints.py has the
// same. Kernels count in 32 bits, and beyond both: sizes are rounded up to whole cluster tiles, and each worker counts
// on past the last tile, by two rounds of all workers at most (ping-pong). The margin is no smaller than any cluster
// tile, which ParseKernelSpec checks, and larger than two rounds of all CTAs that any device holds.
inline constexpr int64_t kSizeMargin = int64_t{1} << 16;
inline constexpr int64_t kMaxSize = (int64_t{1} << 31) - kSizeMargin;

// What a kernel moves at a time of an operand whose address and strides must be multiples of it.
inline constexpr int64_t kAccessBytes = 16;

// The largest parameter block that every driver and device served here takes.
inline constexpr size_t kMaxParamBytes = 4096;
inline constexpr int kAbiVersion = 1;

const char* DtypeName(xla::ffi::DataType dtype);

// Reads one entry of manifest.json (docs/design.md, 7.1). Raises ValueError, naming the kernel.
KernelSpec ParseKernelSpec(const nanobind::dict& entry, const std::string& image_path);

}  // namespace jax_clc
