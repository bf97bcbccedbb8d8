// SPDX-License-Identifier: MIT
// How good an indexer is on held-out queries.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/rows.h"
#include "core/backend.h"
#include "core/indexer/index_branch.h"
#include "core/io/results.h"
#include "core/selection.h"
#include "experiments/fit/evaluation.h"
#include "experiments/fit/indexer.h"
#include "experiments/fit/operands.h"

namespace msa::experiments::fit {

class HeldOut {
public:
    /// `tokens`: the held-out queries. Computes what does not depend on the weights.
    HeldOut(const FitOptions&, const TrainingLayer&, const LayerOperands&, const Indexer&,
            const std::vector<int64_t>& tokens, int threads);

    Evaluation evaluate(int64_t step, const IndexWeights&) const;

    /// What intervals of the best evaluation, and of what it gained over the first one, are made
    /// of: /fit/<l>/blocks (data/FORMAT.md).
    void write_blocks(io::UnitWriter&, const IndexWeights& start, const IndexWeights& best) const;

    int64_t queries() const { return queries_.problem.queries(); }
    /// Number of queries in the averages of recall, mass and output error (analysis::row_kinds).
    int64_t rows_counted() const;
    /// Heads without an output error (analysis::OutputError::dead_heads).
    int64_t dead_heads() const;

private:
    /// An evaluation's values per query.
    struct OfQueries {
        Tensor<double, 2> kl, kl_selected;  // [Nq, Hkv]
        Tensor<int32_t, 3> ids;
    };
    OfQueries measure(const IndexWeights&) const;

    const FitOptions& o_;
    const TrainingLayer& data_;
    const LayerOperands& layer_;
    const Indexer& indexer_;
    int threads_;
    QueryOperands queries_;
    std::vector<analysis::RowKind> kinds_;
    Tensor<float, 3> dense_out_, mass_;
    Tensor<int32_t, 3> oracle_ids_;
    double entropy_teacher_ = 0;
};

}  // namespace msa::experiments::fit
