// SPDX-License-Identifier: MIT
// Everything that msa-compare adds up while the queries of a layer go by, and the datasets that
// come of it. Workers that each see a part of the queries store theirs, and these are joined.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "analysis/output_error.h"
#include "analysis/overlap.h"
#include "analysis/query_blocks.h"
#include "analysis/recall.h"
#include "core/io/results.h"
#include "experiments/compare/checks.h"

namespace msa::experiments::compare {

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

/// What a config keeps of dense attention, [Hkv].
struct KeptMass {
    std::vector<analysis::Mean> means;

    analysis::State state() const { return analysis::state_of(means); }
    void join(const analysis::State& state) { analysis::join_means(means, state); }
};

/// Of every config, over the counted queries of a layer.
struct ConfigSums {
    ConfigSums(int64_t groups, int64_t query_blocks);

    Reading reading;
    analysis::OutputError output_error;  // over the heads of each group together
    analysis::BlockSums query_blocks;
};

/// Of a config that keeps blocks.
struct BlockConfigSums : ConfigSums {
    /// `blocks`: B by the block size of the config.
    BlockConfigSums(int64_t groups, int64_t query_blocks, int64_t blocks);

    analysis::Recall recall;
    analysis::GroupOverlap overlap;
    analysis::Distances distances;
};

/// Of a config that keeps tokens.
struct TokenConfigSums : ConfigSums {
    TokenConfigSums(int64_t groups, int64_t query_blocks);

    KeptMass mass;
};

/// Of a layer, for all its plans.
struct LayerSums {
    int64_t groups = 0;
    int64_t views = 1;
    std::vector<int64_t> rows;  // [M] counted queries of each block of queries
    std::map<std::string, BlockConfigSums> of_blocks = {};  // by Config::key()
    std::map<std::string, TokenConfigSums> of_tokens = {};
    SelfChecks checks = {};

    /// The sums of a config, which are made.
    BlockConfigSums& keeping_blocks(const std::string& key, int64_t blocks);
    TokenConfigSums& keeping_tokens(const std::string& key);

    /// What is measured: /metrics, /blocks, /overlap and /distance of the configs, `norm` of
    /// /query_blocks, and /checks.
    void write(io::UnitWriter& to, const std::string& layer) const;

    /// Everything as datasets of the group /state, and back; rows are those of /query_blocks.
    void store(io::UnitWriter& to) const;
    static LayerSums stored(const io::DatasetReader& from, const std::string& layer);
    /// Adds the stored sums of the queries that follow those of this one. InputError unless they
    /// have the same sizes.
    void join(const io::DatasetReader& from);
};

}  // namespace msa::experiments::compare
