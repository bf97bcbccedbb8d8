// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <string>

namespace msa::io {

/// SHA-256 of a file's bytes in lower-case hexadecimal. InputError when it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace msa::io
