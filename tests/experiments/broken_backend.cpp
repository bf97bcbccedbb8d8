// SPDX-License-Identifier: MIT
#include "tests/experiments/broken_backend.h"

#include <algorithm>

#include "core/host_backend.h"
#include "core/number/convert.h"
#include "core/registry.h"
#include "tests/support/in_float.h"

namespace msa::test {
namespace {

class Broken final : public HostBackend {
public:
    static inline std::string what;  // is wrong

    std::string_view name() const override { return "broken"; }
    std::string device() const override { return "none"; }
    Support supports(const Problem& p, const Request& request) const override {
        return cpu_->supports(p, in_float(request));
    }
    std::shared_ptr<void> allocate(int64_t bytes) override {
        // Operands of these tests are small, what the meter needs is not.
        if (what == "memory" && bytes < (1 << 20)) throw MemoryError("there is no room");
        return HostBackend::allocate(bytes);
    }

protected:
    /// A float copy of an operand, so that bf16 runs on the cpu backend too.
    template <int Rank>
    static Tensor<float, Rank> floats(In<Rank> in) {
        Tensor<float, Rank> copy(in.shape());
        decode(in.data(), in.element(), {copy.data(), static_cast<size_t>(copy.size())});
        return copy;
    }
    static void store(const Tensor<float, 3>& values, Out<3> to) {
        encode({values.data(), static_cast<size_t>(values.size())}, to.element(), to.data());
    }
    static void spoil(bool wrong, float* values, int64_t size) {
        if (wrong) values[size / 2] += 0.1F;
    }
    static void store_gradient(Tensor<float, 3>& d_q, Tensor<float, 3>& d_k, Tensor<float, 3>& d_v,
                               const AttentionGradient& to) {
        const auto spoil_all = [](bool wrong, Tensor<float, 3>& values) {
            for (int64_t i = 0; i < values.size(); ++i) values.data()[i] += wrong ? 0.1F : 0.0F;
        };
        spoil_all(what == "d_q", d_q);
        spoil_all(what == "d_k", d_k);
        spoil_all(what == "d_v", d_v);
        store(d_q, to.d_q);
        store(d_k, to.d_k);
        store(d_v, to.d_v);
    }
    void do_dense_attention(const Problem& p, const AttentionInput& in,
                            const AttentionOutput& to) override {
        Tensor<float, 3> out(in.q.shape());
        cpu_->dense_attention(p, {floats(in.q), floats(in.k), floats(in.v)}, {out, to.lse});
        spoil(what == "dense_attention", out.data(), out.size());
        store(out, to.out);
    }
    void do_index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) override {
        cpu_->index_scores(p, {floats(in.index_q), floats(in.index_k)}, scores);
        spoil(what == "index_scores", scores.data(), scores.size());
    }
    void do_select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                          View<int32_t, 3> ids) override {
        if (what != "select_blocks" && what != "index_select")
            return cpu_->select_blocks(p, rule, scores, ids);
        Tensor<float, 3> worst(scores.shape());
        for (int64_t i = 0; i < worst.size(); ++i) worst.data()[i] = -scores.data()[i];
        cpu_->select_blocks(p, rule, worst, ids);
    }
    void do_index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids, View<float, 2> lse) override {
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        do_index_scores(p, in, scores);
        do_select_blocks(p, rule, scores, ids);
        Tensor<int32_t, 3> right(ids.shape());
        if (lse) cpu_->index_select(p, rule, {floats(in.index_q), floats(in.index_k)}, right, lse);
    }
    void do_sparse_attention(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                             const AttentionOutput& to, LoopOrder order) override {
        if (what == "silence" && order == LoopOrder::kv_outer) return;
        Tensor<float, 3> out(in.q.shape());
        cpu_->sparse_attention(p, {floats(in.q), floats(in.k), floats(in.v)}, ids, {out, to.lse},
                               order);
        spoil(what == "sparse_attention", out.data(), out.size());
        store(out, to.out);
        if (what == "lse") to.lse(0, 0) += 1e-3F;
    }
    /// Gradients of the float forward pass: that of another element rounds out.
    void do_dense_attention_grad(const Problem& p, const AttentionInput& in,
                                 const AttentionSaved& saved,
                                 const AttentionGradient& to) override {
        Tensor<float, 3> out(in.q.shape());
        Tensor<float, 2> lse(saved.lse.shape());
        const Tensor<float, 3> q = floats(in.q), k = floats(in.k), v = floats(in.v);
        cpu_->dense_attention(p, {q, k, v}, {out, lse});
        Tensor<float, 3> d_q(q.shape()), d_k(k.shape()), d_v(k.shape());
        cpu_->dense_attention_grad(p, {q, k, v}, {out, lse.view(), floats(saved.d_out)},
                                   {d_q, d_k, d_v});
        store_gradient(d_q, d_k, d_v, to);
    }
    void do_sparse_attention_grad(const Problem& p, const AttentionInput& in,
                                  View<const int32_t, 3> ids, const AttentionSaved& saved,
                                  const AttentionGradient& to, LoopOrder order) override {
        Tensor<float, 3> out(in.q.shape());
        Tensor<float, 2> lse(saved.lse.shape());
        const Tensor<float, 3> q = floats(in.q), k = floats(in.k), v = floats(in.v);
        cpu_->sparse_attention(p, {q, k, v}, ids, {out, lse});
        Tensor<float, 3> d_q(q.shape()), d_k(k.shape()), d_v(k.shape());
        cpu_->sparse_attention_grad(p, {q, k, v}, ids, {out, lse.view(), floats(saved.d_out)},
                                    {d_q, d_k, d_v}, order);
        store_gradient(d_q, d_k, d_v, to);
    }
    void do_block_mass(const Problem& p, const BlockMassInput& in,
                       const BlockMassOutput& to) override {
        cpu_->block_mass(p, {floats(in.q), floats(in.k), in.sinks}, to);
        spoil(what == "block_mass", to.mass.data(), to.mass.size());
    }
    void do_index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) override {
        const Tensor<float, 3> index_q = floats(in.index.index_q);
        const Tensor<float, 2> index_k = floats(in.index.index_k);
        cpu_->index_kl(p, {{index_q, index_k}, floats(in.q), floats(in.k), in.ids, in.teacher}, to);
        if (what == "kl" && to.kl) to.kl.data()[to.kl.size() / 2] += 0.1;
        spoil(what == "d_index_q", to.d_index_q.data(), to.d_index_q.size());
        spoil(what == "d_index_k", to.d_index_k.data(), to.d_index_k.size());
    }

private:
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");
};

}  // namespace

void register_broken_backend(const std::string& wrong) {
    Broken::what = wrong;
    register_backend({"broken", {}},
                     [](const BackendOptions&) { return std::make_unique<Broken>(); });
}

}  // namespace msa::test
