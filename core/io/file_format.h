// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>

namespace msa::io {

/// The two formats of data/FORMAT.md.
enum class FileFormat : uint8_t { activations, results };

/// What the root attribute `format` says. InputError when the file is not HDF5 or of neither
/// format.
FileFormat file_format(const std::filesystem::path& path);

}  // namespace msa::io
