// SPDX-License-Identifier: MIT
// eq:msa-sparse-attn in the order of sec:kernel:sparse_attn. Phase 1: every chunk of the schedule
// gathers its queries, attends to its block and writes locally normalised outputs and lse to their
// slots. Phase 2: each query combines its slots. Queries go in pieces that bound the slot buffers.
#include <algorithm>
#include <cmath>

#include "core/cpu/block_attention.h"
#include "core/cpu/cpu_backend.h"
#include "core/cpu/support_loop.h"
#include "core/schedule.h"

namespace msa::cpu {
namespace {

constexpr int64_t kBlockSlotBytes = int64_t{1} << 24;  // of O_buf: both phases find it in cache
constexpr int64_t kChunkRows = 128;                    // query concatenation: rows of one product

/// The partial results of one piece of queries.
struct BlockSlots {
    Tensor<float, 4> out;  // [n, Hq, k, dh]
    Tensor<float, 3> lse;  // [n, Hq, k]
};

/// Scratch memory of one thread.
struct ChunkScratch {
    float *q, *sums, *keys, *values, *logits;
    OnlineSum* softmax;
    int64_t *seen, *hidden;
};

struct Operands {
    View<const float, 3> q;
    const KeyTokens<float>&k, &v;
};

/// Phase 1 for one chunk.
void attend_chunk(const Problem& p, const Operands& in, const KvOuterSchedule& schedule,
                  const BlockChunk& chunk, const std::vector<KeyRange>& visible,
                  const ChunkScratch& scratch, BlockSlots& slots) {
    const int64_t dims = p.head_dim, heads = p.group_size();
    const int64_t first = chunk.block * p.block_size, width = padded(dims);
    const std::span<const SelectedQuery> queries = schedule.of(chunk);
    const LogitRule rule = main_logits(p);
    const auto seen_by = [&](const SelectedQuery& use) {
        return std::min(p.block_size, visible[static_cast<size_t>(use.query)].count - first);
    };
    // Positions do not decrease within a sequence: the last query sees most.
    const int64_t count = seen_by(queries.back());
    const int64_t at = visible[static_cast<size_t>(queries[0].query)].first + first;
    const Panels keys = pack_keys(in.k, chunk.group, at, count, scratch.keys);
    const Panels values = pack_values(in.v, chunk.group, at, count, scratch.values);
    const auto pack = static_cast<size_t>(std::max<int64_t>(1, kChunkRows / heads));
    for (size_t begin = 0; begin < queries.size(); begin += pack) {
        const auto gathered = queries.subspan(begin, std::min(pack, queries.size() - begin));
        const int64_t rows = static_cast<int64_t>(gathered.size()) * heads;
        for (size_t n = 0; n < gathered.size(); ++n) {
            const int64_t i = gathered[n].query;
            pack_queries(in.q, {i, i + 1}, chunk.group * heads, heads, rule.factor,
                         scratch.q + static_cast<int64_t>(n) * heads * dims);
            scratch.seen[n] = seen_by(gathered[n]);
            scratch.hidden[n] =
                hidden_keys(p, visible[static_cast<size_t>(i)].count, first, scratch.seen[n]);
        }
        std::fill_n(scratch.sums, rows * width, 0.0F);
        std::fill_n(scratch.softmax, rows, OnlineSum{});
        add_block({scratch.q, rows, heads, scratch.seen, scratch.softmax, scratch.sums, rule.cap,
                   scratch.hidden},
                  keys, values, scratch.logits);
        for (int64_t row = 0; row < rows; ++row) {
            const auto [i, slot] = gathered[static_cast<size_t>(row / heads)];
            const int64_t h = chunk.group * heads + row % heads;
            finish_row(scratch.sums + row * width, scratch.softmax[row],
                       slots.out.view()[i][h][slot], slots.lse(i, h, slot));
        }
    }
}

/// Phase 2 for one head of one query: `used` slots.
void combine(View<const float, 2> partial, View<const float, 1> lse, int64_t used,
             View<float, 1> out, float& total) {
    std::fill_n(out.data(), out.size(), 0.0F);
    total = -kInfinity;
    if (used == 0) return;
    const float top = *std::max_element(lse.data(), lse.data() + used);
    double sum = 0;
    for (int64_t s = 0; s < used; ++s) {
        // A block before the window has nothing, top too where all are.
        const float weight = lse(s) == -kInfinity ? 0.0F : std::exp(lse(s) - top);
        const float* from = partial[s].data();
        for (int64_t d = 0; d < out.size(); ++d) out.data()[d] += weight * from[d];
        sum += double{weight};
    }
    if (sum == 0) return;
    total = static_cast<float>(double{top} + std::log(sum));
    const auto weight = static_cast<float>(1 / sum);
    for (int64_t d = 0; d < out.size(); ++d) out.data()[d] *= weight;
}

}  // namespace

void sparse_attention_kv_outer(const Problem& whole, View<const float, 3> q,
                               const KeyTokens<float>& k, const KeyTokens<float>& v,
                               View<const int32_t, 3> ids, View<float, 3> out, View<float, 2> lse,
                               int threads) {
    const int64_t top_k = ids.extent(2), dims = whole.head_dim, heads = whole.group_size();
    const int64_t rows = std::max(kChunkRows, heads), width = padded(dims);
    const int64_t piece = std::clamp<int64_t>(
        kBlockSlotBytes / (top_k * whole.query_heads * dims * int64_t{sizeof(float)}), 1,
        std::max<int64_t>(1, whole.queries()));
    Tensor<float, 2> q_rows({threads, rows * dims}), sums({threads, rows * width});
    Tensor<float, 2> key_panels({threads, panel_floats(dims, whole.block_size)});
    Tensor<float, 2> value_panels({threads, panel_floats(whole.block_size, dims)});
    Tensor<float, 2> logits({threads, kBatch * padded(whole.block_size) + kLanes});
    Tensor<OnlineSum, 2> states({threads, rows});
    Tensor<int64_t, 2> seen({threads, rows}), hidden({threads, rows});
    BlockSlots slots{Tensor<float, 4>({piece, whole.query_heads, top_k, dims}),
                     Tensor<float, 3>({piece, whole.query_heads, top_k})};
    for (int64_t begin = 0; begin < whole.queries(); begin += piece) {
        const QueryRange range{begin, std::min(begin + piece, whole.queries())};
        const Problem p = whole.with_queries(range);
        const int64_t n = p.queries();
        const View<const int32_t, 3> ids_here = ids.slice(begin, n);
        const Operands in{q.slice(begin, n), k, v};
        const std::vector<KeyRange> visible = visible_keys(p);
        const KvOuterSchedule schedule = schedule_kv_outer(p, ids_here, 2 * top_k * p.block_size);
        const auto chunks = static_cast<int64_t>(schedule.chunks.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t c = 0; c < chunks; ++c) {
            const int t = omp_get_thread_num();
            const ChunkScratch scratch{q_rows.view()[t].data(),     sums.view()[t].data(),
                                       key_panels.view()[t].data(), value_panels.view()[t].data(),
                                       logits.view()[t].data(),     states.view()[t].data(),
                                       seen.view()[t].data(),       hidden.view()[t].data()};
            attend_chunk(p, in, schedule, schedule.chunks[static_cast<size_t>(c)], visible, scratch,
                         slots);
        }
#pragma omp parallel for num_threads(threads)
        for (int64_t i = 0; i < n; ++i)
            for (int64_t h = 0; h < p.query_heads; ++h)
                combine(slots.out.view()[i][h], slots.lse.view()[i][h],
                        static_cast<int64_t>(selected(ids_here, i, h / heads).size()),
                        out[begin + i][h], lse(begin + i, h));
    }
}

}  // namespace msa::cpu
