// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/cpu/tile.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class MeanKeySelector final : public Selector {
public:
    std::string_view name() const override { return "mean-key"; }
    std::string_view rule() const override {
        return "q . mean(k) of the block's visible tokens, summed over the group's heads (the "
               "gate of MoBA at GQA-group granularity)";
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        panels_.clear();
        for (size_t s = 0; s + 1 < p.cu_seqlens_k.size(); ++s) {
            const int64_t tokens = p.cu_seqlens_k[s + 1] - p.cu_seqlens_k[s];
            const int64_t blocks = ceil_div(tokens, p.block_size);
            Tensor<float, 2> means({blocks, p.head_dim});
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                for (int64_t b = 0; b < blocks; ++b)
                    mean(layer.k, r, p.cu_seqlens_k[s] + b * p.block_size,
                         std::min(p.block_size, tokens - b * p.block_size), means.view()[b]);
                panels_.emplace_back(Shape<1>{cpu::panel_floats(p.head_dim, blocks)});
                cpu::pack_keys(means.data(), p.head_dim, blocks, p.head_dim, panels_.back().data());
            }
        }
    }

    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange> visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        for (const QueryRange& strip : query_tiles(p, cpu::kStrip))
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const int64_t s = sequence[static_cast<size_t>(strip.begin)];
                const float* panels = panels_[static_cast<size_t>(s * p.kv_heads + r)].data();
                score_strip(layer, chunk, visible, strip, r, panels, scores);
            }
    }

private:
    /// Mean of `count` keys of a group from token `begin` on.
    static void mean(View<const float, 3> k, int64_t group, int64_t begin, int64_t count,
                     View<float, 1> to) {
        std::fill_n(to.data(), to.size(), 0.0F);
        for (int64_t j = begin; j < begin + count; ++j)
            for (int64_t d = 0; d < to.size(); ++d) to(d) += k(j, group, d);
        for (int64_t d = 0; d < to.size(); ++d) to(d) /= static_cast<float>(count);
    }

    static void score_strip(const SelectorLayer& layer, const SelectorChunk& chunk,
                            const std::vector<KeyRange>& visible, QueryRange strip, int64_t group,
                            const float* panels, View<float, 3> scores) {
        const Problem& p = chunk.problem;
        const int64_t blocks =
            visible_blocks(visible[static_cast<size_t>(strip.end - 1)].count, p.block_size);
        if (blocks == 0) return;
        const int64_t rows = strip.end - strip.begin, stride = cpu::padded(blocks);
        Tensor<float, 2> q({rows, p.head_dim}), products({rows, stride});
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t h = group * p.group_size(); h < (group + 1) * p.group_size(); ++h)
                for (int64_t d = 0; d < p.head_dim; ++d)
                    q(row, d) += chunk.q(strip.begin + row, h, d);
        cpu::multiply({q.data(), p.head_dim, rows}, {panels, p.head_dim, blocks}, products.data(),
                      stride);
        Tensor<float, 1> local({p.head_dim});
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t i = strip.begin + row;
            const KeyRange seen = visible[static_cast<size_t>(i)];
            std::copy_n(&products(row, 0), visible_blocks(seen.count, p.block_size),
                        scores[i][group].data());
            // The local block may be seen in part.
            const int64_t partial = seen.count % p.block_size, begin = seen.count - partial;
            if (partial == 0) continue;
            mean(layer.k, group, seen.first + begin, partial, local);
            float& score = scores(i, group, begin / p.block_size);
            score = 0;
            for (int64_t d = 0; d < p.head_dim; ++d) score += q(row, d) * local(d);
        }
    }

    std::vector<Tensor<float, 1>> panels_;  // [S * Hkv] block means of each sequence and group
};

}  // namespace

std::unique_ptr<Selector> make_mean_key_selector() { return std::make_unique<MeanKeySelector>(); }

}  // namespace msa
