// SPDX-License-Identifier: MIT
// Sums over the queries of a layer by block (analysis/query_blocks.h), one row per block. A part of
// a layer is a subset of its blocks, so parts are joined by concatenating rows. Averages and
// intervals are computed from the sums.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/query_blocks.h"
#include "core/io/dataset_reader.h"
#include "core/io/unit_writer.h"
#include "experiments/measure/measured_chunk.h"

namespace msa::experiments::measure {

/// Mass kept [Hkv], for choices that are not compared with an oracle.
struct KeptMass {
    explicit KeptMass(int64_t groups) : means(static_cast<size_t>(groups)) {}
    std::vector<analysis::Mean> means;

    void add(std::span<const analysis::RowKind> kinds, View<const int32_t, 3> ids,
             View<const float, 3> mass);
    analysis::State state() const { return analysis::state_of(means); }
    void join(const analysis::State& state) { analysis::join_means(means, state); }
};

/// States of some accumulators, with their names.
using States = std::vector<std::pair<std::string, analysis::State>>;

class Sums {
public:
    Sums() = default;
    /// For the blocks of the queries `part`.
    Sums(const analysis::QueryBlocks&, QueryRange part);

    /// Adds an accumulator's state of one block, by its number in the layer. `name`: of the choice
    /// and the accumulator, "quest/recall".
    void add(const std::string& name, int64_t block, const analysis::State&);
    /// The same for several blocks: measure(of) returns the states of one with their names. It is
    /// called by several threads and must not throw.
    template <typename Measure>
    void add(const std::vector<BlockRows>& blocks, const Measure& measure) {
        std::vector<States> all(blocks.size());
#pragma omp parallel for schedule(dynamic)
        for (size_t n = 0; n < all.size(); ++n) all[n] = measure(blocks[n]);
        for (size_t n = 0; n < all.size(); ++n)
            for (const auto& [name, state] : all[n]) add(name, blocks[n].block, state);
    }
    /// Joins the sum over all blocks into an accumulator.
    template <typename Accumulator>
    void total(const std::string& name, Accumulator& to) const {
        if (const auto of = of_.find(name); of != of_.end()) to.join(of->second.total());
    }

    /// Writes /query_blocks/<l> and, for each name, /sums/<l>/<name>/sums and counts.
    void write(io::UnitWriter& to, const std::string& layer) const;
    /// Appends the rows of a part.
    void append(const io::DatasetReader& part, const std::string& layer);

private:
    int64_t first_ = 0;                      // number in the layer of the first block here
    std::vector<int64_t> sequences_, rows_;  // QueryBlocks
    std::map<std::string, analysis::BlockSums> of_;
};

/// Writes the datasets sums and counts of a group, one row per block.
void write_block_sums(io::UnitWriter& to, const std::string& group, const analysis::BlockSums&);

/// "/sums/<l>/<name>"
std::string sums_group(const std::string& layer, const std::string& name);

}  // namespace msa::experiments::measure
