// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace msa::fuzz {

/// The bytes of an HDF5 file that is near msa-activations where the input says so, and broken where
/// it says otherwise; its texts have variable length, as h5py's do. No input: a valid file.
std::vector<uint8_t> build_activations(const uint8_t* data, size_t size);
/// The same of msa-results.
std::vector<uint8_t> build_results(const uint8_t* data, size_t size);

}  // namespace msa::fuzz
