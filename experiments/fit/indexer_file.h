// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <span>

#include "core/indexer/index_branch.h"
#include "core/io/activations.h"
#include "core/io/results.h"

namespace msa::experiments::fit {

/// An operand [n, heads, channels] that the weights make of the tokens [range) of a file: index_q
/// or index_k, of --architecture dsa dsa_q, dsa_k or dsa_w, of seerattention gate_q.
Tensor<float, 3> fitted_index(const io::ActivationsReader& file, int64_t layer, const IndexWeights&,
                              io::Field, QueryRange range, int threads = 0);

/// Writes the fitted layers of `results` as activations, replacing `path`: q, k and v of the input,
/// the operands of the fitted weights, in the element type of the input, and the block size and k
/// that they were fitted for; with the option keep_x x; and the operands of another architecture
/// that the input has.
void write_indexer_file(const std::filesystem::path& path, const io::ActivationsReader& file,
                        const io::ResultsReader& results, std::span<const int64_t> layers,
                        int threads);

}  // namespace msa::experiments::fit
