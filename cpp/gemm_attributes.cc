// Reads attributes one by one, so that each error names its attribute.
#include "gemm_attributes.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

namespace jax_clc {

namespace ffi = xla::ffi;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

ffi::ErrorOr<GemmAttributes> GemmAttributes::Read(const ffi::Dictionary& dictionary) {
  ffi::Error error;  // the first one
  auto fail = [&](const std::string& what) {
    if (error.success()) error = ffi::Error::InvalidArgument("jax_clc.gemm: " + what);
  };
  auto get = [&](const std::string& name, auto otherwise) {
    auto value = dictionary.get<decltype(otherwise)>(name);
    if (value.has_value()) return *value;
    fail("attribute " + name + ": " + value.error().message());
    return otherwise;
  };
  auto integer = [&](const std::string& name) {
    const int64_t value = get(name, int64_t{0});
    if (value < 0) fail("attribute " + name + " is " + std::to_string(value));
    return value;
  };
  auto size = [&](const std::string& name) {
    const int64_t value = integer(name);
    if (value > kMaxSize) {
      fail("attribute " + name + " is " + std::to_string(value) + ", beyond the limit of " + std::to_string(kMaxSize) +
           " up to which kernels count in 32 bits");
    }
    return value;
  };
  auto integers = [&](const std::string& name, size_t count, int64_t least = 0, int64_t most = kNoLimit) {
    const auto values = get(name, ffi::Span<const int64_t>());
    if (values.size() != count) {
      fail("attribute " + name + " has " + std::to_string(values.size()) + " entries instead of " +
           std::to_string(count));
      return std::vector<int64_t>(count);
    }
    for (int64_t value : values) {
      if (value >= least && value <= most) continue;
      const std::string range = std::to_string(least) + (most == kNoLimit ? " or more" : " to " + std::to_string(most));
      fail("attribute " + name + " holds " + std::to_string(value) + ", expected " + range);
    }
    return std::vector<int64_t>(values.begin(), values.end());
  };

  if (int64_t abi = integer("abi"); abi != kAbiVersion && error.success()) {
    fail("the program was lowered for launcher ABI " + std::to_string(abi) + ", this jax_clc has ABI " +
         std::to_string(kAbiVersion) + "; lower it again with this version");
  }
  if (error.failure()) return ffi::Unexpected(std::move(error));
  GemmAttributes attributes;
  attributes.sizes = {size("l"), size("m"), size("n"), size("k")};
  attributes.sm_limit = integer("sm_limit");
  for (Operand operand : {kA, kB, kD}) {
    const std::string name = kOperandNames[operand];
    const auto strides = integers(name + "_strides", 2);
    char major = 'n';  // D's
    if (operand != kD) {
      const std::string_view word = get(name + "_major", std::string_view());
      if (word.size() != 1 || std::string_view(kOperandAxes[operand]).find(word) == std::string_view::npos) {
        fail("attribute " + name + "_major is '" + std::string(word) + "'");
      } else {
        major = word[0];
      }
    }
    attributes.layouts[operand] = {major, strides[0], strides[1]};
  }

  std::vector<std::string> names;
  std::string_view list = get("kernels", std::string_view());
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    names.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  if (names.empty()) fail("attribute kernels names no kernel");
  const auto swapped = integers("swapped", names.size());
  const auto raster_group = integers("raster_group", names.size(), 1, kMaxRasterGroup);
  const auto raster_along = integers("raster_along", names.size(), 0, 1);
  const auto split_k = integers("split_k", names.size());
  if (error.failure()) return ffi::Unexpected(std::move(error));
  for (size_t i = 0; i < names.size(); ++i) {
    attributes.kernels.push_back(
        {names[i], swapped[i] != 0, raster_group[i], raster_along[i], std::max<int64_t>(split_k[i], 1)});
  }
  return attributes;
}

}  // namespace jax_clc
