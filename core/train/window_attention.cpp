// SPDX-License-Identifier: MIT
#include "core/train/window_attention.h"

#include <algorithm>

#include "core/error.h"
#include "core/selection.h"

namespace msa::train {
namespace {

/// The ids of one query in block `local`: block 0 and the newest, ascending.
void fill_ids(View<int32_t, 1> ids, int64_t local) {
    const int64_t newest = ids.size() - 1, first = std::max<int64_t>(1, local - newest + 1);
    int64_t slot = 0;
    ids(slot++) = 0;
    for (int64_t block = first; block <= local; ++block) ids(slot++) = static_cast<int32_t>(block);
    for (; slot < ids.size(); ++slot) ids(slot) = kNoBlock;
}

Tensor<int32_t, 1> upload(Backend& backend, const std::vector<int32_t>& list) {
    return backend.upload(View<const int32_t, 1>(list.data(), {std::ssize(list)}));
}

View<float, 3> per_head(View<float, 2> lse) {
    return {lse.data(), {lse.extent(0), lse.extent(1), 1}, lse.space()};
}

}  // namespace

WindowAttention::WindowAttention(Ops& ops, const Problem& p, int64_t top_k) : layout_(p.batch) {
    MSA_CHECK(top_k >= 2 && layout_.cu_seqlens_q() == layout_.cu_seqlens_k());
    Backend& backend = ops.backend();
    const std::vector<int64_t>& cu = layout_.cu_seqlens_q();
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, top_k});
    std::vector<int32_t> query_rows, key_rows;
    std::vector<int64_t> cu_queries{0}, cu_keys{0};
    for (size_t s = 1; s < cu.size(); ++s) {
        const int64_t first = cu[s - 1], tokens = cu[s] - first;
        for (int64_t i = 0; i < tokens; ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                fill_ids(ids.view()[first + i][r], i / p.block_size);
        for (int64_t c = 1; (c + top_k - 1) * p.block_size < tokens; ++c) {
            const int64_t keys = first + c * p.block_size;
            const int64_t queries = keys + (top_k - 1) * p.block_size;
            // The last token of a whole block sees nothing of c.
            const int64_t count = std::min(p.block_size - 1, cu[s] - queries);
            for (int64_t r = count - 1; r >= 0; --r)
                query_rows.push_back(static_cast<int32_t>(queries + r));
            for (int64_t j = p.block_size - 1; j >= 1; --j)
                key_rows.push_back(static_cast<int32_t>(keys + j));
            cu_queries.push_back(std::ssize(query_rows));
            cu_keys.push_back(std::ssize(key_rows));
        }
    }
    rest_ = PackedBatch(std::move(cu_queries), std::move(cu_keys));
    ids_ = backend.upload(ids.view());
    query_rows_ = upload(backend, query_rows);
    key_rows_ = upload(backend, key_rows);
    const Shape<3> queries{rest_.queries(), p.query_heads, p.head_dim};
    const Shape<3> keys{rest_.keys(), p.kv_heads, p.head_dim};
    for (Buffer<3>* buffer : {&q_, &out_, &d_out_, &d_q_})
        *buffer = Buffer<3>(backend, ops.element(), queries);
    for (Buffer<3>* buffer : {&k_, &v_, &d_k_, &d_v_})
        *buffer = Buffer<3>(backend, ops.element(), keys);
    lse_ = backend.make<float, 2>({rest_.queries(), p.query_heads});
}

Problem WindowAttention::rest(const Problem& problem) const {
    Problem p = problem;
    p.batch = rest_;
    return p;
}

void WindowAttention::gather(Ops& ops, const AttentionInput& in) {
    const In<3>&k = in.k, &v = in.v;  // never in pages
    ops.gather_rows(in.q, query_rows_, q_);
    ops.gather_rows(k, key_rows_, k_);
    ops.gather_rows(v, key_rows_, v_);
}

void WindowAttention::forward(Ops& ops, const Problem& p, const AttentionInput& in,
                              const AttentionOutput& to) {
    ops.backend().sparse_attention(p, in, ids_, to);
    if (rest_.queries() == 0) return;
    gather(ops, in);
    ops.backend().dense_attention(rest(p), {q_, k_, v_}, {out_, lse_});
    ops.merge_attention(out_, lse_, query_rows_, to.out, to.lse);
}

void WindowAttention::backward(Ops& ops, const Problem& p, const AttentionInput& in,
                               const AttentionSaved& saved, const AttentionGradient& to) {
    ops.backend().sparse_attention_grad(p, in, ids_, {saved.out, saved.lse, saved.d_out, true}, to);
    if (rest_.queries() == 0) return;
    gather(ops, in);
    ops.gather_rows(saved.out, query_rows_, out_);
    ops.gather_rows(saved.d_out, query_rows_, d_out_);
    const View<const float, 3> lse(saved.lse.data(), {p.queries(), p.query_heads, 1},
                                   saved.lse.space());
    ops.gather_rows(lse, query_rows_, per_head(lse_));
    ops.backend().dense_attention_grad(rest(p), {q_, k_, v_}, {out_, lse_, d_out_, true},
                                       {d_q_, d_k_, d_v_});
    ops.add_rows(d_q_, query_rows_, to.d_q);
    ops.add_rows(d_k_, key_rows_, to.d_k);
    ops.add_rows(d_v_, key_rows_, to.d_v);
}

}  // namespace msa::train
