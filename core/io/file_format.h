// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>

namespace msa::io {

/// Throws InputError where there is no such file, or where it is a folder or a device.
void require_file(const std::filesystem::path& path);

/// The two formats of data/FORMAT.md.
enum class FileFormat : uint8_t { activations, results };

/// What the root attribute `format` says. InputError when the file is not HDF5 or of neither
/// format.
FileFormat file_format(const std::filesystem::path& path);

}  // namespace msa::io
