// SPDX-License-Identifier: MIT
// Attention to single blocks is the backend's; the choice goes block by block over what they give:
// with a block's mass m_b and its output u_b, attention to the blocks S is
// sum m_b u_b / (sum m_b + the sink's share).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/select/cost.h"
#include "core/select/rows_held.h"
#include "core/select/selector.h"

namespace msa {
namespace {

/// What each block of one query and group adds: [G, dh, blocks] mass times output, and [G, blocks]
/// mass, by which dense attention is 1 with the sinks. Blocks lie side by side: all of them are
/// multiplied with one of them at once.
struct Parts {
    Parts(int64_t blocks, int64_t heads, int64_t dims)
        : outputs({heads, dims, blocks}), mass({heads, blocks}) {}
    Tensor<float, 3> outputs;
    Tensor<float, 2> mass;
};

/// sums [blocks] = the sum over channels of x [dh, blocks] times y(d, block), in their order.
template <typename Y>
void multiply(View<const float, 2> x, Y y, double* sums) {
    std::fill_n(sums, x.extent(1), 0.0);
    for (int64_t d = 0; d < x.extent(0); ++d) {
        const float* const row = x[d].data();
        for (int64_t b = 0; b < x.extent(1); ++b) sums[b] += double{row[b]} * y(d, b);
    }
}

/// Picks blocks greedily: each time the one with which the squared error over the group's heads is
/// least; of equal ones the lower.
class Greedy {
public:
    /// sinks [G]: share of each head's sink.
    Greedy(const Parts& parts, const std::vector<double>& sinks)
        : parts_(parts),
          blocks_(parts.mass.extent(1)),
          heads_(parts.mass.extent(0)),
          taken_(static_cast<size_t>(blocks_), false),
          dense_(products_with_dense()),
          squares_(products_with_selves()),
          chosen_({heads_, blocks_}),
          total_(sinks),
          norm_(static_cast<size_t>(heads_), 0.0),
          along_(norm_),
          with_taken_(static_cast<size_t>(blocks_)) {}

    void take(int64_t block) {
        taken_[static_cast<size_t>(block)] = true;
        for (int64_t h = 0; h < heads_; ++h) {
            const auto at = static_cast<size_t>(h);
            norm_[at] += 2 * chosen_(h, block) + squares_(h, block);
            along_[at] += dense_(h, block);
            total_[at] += double{parts_.mass(h, block)};
            const View<const float, 2> outputs = parts_.outputs.view()[h];
            multiply(
                outputs, [&](int64_t d, int64_t) { return double{outputs(d, block)}; },
                with_taken_.data());
            for (int64_t b = 0; b < blocks_; ++b)
                chosen_(h, b) += with_taken_[static_cast<size_t>(b)];
        }
    }

    /// -1 where all are taken.
    int64_t best() const {
        int64_t best = -1;
        double least = std::numeric_limits<double>::infinity();
        for (int64_t b = 0; b < blocks_; ++b) {
            if (taken_[static_cast<size_t>(b)]) continue;
            const double error = error_with(b);
            if (best >= 0 && !(error < least)) continue;
            best = b;
            least = error;
        }
        return best;
    }

private:
    /// The squared error, less that of an empty output: |o_S|^2 - 2 o_S . o over the heads.
    double error_with(int64_t b) const {
        double error = 0;
        for (int64_t h = 0; h < heads_; ++h) {
            const auto at = static_cast<size_t>(h);
            const double total = total_[at] + double{parts_.mass(h, b)};
            if (total <= 0) continue;
            const double norm = norm_[at] + 2 * chosen_(h, b) + squares_(h, b);
            error += norm / (total * total) - 2 * (along_[at] + dense_(h, b)) / total;
        }
        return error;
    }

    Tensor<double, 2> products_with_dense() const {
        Tensor<double, 2> products({heads_, blocks_});
        for (int64_t h = 0; h < heads_; ++h) {
            const View<const float, 2> outputs = parts_.outputs.view()[h];
            std::vector<double> dense(static_cast<size_t>(outputs.extent(0)), 0.0);
            for (int64_t d = 0; d < outputs.extent(0); ++d)
                for (int64_t b = 0; b < blocks_; ++b)
                    dense[static_cast<size_t>(d)] += double{outputs(d, b)};
            multiply(
                outputs, [&](int64_t d, int64_t) { return dense[static_cast<size_t>(d)]; },
                products.view()[h].data());
        }
        return products;
    }
    Tensor<double, 2> products_with_selves() const {
        Tensor<double, 2> products({heads_, blocks_});
        for (int64_t h = 0; h < heads_; ++h) {
            const View<const float, 2> outputs = parts_.outputs.view()[h];
            multiply(
                outputs, [&](int64_t d, int64_t b) { return double{outputs(d, b)}; },
                products.view()[h].data());
        }
        return products;
    }

    const Parts& parts_;
    int64_t blocks_, heads_;
    std::vector<bool> taken_;
    Tensor<double, 2> dense_, squares_,
        chosen_;                                // [G, blocks] products with o, themselves, the sum
    std::vector<double> total_, norm_, along_;  // [G] mass, |sum|^2 and sum . o of those taken
    std::vector<double> with_taken_;            // [blocks] of take()
};

class OracleErrorSelector final : public Selector {
public:
    std::string_view name() const override { return "oracle-error"; }
    std::string_view rule() const override {
        return "greedily, the block with which the output error of the group's heads is least, "
               "beside the forced ones: the oracle of the output, where the oracle is one of the "
               "mass";
    }
    std::string_view note() const override {
        return "greedy: no bound on the error of the best choice of as many blocks";
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.values = true, .rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        const PolicyCost keys = oracle_cost(phase.problem);
        return {2 * keys.flops, 2 * keys.bytes};  // and values
    }

    void prepare(const SelectorLayer&) override { known_.queries.clear(); }

    /// Rules that force the same blocks have the same order, as long as the longest asks for.
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        SelectionRule rule = layer.rule;
        for (const SelectionRule& other : layer.all_rules())
            if (other.forced_first == rule.forced_first && other.forced_local == rule.forced_local)
                rule.top_k = std::max(rule.top_k, other.top_k);
        const std::vector<int64_t> queries(chunk.tokens.begin(), chunk.tokens.end());
        if (known_.queries.empty() || known_.queries != queries || known_.rule != rule) {
            known_ = {queries, rule, Tensor<float, 3>({p.queries(), p.kv_heads, p.blocks()})};
            const int64_t step = rows_held(p.query_heads * p.head_dim * p.blocks());
            for (int64_t begin = 0; begin < p.queries(); begin += step) {
                const QueryRange range{begin, std::min(begin + step, p.queries())};
                const int64_t count = range.end - begin;
                score_part(layer, rule, p.with_queries(range), chunk.q.floats().slice(begin, count),
                           known_.order.view().slice(begin, count));
            }
        }
        Tensor<float, 3> scores(known_.order.shape());
        const std::vector<KeyRange>& visible = visible_keys(p);
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            const int64_t room = layer.rule.top_k - forced_of(layer.rule, blocks);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b < blocks; ++b)
                    if (const float at = known_.order(i, r, b);
                        at > 0 && at <= static_cast<float>(room))
                        scores(i, r, b) = 1 / at;
        }
        return {layer.backend, std::move(scores)};
    }

private:
    /// Attention of the queries to one block each.
    struct OfBlock {
        Tensor<float, 3> out;  // [Nq, Hq, dh]
        Tensor<float, 2> lse;  // [Nq, Hq]
    };

    static OfBlock attend(const SelectorLayer& layer, const Problem& p, View<const float, 3> q,
                          int64_t block) {
        const std::vector<KeyRange>& visible = visible_keys(p);
        Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, 1});
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                ids(i, r, 0) =
                    block < visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size)
                        ? static_cast<int32_t>(block)
                        : kNoBlock;
        const Tensor<int32_t, 3> there = layer.backend.upload(std::as_const(ids).view());
        auto out = layer.backend.make<float, 3>({p.queries(), p.query_heads, p.head_dim});
        auto lse = layer.backend.make<float, 2>({p.queries(), p.query_heads});
        layer.backend.sparse_attention(p, {q, layer.k.floats(), layer.v.floats()}, there,
                                       {out, lse});
        return {layer.backend.download(std::as_const(out).view()),
                layer.backend.download(std::as_const(lse).view())};
    }

    /// [Nq, Hq]: of all blocks and the sinks.
    static Tensor<double, 2> lse_of(const SelectorLayer& layer, const Problem& p,
                                    const std::vector<OfBlock>& all,
                                    const std::vector<float>& sinks) {
        Tensor<double, 2> lse({p.queries(), p.query_heads});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t h = 0; h < p.query_heads; ++h) {
                double top = sinks.empty() ? -std::numeric_limits<double>::infinity()
                                           : double{sinks[static_cast<size_t>(h)]};
                for (const OfBlock& one : all) top = std::max(top, double{one.lse(i, h)});
                double sum =
                    sinks.empty() ? 0 : std::exp(double{sinks[static_cast<size_t>(h)]} - top);
                for (const OfBlock& one : all) sum += std::exp(double{one.lse(i, h)} - top);
                lse(i, h) = top + std::log(sum);
            }
        return lse;
    }

    void score_part(const SelectorLayer& layer, const SelectionRule& rule, const Problem& p,
                    View<const float, 3> q, View<float, 3> scores) const {
        std::vector<OfBlock> all;
        for (int64_t b = 0; b < p.blocks(); ++b) all.push_back(attend(layer, p, q, b));
        std::vector<float> sinks;
        if (layer.sinks.data() != nullptr) {
            const Tensor<float, 1> host = layer.backend.download(layer.sinks);
            sinks.assign(host.data(), host.data() + host.size());
        }
        const Tensor<double, 2> lse = lse_of(layer, p, all, sinks);
        const std::vector<KeyRange>& visible = visible_keys(p);
        const int64_t heads = p.group_size();
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const int64_t blocks =
                    visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
                Parts parts(blocks, heads, p.head_dim);
                std::vector<double> sink(static_cast<size_t>(heads), 0.0);
                for (int64_t g = 0; g < heads; ++g) {
                    const int64_t h = r * heads + g;
                    if (!sinks.empty())
                        sink[static_cast<size_t>(g)] =
                            std::exp(double{sinks[static_cast<size_t>(h)]} - lse(i, h));
                    for (int64_t b = 0; b < blocks; ++b) {
                        const OfBlock& one = all[static_cast<size_t>(b)];
                        const auto mass =
                            static_cast<float>(std::exp(double{one.lse(i, h)} - lse(i, h)));
                        parts.mass(g, b) = mass;
                        for (int64_t d = 0; d < p.head_dim; ++d)
                            parts.outputs(g, d, b) = mass * one.out(i, h, d);
                    }
                }
                rank(rule, parts, sink, scores[i][r]);
            }
    }

    /// How many of the blocks that a query sees are forced.
    static int64_t forced_of(const SelectionRule& rule, int64_t blocks) {
        int64_t count = 0;
        for (int64_t b = 0; b < blocks; ++b) count += is_forced(rule, b, blocks) ? 1 : 0;
        return count;
    }

    /// 1 for the block that is picked first, 2 for the next; 0 for forced ones and those left.
    static void rank(const SelectionRule& rule, const Parts& parts,
                     const std::vector<double>& sinks, View<float, 1> order) {
        const int64_t blocks = parts.mass.extent(1);
        Greedy greedy(parts, sinks);
        for (int64_t b = 0; b < blocks; ++b)
            if (is_forced(rule, b, blocks)) greedy.take(b);
        const int64_t room = rule.top_k - forced_of(rule, blocks);
        for (int64_t n = 1; n <= room; ++n) {
            const int64_t b = greedy.best();
            if (b < 0) break;
            greedy.take(b);
            order(b) = static_cast<float>(n);
        }
    }

    struct Known {
        std::vector<int64_t> queries;
        SelectionRule rule;
        Tensor<float, 3> order;  // [Nq, Hkv, B] as by rank()
    } known_;                    // of the last chunk
};

}  // namespace

std::unique_ptr<Selector> make_oracle_error_selector() {
    return std::make_unique<OracleErrorSelector>();
}

}  // namespace msa
