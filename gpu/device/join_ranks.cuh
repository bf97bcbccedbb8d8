// SPDX-License-Identifier: MIT
// Joins parts of a head's output: the weights of parts, and what ranks that divide a sequence
// exchange.
#pragma once

#include "gpu/device/rank_exchange.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/sparse_attention_decode_sm90.h"

namespace msa::cuda {
namespace {  // a copy for each kernel, since kernels are compiled for different devices

/// Weight of a part whose largest score is `own` beside one of `best`. A part without a score,
/// whose sums are 0 or (of NaN scores) NaN, keeps them.
__device__ float weight_of(float own, float best, float scale) {
    return own == -INFINITY ? 1 : exp2f((own - best) * scale);
}

/// Joins the ranks' outputs of half a head, in their order, so that all get the same bits.
template <int PerLane>
__device__ void join_ranks(const RankExchange& x, int message, float scale, float (&mine)[PerLane],
                           float& best, float& all) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const uint32_t round = __ldcg(x.rounds + message) + 1;
    for (int n = 1; n < x.ranks; ++n) {
        const int other = (x.rank + n) % x.ranks;
        uint4* const to = x.inbox[other] + word_at(x, round, x.rank, message, 0);
        put_word(to + lane, __float_as_uint(mine[0]), __float_as_uint(mine[PerLane - 1]), round);
        if (lane == 0) put_word(to + kWarp, __float_as_uint(best), __float_as_uint(all), round);
    }
    float joined[PerLane] = {}, most = -INFINITY, total = 0;
    for (int from = 0; from < x.ranks; ++from) {
        float values[2] = {mine[0], mine[PerLane - 1]}, own = best, share = all;
        if (from != x.rank) {
            const uint4* const at = x.inbox[x.rank] + word_at(x, round, from, message, 0);
            const uint2 word = take_word(at + lane, round), sums = take_word(at + kWarp, round);
            values[0] = __uint_as_float(word.x), values[1] = __uint_as_float(word.y);
            own = __uint_as_float(sums.x), share = __uint_as_float(sums.y);
        }
        const float now = fmaxf(most, own);
        const float before = weight_of(most, now, scale), weight = weight_of(own, now, scale);
        for (int i = 0; i < PerLane; ++i) joined[i] = fmaf(weight, values[i], before * joined[i]);
        total = fmaf(weight, share, before * total), most = now;
    }
    for (int i = 0; i < PerLane; ++i) mine[i] = joined[i];
    best = most, all = total;
    __syncwarp();  // all lanes have read it
    if (lane == 0) x.rounds[message] = round;
}

}  // namespace
}  // namespace msa::cuda
