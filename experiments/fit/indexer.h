// SPDX-License-Identifier: MIT
// The interface of a fitted indexer's architectures: from operands (operands.h) to a selection, a
// loss and its gradient. Weights and their projections are in core/indexer/index_branch.h for all
// architectures.
//
// msa  the Index Branch: one head and one choice per group, the KL of Backend::index_kl.
// dsa  DeepSeek's lightning indexer: any number of heads with learned weights, one choice for all
//      groups, the KL of core/indexer/lightning_kl.h. Loss and gradient are computed on the host.
// seerattention  the gate of SeerAttention-R: one key per group and block, the KL over blocks of
//      core/indexer/gate_kl.h. Loss and gradient are computed on the host.
#pragma once

#include <memory>

#include "core/select/policy.h"
#include "core/selection.h"
#include "experiments/fit/operands.h"
#include "experiments/fit/options.h"

namespace msa::experiments::fit {

/// Gradients of a mean KL, on the host; absent for operands that an architecture lacks.
struct IndexGradient {
    Tensor<float, 3> q, k, weights;  // shaped as IndexOperands
};

class Indexer {
public:
    Indexer() = default;
    Indexer(const Indexer&) = delete;
    Indexer& operator=(const Indexer&) = delete;
    virtual ~Indexer() = default;

    /// The selector (core/select) that uses the fitted operands.
    virtual const char* selector() const = 0;
    /// ids [Nq, Hkv, k] in the backend's space.
    virtual Tensor<int32_t, 3> select(const Problem&, const SelectionRule&,
                                      const IndexOperands&) const = 0;
    /// The KL [Nq, Hkv] between each group's teacher and the indexer's distribution, and if
    /// requested the gradient of its mean. The support is the tokens of the blocks `ids` in the
    /// backend's space; absent: all visible tokens. A gate's KL is over blocks, with the teacher of
    /// QueryOperands.
    virtual Tensor<double, 2> kl(const QueryOperands&, const IndexOperands&,
                                 View<const int32_t, 3> ids, Teacher,
                                 IndexGradient* gradient = nullptr) const = 0;
    /// Mean entropy of the indexer's distribution on the full support, and of the teacher's.
    virtual double entropy(const QueryOperands&, const IndexOperands&) const = 0;
    virtual double teacher_entropy(const QueryOperands&, Teacher) const = 0;
};

/// The result refers to the layer and its operands.
std::unique_ptr<Indexer> make_indexer(Architecture, const TrainingLayer&, const LayerOperands&,
                                      int threads);

/// Cost of the scores per query of the layer.
PolicyCost cost_per_query(const Indexer&, const TrainingLayer&);

/// Mean over all rows of the KL on their supports (eq:msa-kl).
double mean_of(const Tensor<double, 2>& kl);

}  // namespace msa::experiments::fit
