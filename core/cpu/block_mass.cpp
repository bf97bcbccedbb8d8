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

/// The logits of one row and one step, in whole blocks; the row attends to those from `hidden` to
/// `seen`.
struct Step {
    float* logits;
    int64_t hidden, seen;
    int64_t first_block;  // of the step
    int64_t block_size;

    /// Calls visit(block, its first logit, how many) for the blocks that the row attends to.
    template <typename Visit>
    void for_each_block(Visit visit) const {
        for (int64_t j = hidden; j < seen;) {
            const int64_t end = std::min(seen, (j / block_size + 1) * block_size);
            visit(first_block + j / block_size, logits + j, end - j);
            j = end;
        }
    }
};

/// add_blocks for blocks that are shorter than a vector: one softmax step for all of them.
void add_small_blocks(const Step& step, int64_t first, OnlineSum& softmax, float* sums) {
    const float factor =
        softmax_step(step.logits + step.hidden, step.seen - step.hidden, softmax).factor;
    if (factor != 1)
        for (int64_t before = first; before < step.first_block; ++before) sums[before] *= factor;
    if (step.block_size == 1) {
        std::copy(step.logits + step.hidden, step.logits + step.seen,
                  sums + step.first_block + step.hidden);
        return;
    }
    step.for_each_block([&](int64_t b, const float* weights, int64_t count) {
        sums[b] = std::accumulate(weights, weights + count, 0.0F);
    });
}

/// `sums` [B] takes in the blocks of one step: sums[b] is the sum of exp2(logit - reference).
/// `first`: the first block that the row attends to.
void add_blocks(const Step& step, int64_t first, OnlineSum& softmax, float* sums) {
    if (step.block_size < kMinBlockSize) return add_small_blocks(step, first, softmax, sums);
    step.for_each_block([&](int64_t b, float* logits, int64_t count) {
        const SoftmaxStep taken = softmax_step(logits, count, softmax);
        if (taken.factor != 1)
            for (int64_t before = first; before < b; ++before) sums[before] *= taken.factor;
        sums[b] = taken.sum;
    });
}

/// max_logit [B] of the row's group takes in the blocks of one step, whose products have no scale
/// yet: as in block_scores.h, it comes behind the maximum.
void raise_max_logit(const Problem& p, const Step& step, float* max_logit) {
    step.for_each_block([&](int64_t b, const float* products, int64_t count) {
        const auto top = static_cast<float>(p.logit(double{max_or_nan(products, count)}));
        if (top > max_logit[b] || std::isnan(top)) max_logit[b] = top;
    });
}

/// What the loop leaves undone where max_logit wants the products themselves.
void make_logits(const LogitRule& rule, const Step& step) {
    for (int64_t j = 0; j < step.seen; ++j) step.logits[j] *= rule.factor;
    cap_row(step.logits, step.seen, rule.cap);
}

/// What the row's sums are divided by: their own, and the sink's weight.
double normaliser(const OnlineSum& softmax, View<const float, 1> sinks, int64_t head) {
    if (!sinks) return softmax.sum;
    return softmax.sum + std::exp2(double{sinks(head)} * kLog2E - double{softmax.reference});
}

}  // namespace

void block_mass(const Problem& p, View<const float, 3> q, const KeyTokens<float>& k,
                View<const float, 1> sinks, const BlockMassOutput& to, int threads) {
    const int64_t blocks = p.blocks(), heads = p.group_size();
    const LogitRule rule = main_logits(p);
    const bool plain = !!to.max_logit;  // products, of which the maximum is taken first
    const TileLoop loop{.heads = heads,
                        .factor = plain ? 1 : rule.factor,
                        .step = block_step(p.block_size),
                        .max_rows = std::min(kTileRows, kMaxSums / std::max<int64_t>(1, blocks)),
                        .threads = threads,
                        .cap = plain ? 0 : rule.cap,
                        .window = p.window.value_or(kNoWindow)};
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
        for_each_strip(
            tile, k, tile.group, loop.step, scratch, [](int64_t, int64_t) {},
            [&](const LogitStrip& strip) {
                const int64_t first_block = strip.first_key / p.block_size;
                for (int64_t r = 0; r < strip.rows; ++r) {
                    const int64_t row = strip.first_row + r;
                    const auto at = static_cast<size_t>(r);
                    const Step step{strip.row(r), strip.hidden[at], strip.seen[at], first_block,
                                    p.block_size};
                    if (plain) {
                        raise_max_logit(p, step, to.max_logit[tile.query(row)][tile.group].data());
                        make_logits(rule, step);
                    }
                    add_blocks(step, tile.first(row) / p.block_size, softmax(row), sum[row].data());
                }
            });
        for (int64_t row = 0; row < tile.size(); ++row) {
            const auto weight = static_cast<float>(
                1 / (static_cast<double>(heads) * normaliser(softmax(row), sinks, tile.head(row))));
            const int64_t seen = visible_blocks(tile.seen(row).count, p.block_size);
            float* mass = to.mass[tile.query(row)][tile.group].data();
            for (int64_t b = tile.first(row) / p.block_size; b < seen; ++b)
                mass[b] += weight * sum(row, b);
        }
    });
}

}  // namespace msa::cpu
