// SPDX-License-Identifier: MIT
// The mean over a block of cos(k, anchor) is the product of the anchor's direction with the mean of
// the block's unit keys.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

/// Adds v / |v|; nothing where v is 0.
void add_direction(const float* v, float sign, View<float, 1> sum) {
    float squares = 0;
    for (int64_t d = 0; d < sum.size(); ++d) squares += v[d] * v[d];
    if (squares == 0) return;
    const float scale = sign / std::sqrt(squares);
    for (int64_t d = 0; d < sum.size(); ++d) sum(d) += scale * v[d];
}

/// A BlockVectors::OfKeys.
void mean_of_unit_keys(const KeyRows& keys, View<float, 1> mean) {
    std::fill_n(mean.data(), mean.size(), 0.0F);
    for (int64_t j = 0; j < keys.count; ++j) add_direction(keys[j], 1, mean);
    for (int64_t d = 0; d < mean.size(); ++d) mean(d) /= static_cast<float>(keys.count);
}

/// One vector per group, in the place of a head's query.
Problem one_head_per_group(Problem p) {
    p.query_heads = p.kv_heads;
    return p;
}

class KeyDiffSelector final : public Selector {
public:
    std::string_view name() const override { return "keydiff"; }
    std::string_view rule() const override {
        return "how little the block's keys look like all keys that the query sees: - cosine of a "
               "key and the mean of the unit keys, mean over the block (KeyDiff, arXiv 2504.15364)";
    }
    std::string_view note() const override {
        return "looks at no query; chosen anew for every query, of which the source evicts tokens "
               "once, after the prompt";
    }
    Family family() const override { return Family::keys; }
    PolicyCost do_cost(const Phase& phase) const override {
        return per_group(phase.problem, blocks_seen(phase.problem));
    }
    void prepare(const SelectorLayer& layer) override {
        vectors_.emplace(layer, layer.problem.head_dim, mean_of_unit_keys, add_query);
        starts_ = block_starts(layer.problem);
        add_blocks(layer);
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem p = one_head_per_group(chunk.problem);
        return {layer.backend, vectors_->score(layer, p, away_from_anchors(layer, p))};
    }

private:
    /// before_: sums of unit keys of the sequence's blocks before each one.
    void add_blocks(const SelectorLayer& layer) {
        const Problem& p = layer.problem;
        before_ = Tensor<float, 3>({starts_.back(), p.kv_heads, p.head_dim});
        for (size_t s = 0; s + 1 < starts_.size(); ++s)
            for (int64_t b = starts_[s] + 1; b < starts_[s + 1]; ++b) {
                const int64_t first =
                    p.batch.cu_seqlens_k()[s] + (b - 1 - starts_[s]) * p.block_size;
                std::copy_n(&before_(b - 1, 0, 0), p.kv_heads * p.head_dim, &before_(b, 0, 0));
                add_keys(layer, first, p.block_size, before_.view()[b]);
            }
    }

    static void add_keys(const SelectorLayer& layer, int64_t first, int64_t count,
                         View<float, 2> sums) {
        for (int64_t r = 0; r < sums.extent(0); ++r) {
            const KeyRows keys = key_rows(layer.k.host(), r, first, count);
            for (int64_t j = 0; j < count; ++j) add_direction(keys[j], 1, sums[r]);
        }
    }

    /// [Nq, Hkv, dh]: - the direction of each query's anchor.
    Tensor<float, 3> away_from_anchors(const SelectorLayer& layer, const Problem& p) const {
        const std::vector<KeyRange>& visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        Tensor<float, 3> away({p.queries(), p.kv_heads, p.head_dim});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const KeyRange seen = visible[static_cast<size_t>(i)];
            if (seen.count == 0) continue;
            const int64_t local = (seen.count - 1) / p.block_size, begin = local * p.block_size;
            const int64_t block =
                starts_[static_cast<size_t>(sequence[static_cast<size_t>(i)])] + local;
            Tensor<float, 2> anchor({p.kv_heads, p.head_dim});
            std::copy_n(&before_(block, 0, 0), anchor.size(), anchor.data());
            add_keys(layer, seen.first + begin, seen.count - begin, anchor);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                add_direction(anchor.view()[r].data(), -1, away.view()[i][r]);
        }
        return away;
    }

    std::optional<BlockVectors> vectors_;
    std::vector<int64_t> starts_;  // [S+1] first block of each sequence
    Tensor<float, 3> before_;      // [blocks of all sequences, Hkv, dh]
};

}  // namespace

std::unique_ptr<Selector> make_keydiff_selector() { return std::make_unique<KeyDiffSelector>(); }

}  // namespace msa
