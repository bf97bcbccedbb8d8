// SPDX-License-Identifier: MIT
// What is added up over the queries of a layer, block by block (analysis/query_blocks.h). Of a part
// of the layer, which is some of its blocks, it is these rows; parts are joined by putting their
// rows one behind the other. Averages and intervals are made of them.
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

/// What a choice keeps of dense attention where no oracle's choice is at hand, [Hkv].
struct KeptMass {
    explicit KeptMass(int64_t groups) : means(static_cast<size_t>(groups)) {}
    std::vector<analysis::Mean> means;

    void add(std::span<const analysis::RowKind> kinds, View<const int32_t, 3> ids,
             View<const float, 3> mass);
    analysis::State state() const { return analysis::state_of(means); }
    void join(const analysis::State& state) { analysis::join_means(means, state); }
};

/// Of some accumulators, under their names.
using States = std::vector<std::pair<std::string, analysis::State>>;

class Sums {
public:
    Sums() = default;
    /// Of the blocks that the queries `part` are.
    Sums(const analysis::QueryBlocks&, QueryRange part);

    /// Adds what an accumulator has of a block, by its number in the layer. `name`: whose, and
    /// which accumulator, "quest/recall".
    void add(const std::string& name, int64_t block, const analysis::State&);
    /// The same for some blocks: measure(of) gives the states of one under their names, for several
    /// blocks at a time and without throwing.
    template <typename Measure>
    void add(const std::vector<BlockRows>& blocks, const Measure& measure) {
        std::vector<States> all(blocks.size());
#pragma omp parallel for schedule(dynamic)
        for (size_t n = 0; n < all.size(); ++n) all[n] = measure(blocks[n]);
        for (size_t n = 0; n < all.size(); ++n)
            for (const auto& [name, state] : all[n]) add(name, blocks[n].block, state);
    }
    /// Gives an accumulator what it would have of all blocks.
    template <typename Accumulator>
    void total(const std::string& name, Accumulator& to) const {
        if (const auto of = of_.find(name); of != of_.end()) to.join(of->second.total());
    }

    /// /query_blocks/<l> and, of each name, /sums/<l>/<name>/sums and counts.
    void write(io::UnitWriter& to, const std::string& layer) const;
    /// The rows of a part behind these.
    void append(const io::DatasetReader& part, const std::string& layer);

private:
    int64_t first_ = 0;                      // number in the layer of the first block here
    std::vector<int64_t> sequences_, rows_;  // QueryBlocks
    std::map<std::string, analysis::BlockSums> of_;
};

/// Datasets of a group: sums and counts, a row for each block.
void write_block_sums(io::UnitWriter& to, const std::string& group, const analysis::BlockSums&);

/// "/sums/<l>/<name>"
std::string sums_group(const std::string& layer, const std::string& name);

}  // namespace msa::experiments::measure
