// SPDX-License-Identifier: MIT
// The interface of a fitted indexer: from operands (operands.h) to a selection, a loss and its
// gradient. Each architecture has its own (architecture.h).
#pragma once

#include <memory>
#include <vector>

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
    /// backend's space; absent: all visible tokens. Where keys are of several tokens, the KL is
    /// over them, with the teacher of QueryOperands.
    virtual Tensor<double, 2> kl(const QueryOperands&, const IndexOperands&,
                                 View<const int32_t, 3> ids, Teacher,
                                 IndexGradient* gradient = nullptr) const = 0;
    /// Mean entropy of the indexer's distribution on the full support, and of the teacher's.
    virtual double entropy(const QueryOperands&, const IndexOperands&) const = 0;
    virtual double teacher_entropy(const QueryOperands&, Teacher) const = 0;
};

/// An indexer whose keys are of several tokens: its loss is over them, with the teacher of
/// QueryOperands, and is computed on the host.
class PooledIndexer : public Indexer {
public:
    PooledIndexer(const LayerOperands& layer, int threads) : layer_(layer), threads_(threads) {}

    Tensor<double, 2> kl(const QueryOperands&, const IndexOperands&, View<const int32_t, 3> ids,
                         Teacher, IndexGradient*) const final;
    double entropy(const QueryOperands&, const IndexOperands&) const final;
    double teacher_entropy(const QueryOperands&, Teacher) const final;

protected:
    /// What is absent is not computed.
    struct Loss {
        View<double, 2> kl = {}, entropy = {}, target_entropy = {};
        View<float, 3> d_q = {}, d_k = {};
    };
    virtual void compute(const QueryOperands&, const Tensor<float, 3>& q, const Tensor<float, 3>& k,
                         View<const int32_t, 3> ids, const Loss&) const = 0;
    virtual Shape<3> shape_of_keys(const Problem&) const = 0;

    const LayerOperands& layer_;
    int threads_;
};

/// One of the layers that share an indexer: what teaches it there, and measures it.
struct Member {
    Member(TrainingLayer layer, Backend&, int threads);
    TrainingLayer data;
    LayerOperands operands;
    std::unique_ptr<Indexer> indexer;
};
/// The indexer's own layer, which has x, and those that take its ids.
using Members = std::vector<std::unique_ptr<Member>>;

/// Cost of the scores per query of the layer.
PolicyCost cost_per_query(const Indexer&, const TrainingLayer&);

/// Mean over all rows of the KL on their supports (eq:msa-kl).
double mean_of(const Tensor<double, 2>& kl);

/// Backend::index_kl with these index operands.
Tensor<double, 2> index_kl(const LayerOperands&, const QueryOperands&, const IndexInput&,
                           View<const int32_t, 3> ids, Teacher, View<float, 3> d_q,
                           View<float, 2> d_k);
/// The entropy of the teacher over tokens.
double entropy_over_tokens(const LayerOperands&, const QueryOperands&, Teacher);
/// Backend::select_blocks by scores on the host.
Tensor<int32_t, 3> select_by(Backend&, const Problem&, const SelectionRule&,
                             Tensor<float, 3> host_scores);

/// Ids of the backend's space on the host, absent where they are.
class HostIds {
public:
    HostIds(Backend& backend, View<const int32_t, 3> ids) : view_(ids) {
        if (!ids || backend.space() == Space::host) return;
        copy_ = backend.download(ids);
        view_ = std::as_const(copy_).view();
    }
    View<const int32_t, 3> view() const { return view_; }

private:
    Tensor<int32_t, 3> copy_;
    View<const int32_t, 3> view_;
};

/// Operands of one head as rows.
inline View<const float, 2> one_head(const Tensor<float, 3>& rows) {
    return rows_of(host_view(rows));
}
inline View<float, 2> one_head(Tensor<float, 3>& rows) {
    return {rows.data(), {rows.extent(0), rows.extent(2)}};
}

}  // namespace msa::experiments::fit
