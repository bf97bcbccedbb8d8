// SPDX-License-Identifier: MIT
// Sizes of one attention layer over packed sequences, and which keys each query may see.
//
// Letters, used in every shape comment of the project (the paper's):
//   Nq, Nk  query and key tokens, all sequences packed on the token axis
//   Hq      query heads            Hkv  key-value heads = GQA groups     G = Hq / Hkv
//   dh      head dim               didx index dim
//   Bk      block size             B    blocks of the longest sequence = ceil(Nk / Bk)
//   k       selected blocks per (query, group), the local block included
// Query head h belongs to group h / G. Blocks are anchored at the start of their sequence, so
// block ids are relative to it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/packed_batch.h"

namespace msa {

inline constexpr int64_t kMinHeadDim = 16, kMaxHeadDim = 512;     // dh
inline constexpr int64_t kMinIndexDim = 16, kMaxIndexDim = 256;   // didx
inline constexpr int64_t kMinBlockSize = 8, kMaxBlockSize = 256;  // Bk
/// The least Bk of block_mass and index_scores: blocks of one token give probabilities and products
/// token by token.
inline constexpr int64_t kMinScoredBlockSize = 1;

struct Problem {
    PackedBatch batch;         // sequences and query positions
    int64_t query_heads = 0;   // Hq
    int64_t kv_heads = 0;      // Hkv
    int64_t head_dim = 0;      // dh
    int64_t index_dim = 0;     // didx; 0 without an Index Branch
    int64_t block_size = 128;  // Bk

    /// Factors on the raw dot products q . k and index_q . index_k; absent: 1/sqrt(dh) and
    /// 1/sqrt(didx).
    std::optional<double> softmax_scale_override, index_scale_override;

    /// Window and soft cap of some models' attention. They apply to the Main Branch:
    /// dense_attention, sparse_attention, block_mass and the teacher of index_kl. They do not apply
    /// to the Index Branch and select_blocks: every causal block stays a candidate. Hence
    /// visible_keys() is causal, and count - 1 is the query's position; code that attends also asks
    /// window_start().
    std::optional<int64_t> window;  // a query at position i attends to i - window + 1 .. i
    /// A logit is softcap * tanh(softmax_scale * q . k / softcap) (Gemma 2, arXiv 2408.00118).
    std::optional<double> softcap;

    int64_t sequences() const { return batch.sequences(); }
    int64_t queries() const { return batch.queries(); }            // Nq
    int64_t keys() const { return batch.keys(); }                  // Nk
    int64_t group_size() const { return query_heads / kv_heads; }  // G
    /// B: ceil(Nk / Bk) of the longest sequence.
    int64_t blocks() const;
    double softmax_scale() const;
    double index_scale() const;
    /// First position that the Main Branch attends to for a query that sees `count` keys.
    int64_t window_start(int64_t count) const;
    /// Logit of the Main Branch from the product q . k.
    double logit(double product) const;

    /// Throws InputError naming the value and the rule it breaks.
    void validate(int64_t min_block_size = kMinBlockSize) const;

    /// The same keys with only the given query rows (not decreasing), at their positions: row i of
    /// its operands is row rows[i] of this one's. For sampling queries.
    Problem with_query_rows(std::span<const int64_t> rows) const;
    /// The same for the rows [range.begin, range.end). For streaming over queries.
    Problem with_queries(QueryRange range) const;
};

/// One sequence of `tokens` queries and keys, causal from position 0: the square prefill.
Problem square_problem(int64_t tokens, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                       int64_t index_dim, int64_t block_size);

/// PackedBatch::visible_keys, all that most kernels need of the layout. The query's local block is
/// (count - 1) / Bk.
inline const std::vector<KeyRange>& visible_keys(const Problem& p) {
    return p.batch.visible_keys();
}
const std::vector<KeyRange>& visible_keys(const Problem&&) = delete;  // would not outlive the call

/// Cuts the query axis into tiles of at most `rows` rows that never cross a sequence.
std::vector<QueryRange> query_tiles(const Problem&, int64_t rows);

/// [S+1]: number of each sequence's first block, counted over all sequences, then the total.
std::vector<int64_t> block_starts(const Problem&);

/// [Nq]: the sequence of each query.
std::vector<int64_t> query_sequences(const Problem&);

/// Problem::window_start for a given window; kNoWindow stands for no window.
inline constexpr int64_t kNoWindow = std::numeric_limits<int64_t>::max();
constexpr int64_t window_start(int64_t count, int64_t window) {
    return count > window ? count - window : 0;
}

/// ceil(a / b) for a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Blocks with at least one visible token, for a query that sees `visible` keys.
constexpr int64_t visible_blocks(int64_t visible, int64_t block_size) {
    return ceil_div(visible, block_size);
}

}  // namespace msa
