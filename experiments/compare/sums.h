// SPDX-License-Identifier: MIT
// Accumulators of msa-compare beside the common sums, and the datasets made of them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "analysis/rows.h"
#include "core/io/results.h"
#include "experiments/measure/tally.h"

namespace msa::experiments::compare {

/// What a config read. With --share head a layer is measured as several views; counts are of the
/// layer's queries, costs of all its views.
class Reading {
public:
    explicit Reading(int64_t groups);

    /// Adds the attention cost of one query.
    void add_query(const analysis::Cost& attention);
    /// Adds a counted query and group: the blocks that its choice touches, and the keys that it
    /// reads of them.
    void add_counted(int64_t group, int64_t blocks, int64_t tokens);
    void count_row() { ++counted_; }

    analysis::State state() const;
    void join(const analysis::State&);
    /// Writes metrics and attributes of the config's group.
    void write(io::UnitWriter& to, const std::string& group, int64_t views) const;

private:
    int64_t counted_ = 0, queries_ = 0;
    std::vector<analysis::Mean> means_;  // [2 * Hkv] blocks, then tokens
    analysis::Cost attention_;
};

/// Metadata of a layer for writing its datasets. A config's sums are under its key.
struct LayerAbout {
    int64_t groups = 0, heads = 0, views = 1;  // heads: of a view
    std::map<std::string, int64_t> blocks =
        {};  // of the configs that keep blocks: number of existing blocks
    std::vector<std::string> of_tokens = {};  // the configs that keep tokens
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerAbout, groups, heads, views, blocks, of_tokens)

/// /metrics, /overlap and /distance of the configs. Tally::about is a LayerAbout.
void write_configs(const measure::Tally&, const std::string& layer, io::UnitWriter& to);

}  // namespace msa::experiments::compare
