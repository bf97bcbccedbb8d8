// SPDX-License-Identifier: MIT
// The loop of every program that measures layers. It streams the queries of a layer once, in
// chunks. For each chunk it computes dense attention and P_b once, gets the ids of every choice,
// checks them, and sums measures of attention over them by block of queries.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/select/policy.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/measured_chunk.h"
#include "experiments/measure/tally.h"

namespace msa::experiments::measure {

template <typename T>
Tensor<T, 3> copy_of(View<const T, 3> of) {
    Tensor<T, 3> copy(of.shape(), Fill::nothing);
    std::copy_n(of.data(), of.size(), copy.data());
    return copy;
}

/// A choice of blocks for every query and group: who picks them, and by what rule.
struct Choice {
    std::string key;  // its name in sums and in messages
    int64_t block_size = 0;
    SelectionRule rule;         // asked for; also the rule of the oracle that it is compared with
    SelectionRule used;         // the selector's own rule
    std::string selector = {};  // a label of make_selector(); empty: `ids` picks
    /// Gives ids [Nq, Hkv, any k] on the host for the queries `range` of the layer, for example
    /// those of another layer, or of operands in another format.
    std::function<Tensor<int32_t, 3>(const ChunkView&, QueryRange range)> ids = {};
};

/// A program's additions to the loop. Each hook is called once per chunk of queries and block size,
/// `chosen` once per choice.
class Observer {
public:
    Observer() = default;
    Observer(const Observer&) = delete;
    Observer& operator=(const Observer&) = delete;
    virtual ~Observer() = default;

    /// Called before the first chunk of a view of the layer at a block size.
    virtual void begin(const SelectorLayer&) {}
    virtual void dense(const MeasuredChunk&) {}
    /// The scores of a choice, if Task::with_scores.
    virtual void scored(const MeasuredChunk&, size_t /*choice*/, const Mirror<3>& /*scores*/) {}
    /// `over`: attention over the ids; absent if errors are by group.
    virtual void chosen(const MeasuredChunk&, size_t /*choice*/, View<const int32_t, 3> /*ids*/,
                        const Attention* /*over*/) {}
    virtual void done(const MeasuredChunk&) {}
};

/// Errors are by head, from attention over each choice, or by group, from squared_errors
/// (choice_errors.h) for all choices together.
enum class ErrorOf : uint8_t { head, group };

/// A layer, or a part of its queries, and what to measure.
struct Task {
    const LayerData& data;
    const LayerQueries& queries;
    QueryRange part;  // of the queries
    Backend& backend;
    std::vector<int64_t> block_sizes;  // at least one
    std::vector<Choice> choices = {};
    uint64_t seed = 0;
    int64_t sink_tokens = 1;
    int64_t chunk = 0;  // queries at a time; 0: as many as fit into a fixed memory budget
    /// A query's share of that budget: numbers of floats [Hkv, B] and [Hq, dh].
    int64_t of_blocks = 4, of_heads = 6;

    bool only_ids = false;    // the observer wants them; nothing is measured of them
    bool with_oracle = true;  // measures recalls; otherwise only the mass kept
    bool oracle_by_logit = false, oracle_without_local = false;
    ErrorOf error_of = ErrorOf::head;
    bool with_scores = false;  // the observer wants them
    bool mean_scores = false;  // every group uses the mean of the groups' scores
    /// A choice whose ids the recall of every choice is measured against, besides the oracle's, and
    /// the name of that recall in the sums.
    std::optional<size_t> compared_with = {};
    std::string compared_name = {};

    int64_t prompt = 0;                     // SelectorLayer::prompt
    std::span<const int64_t> counted = {};  // SelectorLayer::counted
    const LayerData* previous = nullptr;    // the previous layer, for selectors that need it
};

/// Measures the choices on the queries of the part. Adds to `to` each choice's sums <key>/recall
/// (or mass), output_error (or group_output_error) and sink, and dense/sink. The results do not
/// depend on the chunks. Throws std::logic_error if a self-check fails, Interrupted if a stop is
/// requested.
void measure(const Task&, Tally& to, Observer&, Progress&);

/// All queries of a layer at the block size of the options, without choices.
Task task_of(const SizeOptions&, const OracleOptions&, uint64_t seed, const LayerData&,
             const LayerQueries&, Backend&);
/// What a selector picks there by the rule of the options; its key is the selector.
Choice choice_of(const SizeOptions&, const std::string& selector);

/// Writes /layers/<l> and /queries/<l>/token of a task with one block size.
void write_layer_of(const Task&, io::UnitWriter&);

/// [n, Hkv, k] The ids of a selector's choice for all queries of the task, without measuring.
Tensor<int32_t, 3> pick_all(const Task&, const Choice&);

}  // namespace msa::experiments::measure
