// Parses manifest entries; every word of their vocabulary is in a table here.
#include "kernel_spec.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdio>
#include <exception>

namespace jax_clc {
namespace {

namespace nb = nanobind;
using xla::ffi::DataType;

template <typename T>
struct Word {
  const char* word;
  T meaning;
};

constexpr Word<DataType> kDtypes[] = {
    {"bfloat16", DataType::BF16},      {"float16", DataType::F16},
    {"float32", DataType::F32},        {"float8_e4m3fn", DataType::F8E4M3FN},
    {"float8_e5m2", DataType::F8E5M2}, {"int8", DataType::S8},
    {"int32", DataType::S32},
};
constexpr Word<CUtensorMapDataType> kElementTypes[] = {
    {"bfloat16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16},   {"float16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16},
    {"float32", CU_TENSOR_MAP_DATA_TYPE_FLOAT32},     {"tfloat32", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32},
    {"float8_e4m3fn", CU_TENSOR_MAP_DATA_TYPE_UINT8}, {"float8_e5m2", CU_TENSOR_MAP_DATA_TYPE_UINT8},
    {"int8", CU_TENSOR_MAP_DATA_TYPE_UINT8},          {"uint8", CU_TENSOR_MAP_DATA_TYPE_UINT8},
    {"int32", CU_TENSOR_MAP_DATA_TYPE_INT32},
};
constexpr Word<CUtensorMapInterleave> kInterleaves[] = {
    {"none", CU_TENSOR_MAP_INTERLEAVE_NONE},
    {"16B", CU_TENSOR_MAP_INTERLEAVE_16B},
    {"32B", CU_TENSOR_MAP_INTERLEAVE_32B},
};
constexpr Word<CUtensorMapSwizzle> kSwizzles[] = {
    {"none", CU_TENSOR_MAP_SWIZZLE_NONE},
    {"32B", CU_TENSOR_MAP_SWIZZLE_32B},
    {"64B", CU_TENSOR_MAP_SWIZZLE_64B},
    {"128B", CU_TENSOR_MAP_SWIZZLE_128B},
};
constexpr Word<CUtensorMapL2promotion> kL2Promotions[] = {
    {"none", CU_TENSOR_MAP_L2_PROMOTION_NONE},
    {"64B", CU_TENSOR_MAP_L2_PROMOTION_L2_64B},
    {"128B", CU_TENSOR_MAP_L2_PROMOTION_L2_128B},
    {"256B", CU_TENSOR_MAP_L2_PROMOTION_L2_256B},
};
constexpr Word<CUtensorMapFloatOOBfill> kFills[] = {
    {"zeros", CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE},
    {"nan", CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA},
};
constexpr Word<Value> kValues[] = {
    {"m", Value::kM},
    {"n", Value::kN},
    {"k", Value::kK},
    {"l", Value::kL},
    {"raster_group", Value::kRasterGroup},
    {"raster_along", Value::kRasterAlong},
    {"split_k", Value::kSplitK},
    {"a_outer", Value::kAOuter},
    {"a_batch", Value::kABatch},
    {"b_outer", Value::kBOuter},
    {"b_batch", Value::kBBatch},
    {"d_outer", Value::kDOuter},
    {"d_batch", Value::kDBatch},
};
constexpr Word<Operand> kOperands[] = {{"a", kA}, {"b", kB}, {"d", kD}, {"scratch", kScratch}};
constexpr Word<ParamSpec::Kind> kKinds[] = {
    {"tensor_map", ParamSpec::kTensorMap},
    {"pointer", ParamSpec::kPointer},
    {"int32", ParamSpec::kInt32},
    {"int64", ParamSpec::kInt64},
};
constexpr Word<bool> kGrids[] = {{"workers", true}, {"tiles", false}};

constexpr int64_t kMaxClusterSize = 8;  // CTAs

void Require(bool condition, const std::string& what) {
  if (!condition) throw nb::value_error(what.c_str());
}

template <typename T, size_t N>
T Meaning(const Word<T> (&table)[N], const std::string& word, const char* field) {
  std::string known;
  for (const Word<T>& entry : table) {
    if (word == entry.word) return entry.meaning;
    known += std::string(known.empty() ? "" : ", ") + entry.word;
  }
  throw nb::value_error((std::string(field) + " is '" + word + "', known are " + known).c_str());
}

template <typename T>
T Get(const nb::dict& entry, const char* field) {
  if (!entry.contains(field)) throw nb::value_error(("the field '" + std::string(field) + "' is missing").c_str());
  try {
    return nb::cast<T>(entry[field]);
  } catch (const nb::cast_error&) {
    throw nb::value_error(("the field '" + std::string(field) + "' has the wrong type").c_str());
  }
}

TensorMapSpec ParseTensorMap(const nb::dict& param, Operand operand) {
  TensorMapSpec map = {};
  const auto axes = Get<std::vector<std::string>>(param, "axes");
  const auto box = Get<std::vector<uint32_t>>(param, "box");
  const auto element_strides = Get<std::vector<uint32_t>>(param, "element_strides");
  map.rank = Get<int>(param, "rank");
  Require(operand != kScratch, "scratch has no tensor map");
  Require(map.rank >= 2 && map.rank <= 3 && axes.size() == size_t(map.rank) && box.size() == axes.size() &&
              element_strides.size() == axes.size(),
          "rank, axes, box and element_strides of a tensor map must agree, with 2 or 3 axes");
  for (size_t i = 0; i < axes.size(); ++i) {
    const std::string allowed = std::string(kOperandAxes[operand]) + "l";
    Require(axes[i].size() == 1 && allowed.find(axes[i]) != std::string::npos &&
                map.axes.find(axes[i]) == std::string::npos,
            "axis '" + axes[i] + "' of a tensor map must be one of " + allowed + ", each once");
    map.axes += axes[i];
    map.box[i] = box[i];
    map.element_strides[i] = element_strides[i];
  }
  map.element_type = Meaning(kElementTypes, Get<std::string>(param, "element_type"), "element_type");
  map.interleave = Meaning(kInterleaves, Get<std::string>(param, "interleave"), "interleave");
  map.swizzle = Meaning(kSwizzles, Get<std::string>(param, "swizzle"), "swizzle");
  map.l2_promotion = Meaning(kL2Promotions, Get<std::string>(param, "l2_promotion"), "l2_promotion");
  map.fill = Meaning(kFills, Get<std::string>(param, "fill"), "fill");
  return map;
}

// Whether a pointer has the field that asks for more alignment than an element's.
bool IsAccessedInPieces(const nb::dict& param, Operand operand) {
  if (!param.contains("access_bytes")) return false;
  const auto access_bytes = Get<int64_t>(param, "access_bytes");
  Require(operand != kScratch, "scratch has no access_bytes");
  Require(access_bytes == kAccessBytes,
          "access_bytes is " + std::to_string(access_bytes) + ", known is " + std::to_string(kAccessBytes));
  return true;
}

ParamSpec ParseParam(const nb::dict& entry) {
  ParamSpec param = {};
  param.kind = Meaning(kKinds, Get<std::string>(entry, "kind"), "kind");
  param.offset = Get<size_t>(entry, "offset");
  param.size = Get<size_t>(entry, "size");
  size_t expected = 0;
  if (param.kind == ParamSpec::kTensorMap || param.kind == ParamSpec::kPointer) {
    param.operand = Meaning(kOperands, Get<std::string>(entry, "operand"), "operand");
    expected = param.kind == ParamSpec::kPointer ? sizeof(void*) : sizeof(CUtensorMap);
    if (param.kind == ParamSpec::kTensorMap) param.tensor_map = ParseTensorMap(entry, param.operand);
    param.aligned = param.kind == ParamSpec::kTensorMap || IsAccessedInPieces(entry, param.operand);
  } else {
    for (const std::string& word : Get<std::vector<std::string>>(entry, "values")) {
      param.values.push_back(Meaning(kValues, word, "values"));
      Require(param.kind == ParamSpec::kInt64 || param.values.back() <= Value::kSplitK,
              "the stride '" + word + "' must be passed as int64");
    }
    expected = param.values.size() * (param.kind == ParamSpec::kInt32 ? 4 : 8);
  }
  Require(param.size == expected, "a parameter at offset " + std::to_string(param.offset) + " has size " +
                                      std::to_string(param.size) + ", its contents take " + std::to_string(expected));
  Require(param.offset <= kMaxParamBytes && param.size <= kMaxParamBytes - param.offset,
          "the parameters take more than " + std::to_string(kMaxParamBytes) + " bytes");
  return param;
}

std::pair<int, int> ParseComputeCapability(const std::string& text) {
  int major = 0, minor = 0;
  char rest = 0;
  Require(std::sscanf(text.c_str(), "%d.%d%c", &major, &minor, &rest) == 2,
          "compute capability '" + text + "' is not of the form 9.0");
  return {major, minor};
}

KernelSpec Parse(const nb::dict& entry, const std::string& image_path) {
  KernelSpec spec = {};
  const int abi_version = Get<int>(entry, "abi_version");
  Require(abi_version == kAbiVersion, "it was built for launcher ABI " + std::to_string(abi_version) +
                                          ", this extension has ABI " + std::to_string(kAbiVersion));
  spec.name = Get<std::string>(entry, "name");
  spec.family = Get<std::string>(entry, "family");
  spec.symbol = Get<std::string>(entry, "symbol");
  spec.image_path = image_path;
  spec.image_sha256 = Get<std::string>(entry, "image_sha256");
  for (const std::string& text : Get<std::vector<std::string>>(entry, "compute_capabilities")) {
    spec.compute_capabilities.push_back(ParseComputeCapability(text));
  }
  spec.minimum_driver = Get<int>(entry, "minimum_driver");

  const auto dtypes = Get<nb::dict>(entry, "dtypes");
  const auto majors = Get<nb::dict>(entry, "majors");
  for (Operand operand : {kA, kB, kD}) {
    spec.dtypes[operand] = Meaning(kDtypes, Get<std::string>(dtypes, kOperandNames[operand]), "dtype");
    const auto major = Get<std::string>(majors, kOperandNames[operand]);
    Require(major.size() == 1 && std::string(kOperandAxes[operand]).find(major) != std::string::npos,
            "the major of " + std::string(kOperandNames[operand]) + " is '" + major + "', not one of its axes");
    spec.majors[operand] = major[0];
  }

  const auto cta_tile = Get<std::vector<int64_t>>(entry, "cta_tile");
  const auto cluster = Get<std::vector<int64_t>>(entry, "cluster");
  Require(cta_tile.size() == 3 && cluster.size() == 2 && *std::min_element(cta_tile.begin(), cta_tile.end()) > 0 &&
              *std::min_element(cluster.begin(), cluster.end()) > 0,
          "cta_tile must be three and cluster two positive integers");
  // CTAs that share a tile, a part of k each, make the cluster larger and its tile not.
  const int64_t cluster_k = entry.contains("cluster_k") ? Get<int64_t>(entry, "cluster_k") : 1;
  Require(cluster_k > 0 && cluster_k <= kMaxClusterSize && cluster[0] <= kMaxClusterSize &&
              cluster[1] <= kMaxClusterSize && cluster[0] * cluster[1] * cluster_k <= kMaxClusterSize,
          "a cluster has at most 8 CTAs, the most that every device takes");
  spec.cluster_size = static_cast<int>(cluster[0] * cluster[1] * cluster_k);
  constexpr int64_t kMaxTile = kSizeMargin / kMaxClusterSize;
  Require(*std::max_element(cta_tile.begin(), cta_tile.end()) <= kMaxTile,
          "cta_tile has more than " + std::to_string(kMaxTile) + " elements along an axis");
  spec.tile_m = cta_tile[0] * cluster[0];
  spec.tile_n = cta_tile[1] * cluster[1];
  spec.tile_k = cta_tile[2];

  const auto launch = Get<nb::dict>(entry, "launch");
  const auto block = Get<std::vector<unsigned>>(launch, "block");
  Require(block.size() == 3 && *std::min_element(block.begin(), block.end()) > 0 &&
              Get<std::vector<int64_t>>(launch, "cluster") == std::vector<int64_t>{spec.cluster_size, 1, 1},
          "launch.block must have three positive axes and launch.cluster be (CTAs of the cluster, 1, 1)");
  spec.block = {block[0], block[1], block[2]};
  spec.grid_of_workers = Meaning(kGrids, Get<std::string>(launch, "grid"), "launch.grid");
  spec.dynamic_smem_bytes = Get<unsigned>(entry, "dynamic_smem_bytes");
  spec.split_k = Get<bool>(entry, "split_k");

  const auto scratch = Get<nb::dict>(entry, "scratch");
  spec.counter_bytes = Get<int64_t>(scratch, "counter_bytes");
  spec.partial_bytes_per_element = Get<int64_t>(scratch, "partial_bytes_per_element");
  spec.zeroed_bytes = Get<int64_t>(scratch, "zeroed_bytes");
  Require(spec.counter_bytes >= 0 && spec.partial_bytes_per_element >= 0 && spec.zeroed_bytes >= 0 &&
              spec.zeroed_bytes <= spec.counter_bytes,
          "scratch sizes must not be negative and zeroed_bytes not above counter_bytes");

  for (const auto& param : Get<std::vector<nb::dict>>(entry, "params")) {
    spec.params.push_back(ParseParam(param));
    Require(spec.params.back().offset >= spec.param_bytes, "params must be in order and not overlap");
    spec.param_bytes = spec.params.back().offset + spec.params.back().size;
  }
  Require(!spec.params.empty(), "params must not be empty");
  spec.any_alignment =
      std::none_of(spec.params.begin(), spec.params.end(), [](const ParamSpec& param) { return param.aligned; });
  return spec;
}

}  // namespace

bool KernelSpec::Serves(std::pair<int, int> compute_capability) const {
  return std::find(compute_capabilities.begin(), compute_capabilities.end(), compute_capability) !=
         compute_capabilities.end();
}

const char* DtypeName(DataType dtype) {
  for (const Word<DataType>& entry : kDtypes) {
    if (entry.meaning == dtype) return entry.word;
  }
  return "another dtype";
}

KernelSpec ParseKernelSpec(const nb::dict& entry, const std::string& image_path) {
  try {
    return Parse(entry, image_path);
  } catch (const std::exception& error) {
    std::string name;
    if (!entry.contains("name") || !nb::try_cast(entry["name"], name)) name = "(unnamed)";
    throw nb::value_error(("kernel " + name + ": " + error.what()).c_str());
  }
}

}  // namespace jax_clc
