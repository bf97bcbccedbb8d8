// SPDX-License-Identifier: MIT
// Qwen's QSA: any number of heads that are summed, one key for each 4 neighbouring tokens, made of
// the mean of their hidden states, and one choice for all groups; the KL over these keys of
// core/indexer/qsa_kl.h.
#include "core/indexer/qsa_kl.h"
#include "core/select/index_pieces.h"
#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

class Qsa final : public PooledIndexer {
public:
    Qsa(const TrainingLayer& data, const LayerOperands& layer, int threads)
        : PooledIndexer(layer, threads), compress_(data.info.learned.qsa_compress) {}

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

private:
    void compute(const QueryOperands& queries, const Tensor<float, 3>& q, const Tensor<float, 3>& k,
                 View<const int32_t, 3> ids, const Loss& loss) const override {
        qsa_kl(queries.problem, {q.view(), one_head(k), queries.target.view(), compress_, ids},
               {loss.kl,
                {loss.entropy.data(), {loss.entropy.size()}},
                loss.target_entropy,
                loss.d_q,
                {loss.d_k.data(), {loss.d_k.extent(0), loss.d_k.extent(2)}}},
               threads_);
    }
    Shape<3> shape_of_keys(const Problem& p) const override {
        return {piece_starts(p.batch.cu_seqlens_k(), compress_).back(), 1, p.index_dim};
    }

    int64_t compress_;
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
