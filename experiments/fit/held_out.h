// SPDX-License-Identifier: MIT
// How good an indexer is on held-out queries.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/rows.h"
#include "core/backend.h"
#include "core/indexer/index_branch.h"
#include "core/io/results.h"
#include "core/select/selector.h"
#include "core/selection.h"
#include "experiments/fit/evaluation.h"
#include "experiments/fit/indexer.h"
#include "experiments/fit/operands.h"

namespace msa::experiments::fit {

class HeldOut {
public:
    /// `tokens`: the held-out queries. Computes what does not depend on the weights.
    HeldOut(const FitOptions&, const Members&, const std::vector<int64_t>& tokens, int threads);

    /// Means over the layers that share the indexer.
    Evaluation evaluate(int64_t step, const IndexWeights&) const;

    /// What intervals of the best evaluation, and of what it gained over the first one, are made
    /// of: /fit/<l>/blocks (data/FORMAT.md).
    void write_blocks(io::UnitWriter&, const IndexWeights& start, const IndexWeights& best) const;

    int64_t queries() const { return std::ssize(kinds_); }
    /// Number of queries in the averages of recall, mass and output error (analysis::row_kinds).
    int64_t rows_counted() const;
    /// Heads without an output error (analysis::OutputError::dead_heads).
    int64_t dead_heads() const;
    /// Means over the layers, on the queries in the averages.
    Untrained untrained() const;
    /// Mass kept with these weights and the first block forced, likewise.
    double first_forced_mass(const IndexWeights&) const;

private:
    /// What a layer has of the queries, whatever the weights.
    struct OfLayer {
        OfLayer(const FitOptions&, const Member&, const std::vector<int64_t>& tokens, int threads);
        const Member& member;
        std::vector<int64_t> tokens;
        QueryOperands queries;
        Tensor<float, 3> dense_out, mass;
        Tensor<int32_t, 3> oracle_ids;
        double entropy_teacher = 0;
    };
    /// An evaluation's values per query.
    struct OfQueries {
        std::vector<Tensor<double, 2>> kl, kl_selected;  // [layers], [Nq, Hkv]
        Tensor<int32_t, 3> ids;
    };
    OfQueries measure(const IndexWeights&) const;
    SelectionRule first_forced() const { return force(o_.rule, 1, o_.rule.forced_local); }
    /// Mean over the layer's queries and groups.
    double mass_kept(const OfLayer&, View<const int32_t, 3> ids) const;
    /// Of a selector, the first block forced.
    double mass_kept(const OfLayer&, const char* selector) const;
    const OfLayer& own() const { return layers_.front(); }

    const FitOptions& o_;
    int threads_;
    std::vector<OfLayer> layers_;
    std::vector<analysis::RowKind> kinds_;  // in every layer
};

}  // namespace msa::experiments::fit
