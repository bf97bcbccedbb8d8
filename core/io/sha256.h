// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace msa::io {

/// SHA-256 of a file's bytes in lower-case hexadecimal. InputError when it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path,
                           uint64_t first_bytes = std::numeric_limits<uint64_t>::max());

}  // namespace msa::io
