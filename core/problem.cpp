// SPDX-License-Identifier: MIT
#include "core/problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "core/error.h"

namespace msa {
namespace {

void check_cu_seqlens(const std::vector<int64_t>& cu_seqlens, std::string_view name) {
    require(!cu_seqlens.empty(), name, " is empty, must have one more entry than sequences");
    require(cu_seqlens.front() == 0, name, "[0] is ", cu_seqlens.front(), ", must be 0");
    for (size_t s = 1; s < cu_seqlens.size(); ++s)
        require(cu_seqlens[s - 1] <= cu_seqlens[s], name, "[", s, "] is ", cu_seqlens[s],
                ", must not be below ", name, "[", s - 1, "] = ", cu_seqlens[s - 1]);
}

void check_in(int64_t value, int64_t low, int64_t high, std::string_view name) {
    require(low <= value && value <= high, name, " is ", value, ", must be from ", low, " to ",
            high);
}

/// Position of row `i` by the rule of Problem::query_positions.
int64_t rule_position(const Problem& p, size_t s, int64_t i) {
    return p.cu_seqlens_k[s + 1] - p.cu_seqlens_k[s] - (p.cu_seqlens_q[s + 1] - i);
}

}  // namespace

int64_t Problem::blocks() const {
    int64_t longest = 0;
    for (size_t s = 1; s < cu_seqlens_k.size(); ++s)
        longest = std::max(longest, cu_seqlens_k[s] - cu_seqlens_k[s - 1]);
    return ceil_div(longest, block_size);
}

double Problem::main_scale() const {
    return softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

double Problem::score_scale() const {
    return index_scale.value_or(1.0 / std::sqrt(static_cast<double>(index_dim)));
}

void Problem::validate() const {
    check_cu_seqlens(cu_seqlens_q, "cu_seqlens_q");
    check_cu_seqlens(cu_seqlens_k, "cu_seqlens_k");
    require(cu_seqlens_q.size() == cu_seqlens_k.size(), "cu_seqlens_q has ", cu_seqlens_q.size(),
            " entries, cu_seqlens_k ", cu_seqlens_k.size(), "; they must have the same number");
    require(kv_heads >= 1, "kv_heads is ", kv_heads, ", must be at least 1");
    require(query_heads >= 1 && query_heads % kv_heads == 0, "query_heads is ", query_heads,
            ", must be a positive multiple of kv_heads = ", kv_heads);
    check_in(head_dim, kMinHeadDim, kMaxHeadDim, "head_dim");
    if (index_dim != 0) check_in(index_dim, kMinHeadDim, kMaxHeadDim, "index_dim");
    check_in(block_size, kMinBlockSize, kMaxBlockSize, "block_size");
    for (double scale : {softmax_scale.value_or(1.0), index_scale.value_or(1.0)})
        require(std::isfinite(scale) && scale > 0, "a scale is ", scale,
                ", must be finite and positive");
    if (query_positions.empty()) return;
    require(static_cast<int64_t>(query_positions.size()) == queries(), "query_positions has ",
            query_positions.size(), " entries, must have one per query = ", queries());
    for (size_t s = 0; s + 1 < cu_seqlens_q.size(); ++s) {
        const int64_t keys_here = cu_seqlens_k[s + 1] - cu_seqlens_k[s];
        for (int64_t i = cu_seqlens_q[s]; i < cu_seqlens_q[s + 1]; ++i) {
            const int64_t position = query_positions[static_cast<size_t>(i)];
            require(position < keys_here, "query_positions[", i, "] is ", position,
                    ", must be below the keys of its sequence = ", keys_here);
            require(i == cu_seqlens_q[s] || query_positions[static_cast<size_t>(i - 1)] <= position,
                    "query_positions[", i, "] is ", position,
                    ", must not be below the one before it in its sequence");
        }
    }
}

Problem Problem::with_query_rows(std::span<const int64_t> rows) const {
    MSA_CHECK(std::is_sorted(rows.begin(), rows.end()));
    MSA_CHECK(rows.empty() || (0 <= rows.front() && rows.back() < queries()));
    Problem part = *this;
    for (int64_t& boundary : part.cu_seqlens_q)
        boundary = std::lower_bound(rows.begin(), rows.end(), boundary) - rows.begin();
    part.query_positions.clear();
    size_t s = 0;
    for (int64_t row : rows) {
        while (row >= cu_seqlens_q[s + 1]) ++s;
        part.query_positions.push_back(query_positions.empty()
                                           ? rule_position(*this, s, row)
                                           : query_positions[static_cast<size_t>(row)]);
    }
    return part;
}

Problem Problem::with_queries(QueryRange range) const {
    MSA_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= queries());
    std::vector<int64_t> rows(static_cast<size_t>(range.end - range.begin));
    std::iota(rows.begin(), rows.end(), range.begin);
    return with_query_rows(rows);
}

Problem square_problem(int64_t tokens, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                       int64_t index_dim, int64_t block_size) {
    Problem p;
    p.cu_seqlens_q = p.cu_seqlens_k = {0, tokens};
    p.query_heads = query_heads;
    p.kv_heads = kv_heads;
    p.head_dim = head_dim;
    p.index_dim = index_dim;
    p.block_size = block_size;
    return p;
}

std::vector<KeyRange> visible_keys(const Problem& p) {
    std::vector<KeyRange> visible(static_cast<size_t>(p.queries()));
    for (size_t s = 0; s + 1 < p.cu_seqlens_q.size(); ++s)
        for (int64_t i = p.cu_seqlens_q[s]; i < p.cu_seqlens_q[s + 1]; ++i) {
            const auto row = static_cast<size_t>(i);
            const int64_t position =
                p.query_positions.empty() ? rule_position(p, s, i) : p.query_positions[row];
            visible[row] = {p.cu_seqlens_k[s], std::max<int64_t>(0, position + 1)};
        }
    return visible;
}

std::vector<QueryRange> query_tiles(const Problem& p, int64_t rows) {
    MSA_CHECK(rows >= 1);
    std::vector<QueryRange> tiles;
    for (size_t s = 0; s + 1 < p.cu_seqlens_q.size(); ++s)
        for (int64_t i = p.cu_seqlens_q[s]; i < p.cu_seqlens_q[s + 1]; i += rows)
            tiles.push_back({i, std::min(i + rows, p.cu_seqlens_q[s + 1])});
    return tiles;
}

std::vector<int64_t> block_starts(const Problem& p) {
    std::vector<int64_t> starts{0};
    for (size_t s = 0; s + 1 < p.cu_seqlens_k.size(); ++s)
        starts.push_back(starts.back() +
                         ceil_div(p.cu_seqlens_k[s + 1] - p.cu_seqlens_k[s], p.block_size));
    return starts;
}

std::vector<int64_t> query_sequences(const Problem& p) {
    std::vector<int64_t> sequences;
    for (int64_t s = 0; s < p.sequences(); ++s)
        sequences.resize(static_cast<size_t>(p.cu_seqlens_q[static_cast<size_t>(s) + 1]), s);
    return sequences;
}

}  // namespace msa
