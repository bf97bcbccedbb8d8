// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <span>

#include "core/io/activations.h"
#include "core/io/results.h"

namespace msa::experiments {

/// Writes the fitted layers of `results` as activations, replacing `path`: q, k and v of all input
/// files, index_q and index_k of the fitted weights, in the element type of the input.
void write_indexer_file(const std::filesystem::path& path,
                        std::span<const io::ActivationsReader> files,
                        const io::ResultsReader& results, std::span<const int64_t> layers,
                        int threads);

}  // namespace msa::experiments
