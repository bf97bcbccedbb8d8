// SPDX-License-Identifier: MIT
// The antidiagonals of a stride x stride tile of the attention map add up to one product of
// long vectors: the tile's keys one after the other, with its queries one after the other in
// reverse.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/select/attention_rows.h"
#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/covering.h"
#include "core/select/per_rule.h"
#include "core/select/query_blocks.h"
#include "core/select/rows_held.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class XAttentionSelector final : public Selector {
public:
    std::string_view name() const override { return "xattention"; }
    std::string_view rule() const override {
        return "softmax of the antidiagonal sums of 16 x 16 tiles, summed over the tiles of a "
               "query block and a key block, mean over the group's heads; first and local "
               "block forced, then the fewest blocks that cover a share; the share of each "
               "group so that the queries that averages count keep the budget on average "
               "(XAttention, arXiv 2503.16428)";
    }
    std::string_view note() const override {
        return "a budget in place of the source's threshold, which the option threshold brings "
               "back, and which is fitted to all sequences together; one choice for a whole "
               "query block";
    }
    std::vector<PolicyOption> options() override {
        return {
            {"stride", "side of a tile", &stride_, 1, kMaxBlockSize},
            {"threshold", "share to cover, whatever the budget; 0: as much as the budget allows",
             &threshold_, 0, 1}};
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override {
        return {.queries = true, .rule = true, .phases = Phases::prefill};
    }
    PolicyCost do_cost(const Phase& phase) const override {
        const Problem tiles = in_tiles(phase.problem);
        return per_head(phase.problem, static_cast<double>(tiles.block_size) * block_pairs(tiles));
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        groups_ = p.kv_heads;
        const Problem tiles = in_tiles(p);
        const SelectorLayer strided{.problem = tiles, .backend = layer.backend, .k = layer.k};
        const VectorScores products(strided, rows_of_keys(strided).view());
        maps_.clear();
        for (int64_t s = 0; s < p.sequences(); ++s) add_maps(layer, tiles, products, s);
        share_.clear();
        for (const SelectionRule& rule : layer.all_rules())
            share_[rule] = threshold_ > 0
                               ? std::vector<double>(static_cast<size_t>(p.kv_heads), threshold_)
                               : shares_of_budget(layer, rule);
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        const std::vector<double>& share = share_[layer.rule];
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const int64_t blocks = visible_blocks(visible[row].count, p.block_size);
            for (int64_t r = 0; blocks > 0 && r < p.kv_heads; ++r)
                keep_covering(force(layer.rule, 1, 1), share[static_cast<size_t>(r)],
                              map(sequence[row], r)[blocks - 1], blocks, scores.view()[i][r]);
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked = force(asked, 1, 1);
        asked.top_k = kUneven;
        return asked;
    }

private:
    /// The problem with a tile's side as a block; a block is a whole number of them.
    Problem in_tiles(Problem p) const {
        p.block_size = std::gcd(p.block_size, stride_);
        return p;
    }

    /// [Hkv, tiles of all sequences, stride * dh]: the keys of a tile one after the other, 0 behind
    /// the last one.
    static Tensor<float, 3> rows_of_keys(const SelectorLayer& layer) {
        const Problem& p = layer.problem;
        const std::vector<int64_t> starts = block_starts(p);
        const View<const float, 3> k = layer.k.host();
        Tensor<float, 3> rows({p.kv_heads, starts.back(), p.block_size * p.head_dim});
        for (int64_t s = 0; s < p.sequences(); ++s)
            for (int64_t j = 0; j < sequence_length(p, s); ++j)
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    std::copy_n(k[sequence_start(p, s) + j][r].data(), p.head_dim,
                                &rows(r, starts[static_cast<size_t>(s)] + j / p.block_size,
                                      j % p.block_size * p.head_dim));
        return rows;
    }

    /// The maps of a sequence: of each group, query block and key block the mean over the heads and
    /// the query block's tiles of the softmax over the tiles, summed over the key block.
    void add_maps(const SelectorLayer& layer, const Problem& tiles, const VectorScores& products,
                  int64_t s) {
        const Problem& p = layer.problem;
        const int64_t blocks = ceil_div(sequence_length(p, s), p.block_size);
        const int64_t all = ceil_div(sequence_length(p, s), tiles.block_size);
        for (int64_t r = 0; r < p.kv_heads; ++r) maps_.emplace_back(Shape<2>{blocks, blocks});
        const int64_t step = rows_held(p.kv_heads * tiles.blocks());
        for (int64_t first = 0; first < all; first += step) {
            const int64_t count = std::min(step, all - first);
            const int64_t begin = first * tiles.block_size,
                          end = std::min((first + count) * tiles.block_size, sequence_length(p, s));
            const std::vector<int64_t> tokens = sequence_tokens(p, s, {begin, end});
            const Mirror<3> q = layer.read_q(tokens);
            std::vector<int64_t> newest;  // token of each row of tiles
            for (int64_t a = 0; a < count; ++a)
                newest.push_back(tokens.front() +
                                 std::min((a + 1) * tiles.block_size, end - begin) - 1);
            const Problem rows = tiles.with_query_rows(newest);
            for (int64_t head = 0; head < p.group_size(); ++head) {
                const Tensor<float, 3> dots = products.score(
                    layer.backend, rows, rows_of_queries(tiles, q.host(), head).view());
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    add_softmaxes(tiles, p.block_size, all, first, r, dots,
                                  maps_[static_cast<size_t>(s * p.kv_heads + r)]);
            }
        }
    }

    /// [rows of tiles, Hkv, stride * dh] of one head of each group: the queries of a tile in
    /// reverse, 0 where there is none.
    static Tensor<float, 3> rows_of_queries(const Problem& tiles, View<const float, 3> q,
                                            int64_t head) {
        const int64_t stride = tiles.block_size;
        Tensor<float, 3> rows(
            {ceil_div(q.extent(0), stride), tiles.kv_heads, stride * tiles.head_dim});
        for (int64_t i = 0; i < q.extent(0); ++i)
            for (int64_t r = 0; r < tiles.kv_heads; ++r)
                std::copy_n(q[i][r * tiles.group_size() + head].data(), tiles.head_dim,
                            &rows(i / stride, r, (stride - 1 - i % stride) * tiles.head_dim));
        return rows;
    }

    /// Adds one head's rows of tiles, the first of which is `first` of `all`, to a group's map.
    static void add_softmaxes(const Problem& tiles, int64_t block_size, int64_t all, int64_t first,
                              int64_t group, const Tensor<float, 3>& dots, Tensor<float, 2>& map) {
        const int64_t per_block = block_size / tiles.block_size;
        const double scale = tiles.softmax_scale() / static_cast<double>(tiles.block_size);
        for (int64_t n = 0; n < dots.extent(0); ++n) {
            const int64_t row = first + n, y = row / per_block;
            const float* logits = &dots(n, group, 0);
            const double top = *std::max_element(logits, logits + row + 1);
            std::vector<double> sums(static_cast<size_t>(y + 1), 0.0);
            for (int64_t c = 0; c <= row; ++c)
                sums[static_cast<size_t>(c / per_block)] += std::exp(scale * (logits[c] - top));
            const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
            const int64_t rows = std::min(per_block, all - y * per_block);
            for (int64_t b = 0; b <= y; ++b)
                map(y, b) += static_cast<float>(sums[static_cast<size_t>(b)] / total /
                                                static_cast<double>(rows * tiles.group_size()));
        }
    }

    std::vector<double> shares_of_budget(const SelectorLayer& layer,
                                         const SelectionRule& rule) const {
        const Problem& p = layer.problem;
        CoverBudget budget(force(rule, 1, 1), p.kv_heads);
        for (int64_t s = 0; s < p.sequences(); ++s) {
            const std::vector<int64_t> counted = counted_of_blocks(layer, s);
            for (int64_t y = 0; y < std::ssize(counted); ++y)
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    if (const int64_t queries = counted[static_cast<size_t>(y)]; queries > 0)
                        budget.add(r, map(s, r)[y], y + 1, queries);
        }
        return budget.largest_shares();
    }

    View<const float, 2> map(int64_t sequence, int64_t group) const {
        return maps_[static_cast<size_t>(sequence * groups_ + group)].view();
    }

    int64_t stride_ = 16, groups_ = 0;
    double threshold_ = 0;
    std::vector<Tensor<float, 2>> maps_;  // [S * Hkv] of [query block, key block]
    PerRule<std::vector<double>> share_;  // [Hkv]
};

}  // namespace

std::unique_ptr<Selector> make_xattention_selector() {
    return std::make_unique<XAttentionSelector>();
}

}  // namespace msa
