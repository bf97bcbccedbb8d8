// SPDX-License-Identifier: MIT
#include "core/cpu/attention_grad.h"

#include <algorithm>
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
        keys = pack_keys({k, stride, 0, dims}, 0, 0, count, key_memory.data());
        values = pack_keys({v, stride, 0, dims}, 0, 0, count, value_memory.data());
    }
    void pack_rows(const float* k, int64_t stride, int64_t count, int64_t dims) {
        key_rows = pack_values({k, stride, 0, dims}, 0, 0, count, row_memory.data());
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

/// A pass by block: what its blocks share.
class AttentionGrad::ByBlock {
public:
    /// with_queries: d_q too, through slots that `grad` keeps.
    ByBlock(AttentionGrad& grad, QueryRange range, View<const int32_t, 3> ids, int64_t block_size,
            bool with_queries)
        : grad_(grad), p_(grad.p_.with_queries(range)), range_(range), with_queries_(with_queries) {
        p_.block_size = block_size;
        const Shape<4> slots{p_.queries(), p_.query_heads, ids.extent(2), dims_};
        if (with_queries && grad.slots_.size() < element_count(slots))
            grad.slots_ = Tensor<float, 1>({element_count(slots)}, Fill::nothing);
        slots_ = {grad.slots_.data(), slots};
        // A chunk is a block.
        schedule_ = schedule_kv_outer(p_, ids, std::max<int64_t>(1, p_.queries()));
    }

    /// Adds to d_k and d_v, and leaves each query's part of d_q in its slots.
    void add_blocks() const;
    /// Adds the slots in use to d_q.
    void add_slots(View<const int32_t, 3> ids) const;

private:
    using Queries = std::span<const SelectedQuery>;

    void add_block(const BlockChunk&, BlockScratch&) const;
    /// Some queries of a block, whose keys and values are packed.
    void add_pass(const BlockChunk&, Queries, BlockScratch&) const;
    void gather_rows(const BlockChunk&, Queries, BlockScratch&) const;
    /// dS k of `count` rows from row `first` on.
    void fill_slots(const BlockChunk&, Queries, int64_t first, int64_t count, BlockScratch&) const;
    KeyRange visible(const SelectedQuery& of) const {
        return visible_keys(p_)[static_cast<size_t>(of.query)];
    }

    AttentionGrad& grad_;
    Problem p_;  // of the range
    QueryRange range_;
    bool with_queries_;
    int64_t dims_ = p_.head_dim, heads_ = p_.group_size(), width_ = padded(p_.head_dim);
    int64_t pass_queries_ = std::max<int64_t>(1, kPassRows / heads_);
    View<float, 4> slots_;  // [n, Hq, k, dh]
    KvOuterSchedule schedule_;
};

void AttentionGrad::ByBlock::gather_rows(const BlockChunk& chunk, Queries queries,
                                         BlockScratch& s) const {
    const auto factor = static_cast<float>(p_.softmax_scale() * kLog2E);
    const int64_t keys = s.block.keys.columns, head = chunk.group * heads_;
    for (int64_t n = 0; n < std::ssize(queries); ++n) {
        const SelectedQuery& query = queries[static_cast<size_t>(n)];
        const int64_t at = range_.begin + query.query, row = n * heads_;
        pack_queries(grad_.q_, {at, at + 1}, head, heads_, factor, &s.rows.q(row, 0));
        pack_queries(grad_.d_out_, {at, at + 1}, head, heads_, 1, &s.rows.d_out(row, 0));
        std::copy_n(&grad_.lse_(at, head), heads_, &s.rows.lse(row));
        std::copy_n(&grad_.d_(at, head), heads_, &s.rows.d(row));
        const int64_t count = visible(query).count - chunk.block * p_.block_size;
        std::fill_n(&s.rows.seen(row), heads_, std::min(keys, count));
    }
}

void AttentionGrad::ByBlock::fill_slots(const BlockChunk& chunk, Queries queries, int64_t first,
                                        int64_t count, BlockScratch& s) const {
    std::fill_n(s.d_q.data(), s.d_q.size(), 0.0F);
    add_values(&s.d_logits(first * s.stride), s.stride, count, s.block.key_rows,
               &s.rows.seen(first), kKeep.data(), s.d_q.data(), width_);
    for (int64_t r = 0; r < count; ++r) {
        const auto [i, slot] = queries[static_cast<size_t>((first + r) / heads_)];
        const int64_t h = chunk.group * heads_ + (first + r) % heads_;
        std::copy_n(&s.d_q(r, 0), dims_, &slots_(i, h, slot, 0));
    }
}

void AttentionGrad::ByBlock::add_pass(const BlockChunk& chunk, Queries queries,
                                      BlockScratch& s) const {
    gather_rows(chunk, queries, s);
    const int64_t rows = std::ssize(queries) * heads_;
    for (int64_t row = 0; row < rows; row += kStrip) {
        const int64_t strip = std::min(kStrip, rows - row);
        softmax_gradients(s.rows, row, strip, s.block, &s.weights(row * s.stride),
                          &s.d_logits(row * s.stride), s.stride);
        if (with_queries_) fill_slots(chunk, queries, row, strip, s);
    }
    const Panels q = pack_values({s.rows.q.data(), dims_, 0, dims_}, 0, 0, rows, s.q_panels.data());
    const Panels d_out =
        pack_values({s.rows.d_out.data(), dims_, 0, dims_}, 0, 0, rows, s.d_out_panels.data());
    const int64_t* seen = s.rows.seen.data();
    const int64_t most = seen[rows - 1];
    add_transposed(s.weights.data(), s.stride, most, d_out, seen, s.d_v.data(), width_);
    add_transposed(s.d_logits.data(), s.stride, most, q, seen, s.d_k.data(), width_);
}

void AttentionGrad::ByBlock::add_block(const BlockChunk& chunk, BlockScratch& s) const {
    const Queries queries = schedule_.of(chunk);
    // Positions do not decrease within a sequence: the last query sees most.
    const KeyRange seen = visible(queries.back());
    const int64_t count = std::min(p_.block_size, seen.count - chunk.block * p_.block_size);
    const int64_t first = seen.first + chunk.block * p_.block_size, token = p_.kv_heads * dims_;
    const float* k = grad_.k_[first][chunk.group].data();
    s.block.pack(k, grad_.v_[first][chunk.group].data(), token, count, dims_);
    if (with_queries_) s.block.pack_rows(k, token, count, dims_);
    std::fill_n(s.d_k.data(), count * width_, 0.0F);
    std::fill_n(s.d_v.data(), count * width_, 0.0F);
    const auto pass = static_cast<size_t>(pass_queries_);
    for (size_t begin = 0; begin < queries.size(); begin += pass)
        add_pass(chunk, queries.subspan(begin, std::min(pass, queries.size() - begin)), s);
    for (int64_t j = 0; j < count; ++j)
        for (int64_t d = 0; d < dims_; ++d) {
            grad_.d_k_(first + j, chunk.group, d) += static_cast<float>(kLn2) * s.d_k(j, d);
            grad_.d_v_(first + j, chunk.group, d) += s.d_v(j, d);
        }
}

void AttentionGrad::ByBlock::add_blocks() const {
    std::vector<BlockScratch> scratch;
    for (int t = 0; t < grad_.threads_; ++t)
        scratch.emplace_back(pass_queries_ * heads_, dims_, p_.block_size);
    const auto chunks = static_cast<int64_t>(schedule_.chunks.size());
#pragma omp parallel for schedule(dynamic) num_threads(grad_.threads_)
    for (int64_t c = 0; c < chunks; ++c)
        add_block(schedule_.chunks[static_cast<size_t>(c)],
                  scratch[static_cast<size_t>(omp_get_thread_num())]);
}

void AttentionGrad::ByBlock::add_slots(View<const int32_t, 3> ids) const {
    const auto scale = static_cast<float>(p_.softmax_scale());
#pragma omp parallel for num_threads(grad_.threads_)
    for (int64_t i = 0; i < p_.queries(); ++i)
        for (int64_t h = 0; h < p_.query_heads; ++h) {
            const int64_t used = std::ssize(selected(ids, i, h / heads_));
            float* const to = &grad_.d_q_(range_.begin + i, h, 0);
            for (int64_t slot = 0; slot < used; ++slot) {
                const float* from = &slots_(i, h, slot, 0);
                for (int64_t d = 0; d < dims_; ++d) to[d] += scale * from[d];
            }
        }
}

void AttentionGrad::add_by_block(QueryRange range, View<const int32_t, 3> ids, int64_t block_size,
                                 Sums which) {
    const bool with_queries = which == Sums::keys_and_queries;
    const ByBlock pass(*this, range, ids, block_size, with_queries);
    pass.add_blocks();
    if (with_queries) pass.add_slots(ids);
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
