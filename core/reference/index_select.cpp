// SPDX-License-Identifier: MIT
// The ids of eq:msa-index-score and eq:msa-topk from scores of few blocks: an int8 copy of index_k
// says which (core/number/coarse_keys.h).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/number/operand_scales.h"
#include "core/reference/reference_backend.h"

namespace msa::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Bounds {
    float lower, upper;  // of the block's score; -inf and +inf where nothing is known
};

Bounds score_bounds(const CoarseRow& row, const CoarseBlock& block, int64_t largest_product) {
    const float score = scaled_score(row.scale, block.scale, static_cast<float>(largest_product));
    const float error = row.error(block.norm, block.error);
    if (!std::isfinite(error)) return {-kInfinity, kInfinity};
    return {score - error, score + error};
}

/// The n-th largest value; -inf if there are fewer.
float nth_largest(std::vector<float> values, int64_t n) {
    if (n > std::ssize(values)) return -kInfinity;
    std::nth_element(values.begin(), values.begin() + n - 1, values.end(), std::greater<>());
    return values[static_cast<size_t>(n - 1)];
}

}  // namespace

std::vector<std::vector<int64_t>> coarse_candidates(const Problem& p, const SelectionRule& rule,
                                                    View<const float, 3> index_q,
                                                    const CoarseKeys& coarse) {
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<int64_t> starts = block_starts(p), sequence = query_sequences(p);
    const View<const Int8, 2> keys = coarse.keys.as<const Int8>();
    std::vector<Int8> q(static_cast<size_t>(p.index_dim));
    std::vector<std::vector<int64_t>> rows;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const View<const float, 1> own = index_q[i][r];
            const CoarseRow row =
                coarse_row(p, {own.data(), static_cast<size_t>(own.size())}, q.data());
            const KeyRange seen = visible[static_cast<size_t>(i)];
            const int64_t blocks = visible_blocks(seen.count, p.block_size);
            const int64_t first_block =
                starts[static_cast<size_t>(sequence[static_cast<size_t>(i)])];
            int64_t free = rule.top_k;
            std::vector<int64_t> scored;  // the local block is not, so these are wholly visible
            std::vector<float> lower, upper;
            for (int64_t b = 0; b < blocks; ++b) {
                if (is_forced(rule, b, blocks)) {
                    --free;
                    continue;
                }
                int64_t largest = std::numeric_limits<int64_t>::min();
                for (int64_t j = b * p.block_size; j < (b + 1) * p.block_size; ++j) {
                    int64_t sum = 0;
                    for (int64_t d = 0; d < p.index_dim; ++d)
                        sum += int64_t{q[static_cast<size_t>(d)].value} *
                               keys(seen.first + j, d).value;
                    largest = std::max(largest, sum);
                }
                const Bounds of =
                    score_bounds(row, coarse_block(coarse.blocks.data(), first_block + b), largest);
                scored.push_back(b);
                lower.push_back(of.lower);
                upper.push_back(of.upper);
            }
            const float least = free > 0 ? nth_largest(lower, free) : kInfinity;
            std::vector<int64_t>& candidates = rows.emplace_back();
            for (size_t n = 0; n < scored.size(); ++n)
                if (free > 0 && upper[n] >= least) candidates.push_back(scored[n]);
        }
    return rows;
}

void index_select(const Problem& p, const SelectionRule& rule, View<const float, 3> index_q,
                  const KeyTokens<float>& index_k, const CoarseKeys& coarse, View<int32_t, 3> ids) {
    const std::vector<std::vector<int64_t>> candidates =
        coarse_candidates(p, rule, index_q, coarse);
    const std::vector<KeyRange> visible = visible_keys(p);
    Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
    std::fill_n(scores.data(), scores.size(), -kInfinity);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t b : candidates[static_cast<size_t>(i * p.kv_heads + r)]) {
                const int64_t first = visible[static_cast<size_t>(i)].first + b * p.block_size;
                scores(i, r, b) =
                    block_score(p, index_q[i][r], index_k, first, first + p.block_size);
            }
    select_blocks(p, rule, scores, ids);
}

}  // namespace msa::reference
