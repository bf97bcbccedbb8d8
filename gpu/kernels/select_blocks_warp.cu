// SPDX-License-Identifier: MIT
// One warp per row, k <= 32. The warp reads each score once, up to 1024 at a time, into registers.
// For the first ones, the k-th largest of 64 maxima, two per lane, bounds the k-th best score from
// below. Later the list itself gives the bound. The few scores above the bound are merged into the
// list.
#include "gpu/device/early.cuh"
#include "gpu/device/row_rule.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/device/warp_top_k.cuh"
#include "gpu/kernels/select_blocks_warp.h"

namespace msa::cuda {
namespace {

constexpr int kWarpsPerBlock = 8;
template <int Vectors>  // float4 per lane
constexpr int kChunk = kWarp* Vectors * 4;
constexpr uint32_t kLowest = 0x00800000;  // ordered value of the lowest finite score

/// The score of an ordered value.
__device__ float value_of(uint32_t ordered_score) {
    const auto bits = static_cast<int32_t>(ordered_score);
    return __int_as_float(bits < 0 ? bits & INT32_MAX : ~bits);
}

/// A value that at least k of the warp's scores reach: the k-th best maximum of its lanes or, as k
/// nears their number, of its half lanes.
template <int Scores>
__device__ uint32_t lower_bound_of_kth(const float (&score)[Scores], int k) {
    float half[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < Scores; ++j) half[j % 2] = fmaxf(half[j % 2], score[j]);
    if (k <= kWarp / 2) {
        const uint32_t best = sort_descending(ordered_key(fmaxf(half[0], half[1])));
        return __shfl_sync(kAllLanes, best, k - 1);
    }
    const uint32_t a = sort_descending(ordered_key(half[0]));
    const uint32_t b = sort_descending(ordered_key(half[1]));
    const uint32_t b_rising = __shfl_sync(kAllLanes, b, kWarp - 1 - threadIdx.x % kWarp);
    const uint32_t best = sort_descending<true>(max(a, b_rising));
    return __shfl_sync(kAllLanes, best, k - 1);
}

/// Past L1 in a kernel that has begun early, as L1 may have older values.
template <bool Early, typename T>
__device__ T read(const T* at) {
    return Early ? __ldcg(at) : __ldg(at);
}

/// Reads a chunk of scores from `block` on; -inf outside [first, limit).
template <bool Vector, bool Early, int Scores>
__device__ void load(const float* row, int block, int first, int limit, float (&score)[Scores]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int j = 0; j < Scores / 4; ++j) {
        const int at = block + 4 * (j * kWarp + lane);
        if (Vector && at < limit) {  // rows are padded to a multiple of 4
            const float4 four = read<Early>(reinterpret_cast<const float4*>(row + at));
            score[4 * j] = four.x, score[4 * j + 1] = four.y;
            score[4 * j + 2] = four.z, score[4 * j + 3] = four.w;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const bool candidate = at + e >= first && at + e < limit;
            if (!Vector) score[4 * j + e] = candidate ? read<Early>(row + at + e) : -INFINITY;
            if (!candidate) score[4 * j + e] = -INFINITY;
        }
    }
}

template <bool Vector, bool Early, int Vectors>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock, 4)
    select_blocks(const __grid_constant__ SelectBlocksArgs args) {
    constexpr int kScores = 4 * Vectors;  // of a lane
    __shared__ uint16_t survivors[kWarpsPerBlock][kChunk<Vectors>];
    // What is behind this kernel may begin: the one before it, if not done, is of the same call.
    launch_dependents();
    wait_for_previous_kernel();
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + warp;
    if (row >= args.rows) return;
    const int64_t query = row / args.groups;
    const RowRule own(
        args.rule,
        args.seen != nullptr ? __ldcg(args.seen + query) : seen_keys(args.visible, query),
        args.block_size);
    const int first = own.first, limit = own.limit, k = own.kept;
    const float* const scores_row = args.scores + row * args.pitch;

    WarpTopK list;
#pragma unroll 1
    for (int block = 0; block < limit && k > 0; block += kChunk<Vectors>) {
        float score[kScores];
        load<Vector, Early>(scores_row, block, first, limit, score);
        const uint32_t bound = block == 0 ? lower_bound_of_kth(score, k)
                                          : static_cast<uint32_t>(list.threshold(k) >> 32) + 1;
        const float least = value_of(max(bound, kLowest));
        uint32_t passed = 0;
#pragma unroll
        for (int j = 0; j < kScores; ++j) passed |= static_cast<uint32_t>(score[j] >= least) << j;

        int end = __popc(passed);  // inclusive prefix sum over the lanes
#pragma unroll
        for (int step = 1; step < kWarp; step *= 2) {
            const int before = __shfl_up_sync(kAllLanes, end, step);
            if (lane >= step) end += before;
        }
        const int count = __shfl_sync(kAllLanes, end, kWarp - 1);
        uint16_t* to = survivors[warp] + end - __popc(passed);
        for (uint32_t rest = passed; rest != 0; rest &= rest - 1) {
            const int j = __ffs(rest) - 1;
            *to++ = static_cast<uint16_t>(4 * (j / 4 * kWarp + lane) + j % 4);
        }
        __syncwarp();
        for (int i = lane; i - lane < count; i += kWarp) {
            const int at = block + (i < count ? survivors[warp][i] : 0);
            const uint64_t key = i < count ? candidate_key(read<Early>(scores_row + at), at) : 0;
            list.offer(key, __ballot_sync(kAllLanes, key > list.threshold(k)));
        }
        __syncwarp();
    }
    const DeviceRule& rule = args.rule;
    write_ids(list, rule.top_k, own.visible, rule.forced_first, rule.forced_local,
              args.ids + row * rule.top_k);
}

template <bool Vector, bool Early>
cudaError_t launch(const SelectBlocksArgs& args, cudaStream_t stream) {
    const auto grid = static_cast<unsigned>((args.rows + kWarpsPerBlock - 1) / kWarpsPerBlock);
    // No more registers than a short row fills.
    auto* const kernel = args.pitch <= kChunk<1>   ? select_blocks<Vector, Early, 1>
                         : args.pitch <= kChunk<2> ? select_blocks<Vector, Early, 2>
                                                   : select_blocks<Vector, Early, 8>;
    return launch_early_if(Early, kernel, dim3(grid), kWarpsPerBlock * kWarp, 0, stream, args);
}

}  // namespace

cudaError_t launch_select_blocks_warp(const SelectBlocksArgs& args, bool early,
                                      cudaStream_t stream) {
    const bool vector = args.pitch % 4 == 0 && reinterpret_cast<uintptr_t>(args.scores) % 16 == 0;
    return (early    ? vector ? launch<true, true> : launch<false, true>
               : vector ? launch<true, false>
                     : launch<false, false>)(args, stream);
}

}  // namespace msa::cuda
