// SPDX-License-Identifier: MIT
// The lse of the index scores, by blocks of keys.
#include "gpu/device/kl_tiles.cuh"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

constexpr int kLseQueries = 64;

template <typename T, int kIndexDim>
struct LseShared {
    MmaTile<kIndexDim> keys, rows;  // rows: of two tiles
    TileMeta<kLseQueries>* meta;
    float (*most)[kLseQueries], (*sum)[kLseQueries];  // of each 16 keys

    static constexpr int kSteps = kKlMostKeys / kStepKeys;
    static constexpr int kBytes = MmaTile<kIndexDim>::bytes(kKlMostKeys + 2 * kLseQueries) +
                                  kMetaBuffers * int{sizeof(TileMeta<kLseQueries>)} +
                                  2 * kSteps * kLseQueries * int{sizeof(float)};

    __device__ explicit LseShared(char* at) {
        const auto take = [&](int bytes) { return at += bytes, at - bytes; };
        keys.at = reinterpret_cast<uint16_t*>(take(MmaTile<kIndexDim>::bytes(kKlMostKeys)));
        rows.at = reinterpret_cast<uint16_t*>(take(MmaTile<kIndexDim>::bytes(2 * kLseQueries)));
        meta = reinterpret_cast<TileMeta<kLseQueries>*>(take(kMetaBuffers * int{sizeof(*meta)}));
        most = reinterpret_cast<float(*)[kLseQueries]>(take(kSteps * int{sizeof(*most)}));
        sum = reinterpret_cast<float(*)[kLseQueries]>(take(kSteps * int{sizeof(*sum)}));
    }
};

/// Largest and sum of the warp's 16 keys for each of 16 queries from `first` on.
template <typename T, int kIndexDim>
__device__ void sum_of_keys(const LseShared<T, kIndexDim>& shared,
                            const TileMeta<kLseQueries>& meta, const MmaTile<kIndexDim>& rows,
                            int first_key, int first, float scale) {
    float sums[2][4];
    index_scores_of<T>(shared.keys, first_key, rows, first, sums);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int query = query_of(first, n, i), seen = meta.seen[query];
            const auto scaled = [&](int e) {
                return key_of(first_key, e) < seen ? sums[n][e] * scale : -INFINITY;
            };
            const float low = scaled(i), high = scaled(2 + i);
            float most = fmaxf(low, high);
            for (int step = 4; step < kWarp; step *= 2)
                most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
            const float shift = most == -INFINITY ? 0.0F : most;
            float sum = (low == -INFINITY ? 0.0F : exp2_fast(low - shift)) +
                        (high == -INFINITY ? 0.0F : exp2_fast(high - shift));
            for (int step = 4; step < kWarp; step *= 2)
                sum += __shfl_xor_sync(kAllLanes, sum, step);
            if (lane_id() < 4) {
                shared.most[first_key / kStepKeys][query] = shift;
                shared.sum[first_key / kStepKeys][query] = sum;
            }
        }
}

template <typename T, int kIndexDim>
__global__ void __launch_bounds__(kBlockThreads) slot_lse(const __grid_constant__ KlBlocks a) {
    extern __shared__ uint4 memory[];
    if (static_cast<int>(blockIdx.x) >= a.item_starts[a.lists()]) return;
    const LseShared<T, kIndexDim> shared(reinterpret_cast<char*>(memory));
    const KlItem item = a.items[blockIdx.x];
    const SequenceBlock block = a.blocks[item.block];
    const auto tiles = static_cast<int>((item.end - item.begin + kLseQueries - 1) / kLseQueries);
    fetch_keys(a.index_k + block.key * kIndexDim, kIndexDim, block.keys, a.block_size, shared.keys);
    if (warp_id() == kWorkers) fetch_first(a, item, block, tiles, shared.meta, shared.rows);
    wait_for_copies();
    __syncthreads();
    if (warp_id() >= kWorkers) {
        if (warp_id() == kWorkers) fetch_tiles(a, item, block, tiles, shared.meta, shared.rows);
        return;
    }
    const ScoreShare share(a.block_size);
    const float scale = a.index_scale * kLog2E;
    const int steps = a.block_size / kStepKeys;
    for (int t = 0; t < tiles; ++t) {
        const TileMeta<kLseQueries>& meta = shared.meta[t % kMetaBuffers];
        for (int first = share.part * kStepQueries; first < kLseQueries;
             first += share.parts * kStepQueries)
            sum_of_keys(shared, meta, rows_of_tile<kLseQueries>(shared.rows, t), share.first_key,
                        first, scale);
        work_barrier();
        if (const auto query = static_cast<int>(threadIdx.x);
            query < kLseQueries && meta.query[query] >= 0) {
            float most = -INFINITY, sum = 0;
            for (int s = 0; s < steps; ++s)
                if (shared.sum[s][query] != 0) most = fmaxf(most, shared.most[s][query]);
            for (int s = 0; s < steps; ++s)
                if (const float part = shared.sum[s][query]; part != 0)
                    sum += part * exp2f(shared.most[s][query] - most);
            a.slot_lse[meta.slot[query]] = sum == 0 ? -INFINITY : (most + log2f(sum)) * kLn2;
        }
        tile_barrier();
    }
}

}  // namespace

template <typename T>
cudaError_t launch_kl_slot_lse(const KlBlocks& a, int64_t most_items, cudaStream_t stream) {
    return a.index_dim == 64
               ? launch_items(slot_lse<T, 64>, LseShared<T, 64>::kBytes, a, most_items, stream)
               : launch_items(slot_lse<T, 128>, LseShared<T, 128>::kBytes, a, most_items, stream);
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_kl_slot_lse<T>(const KlBlocks&, int64_t, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
