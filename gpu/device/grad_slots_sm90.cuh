// SPDX-License-Identifier: MIT
// Sums d_q from slots. All slots of a (query, group) pair are contiguous, in the order of its ids.
#pragma once

#include "gpu/device/attend_sm90.cuh"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda::sm90 {

/// The first of the two channels in the n-th word of a slot row's 16-byte chunk c. Slots have the
/// channel order of the accumulators.
__device__ inline int grad_channel(int c, int n) {
    return c / 8 * 64 + 8 * (c % 8 / 4 * 4 + n) + 2 * (c % 4);
}

/// The queries [first, end) of a chunk whose slots are filled, and these slots.
struct FullSlots {
    int64_t first, end;
    const uint4* slots;
};

/// Called by a warp: prefetches 32 chunks of 16 bytes, from `chunk` on, of every slot of a pair to
/// L2.
template <int Dim>
__device__ void prefetch_slots(const SparseGradArgs& args, const FullSlots& full, int pair,
                               int chunk) {
    const int lane = threadIdx.x % kWarp, pair_chunks = args.group_size * (Dim / 8);
    if (lane >= args.top_k) return;
    const uint4* const from =
        full.slots + (int64_t{pair} * args.top_k + lane) * pair_chunks + chunk;
    const auto bytes = static_cast<uint32_t>(16 * min(kWarp, pair_chunks - chunk));
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from),
                 "r"(bytes), "l"(static_cast<uint64_t>(Keep::shortest))
                 : "memory");
}

/// The number of slots of a pair. Pairs (query, group) are numbered from the first query of the
/// chunk on.
__device__ inline int slots_of(const SparseGradArgs& args, const FullSlots& full, int pair) {
    const int32_t* const ids = args.ids + (full.first * args.groups + pair) * args.top_k;
    int count = 0;
    for (int n = 0; n < args.top_k; ++n) count += ids[n] >= 0;  // the others are at the end
    return count;
}

/// The factor on slots, d_k and d_v that undoes their scaling by the unit (GradWorkspace::unit).
template <typename T>
__device__ inline float inverse_unit(const SparseGradArgs& args) {
    if constexpr (kIsHalf<T>) return args.workspace.unit[1];
    return 1;
}
/// Whether a sum must be computed again in float.
template <typename T>
__device__ inline bool is_lost(float sum) {
    return kIsHalf<T> ? !isfinite(sum) : isnan(sum);
}

/// Adds a 16-byte chunk of `count` slots, which lie `step` chunks apart.
template <typename T>
__device__ inline void sum_slots(const uint4* from, int count, int step, float (&sum)[8]) {
    const auto add = [&](uint4 part) {
        const uint32_t word[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 x = unpack<T>(word[i]);
            sum[2 * i] += x.x, sum[2 * i + 1] += x.y;
        }
    };
    constexpr int kAtOnce = 8;
    int n = 0;
#pragma unroll 1
    for (; n + kAtOnce <= count; n += kAtOnce) {
        uint4 part[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i, from += step) part[i] = __ldcs(from);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) add(part[i]);
    }
#pragma unroll 1
    for (; n < count; ++n, from += step) add(__ldcs(from));
}

/// Called by whole warps: sums chunk `chunk` (16 bytes) of a pair's d_q over its `count` slots. A
/// thread with `wanted` false only takes part in the exchange.
template <typename T, int Dim>
__device__ void add_slots(const SparseGradArgs& args, const FullSlots& full, int pair, int count,
                          int chunk, bool wanted) {
    const int pair_chunks = args.group_size * (Dim / 8);
    const int64_t at = full.first * args.groups + pair;  // row of ids
    float sum[8] = {};
    if (wanted)
        sum_slots<T>(full.slots + int64_t{pair} * args.top_k * pair_chunks + chunk, count,
                     pair_chunks, sum);
    const float factor = args.scale * inverse_unit<T>(args);
    bool lost = false;
#pragma unroll
    for (float& x : sum) {
        x *= factor;
        lost |= is_lost<T>(x);
    }
    if (lost) args.marked_rows[at] = 1;
    if (args.d_q_is_float) {
        auto* const to =
            static_cast<float*>(args.d_q) + (at * args.group_size + chunk / (Dim / 8)) * Dim;
        for (int n = 0; wanted && n < 4; ++n)
            *reinterpret_cast<float2*>(to + grad_channel(chunk % (Dim / 8), n)) =
                make_float2(sum[2 * n], sum[2 * n + 1]);
        return;
    }
    uint32_t word[4];  // of channels 8 n + 2 quad; becomes those of 8 quad + 2 n
#pragma unroll
    for (int n = 0; n < 4; ++n) word[n] = pack<T>(sum[2 * n], sum[2 * n + 1]);
    const int quad = threadIdx.x % 4;
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n & step) continue;
            const bool upper = (quad & step) != 0;
            const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? word[n] : word[n + step], step);
            word[n] = upper ? got : word[n];
            word[n + step] = upper ? word[n + step] : got;
        }
    if (wanted)
        __stcs(static_cast<uint4*>(args.d_q) + at * pair_chunks + chunk / 4 * 4 + quad,
               make_uint4(word[0], word[1], word[2], word[3]));
}

/// Called by a warp that has nothing else to do: sums d_q of the previous chunk of queries, one
/// (query, group) pair at a time. If a pair's slots are longer than `Ahead` times 512 bytes, that
/// much of each is prefetched to L2. While a pair's slots are loaded, so are the ids of the next
/// pair and the number of the one after it.
template <typename T, int Dim, int Ahead>
__device__ void add_full_slots(const SparseGradArgs& args) {
    if (args.full_slots == nullptr) return;
    const int lane = threadIdx.x % kWarp;
    const FullSlots full{(args.tiles - args.chunk_tiles)->query, args.tiles->query,
                         static_cast<const uint4*>(args.full_slots)};
    const int pairs = static_cast<int>(full.end - full.first) * args.groups;
    const int32_t* const ids = args.ids + full.first * args.groups * args.top_k;
    const auto ask = [&] {  // the number of the next pair, in lane 0
        return lane == 0 ? atomicAdd(&args.workspace.counts->pairs_taken, 1) : 0;
    };
    const auto id_of = [&](int pair) {
        return pair < pairs && lane < args.top_k ? ids[int64_t{pair} * args.top_k + lane] : -1;
    };
    constexpr int kAhead = Ahead * kWarp;
    const int chunks = args.group_size * (Dim / 8);
    const bool fetches = Ahead > 0 && kAhead < chunks;
    int pair = __shfl_sync(kAllLanes, ask(), 0), next = __shfl_sync(kAllLanes, ask(), 0);
    int asked = ask(), id = id_of(pair);
    while (pair < pairs) {
        const int count = __popc(__ballot_sync(kAllLanes, id >= 0));
        id = id_of(next);
#pragma unroll 1
        for (int first = 0; first < chunks; first += kWarp) {
            const int chunk = first + kAhead;
            if (fetches && chunk < chunks)
                prefetch_slots<Dim>(args, full, pair, chunk);
            else if (fetches && next < pairs)
                prefetch_slots<Dim>(args, full, next, chunk - chunks);
            add_slots<T, Dim>(args, full, pair, count, first + lane, first + lane < chunks);
        }
        pair = next;
        next = __shfl_sync(kAllLanes, asked, 0);
        asked = ask();
    }
}

}  // namespace msa::cuda::sm90
