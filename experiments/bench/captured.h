// SPDX-License-Identifier: MIT
// Operands from a file: captured layers, and what their Index Branch makes of them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <vector>

#include "analysis/stage_cost.h"
#include "core/indexer/index_branch.h"
#include "core/io/activations.h"

namespace msa::experiments::bench {

/// The tokens [range.begin, range.end) of an operand: [n, heads, channels].
using Source = std::function<Tensor<float, 3>(io::Field, QueryRange)>;

/// Layers of a file of activations, each with an Index Branch: the one that msa-fit-indexer fitted,
/// or the operands that the file has.
class Captured {
public:
    /// `indexer`: results of msa-fit-indexer, or empty; `layers` empty: all with an Index Branch.
    /// Throws InputError naming the file and what it lacks, or what its layers do not agree in.
    Captured(const std::filesystem::path& input, const std::filesystem::path& indexer,
             std::vector<int64_t> layers);

    const io::ActivationsReader& file() const { return file_; }
    std::vector<std::filesystem::path> inputs() const;
    const std::vector<int64_t>& layers() const { return layers_; }
    /// Heads and channels of every layer; block size and k where the indexer was fitted to some.
    void take_sizes(analysis::LayerSizes&) const;
    Problem problem(int64_t layer, int64_t block_size) const;
    Tensor<float, 3> read(int64_t layer, io::Field, QueryRange) const;

private:
    void read_indexer();

    io::ActivationsReader file_;
    std::filesystem::path indexer_;
    std::vector<int64_t> layers_;
    std::map<int64_t, IndexWeights> weights_;  // by layer; none: the file's own operands
    int64_t block_size_ = 0, top_k_ = 0;       // of the fit; 0: unknown
};

}  // namespace msa::experiments::bench
