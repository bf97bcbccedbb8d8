// SPDX-License-Identifier: MIT
// P_b in one pass: the sums of all blocks share the row's reference point, which moves rarely.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/cpu/block_scores.h"
#include "core/cpu/cpu_backend.h"

namespace msa::cpu {
namespace {

constexpr int64_t kMaxSums = int64_t{1} << 20;  // floats of one thread's block sums

/// add_blocks for blocks that are shorter than a vector: one softmax step for all of them.
void add_small_blocks(float* logits, int64_t seen, int64_t first_block, int64_t block_size,
                      OnlineSum& softmax, float* sums) {
    const SoftmaxStep step = softmax_step(logits, seen, softmax);
    if (step.factor != 1)
        for (int64_t before = 0; before < first_block; ++before) sums[before] *= step.factor;
    if (block_size == 1) {
        std::copy_n(logits, seen, sums + first_block);
        return;
    }
    for (int64_t j = 0, b = first_block; j < seen; j += block_size, ++b)
        sums[b] = std::accumulate(logits + j, logits + std::min(j + block_size, seen), 0.0F);
}

/// `sums` [B] takes in the blocks of one step: sums[b] is the sum of exp2(logit - top).
void add_blocks(float* logits, int64_t seen, int64_t first_block, int64_t block_size,
                OnlineSum& softmax, float* sums) {
    if (block_size < kMinBlockSize)
        return add_small_blocks(logits, seen, first_block, block_size, softmax, sums);
    for (int64_t j = 0, b = first_block; j < seen; j += block_size, ++b) {
        const SoftmaxStep step = softmax_step(logits + j, std::min(block_size, seen - j), softmax);
        if (step.factor != 1)
            for (int64_t before = 0; before < b; ++before) sums[before] *= step.factor;
        sums[b] = step.sum;
    }
}

/// max_logit [B] of the row's group takes in the blocks of one step.
void raise_max_logit(const float* logits, int64_t seen, int64_t first_block, int64_t block_size,
                     float* max_logit) {
    for (int64_t j = 0, b = first_block; j < seen; j += block_size, ++b) {
        const auto top = static_cast<float>(
            kLn2 * double{max_or_nan(logits + j, std::min(block_size, seen - j))});
        if (top > max_logit[b] || std::isnan(top)) max_logit[b] = top;
    }
}

}  // namespace

void block_mass(const Problem& p, View<const float, 3> q, View<const float, 3> k,
                const BlockMassOutput& to, int threads) {
    const int64_t blocks = p.blocks(), dims = p.head_dim, heads = p.group_size();
    const TileLoop loop{.heads = heads,
                        .factor = static_cast<float>(p.softmax_scale() * kLog2E),
                        .step = block_step(p.block_size),
                        .max_rows = std::min(kTileRows, kMaxSums / std::max<int64_t>(1, blocks)),
                        .threads = threads};
    Tensor<float, 3> sums({threads, loop.tile_rows(), blocks});
    Tensor<OnlineSum, 2> states({threads, loop.tile_rows()});
    for_each_tile(p, q, loop, [&](const RowTile& tile, const Scratch& scratch) {
        const View<float, 2> sum = sums.view()[scratch.thread];
        const View<OnlineSum, 1> softmax = states.view()[scratch.thread];
        std::fill_n(softmax.data(), softmax.size(), OnlineSum{});
        for (int64_t i = tile.queries.begin; i < tile.queries.end; ++i) {
            std::fill_n(to.mass[i][tile.group].data(), blocks, 0.0f);
            if (to.max_logit) std::fill_n(to.max_logit[i][tile.group].data(), blocks, -kInfinity);
        }
        const float* keys = k.data() + (tile.seen(0).first * p.kv_heads + tile.group) * dims;
        for_each_strip(
            tile, keys, p.kv_heads * dims, loop.step, scratch, [](int64_t, int64_t) {},
            [&](const LogitStrip& strip) {
                const int64_t first_block = strip.first_key / p.block_size;
                for (int64_t r = 0; r < strip.rows; ++r) {
                    const int64_t row = strip.first_row + r;
                    const int64_t seen = strip.seen[static_cast<size_t>(r)];
                    if (to.max_logit)
                        raise_max_logit(strip.row(r), seen, first_block, p.block_size,
                                        to.max_logit[tile.query(row)][tile.group].data());
                    add_blocks(strip.row(r), seen, first_block, p.block_size, softmax(row),
                               sum[row].data());
                }
            });
        for (int64_t row = 0; row < tile.size(); ++row) {
            const auto weight =
                static_cast<float>(1 / (static_cast<double>(heads) * softmax(row).sum));
            const int64_t seen = visible_blocks(tile.seen(row).count, p.block_size);
            float* mass = to.mass[tile.query(row)][tile.group].data();
            for (int64_t b = 0; b < seen; ++b) mass[b] += weight * sum(row, b);
        }
    });
}

}  // namespace msa::cpu
