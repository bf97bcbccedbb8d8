// SPDX-License-Identifier: MIT
// The lse of the index scores, by blocks of keys. A warpgroup takes a work item: the block's keys
// stay in shared memory while the uses pass by, 64 at a time.
//
// Each warp works on 16 rows of a product, without barriers: it copies rows of index_q (cp.async)
// into its own part of shared memory, and from there to the register operand of the product. The
// rows of the next uses then follow into the same place, during the product and while the warp
// takes maxima and exponentials. Four or five thread blocks of an SM fill each other's waits.
//
// A row's result depends on its own scores alone, in a fixed order: not on the rows beside it.
#include "gpu/device/kl_uses.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/log_sums.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/kernels/index_lse_sm90.h"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kWarpRows = 16;  // of a product

template <typename T, int Dim, int BlockSize>
struct Shared {
    using Score = ScoreShape<Dim, T>;
    static constexpr int kBoxBytes = BlockSize * kSwizzle;
    char keys[Score::kBoxes][kBoxBytes];
    alignas(128) uint16_t rows[kHalfRows * Dim];
    Barrier full;
};

/// A use of which lanes n and n + 16 hold the warp's n-th.
struct LseUse {
    int64_t slot;  // number in [piece, Hkv, slots]; negative: no use
    int seen;      // keys of the block; 0: no use
};
__device__ LseUse lse_use(const KlBlocks& a, const KlItem& item, const SequenceBlock& block,
                          int query, int use) {
    if (query < 0) return {-1, 0};
    const int64_t row = int64_t{query} * a.groups + item.group;
    const int slot =
        a.ids == nullptr ? block.block - a.first_block : a.reverse.slots[item.begin + use];
    return {number_of(a, row, slot), seen_of_block(a, block, query)};
}

/// Starts the copies of the warp's rows; `query` is that of the lane's use, or none, for which it
/// copies any row. A loop of few rounds: unrolled, its addresses take more registers than there
/// are.
template <int Dim>
__device__ void fetch_rows(const KlBlocks& a, int group, int query, const MmaTile<Dim>& to) {
    constexpr int kChunks = MmaTile<Dim>::kChunks, kRowsAtOnce = kWarp / kChunks;
    const int lane = lane_id(), chunk = lane % kChunks, first = warp_id() * kWarpRows;
    const auto there = static_cast<uint32_t>(max(query, 0)),
               stride = static_cast<uint32_t>(a.groups * Dim) * 2;
    const char* const from =
        reinterpret_cast<const char*>(a.index_q + group * Dim + chunk * kChunk);
#pragma unroll 1
    for (int n = 0; n < kWarpRows; n += kRowsAtOnce) {
        const int row = n + lane / kChunks;
        copy_chunk(to.chunk(first + row, chunk),
                   from + uint64_t{__shfl_sync(kAllLanes, there, row)} * stride, true);
    }
}

/// Writes the warp's slots. Lanes of even number know of the first of their two rows, of odd number
/// of the second.
template <int BlockSize, int Sums>
__device__ void store(const KlBlocks& a, float (&score)[Sums], float scale, const LseUse& own) {
    const int lane = lane_id();
    if (!__all_sync(kAllLanes, own.seen >= BlockSize)) {
        mask_unseen(score, 0, __shfl_sync(kAllLanes, own.seen, lane / 4));
        mask_unseen(score, 1, __shfl_sync(kAllLanes, own.seen, lane / 4 + 8));
    }
    const float first = row_log_sum<BlockSize>(score, 0, 0, scale),
                second = row_log_sum<BlockSize>(score, 1, 0, scale);
    const float known = (lane % 2 == 0 ? first : second) * kLn2;
    const float lse = __shfl_sync(kAllLanes, known, lane % 8 * 4 + lane / 8 % 2);
    if (lane < kWarpRows && own.slot >= 0) a.slot_lse[own.slot] = lse;
}

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(kWarpgroup, BlockSize == 64 ? 5 : 4)
    slot_lse_sm90(const __grid_constant__ LseTunedArgs args) {
    using Memory = Shared<T, Dim, BlockSize>;
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Memory*>(memory);
    const KlBlocks& a = args.blocks;
    if (static_cast<int>(blockIdx.x) >= a.item_starts[a.lists()]) return;
    const KlItem item = a.items[blockIdx.x];
    const SequenceBlock block = a.blocks[item.block];
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barriers();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.full.expect(sizeof shared.keys);
        for (int box = 0; box < Memory::Score::kBoxes; ++box)
            copy_box(shared.keys[box], &args.index_k, box * kSwizzle / Memory::Score::kBytes,
                     static_cast<int>(block.key), &shared.full);
    }
    const MmaTile<Dim> rows{shared.rows};
    const auto uses = static_cast<int>(item.end - item.begin);
    const auto query_of = [&](int use) {
        return use < uses ? static_cast<int>(query_of_use(a, item.begin + use)) : -1;
    };
    int use = warp_id() * kWarpRows + lane_id() % kWarpRows;
    int next = query_of(use);
    fetch_rows(a, item.group, next, rows);
    LseUse own = lse_use(a, item, block, next, use);
    next = query_of(use + kHalfRows);
    const float scale = a.index_scale * kLog2E;
    shared.full.wait(0);
    for (int tile = 0; tile < uses; tile += kHalfRows, use += kHalfRows) {
        wait_for_copies();
        __syncwarp();
        RowOperand<typename Memory::Score> operand;
        // Places are computed anew in every round, for want of registers.
        operand.load(rows, opaque_thread() / kWarp * kWarpRows);
        __syncwarp();
        float score[kHalfRows * BlockSize / kWarpgroup];
        multiply(score, operand, keys_low(shared.keys[0]));
        if (tile + kHalfRows < uses) fetch_rows(a, item.group, next, rows);
        const LseUse later = lse_use(a, item, block, next, use + kHalfRows);
        wgmma_wait<0>();
        next = query_of(use + 2 * kHalfRows);
        store<BlockSize>(a, score, scale, own);
        own = later;
    }
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const LseTunedArgs& args, int64_t most_items, cudaStream_t stream) {
    using Memory = Shared<T, Dim, BlockSize>;
    auto* const kernel = slot_lse_sm90<T, Dim, BlockSize>;
    const cudaError_t error = allow_shared<Memory>(kernel);
    if (error != cudaSuccess) return error;
    kernel<<<static_cast<unsigned>(most_items), kWarpgroup, sizeof(Memory), stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_kl_slot_lse_sm90(const LseTunedArgs& args, int64_t most_items,
                                    cudaStream_t stream) {
    if (most_items == 0) return cudaSuccess;
    return by_wide_sizes(args.blocks.index_dim, args.blocks.block_size,
                         [&]<int Dim, int BlockSize>() {
                             return launch<T, Dim, BlockSize>(args, most_items, stream);
                         });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_kl_slot_lse_sm90<T>(const LseTunedArgs&, int64_t, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
