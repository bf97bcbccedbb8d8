// SPDX-License-Identifier: MIT
// One plan on one layer: streams the queries in chunks; dense attention and oracle are computed
// once per chunk, for all selectors and budgets.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/select/selector.h"
#include "experiments/compare/checks.h"
#include "experiments/compare/layer_view.h"
#include "experiments/compare/previous_layer.h"
#include "experiments/compare/token_accumulator.h"
#include "experiments/driver/progress.h"

namespace msa::experiments::compare {

/// Seconds that a selector took to choose, and its choices to be measured.
struct Timing {
    double select = 0, evaluate = 0;
};

/// A layer at work: what its plans share.
struct LayerTask {
    const CompareOptions& options;
    const io::ActivationsInfo& file;
    const LayerData& data;
    PreviousLayer* previous;             // what stands before it in the file, or absent
    const std::vector<int64_t>& tokens;  // packed tokens of the compared queries, ascending
    std::vector<int64_t> stored;         // those of them, by number, whose ids are stored
    Backend& backend;
    io::UnitWriter& to;
    SelfChecks checks;
    std::map<std::string, Timing> timing;  // of each selector

    std::string name() const { return std::to_string(data.info.layer); }
};

class LayerComparison {
public:
    LayerComparison(LayerTask& task, Plan plan);
    /// Streams all queries. Throws std::logic_error where a self-check fails, Interrupted when a
    /// stop is requested.
    void run(Progress& progress);
    /// Writes what was added up, but for the task's own.
    void write() const;
    /// Writes /query_blocks of the layer: the same for all its plans.
    void write_query_blocks() const;

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
    void add(const LayerView& view, std::vector<Scorer>& scorers, QueryRange range);
    void choose(const Scorer& scorer, const Work& work, std::vector<Tensor<int32_t, 3>>& ids);
    void add_configs(Work work, const std::vector<Tensor<int32_t, 3>>& ids);
    bool is_first_of_its_name(const TokenAccumulator&) const;
    std::vector<KeptTokens> choose_tokens(const Work& work);
    void add_tokens(const Work& work);
    std::vector<TokenAttention> attend_kept(const Work& work, const std::vector<KeptTokens>& kept);
    static AttentionInput operands(const Work& work);  // in the backend's space
    double mass_bound(const LayerView& view, const Problem& p, View<const float, 3> q,
                      View<const float, 2> lse) const;
    void check_full_budget(const LayerView& view, const SelectorChunk& chunk,
                           const MeasuredChunk& measured);
    const Tensor<int32_t, 3>& oracle(const SelectionRule& rule) const;
    void create_ids();
    void store_ids(const Config& config, QueryRange range, View<const int32_t, 3> ids);
    int64_t chunk_queries() const;

    LayerTask& task_;
    Plan plan_;            // its configs that keep blocks
    Problem sizes_, all_;  // all tokens as queries; the compared ones
    Problem phase_;        // the phase's queries, whichever are compared
    bool needs_logits_ = false;
    double k_norm_;                                // longest key
    std::vector<int64_t> counted_;                 // packed tokens that averages count
    analysis::QueryBlocks blocks_;                 // of the compared queries
    std::vector<Accumulator> accumulators_;        // of the plan's configs
    std::vector<TokenAccumulator> token_configs_;  // those that keep tokens
    std::vector<SelectionRule> rules_;             // of the oracles, distinct
    std::vector<Tensor<int32_t, 3>> oracles_;      // of the chunk at hand, one of each rule
};

}  // namespace msa::experiments::compare
