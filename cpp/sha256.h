// SHA-256 (FIPS 180-4), so that a damaged cubin is found before a driver sees it.
#pragma once

#include <cstddef>
#include <string>

namespace jax_clc {

// The digest of `size` bytes as 64 lower-case hexadecimal digits.
std::string Sha256(const void* data, size_t size);

}  // namespace jax_clc
