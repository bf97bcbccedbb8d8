// SPDX-License-Identifier: MIT
// eq:softmax-attention, with the online softmax over steps of keys
#include <algorithm>

#include "core/cpu/block_attention.h"
#include "core/cpu/cpu_backend.h"
#include "core/cpu/tile_loop.h"

namespace msa::cpu {
namespace {

constexpr int64_t kStep = 128;

/// Rows of a tile: large ones, which pack their keys less often, as long as every thread has some.
/// A row's result does not depend on the tile it is in.
int64_t tile_rows(const Problem& p, int threads) {
    constexpr int64_t kLarge = 8 * kTileRows, kEach = 4;  // tiles of a thread
    const bool enough = p.queries() * p.query_heads >= kLarge * kEach * threads;
    return enough ? kLarge : kTileRows;
}

/// One strip of `out` [rows, padded(dh)] and `softmax` [rows] takes in the step's values.
void add_strip(const LogitStrip& strip, Panels values, OnlineSum* softmax, float* out) {
    std::array<float, kBatch> factor;
    softmax_steps(strip.data, strip.stride, strip.rows, strip.hidden.data(), strip.seen.data(),
                  softmax, factor.data());
    const int64_t stride = padded(values.columns);
    add_values(strip.data, strip.stride, strip.rows, values, strip.seen.data(), factor.data(), out,
               stride, strip.hidden.data());
}

}  // namespace

void dense_attention(const Problem& p, View<const float, 3> q, const KeyTokens<float>& k,
                     const KeyTokens<float>& v, View<float, 3> out, View<float, 2> lse,
                     int threads) {
    const int64_t dims = p.head_dim, heads = p.group_size();
    const LogitRule rule = main_logits(p);
    const TileLoop loop{.heads = heads,
                        .factor = rule.factor,
                        .step = kStep,
                        .max_rows = tile_rows(p, threads),
                        .threads = threads,
                        .cap = rule.cap,
                        .window = p.window.value_or(kNoWindow)};
    Tensor<float, 2> value_panels({threads, panel_floats(kStep, dims)});
    Tensor<float, 3> sums({threads, loop.tile_rows(), padded(dims)});
    Tensor<OnlineSum, 2> states({threads, loop.tile_rows()});
    for_each_tile(p, q, loop, [&](const RowTile& tile, const Scratch& scratch) {
        const View<float, 2> sum = sums.view()[scratch.thread];
        const View<OnlineSum, 1> softmax = states.view()[scratch.thread];
        std::fill_n(sum.data(), sum.size(), 0.0f);
        std::fill_n(softmax.data(), softmax.size(), OnlineSum{});
        Panels values{};
        for_each_strip(
            tile, k, tile.group, kStep, scratch,
            [&](int64_t first, int64_t count) {
                values = pack_values(v, tile.group, first, count,
                                     value_panels.view()[scratch.thread].data());
            },
            [&](const LogitStrip& strip) {
                add_strip(strip, values, softmax.data() + strip.first_row,
                          sum[strip.first_row].data());
            });
        for (int64_t row = 0; row < tile.size(); ++row) {
            const int64_t i = tile.query(row), h = tile.head(row);
            finish_row(sum[row].data(), softmax(row), out[i][h], lse(i, h));
        }
    });
}

}  // namespace msa::cpu
