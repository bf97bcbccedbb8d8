// SPDX-License-Identifier: MIT
// The gradient of eq:softmax-attention, by block: all blocks of some keys after those of the keys
// before, for a piece of the queries at a time, so that memory does not grow with the sequence.
#include <algorithm>

#include "core/cpu/attention_grad.h"
#include "core/cpu/cpu_backend.h"
#include "core/selection.h"

namespace msa::cpu {
namespace {

constexpr int64_t kStep = 128;  // keys of a block
constexpr int64_t kSlots = 32;  // blocks of a query at a time

}  // namespace

void dense_attention_grad(const Problem& p, const AttentionInput& in, const AttentionSaved& saved,
                          const AttentionGradient& to, int threads) {
    AttentionGrad grad(p, in, saved, to, threads);
    const std::vector<KeyRange>& visible = visible_keys(p);
    const int64_t piece = grad.piece_queries(kSlots);
    for (int64_t begin = 0; begin < p.queries(); begin += piece) {
        const QueryRange range{begin, std::min(begin + piece, p.queries())};
        const auto blocks = [&](int64_t i) {
            return visible_blocks(visible[static_cast<size_t>(range.begin + i)].count, kStep);
        };
        const int64_t queries = range.end - range.begin;
        int64_t most = 0;
        for (int64_t i = 0; i < queries; ++i) most = std::max(most, blocks(i));
        for (int64_t first = 0; first < most; first += kSlots) {
            Tensor<int32_t, 3> ids({queries, p.kv_heads, kSlots}, Fill::nothing);
            for (int64_t i = 0; i < queries; ++i)
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    for (int64_t slot = 0; slot < kSlots; ++slot)
                        ids(i, r, slot) = first + slot < blocks(i)
                                              ? static_cast<int32_t>(first + slot)
                                              : kNoBlock;
            grad.add_by_block(range, ids, kStep, AttentionGrad::Sums::keys_and_queries);
        }
    }
}

}  // namespace msa::cpu
