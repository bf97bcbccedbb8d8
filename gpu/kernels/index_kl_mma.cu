// SPDX-License-Identifier: MIT
#include "gpu/device/kl_compare.cuh"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

template <typename T, int kDim, int kIndexDim, int kGroup>
__global__ void __launch_bounds__(kBlockThreads, 1) kl_blocks(const __grid_constant__ KlBlocks a) {
    using Shared = KlShared<T, kDim, kIndexDim, kGroup>;
    using Shape = typename Shared::Shape;
    constexpr int kQueries = Shape::kQueries;
    extern __shared__ uint4 memory[];
    if (static_cast<int>(blockIdx.x) >= a.item_starts[a.lists()]) return;
    const Shared shared(reinterpret_cast<char*>(memory));
    const KlItem item = a.items[blockIdx.x];
    const SequenceBlock block = a.blocks[item.block];
    const auto tiles = static_cast<int>((item.end - item.begin + kQueries - 1) / kQueries);
    fetch_keys(a.k + (block.key * a.groups + item.group) * kDim, int64_t{a.groups} * kDim,
               block.keys, a.block_size, shared.keys);
    fetch_keys(a.index_k + block.key * kIndexDim, kIndexDim, block.keys, a.block_size,
               shared.index_keys);
    if (warp_id() == kWorkers) fetch_first(a, item, block, tiles, shared.meta, shared.rows);
    if (threadIdx.x == 0) *shared.unsound = 0;
    wait_for_copies();
    __syncthreads();
    if (warp_id() >= kWorkers) {
        give_up_registers<kFetchRegisters>();
        if (warp_id() == kWorkers) fetch_tiles(a, item, block, tiles, shared.meta, shared.rows);
        return;
    }
    take_registers<kWorkRegisters>();
    const bool teaches = warp_id() < Shape::kMainWarps;
    const ScoreShare share(a.block_size);
    const float scale = a.scale * kLog2E;
    MainColumns<T, kDim, kIndexDim, kGroup> columns;
    KeySums<kIndexDim> sums = {};
    constexpr bool kAhead = Shape::kTurns == 1;
    if (teaches && kAhead) columns.fetch(a, item.group, shared.meta[0]);
    for (int t = 0; t < tiles; ++t) {
        const typename Shape::Meta& meta = shared.meta[t % kMetaBuffers];
        const MmaTile<kIndexDim> rows = rows_of_tile<kQueries>(shared.rows, t);
        const int most_seen = meta.most_seen;
        for (int turn = 0; teaches && turn < Shape::kTurns; ++turn) {
            if (!kAhead) columns.fetch(a, item.group, meta, turn);
            for (int key = 0; key < most_seen; key += kStepKeys)
                columns.teach(shared.keys, key, scale, meta, Shared::kTeacherStride, shared.teacher,
                              turn);
        }
        work_barrier();
        if (teaches && kAhead && t + 1 < tiles)  // on their way while the index is compared
            columns.fetch(a, item.group, shared.meta[(t + 1) % kMetaBuffers]);
        for (int first = share.part * kStepQueries; first < kQueries;
             first += share.parts * kStepQueries)
            compare(a, shared, meta, rows, share.first_key, first, sums);
        work_barrier();
        store_d_query(a, shared, meta, shared.index_keys, most_seen);
        if (const auto query = static_cast<int>(threadIdx.x);
            a.kl != nullptr && query < kQueries && meta.query[query] >= 0) {
            double sum = 0;
            for (int step = 0; step < a.block_size / kStepKeys; ++step)
                sum += double{shared.kl[step * kQueries + query]};
            a.kl[meta.slot[query]] = sum;
        }
        tile_barrier();
        if (threadIdx.x == 0) *shared.unsound = 0;  // its next writer is behind a barrier
    }
    store_d_keys<kIndexDim>(a, shared, share, sums,
                            a.d_keys + int64_t{blockIdx.x} * a.block_size * kIndexDim);
}

/// body.operator()<kDim, kIndexDim, kGroup>() with those of the call.
template <typename Body>
auto by_kl_sizes(int head_dim, int index_dim, int group_size, Body body) {
    const auto by_group = [&]<int kDim, int kIndexDim>() {
        switch (group_size) {
            case 2: return body.template operator()<kDim, kIndexDim, 2>();
            case 4: return body.template operator()<kDim, kIndexDim, 4>();
            case 8: return body.template operator()<kDim, kIndexDim, 8>();
            default: return body.template operator()<kDim, kIndexDim, 16>();
        }
    };
    if (head_dim == 64) return by_group.template operator()<64, 64>();
    if (head_dim == 256)
        return index_dim == 64 ? by_group.template operator()<256, 64>()
                               : by_group.template operator()<256, 128>();
    return index_dim == 64 ? by_group.template operator()<128, 64>()
                           : by_group.template operator()<128, 128>();
}

}  // namespace

template <typename T>
cudaError_t launch_kl_blocks(const KlBlocks& a, int64_t most_items, cudaStream_t stream) {
    return by_kl_sizes(a.head_dim, a.index_dim, a.group_size(),
                       [&]<int kDim, int kIndexDim, int kGroup>() {
                           return launch_items(kl_blocks<T, kDim, kIndexDim, kGroup>,
                                               KlShared<T, kDim, kIndexDim, kGroup>::kBytes, a,
                                               most_items, stream);
                       });
}

template <typename T>
int kl_blocks_shared(int head_dim, int index_dim, int group_size) {
    return by_kl_sizes(head_dim, index_dim, group_size, [&]<int kDim, int kIndexDim, int kGroup>() {
        return KlShared<T, kDim, kIndexDim, kGroup>::kBytes;
    });
}

#define MSA_INSTANTIATE(T)                                                            \
    template cudaError_t launch_kl_blocks<T>(const KlBlocks&, int64_t, cudaStream_t); \
    template int kl_blocks_shared<T>(int, int, int);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
