// SPDX-License-Identifier: MIT
#include "core/select/block_vectors.h"

#include <algorithm>

namespace msa {
namespace {

Tensor<float, 3> vectors_of_blocks(const SelectorLayer& layer, int64_t width,
                                   BlockVectors::OfKeys of_keys) {
    const Problem& p = layer.problem;
    const std::vector<int64_t> starts = block_starts(p);
    const View<const float, 3> k = layer.k.host();
    Tensor<float, 3> vectors({p.kv_heads, starts.back(), width});
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
        const int64_t token = p.batch.cu_seqlens_k()[s], end = p.batch.cu_seqlens_k()[s + 1];
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t b = 0; b < starts[s + 1] - starts[s]; ++b) {
                const int64_t first = token + b * p.block_size;
                of_keys(key_rows(k, r, first, std::min(p.block_size, end - first)),
                        vectors.view()[r][starts[s] + b]);
            }
    }
    return vectors;
}

}  // namespace

KeyRows key_rows(View<const float, 3> k, int64_t group, int64_t first, int64_t count) {
    const int64_t dims = k.extent(2), stride = k.extent(1) * dims;
    return {k.data() + first * stride + group * dims, stride, count};
}

void mean_of_keys(const KeyRows& keys, View<float, 1> mean) {
    std::fill_n(mean.data(), mean.size(), 0.0F);
    for (int64_t j = 0; j < keys.count; ++j)
        for (int64_t d = 0; d < mean.size(); ++d) mean(d) += keys[j][d];
    for (int64_t d = 0; d < mean.size(); ++d) mean(d) /= static_cast<float>(keys.count);
}

void add_query(View<const float, 1> q, View<float, 1> sum) {
    for (int64_t d = 0; d < q.size(); ++d) sum(d) += q(d);
}

Tensor<float, 3> group_vectors(const SelectorLayer& layer, const Problem& p, View<const float, 3> q,
                               int64_t width, BlockVectors::OfQuery of_query) {
    Tensor<float, 3> vectors({p.queries(), p.kv_heads, width});
#pragma omp parallel for num_threads(layer.backend.host_threads())
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h)
            of_query(q[i][h], vectors.view()[i][h / p.group_size()]);
    return vectors;
}

VectorScores::VectorScores(const SelectorLayer& layer, View<const float, 3> vectors)
    : starts_(block_starts(layer.problem)) {
    const int64_t groups = vectors.extent(0), blocks = vectors.extent(1), all = vectors.extent(2);
    const int64_t count = ceil_div(all, kMaxIndexDim);
    for (int64_t n = 0; n < count; ++n) {  // of equal width: none is narrower than kMinIndexDim
        const int64_t first = n * all / count;
        Part part{first, (n + 1) * all / count - first, {}};
        for (int64_t r = 0; r < groups; ++r) {
            Tensor<float, 2> keys({blocks, part.width});
            for (int64_t b = 0; b < blocks; ++b)
                std::copy_n(&vectors(r, b, first), part.width, &keys(b, 0));
            part.keys.emplace_back(layer.backend, std::move(keys));
        }
        parts_.push_back(std::move(part));
    }
}

Tensor<float, 3> VectorScores::score(Backend& backend, const Problem& p,
                                     View<const float, 3> queries) const {
    Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
    if (starts_.back() == 0) return scores;
    for (const Part& part : parts_) add_part(backend, p, queries, part, scores);
    return scores;
}

void VectorScores::add_part(Backend& backend, const Problem& p, View<const float, 3> queries,
                            const Part& part, View<float, 3> scores) const {
    std::vector<int64_t> newest;  // block that each query sees
    for (const KeyRange& seen : visible_keys(p))
        newest.push_back(visible_blocks(seen.count, p.block_size) - 1);
    Problem one;
    one.batch = PackedBatch(p.batch.cu_seqlens_q(), starts_, newest);
    one.query_heads = one.kv_heads = 1;
    one.head_dim = one.index_dim = part.width;
    one.block_size = 1;
    one.index_scale_override = 1.0;
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        Tensor<float, 3> rows({p.queries(), 1, part.width}, Fill::nothing);
        for (int64_t i = 0; i < p.queries(); ++i)
            std::copy_n(&queries(i, r, part.first), part.width, &rows(i, 0, 0));
        const Mirror<3> q(backend, std::move(rows));
        auto there = backend.make<float, 3>({one.queries(), 1, one.blocks()});
        backend.index_scores(one, {q.operand(), part.keys[static_cast<size_t>(r)].operand()},
                             there);
        const Mirror<3> products(backend, std::move(there));
        const View<const float, 3> from = products.host();
#pragma omp parallel for num_threads(backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            float* const to = scores[i][r].data();
            const float* const products_of = from[i].data();
            for (int64_t b = 0; b <= newest[static_cast<size_t>(i)]; ++b) to[b] += products_of[b];
        }
    }
}

BlockVectors::BlockVectors(const SelectorLayer& layer, int64_t width, OfKeys of_keys,
                           OfQuery of_query)
    : width_(width),
      of_keys_(of_keys),
      of_query_(of_query),
      products_(layer, vectors_of_blocks(layer, width, of_keys).view()) {}

Tensor<float, 3> BlockVectors::score(const SelectorLayer& layer, const Problem& p,
                                     View<const float, 3> q) const {
    const Tensor<float, 3> queries = group_vectors(layer, p, q, width_, of_query_);
    Tensor<float, 3> scores = products_.score(layer.backend, p, queries);
    const std::vector<KeyRange>& visible = visible_keys(p);
    const View<const float, 3> k = layer.k.host();
#pragma omp parallel for num_threads(layer.backend.host_threads())
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange seen = visible[static_cast<size_t>(i)];
        const int64_t partial = seen.count % p.block_size, begin = seen.count - partial;
        if (partial == 0) continue;
        Tensor<float, 1> local({width_});
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            of_keys_(key_rows(k, r, seen.first + begin, partial), local);
            float sum = 0;
            for (int64_t d = 0; d < width_; ++d) sum += queries(i, r, d) * local(d);
            scores(i, r, begin / p.block_size) = sum;
        }
    }
    return scores;
}

}  // namespace msa
