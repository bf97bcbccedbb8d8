// SPDX-License-Identifier: MIT
// eq:msa-sparse-attn, q_outer: one query of one group at a time walks its own blocks. A block's
// keys are read, and packed, once for every query that selected it: the order to compare others
// with.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "core/cpu/block_attention.h"
#include "core/cpu/cpu_backend.h"
#include "core/selection.h"

namespace msa::cpu {

void sparse_attention_q_outer(const Problem& p, View<const float, 3> q, const KeyTokens<float>& k,
                              const KeyTokens<float>& v, View<const int32_t, 3> ids,
                              View<float, 3> out, View<float, 2> lse, int threads) {
    const int64_t dims = p.head_dim, heads = p.group_size();
    const int64_t width = padded(dims);
    const LogitRule rule = main_logits(p);
    const std::vector<KeyRange>& visible = visible_keys(p);
    Tensor<float, 2> q_rows({threads, heads * dims}), sums({threads, heads * width});
    Tensor<float, 2> key_panels({threads, panel_floats(dims, p.block_size)});
    Tensor<float, 2> value_panels({threads, panel_floats(p.block_size, dims)});
    Tensor<float, 2> logits({threads, kBatch * padded(p.block_size) + kLanes});
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t row = 0; row < p.queries() * p.kv_heads; ++row) {
        const int64_t i = row / p.kv_heads, group = row % p.kv_heads;
        const int thread = omp_get_thread_num();
        const KeyRange range = visible[static_cast<size_t>(i)];
        float* rows = q_rows.view()[thread].data();
        float* sum = sums.view()[thread].data();
        std::vector<OnlineSum> softmax(static_cast<size_t>(heads));
        pack_queries(q, {i, i + 1}, group * heads, heads, rule.factor, rows);
        std::fill_n(sum, heads * width, 0.0F);
        for (int64_t block : selected(ids, i, group)) {
            const int64_t first = block * p.block_size;
            const int64_t seen = std::min(p.block_size, range.count - first);
            const Panels keys =
                pack_keys(k, group, range.first + first, seen, key_panels.view()[thread].data());
            const Panels values = pack_values(v, group, range.first + first, seen,
                                              value_panels.view()[thread].data());
            const int64_t hidden = hidden_keys(p, range.count, first, seen);
            add_block({rows, heads, heads, &seen, softmax.data(), sum, rule.cap, &hidden}, keys,
                      values, logits.view()[thread].data());
        }
        for (int64_t h = 0; h < heads; ++h)
            finish_row(sum + h * width, softmax[static_cast<size_t>(h)], out[i][group * heads + h],
                       lse(i, group * heads + h));
    }
}

}  // namespace msa::cpu
