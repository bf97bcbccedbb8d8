// SPDX-License-Identifier: MIT
// The gate of SeerAttention-R: one key per group and block, the KL over blocks of
// core/indexer/gate_kl.h.
#include "core/indexer/gate_kl.h"
#include "core/select/gate_scores.h"
#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

class Gate final : public PooledIndexer {
public:
    using PooledIndexer::PooledIndexer;

    const char* selector() const override { return "seerattention"; }
    Tensor<int32_t, 3> select(const Problem& p, const SelectionRule& rule,
                              const IndexOperands& index) const override {
        Backend& backend = layer_.backend;
        const GateScores scores({.problem = p, .backend = backend, .k = {}}, index.host_k);
        return select_by(backend, p, rule, scores.score(backend, p, index.host_q));
    }

private:
    void compute(const QueryOperands& queries, const Tensor<float, 3>& q, const Tensor<float, 3>& k,
                 View<const int32_t, 3> ids, const Loss& loss) const override {
        gate_kl(queries.problem, {q.view(), k.view(), queries.target.view(), ids},
                {loss.kl, loss.entropy, loss.target_entropy, loss.d_q, loss.d_k}, threads_);
    }
    Shape<3> shape_of_keys(const Problem& p) const override {
        return {block_starts(p).back(), p.kv_heads, p.index_dim};
    }
};

constexpr Field kMakesGate[] = {Field::gate_q, Field::gate_k};

Tensor<float, 3> teacher_of_seerattention(const LayerOperands&, const TrainingLayer& data,
                                          const QueryOperands& queries, Teacher teacher,
                                          int threads) {
    const Problem& p = queries.problem;
    const Tensor<float, 1> sinks = io::layer_sinks(data.info);
    Tensor<float, 3> target({p.queries(), p.kv_heads, p.blocks()});
    gate_teacher(p, {host_view(queries.host_q), data.k.view(), sinks.view(), teacher}, target,
                 threads);
    return target;
}

}  // namespace

constinit const FitArchitecture kSeerAttention{
    .does =
        "the gate of SeerAttention-R on pooled keys of each group, computed from q and k before "
        "RoPE; needs no x",
    .heads = ", one of each group, with pooled keys of each group",
    .makes = kMakesGate,
    .reads_x = false,
    .teacher = Teacher::max,
    .warms_up = true,
    .set_form =
        [](IndexForm& form, const io::LayerInfo& info, std::span<const double> model) {
            form.model_dim = info.query_heads / info.kv_heads * info.head_dim;
            form.key_dim = kGatePools * info.head_dim;
            form.undone_rope.assign(model.begin(), model.end());
        },
    .set_sizes =
        [](const FittedSizes& of, io::LayerInfo& info) {
            info.learned.gate_dim = of.form.index_dim;
            info.learned.gate_block_size = of.block_size;
        },
    .key_tokens = [](const io::LayerInfo& info) { return info.learned.gate_block_size; },
    .pool = pool_keys,
    .target = teacher_of_seerattention,
    .make = [](const TrainingLayer&, const LayerOperands& layer, int threads)
        -> std::unique_ptr<Indexer> { return std::make_unique<Gate>(layer, threads); },
};

}  // namespace msa::experiments::fit
