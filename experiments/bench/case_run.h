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

    /// Does the case have the stages of analysis and training?
    bool studied() const;
    /// Does it have those of training? No gradient takes e4m3.
    bool trained() const { return studied() && o_.sizes.element != Element::e4m3; }
    /// Do its stages of training take index operands of this element, which is the attention's?
    bool trains(size_t element) const;
    /// False, and a skipped measurement, where the work is refused for want of memory or support.
    bool fits(Measurement m, const std::function<void()>& work);
    void guarded(Measurement m, const Body& body);
    Layer& first() { return layers_->first(); }

    /// The stages that live on one kind of selection. sparse_attention takes what index_select
    /// makes of the first element's operands.
    void with_selection(const std::string& selection);
    void with_index(Measurement index, size_t element);
    /// The stages that live on the ids [Nq, Hkv, k] (host) of index_select, measured as `index`.
    void with_ids(const Measurement& index, size_t element, View<const int32_t, 3> ids);
    void all_index_kl(const std::string& selection, size_t element);
    void all_index_kl_grad(const std::string& selection, size_t element,
                           View<const int32_t, 3> ids);

    void select_blocks(Measurement&);
    /// Checks and times an operation that gives a number per block, in pieces of the queries.
    void by_pieces(Measurement&, const std::vector<int64_t>& queries, const PieceCall& call,
                   const RowCheck& check);
    void block_mass(Measurement&);
    void index_scores(Measurement&, size_t element);
    void dense_attention(Measurement&);
    void sparse_attention(Measurement&, LoopOrder);
    void layer(Measurement&, size_t element, View<const int32_t, 3> ids);

    void dense_attention_grad(Measurement&);
    void sparse_attention_grad(Measurement&, View<const int32_t, 3> ids, LoopOrder);
    /// One step of a fit: spread queries, the loss and both gradients; with the lse given, as
    /// training has them, the gradients alone.
    void index_kl(Measurement&, const IndexOperands&, bool selected, bool given);
    /// Gradients of all queries from the lse of the forward pass. ids absent: on the full support.
    void index_kl_grad(Measurement&, size_t element, View<const int32_t, 3> ids);
    /// A layer's step of training, but for its projections.
    void layer_grad(Measurement&, size_t element, View<const int32_t, 3> ids);

    /// Of the last queries, where there are many.
    double union_of_8(View<const int32_t, 3> ids) const;
    /// Adds the work of index_kl_grad.
    void count_index_kl(Measurement&, View<const int32_t, 3> ids) const;

    // One call of one layer.
    void select(Layer&, size_t element, View<float, 2> lse = {});
    void attend(Layer&, LoopOrder);
    void attend_back(Layer&, LoopOrder);
    /// ids absent: on the full support.
    void train_index(Layer&, size_t element, View<const int32_t, 3> ids);

    Backend& backend_;
    Meter& meter_;
    const BenchOptions& o_;
    const Case& case_;
    const Problem& p_;
    Checker check_;
    const std::function<void(const Measurement&)>& done_;
    Parts parts_;
    std::optional<Layers> layers_;
};

}  // namespace msa::experiments::bench
