// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/bench/check.h"
#include "experiments/bench/layers.h"
#include "experiments/bench/record.h"

namespace msa::experiments::bench {

/// The stages of one case: see run_case(). stages.cpp has those of a forward pass,
/// training_stages.cpp those of the gradients and of index_kl.
class CaseRun {
public:
    CaseRun(Backend& backend, Meter& meter, const BenchOptions& options, const Case& c,
            const std::function<void(const Measurement&)>& done);

    void run();

private:
    using Body = std::function<void(Measurement&)>;
    using PieceCall = std::function<void(Layer&, const Problem&, QueryRange, View<float, 3> to)>;
    using RowCheck = std::function<void(int64_t query, View<const float, 2> row)>;

    /// Whether the case has the stages of analysis and training.
    bool studied() const;
    /// Whether it has the stages of training. Gradients do not support e4m3.
    bool trained() const { return studied() && o_.sizes.element != Element::e4m3; }
    /// Whether its training stages use these index operands: their element must be attention's.
    bool trains(size_t element) const;
    /// Runs `work`. False, after recording a skipped measurement, if memory or support is lacking.
    bool fits(Measurement m, const std::function<void()>& work);
    void guarded(Measurement m, const Body& body);
    Layer& first() { return layers_->first(); }

    /// The stages that depend on one kind of selection. sparse_attention uses the ids of
    /// index_select on the first element's operands.
    void with_selection(const std::string& selection);
    void with_index(Measurement index, size_t element);
    /// The stages that use the ids [Nq, Hkv, k] (host) of index_select, measured as `index`.
    void with_ids(const Measurement& index, size_t element, View<const int32_t, 3> ids);
    void all_index_kl(const std::string& selection, size_t element);
    void all_index_kl_grad(const std::string& selection, size_t element,
                           View<const int32_t, 3> ids);

    void select_blocks(Measurement&);
    /// Checks and times an operation with one result per block, in pieces of the queries.
    void by_pieces(Measurement&, const std::vector<int64_t>& queries, const PieceCall& call,
                   const RowCheck& check);
    void block_mass(Measurement&);
    void index_scores(Measurement&, size_t element);
    void index_select(Measurement&, size_t element, View<const int32_t, 3> ids);
    void dense_attention(Measurement&);
    void sparse_attention(Measurement&, LoopOrder);
    void layer(Measurement&, size_t element, View<const int32_t, 3> ids);

    void dense_attention_grad(Measurement&);
    void sparse_attention_grad(Measurement&, View<const int32_t, 3> ids, LoopOrder);
    /// One step of a fit on spread queries: the loss and both gradients. `given`: with the lse
    /// given, as in training, only the gradients.
    void index_kl(Measurement&, const IndexOperands&, bool selected, bool given);
    /// Gradients of all queries, given the lse of the forward pass. ids absent: on the full
    /// support.
    void index_kl_grad(Measurement&, size_t element, View<const int32_t, 3> ids);
    /// A training step of a layer without its projections.
    void layer_grad(Measurement&, size_t element, View<const int32_t, 3> ids);

    /// Blocks that 8 neighbouring queries select together; of the last queries if there are many.
    double union_of_8(View<const int32_t, 3> ids) const;
    /// Adds the work of index_kl_grad.
    void count_index_kl(Measurement&, View<const int32_t, 3> ids) const;

    /// Records `m` with `body` for packed keys, and for each page size, up to a capacity also with
    /// lengths on the device: the measurement says which.
    void packed_and_paged(Measurement m, const Body& body);

    // One call of one layer, with keys as the measurement says; else packed ones.
    void select(Layer&, size_t element, View<float, 2> lse = {}, const Measurement& = {});
    void attend(Layer&, LoopOrder, const Measurement& = {});
    void attend_back(Layer&, LoopOrder);
    /// ids absent: on the full support.
    void train_index(Layer&, size_t element, View<const int32_t, 3> ids);

    Backend& backend_;
    Meter& meter_;
    const BenchOptions& o_;
    const Case& case_;
    const Problem& p_;
    const std::optional<Problem> most_;  // up_to_capacity()
    Checker check_;
    const std::function<void(const Measurement&)>& done_;
    Parts parts_;
    std::optional<Layers> layers_;
};

/// Checks and times every requested stage on one case, and passes each measurement to `done`. A
/// stage without enough memory or without the backend's support is passed on as skipped. Throws
/// std::logic_error if a result is wrong.
void run_case(Backend&, Meter&, const BenchOptions&, const Case&,
              const std::function<void(const Measurement&)>& done);

}  // namespace msa::experiments::bench
