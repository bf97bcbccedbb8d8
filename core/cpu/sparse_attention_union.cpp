// SPDX-License-Identifier: MIT
// eq:msa-sparse-attn, union: a tile of neighbouring queries walks the union of their blocks with
// its outputs in cache. Each row takes in the blocks of its own query only.
#include <algorithm>

#include "core/cpu/block_attention.h"
#include "core/cpu/cpu_backend.h"
#include "core/cpu/support_loop.h"

namespace msa::cpu {

void sparse_attention_union(const Problem& p, View<const float, 3> q, const KeyTokens<float>& k,
                            const KeyTokens<float>& v, View<const int32_t, 3> ids,
                            View<float, 3> out, View<float, 2> lse, int threads) {
    const int64_t dims = p.head_dim, heads = p.group_size();
    const int64_t tile_queries = std::max<int64_t>(1, kUnionTileRows / heads);
    const int64_t tile_rows = tile_queries * heads, width = padded(dims);
    const LogitRule rule = main_logits(p);
    Tensor<float, 2> q_rows({threads, tile_rows * dims}), sums({threads, tile_rows * width});
    Tensor<float, 2> key_panels({threads, panel_floats(dims, p.block_size)});
    Tensor<float, 2> value_panels({threads, panel_floats(p.block_size, dims)});
    Tensor<float, 2> logits({threads, kBatch * padded(p.block_size) + kLanes});
    Tensor<OnlineSum, 2> states({threads, tile_rows});
    for_each_support_tile(p, ids, tile_queries, threads, [&](const SupportTile& tile, int thread) {
        float* rows = q_rows.view()[thread].data();
        float* sum = sums.view()[thread].data();
        OnlineSum* softmax = states.view()[thread].data();
        pack_queries(q, tile.queries, tile.group * heads, heads, rule.factor, rows);
        std::fill_n(sum, tile.size() * heads * width, 0.0F);
        std::fill_n(softmax, tile.size() * heads, OnlineSum{});
        Panels keys{}, values{};
        std::vector<int64_t> seen, hidden;
        for_each_run(
            tile.uses,
            [&](int64_t block) {
                const int64_t first = tile.first_key() + block * p.block_size;
                const int64_t count = tile.keys(block, p.block_size);
                keys = pack_keys(k, tile.group, first, count, key_panels.view()[thread].data());
                values =
                    pack_values(v, tile.group, first, count, value_panels.view()[thread].data());
            },
            [&](const UseRun& run) {
                seen.clear();
                hidden.clear();
                for (int64_t i = run.first; i < run.first + run.count; ++i) {
                    seen.push_back(tile.seen(i, run.block, p.block_size));
                    hidden.push_back(hidden_keys(p, tile.visible[i].count, run.block * p.block_size,
                                                 seen.back()));
                }
                const int64_t row = run.first * heads;
                add_block({rows + row * dims, run.count * heads, heads, seen.data(), softmax + row,
                           sum + row * width, rule.cap, hidden.data()},
                          keys, values, logits.view()[thread].data());
            });
        for (int64_t row = 0; row < tile.size() * heads; ++row) {
            const int64_t i = tile.queries.begin + row / heads,
                          h = tile.group * heads + row % heads;
            finish_row(sum + row * width, softmax[row], out[i][h], lse(i, h));
        }
    });
}

}  // namespace msa::cpu
