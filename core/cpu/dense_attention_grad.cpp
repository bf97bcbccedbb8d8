// SPDX-License-Identifier: MIT
// The gradient of eq:softmax-attention, by block: all blocks of some keys after those of the keys
// before, for a piece of the queries at a time, so that memory does not grow with the sequence.
#include <algorithm>

#include "core/cpu/attention_grad.h"
#include "core/cpu/cpu_backend.h"
#include "core/cpu/support_sums.h"

namespace msa::cpu {
namespace {

constexpr int64_t kBlockKeys = 128;

}  // namespace

void dense_attention_grad(const Problem& p, const AttentionInput& in, const AttentionSaved& saved,
                          const AttentionGradient& to, int threads) {
    AttentionGrad grad(p, in, saved, to, threads);
    const int64_t piece = grad.piece_queries(kRoundBlocks);
    for (int64_t begin = 0; begin < p.queries(); begin += piece) {
        const QueryRange range{begin, std::min(begin + piece, p.queries())};
        Problem part = p.with_queries(range);
        part.block_size = kBlockKeys;
        for_each_round(part, {}, [&](View<const int32_t, 3> ids) {
            grad.add_by_block(range, ids, kBlockKeys, AttentionGrad::Sums::keys_and_queries);
        });
    }
}

}  // namespace msa::cpu
