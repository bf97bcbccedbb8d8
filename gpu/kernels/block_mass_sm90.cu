// SPDX-License-Identifier: MIT
// block_mass in two kernels.
//
//   block_log_sums   holds rows, the (query, head) pairs of one group, in registers, and streams
//                    keys (TMA, wgmma). Reduces each tile of scores to one base-2 log-sum of
//                    exponentials per row and block, in the workspace.
//   normalise        a thread block per (query, group): computes the log-sum of each row over all
//                    its blocks, then each block's probability, mean over the group's heads
#include "gpu/device/exp2.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/block_mass_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

static_assert(kMassTileRows == PrefillRows::kRows && kMassTileKeys == kTileKeys);
constexpr int kStages = 4;

template <typename Shape>
struct Shared {
    char tiles[kStages][Shape::kTileBytes];
    RowBuffer<PrefillRows> lse;
    int visible[PrefillRows::kRows];
    Ring<kStages> ring;
};

/// Base-2 log of the sum of 2^(scale x) over the columns of the tile's n-th block of this thread's
/// row, over the four threads that share it; -inf where all are.
template <int BlockSize>
__device__ float row_log_sum(const float (&sum)[kSums], int side, int n, float scale) {
    const int first = n * (BlockSize / 8), last = first + BlockSize / 8;
    const float best = row_max<BlockSize>(sum, side, n);
    const float shift = best == -INFINITY ? 0 : best * scale;
    float total[2] = {0, 0};
#pragma unroll
    for (int j = first; j < last; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            total[i] += exp2_fast(fmaf(sum[4 * j + 2 * side + i], scale, -shift));
    float all = total[0] + total[1];
    all += __shfl_xor_sync(kAllLanes, all, 1);
    all += __shfl_xor_sync(kAllLanes, all, 2);
    return shift + log2f(all);
}

template <typename Shape, int BlockSize>
__global__ void __launch_bounds__(PrefillRows::kThreads, 1)
    block_log_sums(const __grid_constant__ BlockMassArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Shape>*>(memory);
    constexpr int kBlocksPerTile = kTileKeys / BlockSize;
    constexpr int kTilesPerRound = kWarp / kBlocksPerTile;

    const QueryTile tile = args.tiles[blockIdx.y];
    const int group = static_cast<int>(blockIdx.x);
    const int heads = args.query_heads / args.groups;
    const int rows = tile.queries * heads;
    const int count = (tile.most_visible + kTileKeys - 1) / kTileKeys;
    if (threadIdx.x == 0) shared.ring.init(PrefillRows::kConsumers);
    for (int row = threadIdx.x; row < PrefillRows::kRows; row += PrefillRows::kThreads)
        shared.visible[row] = row < rows ? seen_keys(args.visible, tile.query + row / heads) : 0;
    __syncthreads();

    const int warpgroup = threadIdx.x / kWarpgroup;
    constexpr int kDim = Shape::kRowBytes / Shape::kBytes;
    if (warpgroup == PrefillRows::kConsumers) {
        setmaxnreg_dec<PrefillRows::kProducerRegisters>();
        if (threadIdx.x % kWarpgroup == 0)
            produce<Shape>(&args.k, group * kDim, tile.key, count, shared.tiles[0], shared.ring);
        return;
    }
    setmaxnreg_inc<PrefillRows::kConsumerRegisters>();
    RowOperand<Shape> operand[2];
    const int64_t query_bytes = int64_t{args.query_heads} * Shape::kRowBytes;
    for (int half = 0; half < 2; ++half) {
        const int row = first_row<PrefillRows>(warpgroup, half);
        operand[half].load(static_cast<const char*>(args.q) + tile.query * query_bytes +
                               int64_t{group} * heads * Shape::kRowBytes,
                           query_bytes, heads, rows, {row, row + 8});
    }

    const int lane = threadIdx.x % kWarp;
    const int warp_rows[2] = {first_row<PrefillRows>(warpgroup, 0) - lane / 4,
                              first_row<PrefillRows>(warpgroup, 1) - lane / 4};
    auto store = [&](int half, int t) {  // the columns of the current round up to tile t
        const int in_round = t % kTilesPerRound;
        const int block = (t - in_round) * kBlocksPerTile + lane;
        __syncwarp();
        for (int i = 0; i < 16; ++i) {
            const int row = warp_rows[half] + i;
            if (row >= rows || lane >= (in_round + 1) * kBlocksPerTile || block >= args.blocks)
                continue;
            const int64_t query = tile.query - args.first_query + row / heads;
            const int64_t out_row = query * args.query_heads + group * heads + row % heads;
            args.block_lse[out_row * args.blocks + block] = shared.lse.at(row, lane);
        }
        __syncwarp();
    };
    consume(operand, count, shared.tiles[0], shared.ring, [&](int half, int t, float(&sum)[kSums]) {
        const float scale = args.scale * kLog2E;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int row = warp_rows[half] + lane / 4 + 8 * side;
            const int seen = shared.visible[row] - t * kTileKeys;
            if (seen < kTileKeys) {
#pragma unroll
                for (int j = 0; j < kTileKeys / 8; ++j)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        if (8 * j + 2 * (lane % 4) + i >= seen)
                            sum[4 * j + 2 * side + i] = -INFINITY;
            }
            __syncwarp();
            float value[kBlocksPerTile];
#pragma unroll
            for (int b = 0; b < kBlocksPerTile; ++b)
                value[b] = row_log_sum<BlockSize>(sum, side, b, scale);
#pragma unroll
            for (int b = 0; b < kBlocksPerTile; ++b)
                if (lane % 4 == side)
                    shared.lse.at(row, t % kTilesPerRound * kBlocksPerTile + b) = value[b];
        }
        if (t % kTilesPerRound == kTilesPerRound - 1 || t == count - 1) store(half, t);
    });
}

/// mass[b] = mean over the heads of 2^(lse of b - lse of the row).
__global__ void normalise(const BlockMassArgs args) {
    extern __shared__ float row_lse[];  // [G]
    const int64_t query = blockIdx.x;
    const int group = static_cast<int>(blockIdx.y);
    const int heads = args.query_heads / args.groups;
    const int seen = seen_keys(args.visible, args.first_query + query);
    const int visible = (seen + args.block_size - 1) / args.block_size;
    const float* const lse =
        args.block_lse + (query * args.query_heads + group * heads) * int64_t{args.blocks};
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int head = warp; head < heads; head += static_cast<int>(blockDim.x) / kWarp) {
        const float* const of_head = lse + int64_t{head} * args.blocks;
        float best = -INFINITY, total = 0;
        for (int b = lane; b < visible; b += kWarp) best = fmaxf(best, of_head[b]);
        best = warp_max(best);
        for (int b = lane; b < visible; b += kWarp) total += exp2_fast(of_head[b] - best);
        total = warp_sum(total);
        if (lane == 0) row_lse[head] = best + log2f(total);
    }
    __syncthreads();
    float* const mass = args.mass + (query * args.groups + group) * int64_t{args.blocks};
    for (int b = static_cast<int>(threadIdx.x); b < args.blocks;
         b += static_cast<int>(blockDim.x)) {
        float sum = 0;
        if (b < visible)
            for (int head = 0; head < heads; ++head)
                sum += exp2_fast(lse[int64_t{head} * args.blocks + b] - row_lse[head]);
        mass[b] = sum / static_cast<float>(heads);
    }
}

}  // namespace

template <typename T>
cudaError_t launch_block_mass_sm90(const BlockMassArgs& args, cudaStream_t stream) {
    return by_sizes(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        using S = Shared<ScoreShape<Dim, T>>;
        auto* const kernel = block_log_sums<ScoreShape<Dim, T>, BlockSize>;
        const cudaError_t error = allow_shared<S>(kernel);
        if (error != cudaSuccess) return error;
        const auto groups = static_cast<unsigned>(args.groups);
        kernel<<<dim3(groups, static_cast<unsigned>(args.tile_count)), PrefillRows::kThreads,
                 sizeof(S), stream>>>(args);
        const auto heads = static_cast<unsigned>(args.query_heads / args.groups);
        normalise<<<dim3(static_cast<unsigned>(args.queries), groups), 256, heads * sizeof(float),
                    stream>>>(args);
        return cudaGetLastError();
    });
}
template cudaError_t launch_block_mass_sm90<MSA_KERNEL_ELEMENT>(const BlockMassArgs&, cudaStream_t);

}  // namespace msa::cuda
