// SPDX-License-Identifier: MIT
#include "core/cpu/attention_grad.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/cpu/support_loop.h"
#include "core/cpu/tile.h"
#include "core/schedule.h"

namespace msa::cpu {
namespace {

constexpr int64_t kSlotBytes = int64_t{1} << 26;
constexpr int64_t kPassRows = 128;  // query concatenation: rows of one product by block

/// Rows [(query, head)] and what a backward pass knows of them.
struct Rows {
    Rows(int64_t most, int64_t dims)
        : q({most, dims}), d_out({most, dims}), lse({most}), d({most}), seen({most}) {}
    Tensor<float, 2> q;       // times softmax_scale * kLog2E
    Tensor<float, 2> d_out;   // [rows, dh]
    Tensor<float, 1> lse, d;  // [rows]
    Tensor<int64_t, 1> seen;  // [rows] keys of the block at hand that the row sees
};

/// A block of keys as the products take it.
struct Block {
    Block(int64_t block_size, int64_t dims)
        : key_memory({panel_floats(dims, block_size)}),
          value_memory({panel_floats(dims, block_size)}),
          row_memory({panel_floats(block_size, dims)}) {}

    /// From the first token of the block, `stride` floats a token.
    void pack(const float* k, const float* v, int64_t stride, int64_t count, int64_t dims) {
        keys = pack_keys(k, stride, count, dims, key_memory.data());
        values = pack_keys(v, stride, count, dims, value_memory.data());
    }
    void pack_rows(const float* k, int64_t stride, int64_t count, int64_t dims) {
        key_rows = pack_values(k, stride, count, dims, row_memory.data());
    }

    Tensor<float, 1> key_memory, value_memory, row_memory;
    Panels keys{}, values{};  // [dh, count]
    Panels key_rows{};        // [count, dh]
};

/// P and dS of `count` rows from row `first` on, each over the keys that it sees, 0 behind.
void softmax_gradients(const Rows& rows, int64_t first, int64_t count, const Block& block,
                       float* weights, float* d_logits, int64_t stride) {
    const int64_t* seen = &rows.seen(first);
    const int64_t most = *std::max_element(seen, seen + count), dims = block.keys.depth;
    multiply({&rows.q(first, 0), dims, count}, {block.keys.data, dims, most}, weights, stride);
    multiply({&rows.d_out(first, 0), dims, count}, {block.values.data, dims, most}, d_logits,
             stride);
    for (int64_t r = 0; r < count; ++r)
        softmax_gradient(weights + r * stride, d_logits + r * stride, seen[r], block.keys.columns,
                         rows.lse(first + r), rows.d(first + r));
}

constexpr std::array<float, kStrip> kKeep{1, 1, 1, 1, 1, 1};

/// Scratch memory of one thread, by block.
struct BlockScratch {
    BlockScratch(int64_t most, int64_t dims, int64_t block_size)
        : rows(most, dims),
          block(block_size, dims),
          stride(padded(block_size) + 2 * kLanes),  // rows do not all fall on the same cache sets
          weights({most * stride}),
          d_logits({most * stride}),
          q_panels({panel_floats(most, dims)}),
          d_out_panels({panel_floats(most, dims)}),
          d_k({block_size, padded(dims)}),
          d_v({block_size, padded(dims)}),
          d_q({kStrip, padded(dims)}) {}
    Rows rows;
    Block block;
    int64_t stride;
    Tensor<float, 1> weights, d_logits;  // [rows, stride]
    Tensor<float, 1> q_panels, d_out_panels;
    Tensor<float, 2> d_k, d_v;  // [Bk, padded(dh)]; d_k is of q times softmax_scale * kLog2E
    Tensor<float, 2> d_q;       // [kStrip, padded(dh)]
};

}  // namespace

AttentionGrad::AttentionGrad(const Problem& p, const AttentionInput& in,
                             const AttentionSaved& saved, const AttentionGradient& to, int threads)
    : p_(p),
      q_(in.q.as<const float>()),
      k_(in.k.as<const float>()),
      v_(in.v.as<const float>()),
      d_out_(saved.d_out.as<const float>()),
      d_q_(to.d_q.as<float>()),
      d_k_(to.d_k.as<float>()),
      d_v_(to.d_v.as<float>()),
      threads_(threads),
      lse_({p.queries(), p.query_heads}, Fill::nothing),
      d_({p.queries(), p.query_heads}, Fill::nothing) {
    for (const View<float, 3>& sums : {d_q_, d_k_, d_v_})
        std::fill_n(sums.data(), sums.size(), 0.0F);
    const View<const float, 3> out = saved.out.as<const float>();
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const float *a = d_out_[i][h].data(), *b = out[i][h].data();
            double sum = 0;
            for (int64_t c = 0; c < p.head_dim; ++c) sum += double{a[c]} * double{b[c]};
            d_(i, h) = static_cast<float>(sum);
            const double lse = double{saved.lse(i, h)} * kLog2E;
            lse_(i, h) = static_cast<float>(std::isnan(sum) ? sum : lse);
        }
    if (!to.d_sinks) return;
#pragma omp parallel for num_threads(threads)
    for (int64_t h = 0; h < p.query_heads; ++h) {
        double sum = 0;
        for (int64_t i = 0; i < p.queries(); ++i)
            if (const float lse = saved.lse(i, h); lse != -kInfinity)
                sum += std::exp(double{in.sinks(h)} - double{lse}) * double{d_(i, h)};
        to.d_sinks(h) = static_cast<float>(-sum);
    }
}

int64_t AttentionGrad::piece_queries(int64_t slots) const {
    const int64_t each = slots * p_.query_heads * p_.head_dim * int64_t{sizeof(float)};
    return std::clamp<int64_t>(kSlotBytes / each, 1, std::max<int64_t>(1, p_.queries()));
}

void AttentionGrad::add_by_block(QueryRange range, View<const int32_t, 3> ids, int64_t block_size,
                                 Sums which) {
    Problem p = p_.with_queries(range);
    p.block_size = block_size;
    const bool with_queries = which == Sums::keys_and_queries;
    const int64_t dims = p.head_dim, heads = p.group_size(), token = p.kv_heads * dims;
    const int64_t width = padded(dims), top_k = ids.extent(2);
    const auto factor = static_cast<float>(p.softmax_scale() * kLog2E);
    if (const int64_t floats = p.queries() * p.query_heads * top_k * dims;
        with_queries && slots_.size() < floats)
        slots_ = Tensor<float, 1>({floats}, Fill::nothing);
    const View<float, 4> slots{slots_.data(), {p.queries(), p.query_heads, top_k, dims}};

    const std::vector<KeyRange>& visible = visible_keys(p);
    const KvOuterSchedule schedule =
        schedule_kv_outer(p, ids, std::max<int64_t>(1, p.queries()));  // a chunk is a block
    const int64_t pass_queries = std::max<int64_t>(1, kPassRows / heads);
    std::vector<BlockScratch> scratch;
    for (int t = 0; t < threads_; ++t) scratch.emplace_back(pass_queries * heads, dims, block_size);

    const auto add_pass = [&](std::span<const SelectedQuery> queries, const BlockChunk& chunk,
                              BlockScratch& s) {
        const int64_t rows = std::ssize(queries) * heads, keys = s.block.keys.columns;
        for (int64_t n = 0; n < std::ssize(queries); ++n) {
            const int64_t i = queries[static_cast<size_t>(n)].query, at = range.begin + i;
            const int64_t head = chunk.group * heads, row = n * heads;
            pack_queries(q_, {at, at + 1}, head, heads, factor, &s.rows.q(row, 0));
            pack_queries(d_out_, {at, at + 1}, head, heads, 1, &s.rows.d_out(row, 0));
            std::copy_n(&lse_(at, head), heads, &s.rows.lse(row));
            std::copy_n(&d_(at, head), heads, &s.rows.d(row));
            const int64_t count = visible[static_cast<size_t>(i)].count;
            std::fill_n(&s.rows.seen(row), heads, std::min(keys, count - chunk.block * block_size));
        }
        for (int64_t row = 0; row < rows; row += kStrip) {
            const int64_t strip = std::min(kStrip, rows - row);
            float* const d_logits = &s.d_logits(row * s.stride);
            softmax_gradients(s.rows, row, strip, s.block, &s.weights(row * s.stride), d_logits,
                              s.stride);
            if (!with_queries) continue;
            std::fill_n(s.d_q.data(), s.d_q.size(), 0.0F);
            add_values(d_logits, s.stride, strip, s.block.key_rows, &s.rows.seen(row), kKeep.data(),
                       s.d_q.data(), width);
            for (int64_t r = 0; r < strip; ++r) {
                const auto [i, slot] = queries[static_cast<size_t>((row + r) / heads)];
                const int64_t h = chunk.group * heads + (row + r) % heads;
                std::copy_n(&s.d_q(r, 0), dims, &slots(i, h, slot, 0));
            }
        }
        const Panels q = pack_values(s.rows.q.data(), dims, rows, dims, s.q_panels.data());
        const Panels d_out =
            pack_values(s.rows.d_out.data(), dims, rows, dims, s.d_out_panels.data());
        const int64_t* seen = s.rows.seen.data();
        const int64_t most = seen[rows - 1];
        add_transposed(s.weights.data(), s.stride, most, d_out, seen, s.d_v.data(), width);
        add_transposed(s.d_logits.data(), s.stride, most, q, seen, s.d_k.data(), width);
    };

    const auto chunks = static_cast<int64_t>(schedule.chunks.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
    for (int64_t c = 0; c < chunks; ++c) {
        BlockScratch& s = scratch[static_cast<size_t>(omp_get_thread_num())];
        const BlockChunk& chunk = schedule.chunks[static_cast<size_t>(c)];
        const std::span<const SelectedQuery> queries = schedule.of(chunk);
        // Positions do not decrease within a sequence: the last query sees most.
        const KeyRange seen = visible[static_cast<size_t>(queries.back().query)];
        const int64_t count = std::min(block_size, seen.count - chunk.block * block_size);
        const int64_t first = seen.first + chunk.block * block_size;
        const float *k = k_[first][chunk.group].data(), *v = v_[first][chunk.group].data();
        s.block.pack(k, v, token, count, dims);
        if (with_queries) s.block.pack_rows(k, token, count, dims);
        std::fill_n(s.d_k.data(), count * width, 0.0F);
        std::fill_n(s.d_v.data(), count * width, 0.0F);
        const auto pass = static_cast<size_t>(pass_queries);
        for (size_t begin = 0; begin < queries.size(); begin += pass)
            add_pass(queries.subspan(begin, std::min(pass, queries.size() - begin)), chunk, s);
        for (int64_t j = 0; j < count; ++j)
            for (int64_t d = 0; d < dims; ++d) {
                d_k_(first + j, chunk.group, d) += static_cast<float>(kLn2) * s.d_k(j, d);
                d_v_(first + j, chunk.group, d) += s.d_v(j, d);
            }
    }
    if (!with_queries) return;
    const auto scale = static_cast<float>(p.softmax_scale());
#pragma omp parallel for num_threads(threads_)
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const int64_t used = std::ssize(selected(ids, i, h / heads));
            float* const to = &d_q_(range.begin + i, h, 0);
            for (int64_t slot = 0; slot < used; ++slot) {
                const float* from = &slots(i, h, slot, 0);
                for (int64_t d = 0; d < dims; ++d) to[d] += scale * from[d];
            }
        }
}

void AttentionGrad::add_by_query(View<const int32_t, 3> ids, int64_t tile_queries) {
    const Problem& p = p_;
    const int64_t dims = p.head_dim, heads = p.group_size(), token = p.kv_heads * dims;
    const int64_t most = tile_queries * heads, width = padded(dims), stride = padded(p.block_size);
    const auto factor = static_cast<float>(p.softmax_scale() * kLog2E);
    struct Scratch {
        Rows rows;
        Block block;
        Tensor<float, 1> weights, d_logits;  // [kStrip, padded(Bk)]
        Tensor<float, 2> d_q;                // [rows, padded(dh)]
    };
    std::vector<Scratch> scratch;
    for (int t = 0; t < threads_; ++t)
        scratch.push_back({Rows(most, dims), Block(p.block_size, dims),
                           Tensor<float, 1>({kStrip * stride}), Tensor<float, 1>({kStrip * stride}),
                           Tensor<float, 2>({most, width})});
    for_each_support_tile(p, ids, tile_queries, threads_, [&](const SupportTile& tile, int thread) {
        Scratch& s = scratch[static_cast<size_t>(thread)];
        const int64_t head = tile.group * heads;
        pack_queries(q_, tile.queries, head, heads, factor, s.rows.q.data());
        pack_queries(d_out_, tile.queries, head, heads, 1, s.rows.d_out.data());
        for (int64_t n = 0; n < tile.size(); ++n) {
            std::copy_n(&lse_(tile.queries.begin + n, head), heads, &s.rows.lse(n * heads));
            std::copy_n(&d_(tile.queries.begin + n, head), heads, &s.rows.d(n * heads));
        }
        std::fill_n(s.d_q.data(), tile.size() * heads * width, 0.0F);
        for_each_run(
            tile.uses,
            [&](int64_t block) {
                const int64_t first = tile.first_key() + block * p.block_size;
                const int64_t count = tile.keys(block, p.block_size);
                const float* k = k_[first][tile.group].data();
                s.block.pack(k, v_[first][tile.group].data(), token, count, dims);
                s.block.pack_rows(k, token, count, dims);
            },
            [&](const UseRun& run) {
                const int64_t end = (run.first + run.count) * heads;
                for (int64_t i = run.first; i < run.first + run.count; ++i)
                    std::fill_n(&s.rows.seen(i * heads), heads,
                                tile.seen(i, run.block, p.block_size));
                for (int64_t row = run.first * heads; row < end; row += kStrip) {
                    const int64_t strip = std::min(kStrip, end - row);
                    softmax_gradients(s.rows, row, strip, s.block, s.weights.data(),
                                      s.d_logits.data(), stride);
                    add_values(s.d_logits.data(), stride, strip, s.block.key_rows,
                               &s.rows.seen(row), kKeep.data(), &s.d_q(row, 0), width);
                }
            });
        const auto scale = static_cast<float>(p.softmax_scale());
        for (int64_t row = 0; row < tile.size() * heads; ++row) {
            float* const to = &d_q_(tile.queries.begin + row / heads, head + row % heads, 0);
            for (int64_t d = 0; d < dims; ++d) to[d] += scale * s.d_q(row, d);
        }
    });
}

}  // namespace msa::cpu
