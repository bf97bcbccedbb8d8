// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>

namespace msa::io {

/// Throws InputError if there is no such file, or if it is a folder or a device.
void require_file(const std::filesystem::path& path);

/// The two formats of data/FORMAT.md.
enum class FileFormat : uint8_t { activations, results };

/// The format that the root attribute `format` names. InputError if the file is not HDF5 or has
/// another format.
FileFormat file_format(const std::filesystem::path& path);

}  // namespace msa::io
