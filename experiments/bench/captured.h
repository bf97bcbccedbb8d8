// SPDX-License-Identifier: MIT
// Operands from a file: captured layers, with index operands computed by a fitted Index Branch.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "analysis/stage_cost.h"
#include "core/io/activations.h"
#include "experiments/fit/indexer_file.h"

namespace msa::experiments::bench {

/// Returns the tokens [range.begin, range.end) of an operand: [n, heads, channels].
using Source = std::function<Tensor<float, 3>(io::Field, QueryRange)>;

/// Layers of a file of activations, with index operands from an Index Branch fitted by
/// msa-fit-indexer or from the file.
class Captured {
public:
    /// `indexer`: results of msa-fit-indexer, or empty; `layers` empty: all with an Index Branch.
    /// Throws InputError naming the file and what it lacks, or in what its layers differ.
    Captured(const std::filesystem::path& input, const std::filesystem::path& indexer,
             std::vector<int64_t> layers);

    const io::ActivationsReader& file() const { return file_; }
    std::vector<std::filesystem::path> inputs() const;
    const std::vector<int64_t>& layers() const { return layers_; }
    /// Sets heads and channels, and the block size and k of the fit if there is one.
    void take_sizes(analysis::LayerSizes&) const;
    Problem problem(int64_t layer, int64_t block_size) const;
    Tensor<float, 3> read(int64_t layer, io::Field, QueryRange) const;

private:
    io::ActivationsReader file_;
    std::filesystem::path indexer_;
    std::vector<int64_t> layers_;
    fit::FittedBranches fitted_;  // none without an indexer: the file's own operands
};

}  // namespace msa::experiments::bench
