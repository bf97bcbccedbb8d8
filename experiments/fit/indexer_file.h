// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "core/indexer/index_branch.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments::fit {

/// Computes an operand [n, heads, channels] from the weights for the tokens [range) of a file:
/// one that has a row per token.
Tensor<float, 3> fitted_index(const io::ActivationsReader& file, int64_t layer, const IndexWeights&,
                              io::Field, QueryRange range, int threads = 0);

/// Index Branches of a fit, for layers of a file that has their inputs.
struct FittedBranches {
    std::map<int64_t, IndexWeights> weights;  // by layer
    SizeOptions sizes;                        // of the fit
};
/// Those of `layers`; if that is empty, it becomes all fitted layers. Throws InputError naming the
/// file and what it lacks, or in what the two differ.
FittedBranches read_branches(const std::filesystem::path& results, const io::ActivationsReader&,
                             std::vector<int64_t>& layers);

/// Writes the fitted layers of `results` as activations, replacing `path`: q, k and v of the input;
/// the fitted operands in the element type of the input; the block size and k of the fit; x with
/// the option keep_x; and the input's operands of other architectures.
void write_indexer_file(const std::filesystem::path& path, const io::ActivationsReader& file,
                        const io::ResultsReader& results, std::span<const int64_t> layers,
                        int threads);

}  // namespace msa::experiments::fit
