// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace msa::fuzz {

/// Writes an HDF5 file that is near msa-activations where the bytes say so, and broken where they
/// say otherwise. No bytes: a valid file.
void build_activations(const std::filesystem::path& path, const uint8_t* data, size_t size);

}  // namespace msa::fuzz
