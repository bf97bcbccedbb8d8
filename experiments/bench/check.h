// SPDX-License-Identifier: MIT
// Checks sampled rows of results against the reference backend, with the operands in the backend's
// memory. Tolerances are those of the tests (core/tolerance.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "experiments/bench/operands.h"

namespace msa::experiments::bench {

/// Checks the results of one case. Every check returns the number of rows that it compared, and
/// throws std::logic_error naming stage, case, row and difference if one is wrong.
class Checker {
public:
    Checker(Backend& backend, const Case& c, uint64_t seed)
        : backend_(backend), case_(c), seed_(seed) {}

    /// ids [Nq, 1, k] of a top-k case.
    int64_t select_blocks(In<3> scores, View<const int32_t, 3> ids);
    /// layer.ids, for the operands of one element.
    int64_t index_select(const Layer& layer, const IndexOperands& index);
    /// Queries whose scores index_scores() checks, ascending.
    std::vector<int64_t> score_queries() const;
    /// scores [Hkv, B] of query i = score_queries()[i].
    void index_scores(const IndexOperands& index, int64_t query, View<const float, 2> scores);
    /// Loss and gradients of a few queries, on the blocks that index_select selects or on all
    /// visible ones, with or without given lse of the forward pass.
    int64_t index_kl(const Layer& layer, const IndexOperands& index, bool selected, bool given);
    /// layer.ids, which were checked before, must be unchanged.
    void same_ids(View<const int32_t, 3> want, const Layer& layer);
    /// layer.out and layer.lse, over layer.ids.
    int64_t sparse_attention(const Layer& layer);
    /// One head of each sampled query.
    int64_t dense_attention(const Layer& layer);

    /// d_q of sampled queries, one head of each, and d_k and d_v of sampled keys, from what
    /// layer.saved() holds.
    int64_t dense_attention_grad(const Layer& layer);
    /// The same over ids [Nq, Hkv, k] (host), equal to layer.ids; all heads of a query.
    int64_t sparse_attention_grad(const Layer& layer, View<const int32_t, 3> ids);

    /// index_kl of all queries with the layer's given lse: d_index_q of sampled queries and
    /// d_index_k of sampled keys. ids as above; absent: on the full support.
    int64_t index_kl_grad(const Layer& layer, const IndexOperands& index,
                          View<const int32_t, 3> ids);

    /// Queries whose mass block_mass() checks, ascending.
    std::vector<int64_t> mass_queries() const;
    /// mass [Hkv, B] of query i = mass_queries()[i].
    void block_mass(const Layer& layer, int64_t query, View<const float, 2> mass);

private:
    /// Ascending queries whose keys, `key_bytes` each, fit into the reserved host memory.
    std::vector<int64_t> sample(int64_t key_bytes) const;
    /// The problem of one query with `keys` keys, at the position of the last one.
    Problem one_query(int64_t keys) const;
    [[noreturn]] void fail(const char* stage, int64_t query, const std::string& fault) const;

    /// One query, the keys that it attends to, and the reference's result, for all heads or for
    /// `head` alone.
    struct AttentionRow {
        int64_t query = 0, head = 0;
        Problem problem;
        Tensor<float, 3> q, k, v;
        Tensor<int32_t, 3> ids;            // absent: dense
        Tensor<float, 3> want, magnitude;  // magnitude: of |v| in place of v
        Tensor<float, 2> lse;
    };
    /// Only the blocks that some group of the query selected, renumbered.
    AttentionRow selected_row(const Layer& layer, int64_t query, KeyRange seen,
                              Tensor<int32_t, 3> ids);
    /// One head of a query and all keys that it sees.
    AttentionRow dense_row(const Layer& layer, int64_t query, KeyRange seen);
    /// Computes the rows with the reference.
    void answer(std::vector<AttentionRow> rows);
    int64_t compare_attention(const char* stage, const Layer& layer) const;
    /// Compares the row's d_q.
    void compare_d_q(const char* stage, const Layer& layer, const AttentionRow& row) const;
    /// Compares d_k and d_v of some keys of one group; ids absent: dense. Returns how many.
    int64_t compare_keys(const char* stage, const Layer& layer, View<const int32_t, 3> ids) const;
    /// Compare d_index_q of some queries, and d_index_k of some keys. Both return how many.
    int64_t compare_index_queries(const Layer& layer, const IndexOperands& index,
                                  View<const int32_t, 3> ids) const;
    int64_t compare_index_keys(const Layer& layer, const IndexOperands& index,
                               View<const int32_t, 3> ids) const;

    Backend& backend_;
    const Case& case_;
    uint64_t seed_;
    std::vector<AttentionRow> answers_;
    std::vector<int32_t> answered_;  // ids that sparse_attention() checked
};

}  // namespace msa::experiments::bench
