// SPDX-License-Identifier: MIT
#include "core/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/host_backend.h"

namespace msa {
namespace reference {

double dot(View<const float, 1> a, View<const float, 1> b) {
    double sum = 0;
    for (int64_t d = 0; d < a.size(); ++d) sum += double{a(d)} * double{b(d)};
    return sum;
}

std::vector<int64_t> support_tokens(KeyRange visible, int64_t block_size,
                                    std::span<const int32_t> ids) {
    std::vector<int64_t> tokens;
    for (int64_t block : ids)
        for (int64_t j = block * block_size; j < std::min((block + 1) * block_size, visible.count);
             ++j)
            tokens.push_back(visible.first + j);
    return tokens;
}

std::vector<int64_t> all_tokens(KeyRange visible) {
    std::vector<int64_t> tokens;
    for (int64_t j = 0; j < visible.count; ++j) tokens.push_back(visible.first + j);
    return tokens;
}

double softmax(std::vector<double>& logits) {
    if (logits.empty()) return -std::numeric_limits<double>::infinity();
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double s : logits) sum += std::exp(s - top);
    const double lse = top + std::log(sum);
    for (double& s : logits) s = std::exp(s - lse);
    return lse;
}

double attend(double scale, View<const float, 1> q, View<const float, 3> k, View<const float, 3> v,
              int64_t group, const std::vector<int64_t>& tokens, View<float, 1> out) {
    std::vector<double> p;
    for (int64_t j : tokens) p.push_back(scale * dot(q, k[j][group]));
    const double lse = softmax(p);
    for (int64_t d = 0; d < out.size(); ++d) {
        double sum = 0;
        for (size_t t = 0; t < tokens.size(); ++t) sum += p[t] * double{v(tokens[t], group, d)};
        out(d) = static_cast<float>(sum);
    }
    return lse;
}

}  // namespace reference

namespace {

class ReferenceBackend final : public HostBackend {
public:
    std::string_view name() const override { return "reference"; }
    std::string device() const override { return "one CPU thread, double precision"; }

    Support supports(const Problem&, const Request& request) const override {
        if (const Element element = operand_element(request); element != Element::f32)
            return Support::no(text("it takes f32, not ", to_string(element)));
        const LoopOrder order = loop_order(request);
        if (order != LoopOrder::q_outer && order != LoopOrder::automatic)
            return Support::no("it has the q_outer order only");
        return {};
    }

protected:
    void do_dense_attention(const Problem& p, const AttentionInput& in,
                            const AttentionOutput& to) override {
        reference::dense_attention(p, in.q.as<const float>(), in.k.as<const float>(),
                                   in.v.as<const float>(), to.out.as<float>(), to.lse);
    }
    void do_index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) override {
        reference::index_scores(p, in.index_q.as<const float>(), in.index_k.as<const float>(),
                                scores);
    }
    void do_select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                          View<int32_t, 3> ids) override {
        reference::select_blocks(p, rule, scores, ids);
    }
    void do_index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids) override {
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        do_index_scores(p, in, scores);
        do_select_blocks(p, rule, scores, ids);
    }
    void do_sparse_attention(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                             const AttentionOutput& to, LoopOrder) override {
        reference::sparse_attention(p, in.q.as<const float>(), in.k.as<const float>(),
                                    in.v.as<const float>(), ids, to.out.as<float>(), to.lse);
    }
    void do_dense_attention_grad(const Problem& p, const AttentionInput& in,
                                 const AttentionSaved& saved,
                                 const AttentionGradient& to) override {
        reference::dense_attention_grad(p, in, saved, to);
    }
    void do_sparse_attention_grad(const Problem& p, const AttentionInput& in,
                                  View<const int32_t, 3> ids, const AttentionSaved& saved,
                                  const AttentionGradient& to, LoopOrder) override {
        reference::sparse_attention_grad(p, in, ids, saved, to);
    }
    void do_block_mass(const Problem& p, In<3> q, In<3> k, const BlockMassOutput& to) override {
        reference::block_mass(p, q.as<const float>(), k.as<const float>(), to);
    }
    void do_index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) override {
        reference::index_kl(p, in.index.index_q.as<const float>(),
                            in.index.index_k.as<const float>(), in.q.as<const float>(),
                            in.k.as<const float>(), in.ids, to, in.teacher);
    }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(const BackendOptions&) {
    return std::make_unique<ReferenceBackend>();
}

}  // namespace msa
