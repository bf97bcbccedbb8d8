// SPDX-License-Identifier: MIT
// Everything that msa-analyze keeps of a layer while its queries go by, and the datasets that come
// of it. Workers that each see a part of the queries store theirs, and these are joined.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/entropy.h"
#include "analysis/output_error.h"
#include "analysis/popularity.h"
#include "analysis/query_blocks.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "core/io/results.h"
#include "experiments/analyze/curve.h"

namespace msa::experiments::analyze {

/// What decides the size of all sums of a layer.
struct LayerSizes {
    int64_t query_heads = 0, kv_heads = 0, block_size = 0;
    std::vector<int64_t> first_block;  // [S+1], block_starts of core/problem.h
    int64_t query_blocks = 0;          // blocks of counted queries
    int64_t sink_tokens = 0;
    bool oracle_without_local = false;

    int64_t group_size() const { return query_heads / kv_heads; }
};

/// What decides those of a selector, and where they are written.
struct SelectorAbout {
    std::string label;
    bool is_oracle = false;
    int64_t top_k = 0;
    std::vector<int64_t> ks;  // of its curve
};

/// Queries that the averages count, and that they leave out.
struct RowCounts {
    int64_t counted = 0, trivial = 0;

    void add(const std::vector<analysis::RowKind>& kinds);
    analysis::State state() const { return {{}, {counted, trivial}}; }
    void join(const analysis::State& state);
};

/// [Hkv] Mean mass of the first block, over queries that see a key.
struct FirstBlockMass {
    std::vector<analysis::Mean> means;

    void add(const std::vector<analysis::RowKind>& kinds, View<const float, 3> mass);
    analysis::State state() const { return analysis::state_of(means); }
    void join(const analysis::State& state) { analysis::join_means(means, state); }
};

/// Of dense attention.
struct DenseSums {
    DenseSums(const LayerSizes& sizes, std::vector<int64_t> ks);
    void write(io::UnitWriter& to, const std::string& layer) const;

    RowCounts rows;
    Curve oracle_curve;
    analysis::SinkMass sink;
    analysis::Entropy entropy;
    FirstBlockMass first_block;
};

/// Of one selector.
struct SelectorSums {
    SelectorSums(const LayerSizes& sizes, SelectorAbout of);
    void write(io::UnitWriter& to, const std::string& layer, const LayerSizes& sizes,
               const RowCounts& rows) const;

    SelectorAbout about;
    Curve curve;
    analysis::Recall recall;
    analysis::OutputError output_error;
    analysis::SinkMass sink;
    analysis::Entropy entropy;
    analysis::Popularity popularity;
    analysis::BlockMeans block_means;  // of the recalls
};

struct LayerSums {
    LayerSums(LayerSizes of, std::vector<int64_t> oracle_ks)
        : sizes(std::move(of)), dense(sizes, std::move(oracle_ks)) {}
    /// The datasets of the layer that are not rows of queries.
    void write(io::UnitWriter& to, const std::string& layer) const;

    /// Everything as datasets of the group /state, and back. Doubles and integers as they are:
    /// nothing is rounded.
    void store(io::UnitWriter& to) const;
    static LayerSums stored(const io::DatasetReader& from);
    /// Adds the stored sums of the queries that follow those of this one. InputError unless they
    /// have the same sizes.
    void join(const io::DatasetReader& from);

    LayerSizes sizes;
    DenseSums dense;
    std::vector<SelectorSums> selectors;
};

}  // namespace msa::experiments::analyze
