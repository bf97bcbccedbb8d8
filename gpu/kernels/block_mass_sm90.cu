// SPDX-License-Identifier: MIT
// The log-sums of block_mass: holds rows, the (query, head) pairs of one group, in registers, and
// streams keys (TMA, wgmma). Reduces each tile of scores to one log-sum per row and block.
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/log_sums.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

using namespace sm90;

static_assert(kMassTileKeys == kTileKeys);

/// With 256 channels registers suffice for half of the rows.
template <typename Shape>
using RowsOf = std::conditional_t<Shape::kDim == 256, TileRows<2, 1>, PrefillRows>;

template <typename Shape>
struct Shared {
    using Rows = RowsOf<Shape>;
    static_assert(Rows::kRows == mass_tile_rows(Shape::kDim));
    static constexpr int kStages = Shape::kDim == 256 ? 3 : 4;
    char tiles[kStages][Shape::kTileBytes];
    RowBuffer<Rows> lse;
    int visible[Rows::kRows];
    Ring<kStages> ring;
};

template <typename Shape, int BlockSize>
__global__ void __launch_bounds__(RowsOf<Shape>::kThreads, 1)
    block_log_sums(const __grid_constant__ BlockMassArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Rows = RowsOf<Shape>;
    auto& shared = *reinterpret_cast<Shared<Shape>*>(memory);
    constexpr int kBlocksPerTile = kTileKeys / BlockSize;
    constexpr int kTilesPerRound = kWarp / kBlocksPerTile;
    constexpr int kSums = Shape::kSums;

    const QueryTile tile = args.tiles[blockIdx.y];
    const int group = static_cast<int>(blockIdx.x);
    const int heads = args.query_heads / args.groups;
    const int rows = tile.queries * heads;
    const int count = (tile.most_visible + kTileKeys - 1) / kTileKeys;
    if (threadIdx.x == 0) shared.ring.init(Rows::kConsumers);
    for (int row = threadIdx.x; row < Rows::kRows; row += Rows::kThreads)
        shared.visible[row] = row < rows ? seen_keys(args.visible, tile.query + row / heads) : 0;
    __syncthreads();

    const int warpgroup = threadIdx.x / kWarpgroup;
    constexpr int kDim = Shape::kRowBytes / Shape::kBytes;
    if (warpgroup == Rows::kConsumers) {
        setmaxnreg_dec<Rows::kProducerRegisters>();
        if (threadIdx.x % kWarpgroup == 0)
            produce<Shape>(&args.k, group * kDim, tile.key, count, shared.tiles[0], shared.ring);
        return;
    }
    setmaxnreg_inc<Rows::kConsumerRegisters>();
    RowOperand<Shape> operand[Rows::kHalves];
    const int64_t query_bytes = int64_t{args.query_heads} * Shape::kRowBytes;
    for (int half = 0; half < Rows::kHalves; ++half) {
        const int row = first_row<Rows>(warpgroup, half);
        operand[half].load(static_cast<const char*>(args.q) + tile.query * query_bytes +
                               int64_t{group} * heads * Shape::kRowBytes,
                           query_bytes, heads, rows, {row, row + 8});
    }

    const int lane = threadIdx.x % kWarp;
    const int warp_rows[2] = {
        first_row<Rows>(warpgroup, 0) - lane / 4,
        first_row<Rows>(warpgroup, 1) - lane / 4};  // the second of two halves
    consume(operand, count, shared.tiles[0], shared.ring, [&](int half, int t, float(&sum)[kSums]) {
        const float scale = args.scale * kLog2E;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int row = warp_rows[half] + lane / 4 + 8 * side;
            mask_unseen(sum, side, shared.visible[row] - t * kTileKeys);
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
        const int in_round = t % kTilesPerRound;
        if (in_round == kTilesPerRound - 1 || t == count - 1)
            store_log_sums<16>(args, tile, shared.lse, warp_rows[half],
                               (t - in_round) * kBlocksPerTile, (in_round + 1) * kBlocksPerTile);
    });
}

}  // namespace

template <typename T>
cudaError_t launch_block_mass_sm90(const BlockMassArgs& args, cudaStream_t stream) {
    return by_head_sizes<T>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        using S = Shared<ScoreShape<Dim, T>>;
        auto* const kernel = block_log_sums<ScoreShape<Dim, T>, BlockSize>;
        const cudaError_t error = allow_shared<S>(kernel);
        if (error != cudaSuccess) return error;
        const auto groups = static_cast<unsigned>(args.groups);
        kernel<<<dim3(groups, static_cast<unsigned>(args.tile_count)), S::Rows::kThreads, sizeof(S),
                 stream>>>(args);
        return launch_block_mass_normalise(args, stream);
    });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_block_mass_sm90<T>(const BlockMassArgs&, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
