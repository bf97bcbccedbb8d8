// SPDX-License-Identifier: MIT
// Qwen's QSA: any number of heads that are summed, one key for each 4 neighbouring tokens, made of
// the mean of their hidden states, and one choice for all groups; the KL over these keys of
// core/indexer/qsa_kl.h. Loss and gradient are computed on the host.
#include "core/indexer/qsa_kl.h"
#include "core/select/index_pieces.h"
#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

class Qsa final : public Indexer {
public:
    Qsa(const TrainingLayer& data, const LayerOperands& layer, int threads)
        : compress_(data.info.learned.qsa_compress), layer_(layer), threads_(threads) {}

    const char* selector() const override { return "qsa"; }
    Tensor<int32_t, 3> select(const Problem& p, const SelectionRule& rule,
                              const IndexOperands& index) const override {
        Backend& backend = layer_.backend;
        Tensor<float, 2> keys({index.host_k.extent(0), index.host_k.extent(2)}, Fill::nothing);
        std::copy_n(index.host_k.data(), keys.size(), keys.data());
        const IndexPieces pieces({.problem = p, .backend = backend, .k = {}}, std::move(keys),
                                 compress_);
        return select_by(
            backend, p, rule,
            pieces.qsa_scores(backend, p,
                              {{backend, index.q.view(), host_view(index.host_q)}, {}, {}}));
    }
    Tensor<double, 2> kl(const QueryOperands& queries, const IndexOperands& index,
                         View<const int32_t, 3> ids, Teacher /*of the queries*/,
                         IndexGradient* gradient) const override {
        const Problem& p = queries.problem;
        Tensor<double, 2> kl({p.queries(), p.kv_heads});
        QsaKlOutput to{.kl = kl.view()};
        if (gradient != nullptr) {
            *gradient = {
                Tensor<float, 3>(index.host_q.shape()), Tensor<float, 3>(index.host_k.shape()), {}};
            to.d_index_q = gradient->q.view();
            to.d_index_k = one_head(gradient->k);
        }
        const HostIds here(layer_.backend, ids);
        qsa_kl(p, input(queries, index.host_q, index.host_k, here.view()), to, threads_);
        return kl;
    }
    double entropy(const QueryOperands& queries, const IndexOperands& index) const override {
        Tensor<double, 2> nats({queries.problem.queries(), 1});
        qsa_kl(queries.problem, input(queries, index.host_q, index.host_k, {}),
               {.entropy = {nats.data(), {nats.size()}}}, threads_);
        return mean_of(nats);
    }
    double teacher_entropy(const QueryOperands& queries, Teacher) const override {
        const Problem& p = queries.problem;
        Tensor<double, 2> nats({p.queries(), p.kv_heads});
        const Tensor<float, 3> any_q({p.queries(), 1, p.index_dim}),
            any_k({piece_starts(p.batch.cu_seqlens_k(), compress_).back(), 1, p.index_dim});
        qsa_kl(p, input(queries, any_q, any_k, {}), {.target_entropy = nats.view()}, threads_);
        return mean_of(nats);
    }

private:
    QsaKlInput input(const QueryOperands& queries, const Tensor<float, 3>& index_q,
                     const Tensor<float, 3>& index_k, View<const int32_t, 3> ids) const {
        return {index_q.view(), one_head(index_k), queries.target.view(), compress_, ids};
    }

    int64_t compress_;
    const LayerOperands& layer_;
    int threads_;
};

constexpr Field kMakesQsa[] = {Field::qsa_q, Field::qsa_k};

/// What the Main Branch gives each piece.
Tensor<float, 3> teacher_of_qsa(const LayerOperands& layer, const TrainingLayer& data,
                                const QueryOperands& queries, Teacher, int) {
    Problem pieces = queries.problem;
    pieces.block_size = data.info.learned.qsa_compress;
    Mass there(layer.backend, pieces, {queries.q, layer.k, layer.sinks}, false);
    return fetch(layer.backend, std::move(there.mass));
}

}  // namespace

constinit const FitArchitecture kQsa{
    .does =
        "Qwen's QSA: any number of heads that are summed, one key for 4 neighbouring tokens, "
        "one choice for all groups",
    .heads = " summed, with one key for 4 tokens, one choice for all groups",
    .makes = kMakesQsa,
    .any_heads = true,
    .one_teacher = true,
    .set_sizes =
        [](const FittedSizes& of, io::LayerInfo& info) {
            info.learned.qsa_heads = of.form.groups;
            info.learned.qsa_dim = of.form.index_dim;
            info.learned.qsa_compress = kQsaCompress;
        },
    .key_tokens = [](const io::LayerInfo& info) { return info.learned.qsa_compress; },
    .pool = [](View<const float, 3> rows,
               int64_t tokens) { return piece_means(rows_of(rows), tokens); },
    .target = teacher_of_qsa,
    .make = [](const TrainingLayer& data, const LayerOperands& layer, int threads)
        -> std::unique_ptr<Indexer> { return std::make_unique<Qsa>(data, layer, threads); },
};

}  // namespace msa::experiments::fit
