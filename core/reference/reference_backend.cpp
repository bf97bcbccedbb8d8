// SPDX-License-Identifier: MIT
#include "core/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/host_backend.h"
#include "core/threads.h"

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

std::vector<int64_t> in_window(const Problem& p, KeyRange visible, std::vector<int64_t> tokens) {
    const int64_t first = visible.first + p.window_start(visible.count);
    std::erase_if(tokens, [first](int64_t j) { return j < first; });
    return tokens;
}

double entropy_of(const std::vector<double>& shares) {
    double sum = 0;
    for (double share : shares)
        if (share > 0) sum -= share * std::log(share);
    return sum;
}

double softmax(std::vector<double>& logits, double sink) {
    if (logits.empty()) return sink;
    const double top = std::max(*std::max_element(logits.begin(), logits.end()), sink);
    double sum = sink == kNoSink ? 0 : std::exp(sink - top);
    for (double s : logits) sum += std::exp(s - top);
    const double lse = top + std::log(sum);
    for (double& s : logits) s = std::exp(s - lse);
    return lse;
}

double sink_of(const MainBranch& in, int64_t h) { return in.sinks ? in.sinks(h) : kNoSink; }

double attend(const Problem& p, const MainBranch& in, int64_t i, int64_t h,
              const std::vector<int64_t>& tokens, View<float, 1> out) {
    const int64_t group = h / p.group_size();
    std::vector<double> weight;
    for (int64_t j : tokens) weight.push_back(p.logit(dot(in.q[i][h], in.k.row(j, group))));
    const double lse = softmax(weight, sink_of(in, h));
    for (int64_t d = 0; d < out.size(); ++d) {
        double sum = std::isnan(lse) ? lse : 0;  // a NaN sink of no tokens too
        for (size_t t = 0; t < tokens.size(); ++t)
            sum += weight[t] * double{in.v.row(tokens[t], group)(d)};
        out(d) = static_cast<float>(sum);
    }
    return lse;
}

}  // namespace reference

namespace {

class ReferenceBackend final : public HostBackend {
public:
    explicit ReferenceBackend(int threads) : threads_(threads_or_all(threads)) {}

    std::string_view name() const override { return "reference"; }
    std::string device() const override { return "one CPU thread, double precision"; }
    int host_threads() const override { return threads_; }

    Support supports(const Problem&, const Request& request) const override {
        if (Support taken = takes_elements(request); !taken.yes) return taken;
        const LoopOrder order = loop_order(request);
        if (order != LoopOrder::q_outer && order != LoopOrder::automatic)
            return Support::no("it has the q_outer order only");
        return {};
    }

protected:
    void do_dense_attention(const Problem& p, const AttentionInput& in,
                            const AttentionOutput& to) override {
        reference::dense_attention(p, main_branch(p, in), to.out.as<float>(), to.lse);
    }
    void do_index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) override {
        const FloatIndexInput floats(p, in);
        if (in.index_q.element() == Element::int8)
            reference::index_scores(p, floats.q(), floats.k(), floats.scales(), scores);
        else
            reference::index_scores(p, floats.q(), floats.k(), scores);
    }
    void do_select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                          View<int32_t, 3> ids) override {
        reference::select_blocks(p, rule, scores, ids);
    }
    void do_index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids, View<float, 2> lse) override {
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        do_index_scores(p, in, scores);
        do_select_blocks(p, rule, scores, ids);
        if (lse) reference::index_lse(p, in.index_q.as<const float>(), {p, in.index_k}, ids, lse);
    }
    void do_sparse_attention(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                             const AttentionOutput& to, LoopOrder) override {
        const FloatOperands floats(p, in, 0);
        reference::sparse_attention(p, main_branch(p, floats.view()), ids, to.out.as<float>(),
                                    to.lse);
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
    void do_block_mass(const Problem& p, const BlockMassInput& in,
                       const BlockMassOutput& to) override {
        reference::block_mass(p, main_branch(p, in), to);
    }
    void do_index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) override {
        reference::index_kl(p, in, to);
    }

private:
    static reference::MainBranch main_branch(const Problem& p, const AttentionInput& in) {
        return {in.q.as<const float>(), {p, in.k}, {p, in.v}, in.sinks};
    }
    /// The Main Branch of an operation that takes no values.
    static reference::MainBranch main_branch(const Problem& p, const BlockMassInput& in) {
        return {in.q.as<const float>(), {p, in.k}, {}, in.sinks};
    }

    int threads_;  // of others' work beside the operations; 0: all
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(const BackendOptions& options) {
    return std::make_unique<ReferenceBackend>(options.threads);
}

}  // namespace msa
