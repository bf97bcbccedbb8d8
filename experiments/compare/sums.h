// SPDX-License-Identifier: MIT
// What msa-compare adds up while the queries of a layer go by, and the datasets that come of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "analysis/output_error.h"
#include "analysis/overlap.h"
#include "analysis/recall.h"
#include "core/io/results.h"
#include "experiments/measure/checks.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::compare {

using measure::MeasuredChunk;

/// What a config read. A layer may be looked at as several views (--share head); counts are of the
/// layer's queries, costs of all its views.
class Reading {
public:
    explicit Reading(int64_t groups);

    /// One query: what its attention costs.
    void add_query(const analysis::Cost& attention);
    /// A counted query and group: blocks that its choice touches, and keys of them that it reads.
    void add_counted(int64_t group, int64_t blocks, int64_t tokens);
    void count_row() { ++counted_; }

    analysis::State state() const;
    void join(const analysis::State&);
    /// Metrics and attributes of the config's group.
    void write(io::UnitWriter& to, const std::string& group, int64_t views) const;

private:
    int64_t counted_ = 0, queries_ = 0;
    std::vector<analysis::Mean> means_;  // [2 * Hkv] blocks, then tokens
    analysis::Cost attention_;
};

/// Of every config, over the counted queries of a block or of a layer.
struct ConfigSums {
    explicit ConfigSums(int64_t groups) : reading(groups), output_error(groups) {}

    Reading reading;
    analysis::OutputError output_error;  // over the heads of each group together
};

/// Of a config that keeps blocks.
struct BlockConfigSums : ConfigSums {
    explicit BlockConfigSums(int64_t groups)
        : ConfigSums(groups), recall(groups, {}), overlap(groups) {}

    analysis::Recall recall;
    analysis::GroupOverlap overlap;
};

/// Of a config that keeps tokens.
struct TokenConfigSums : ConfigSums {
    explicit TokenConfigSums(int64_t groups) : ConfigSums(groups), mass(groups) {}

    measure::KeptMass mass;
};

/// Their states, under the config's name.
measure::States states_of(const BlockConfigSums&, const std::string& key);
measure::States states_of(const TokenConfigSums&, const std::string& key);

/// Of a layer, or a part of it, for all its plans.
struct LayerSums {
    int64_t groups = 0;
    int64_t views = 1;
    measure::Sums sums = {};
    std::map<std::string, analysis::Distances> distances = {};  // of each config that keeps blocks
    std::vector<std::string> of_tokens = {};                    // the configs that keep tokens
    measure::SelfChecks checks = {};

    void keep_blocks(const std::string& key, int64_t blocks) { distances.try_emplace(key, blocks); }
    void keep_tokens(const std::string& key);

    /// The sums, and what is measured: /metrics, /overlap and /distance of the configs, /checks.
    void write(io::UnitWriter& to, const std::string& layer) const;

    /// The sums, and the rest as datasets of the group /state.
    void store(io::UnitWriter& to, const std::string& layer) const;
    /// Adds those of the part that follows.
    void append(const io::DatasetReader& part, const std::string& layer);
};

}  // namespace msa::experiments::compare
