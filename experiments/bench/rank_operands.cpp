// SPDX-License-Identifier: MIT
#include "experiments/bench/rank_operands.h"

#include <algorithm>

#include "core/number/convert.h"
#include "core/random.h"
#include "core/registry.h"
#include "gpu/cuda_parallel.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kNoiseBytes = int64_t{1} << 24;
constexpr int64_t kNoiseStream = 321;  // of random numbers, the first of three

std::vector<char> make_noise(const BenchOptions& o, int which) {
    const uint64_t key = mix(o.seed, kNoiseStream + which);
    std::vector<float> values(static_cast<size_t>(kNoiseBytes / element_bytes(o.sizes.element)));
#pragma omp parallel for
    for (int64_t i = 0; i < std::ssize(values); ++i)
        values[static_cast<size_t>(i)] = static_cast<float>(random_normal(mix(key, i)));
    std::vector<char> stored(static_cast<size_t>(kNoiseBytes));
    encode(values, o.sizes.element, stored.data());
    return stored;
}

template <int Rank>
void put_rows(Backend& backend, void* to, const Stored<Rank>& from, QueryRange range) {
    backend.copy(to, backend.space(), from.data() + range.begin * from.row_bytes(), Space::host,
                 (range.end - range.begin) * from.row_bytes());
}

}  // namespace

RankOperands::RankOperands(const BenchOptions& options, int64_t tokens)
    : o(options), host_(make_backend("cpu")) {
    const Case longest{"square", "", problem(tokens, tokens), o.sizes.top_k, {}};
    Layer layer = allocate_layer(*host_, longest, o, {.index = true});
    fill_index(*host_, longest, layer, "structured", o.seed);
    index_ = std::move(layer.index);
    for (int which = 0; which < 3; ++which)
        noise_[static_cast<size_t>(which)] = make_noise(o, which);
}

Problem RankOperands::problem(int64_t queries, int64_t keys) const {
    const analysis::LayerSizes& s = o.sizes;
    Problem p = square_problem(0, s.query_heads, s.kv_heads, s.head_dim, s.index_dim, s.block_size);
    p.batch = PackedBatch({0, queries}, {0, keys});
    return p;
}

std::unique_ptr<Backend> RankOperands::backend(int rank) const {
    BackendOptions own;
    if (o.on_gpu())
        own.device = static_cast<int>(o.devices[static_cast<size_t>(rank)]);
    else
        own.threads = 1;
    return make_backend(o.backend, own);
}

std::unique_ptr<parallel::PeerCopies> RankOperands::peers(const parallel::Group& workers,
                                                          Backend& backend) const {
    return o.on_gpu() ? parallel::make_cuda_peer_copies(workers, backend)
                      : parallel::make_peer_copies(workers, backend);
}

void RankOperands::put_index_q(Backend& backend, void* to, QueryRange range) const {
    put_rows(backend, to, index_.front().q, range);
}
void RankOperands::put_index_k(Backend& backend, void* to, QueryRange range) const {
    put_rows(backend, to, index_.front().k, range);
}

void RankOperands::put_noise(Backend& backend, int which, int64_t channels, void* to,
                             QueryRange range) const {
    const int64_t each = channels * element_bytes(o.sizes.element);
    const int64_t period = kNoiseBytes / each;
    auto staging = backend.make<char, 1>({kNoiseBytes});
    backend.copy(staging.data(), backend.space(), noise_[static_cast<size_t>(which)].data(),
                 Space::host, kNoiseBytes);
    for (int64_t row = range.begin; row < range.end;) {
        const int64_t at = row % period, count = std::min(period - at, range.end - row);
        backend.copy(static_cast<char*>(to) + (row - range.begin) * each, backend.space(),
                     staging.data() + at * each, backend.space(), count * each);
        row += count;
    }
    backend.finish();
}

void RankOperands::put_keys(Backend& backend, QueryRange range, void* index_k, void* k,
                            void* v) const {
    if (range.begin == range.end) return;
    put_index_k(backend, index_k, range);
    put_noise(backend, 1, o.sizes.kv_heads * o.sizes.head_dim, k, range);
    put_noise(backend, 2, o.sizes.kv_heads * o.sizes.head_dim, v, range);
}

Queries::Queries(Backend& backend, const RankOperands& c, const std::vector<QueryRange>& ranges) {
    const analysis::LayerSizes& s = c.o.sizes;
    int64_t rows = 0;
    for (const QueryRange& range : ranges) rows += range.end - range.begin;
    const Shape<3> heads{rows, s.query_heads, s.head_dim};
    index_q = {backend, {rows, s.kv_heads, s.index_dim}, c.index_element()};
    q = {backend, heads, s.element};
    out = {backend, heads, s.element};
    ids = backend.make<int32_t, 3>({rows, s.kv_heads, s.top_k});
    lse = backend.make<float, 2>({rows, s.query_heads});
    int64_t row = 0;
    for (const QueryRange& range : ranges) {
        if (range.begin == range.end) continue;
        c.put_index_q(backend, index_q.data() + row * index_q.row_bytes(), range);
        c.put_noise(backend, 0, s.query_heads * s.head_dim, q.data() + row * q.row_bytes(), range);
        row += range.end - range.begin;
    }
}

Keys::Keys(Backend& backend, const RankOperands& c, QueryRange range) {
    const analysis::LayerSizes& s = c.o.sizes;
    const int64_t count = range.end - range.begin;
    index_k = {backend, {count, s.index_dim}, c.index_element()};
    k = {backend, {count, s.kv_heads, s.head_dim}, s.element};
    v = {backend, {count, s.kv_heads, s.head_dim}, s.element};
    c.put_keys(backend, range, index_k.data(), k.data(), v.data());
}

}  // namespace msa::experiments::bench
