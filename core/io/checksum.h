// SPDX-License-Identifier: MIT
// The checksum at the end of a file: "msa-sha256 ", the SHA-256 of all bytes before it as 64
// hexadecimal digits, a line break. It follows HDF5's own bytes, so HDF5 does not read it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace msa::io {

enum class Checksum : uint8_t { none, matches, differs };

/// Adds the checksum to a file without one. SystemError when the system refuses.
void append_checksum(const std::filesystem::path& path);
/// Compares the checksum with the bytes before it. InputError when the file cannot be read.
Checksum compare_checksum(const std::filesystem::path& path);

}  // namespace msa::io
