// SPDX-License-Identifier: MIT
// One plan on one layer: streams the queries in chunks; dense attention and oracle are computed
// once per chunk, for all selectors and budgets.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/select/selector.h"
#include "experiments/compare/previous_layer.h"
#include "experiments/compare/stored_ids.h"
#include "experiments/compare/token_accumulator.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/layer.h"

namespace msa::experiments::compare {

using measure::ChunkView, measure::LayerData, measure::LayerView;

/// Seconds that a selector took to choose, and its choices to be measured.
struct Timing {
    double select = 0, evaluate = 0;
};

/// A layer, or a part of its queries, at work: what its plans share.
struct LayerTask {
    const CompareOptions& options;
    const LayerData& data;
    PreviousLayer* previous;             // what stands before it in the file, or absent
    const std::vector<int64_t>& tokens;  // packed tokens of the compared queries, ascending
    const Counted& counted;              // of them
    QueryRange part;                     // the numbers of those that are looked at here
    std::optional<StoredIds> stored;     // absent where a query has several choices
    Backend& backend;
    io::UnitWriter& to;
    LayerSums sums;
    std::map<std::string, Timing> timing = {};  // of each selector

    std::string name() const { return std::to_string(data.info.layer); }
};

class LayerComparison {
public:
    LayerComparison(LayerTask& task, Plan plan);
    /// Streams the queries of the part, and adds them to the task's sums. Throws std::logic_error
    /// where a self-check fails, Interrupted when a stop is requested.
    void run(Progress& progress);
    /// Writes what the configs are; to be called after run().
    void write_about();

private:
    struct Scorer;
    /// One chunk at work.
    struct Work {
        const LayerView& view;
        const SelectorChunk& chunk;
        const Attention& dense;
        MeasuredChunk measured;
        QueryRange range;
    };
    SelectorLayer selector_layer(const LayerView& view, std::span<const SelectionRule> rules) const;
    std::vector<Scorer> make_scorers(const LayerView& view);
    std::vector<QueryRange> chunks(QueryRange of) const;
    ChunkView look_at(const LayerView& view, QueryRange range) const;
    QueryRange queries_before(const std::vector<Scorer>& scorers) const;
    void pass(const LayerView& view, const std::vector<Scorer>& scorers, QueryRange range);
    void add(const LayerView& view, const std::vector<Scorer>& scorers, QueryRange range);
    void choose(const Scorer& scorer, const LayerView& view, const SelectorChunk& chunk,
                std::vector<Tensor<int32_t, 3>>& ids);
    void add_configs(Work work, const std::vector<Tensor<int32_t, 3>>& ids);
    bool is_first_of_its_name(const TokenAccumulator&) const;
    std::vector<KeptTokens> choose_tokens(const Work& work);
    void add_tokens(const Work& work);
    std::vector<TokenAttention> attend_kept(const Work& work, const std::vector<KeptTokens>& kept);
    static AttentionInput operands(const Work& work);  // in the backend's space
    double mass_bound(const Problem& p, View<const float, 3> q, View<const float, 2> lse) const;
    void check_full_budget(const LayerView& view, const SelectorChunk& chunk,
                           const MeasuredChunk& measured, QueryRange range);
    const Tensor<int32_t, 3>& oracle(const SelectionRule& rule) const;
    int64_t chunk_queries() const;

    LayerTask& task_;
    Plan plan_;            // its configs that keep blocks
    Problem sizes_, all_;  // all tokens as queries; the compared ones
    Problem phase_;        // the phase's queries, whichever are compared
    bool needs_logits_ = false;
    double k_norm_;                                // longest key
    std::vector<Accumulator> accumulators_;        // of the plan's configs
    std::vector<TokenAccumulator> token_configs_;  // those that keep tokens
    std::vector<SelectionRule> rules_;             // of the oracles, distinct
    std::vector<Tensor<int32_t, 3>> oracles_;      // of the chunk at hand, one of each rule
};

}  // namespace msa::experiments::compare
