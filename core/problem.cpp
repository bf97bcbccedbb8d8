// SPDX-License-Identifier: MIT
#include "core/problem.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace msa {
namespace {

void check_in(int64_t value, int64_t low, int64_t high, std::string_view name) {
    require(low <= value && value <= high, name, " is ", value, ", must be from ", low, " to ",
            high);
}

double scale_of(const std::optional<double>& own, int64_t width) {
    return own.value_or(1.0 / std::sqrt(static_cast<double>(width)));
}

}  // namespace

int64_t Problem::blocks() const { return ceil_div(batch.longest_keys(), block_size); }
double Problem::softmax_scale() const { return scale_of(softmax_scale_override, head_dim); }
double Problem::index_scale() const { return scale_of(index_scale_override, index_dim); }

int64_t Problem::window_start(int64_t count) const {
    return msa::window_start(count, window.value_or(kNoWindow));
}

double Problem::logit(double product) const {
    const double plain = softmax_scale() * product;
    return softcap ? *softcap * std::tanh(plain / *softcap) : plain;
}

void Problem::validate(int64_t min_block_size) const {
    require(kv_heads >= 1, "kv_heads is ", kv_heads, ", must be at least 1");
    require(query_heads >= 1 && query_heads % kv_heads == 0, "query_heads is ", query_heads,
            ", must be a positive multiple of kv_heads = ", kv_heads);
    check_in(head_dim, kMinHeadDim, kMaxHeadDim, "head_dim");
    if (index_dim != 0) check_in(index_dim, kMinIndexDim, kMaxIndexDim, "index_dim");
    check_in(block_size, min_block_size, kMaxBlockSize, "block_size");
    for (const auto& [name, scale] :
         {std::pair("softmax_scale", softmax_scale_override.value_or(1.0)),
          std::pair("index_scale", index_scale_override.value_or(1.0))})
        require(std::isfinite(scale) && scale > 0, name, " is ", scale,
                ", must be finite and positive");
    require(window.value_or(1) >= 1, "window is ", window.value_or(1), ", must be at least 1");
    const double cap = softcap.value_or(1.0);
    require(std::isfinite(cap) && cap > 0, "softcap is ", cap, ", must be finite and positive");
}

Problem Problem::with_query_rows(std::span<const int64_t> rows) const {
    Problem part = *this;
    part.batch = batch.with_query_rows(rows);
    return part;
}

Problem Problem::with_queries(QueryRange range) const {
    Problem part = *this;
    part.batch = batch.with_queries(range);
    return part;
}

Problem square_problem(int64_t tokens, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                       int64_t index_dim, int64_t block_size) {
    Problem p;
    p.batch = PackedBatch({0, tokens}, {0, tokens});
    p.query_heads = query_heads;
    p.kv_heads = kv_heads;
    p.head_dim = head_dim;
    p.index_dim = index_dim;
    p.block_size = block_size;
    return p;
}

std::vector<QueryRange> query_tiles(const Problem& p, int64_t rows) {
    MSA_CHECK(rows >= 1);
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_q();
    std::vector<QueryRange> tiles;
    for (size_t s = 0; s + 1 < starts.size(); ++s)
        for (int64_t i = starts[s]; i < starts[s + 1]; i += rows)
            tiles.push_back({i, std::min(i + rows, starts[s + 1])});
    return tiles;
}

std::vector<int64_t> block_starts(const Problem& p) {
    const std::vector<int64_t>& keys = p.batch.cu_seqlens_k();
    std::vector<int64_t> starts{0};
    for (size_t s = 0; s + 1 < keys.size(); ++s)
        starts.push_back(starts.back() + ceil_div(keys[s + 1] - keys[s], p.block_size));
    return starts;
}

std::vector<int64_t> query_sequences(const Problem& p) {
    std::vector<int64_t> sequences;
    for (int64_t s = 0; s < p.sequences(); ++s)
        sequences.resize(static_cast<size_t>(p.batch.cu_seqlens_q()[static_cast<size_t>(s) + 1]),
                         s);
    return sequences;
}

}  // namespace msa
