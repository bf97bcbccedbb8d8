// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace msa::fuzz {

/// Where the global heaps of an HDF5 file lie: [begin, end).
std::vector<std::pair<size_t, size_t>> heaps_of(std::span<const uint8_t> file);

/// Offsets of the first bytes of every heap, and of all references to it.
std::vector<size_t> heap_structure(std::span<const uint8_t> file);

}  // namespace msa::fuzz
