// SPDX-License-Identifier: MIT
// A checksum at the end of a file, after HDF5's own bytes, which other readers do not look at:
// "msa-sha256 ", 64 hexadecimal digits, a line break. It is of all bytes before it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace msa::io {

enum class Seal : uint8_t { none, whole, broken };

/// Adds the checksum to a file without one. SystemError when the system refuses.
void seal(const std::filesystem::path& path);
/// Compares it with the bytes. InputError when the file cannot be read.
Seal check_seal(const std::filesystem::path& path);

}  // namespace msa::io
