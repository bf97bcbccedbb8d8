// SPDX-License-Identifier: MIT
#include <Eigen/Core>
#include <algorithm>

#include "core/select/selector.h"

namespace msa {
namespace {

using Row = Eigen::Map<const Eigen::RowVectorXf>;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strided = Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>>;

class MeanKeySelector final : public Selector {
public:
    std::string_view name() const override { return "mean-key"; }
    std::string_view rule() const override {
        return "q . mean(k) of the block's visible tokens, summed over the group's heads (the "
               "gate of MoBA at GQA-group granularity)";
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        first_block_ = block_starts(p);
        means_ = Tensor<float, 3>({p.kv_heads, first_block_.back(), p.head_dim});
        for (size_t s = 0; s + 1 < p.cu_seqlens_k.size(); ++s)
            for (int64_t b = 0; b < first_block_[s + 1] - first_block_[s]; ++b) {
                const int64_t begin = p.cu_seqlens_k[s] + b * p.block_size;
                const int64_t end = std::min(begin + p.block_size, p.cu_seqlens_k[s + 1]);
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    mean(layer.k, r, begin, end - begin, means_.view()[r][first_block_[s] + b]);
            }
    }

    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange> visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        for (const QueryRange& tile : query_tiles(p, kTileQueries)) {
            const int64_t s = sequence[static_cast<size_t>(tile.begin)];
            const int64_t first_block = first_block_[static_cast<size_t>(s)];
            for (int64_t r = 0; r < p.kv_heads; ++r)
                score_tile(layer, chunk, visible, tile, first_block, r, scores);
        }
    }

private:
    static constexpr int64_t kTileQueries = 256;

    static void mean(View<const float, 3> k, int64_t group, int64_t begin, int64_t count,
                     View<float, 1> to) {
        Eigen::Map<Eigen::RowVectorXf>(to.data(), to.size()) =
            Strided(k[begin][group].data(), count, to.size(),
                    Eigen::OuterStride<>(k.extent(1) * k.extent(2)))
                .colwise()
                .mean();
    }

    void score_tile(const SelectorLayer& layer, const SelectorChunk& chunk,
                    const std::vector<KeyRange>& visible, QueryRange tile, int64_t first_block,
                    int64_t group, View<float, 3> scores) {
        const Problem& p = chunk.problem;
        const KeyRange last = visible[static_cast<size_t>(tile.end - 1)];
        const int64_t blocks = visible_blocks(last.count, p.block_size);
        if (blocks == 0) return;
        RowMajor q(tile.end - tile.begin, p.head_dim);
        for (int64_t i = tile.begin; i < tile.end; ++i)
            q.row(i - tile.begin) =
                Eigen::Map<const RowMajor>(chunk.q[i][group * p.group_size()].data(),
                                           p.group_size(), p.head_dim)
                    .colwise()
                    .sum();
        const RowMajor products =
            q *
            Eigen::Map<const RowMajor>(means_.view()[group][first_block].data(), blocks, p.head_dim)
                .transpose();
        Tensor<float, 1> local({p.head_dim});
        for (int64_t i = tile.begin; i < tile.end; ++i) {
            const KeyRange seen = visible[static_cast<size_t>(i)];
            const int64_t row = i - tile.begin;
            std::copy_n(products.row(row).data(), visible_blocks(seen.count, p.block_size),
                        scores[i][group].data());
            // The local block may be seen in part.
            const int64_t partial = seen.count % p.block_size, begin = seen.count - partial;
            if (partial == 0) continue;
            mean(layer.k, group, seen.first + begin, partial, local);
            scores(i, group, begin / p.block_size) = q.row(row).dot(Row(local.data(), p.head_dim));
        }
    }

    std::vector<int64_t> first_block_;  // [S+1] of each sequence among all blocks
    Tensor<float, 3> means_;            // [Hkv, blocks of all sequences, dh]
};

}  // namespace

std::unique_ptr<Selector> make_mean_key_selector() { return std::make_unique<MeanKeySelector>(); }

}  // namespace msa
