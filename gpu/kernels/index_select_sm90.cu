// SPDX-License-Identifier: MIT
// Every 32 blocks, each warp merges the block maxima of its rows into lists of the best k, which
// stay in shared memory. The local block needs no score, so every scored block is wholly visible
// and nothing is masked.
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/device/warp_top_k.cuh"
#include "gpu/kernels/index_select_sm90.h"

namespace msa::gpu {
namespace {

using namespace sm90;
static_assert(kIndexTileRows == kTileRows);

constexpr int kStages = 4;

template <typename Shape, int Kept>
struct Shared {
    char tiles[kStages][Shape::kTileBytes];
    RowBuffer scores;
    uint64_t list[kTileRows][Kept];  // best first
    int limit[kTileRows];            // candidates are blocks [forced_first, limit)
    int kept[kTileRows];             // places for them
    Ring<kStages> ring;
};

/// Blocks with a visible token, and places that the forced ones leave.
struct RowRule {
    int visible, limit, kept;
    __device__ RowRule(const DeviceRule& rule, int seen, int block_size) {
        visible = (seen + block_size - 1) / block_size;
        limit = visible - rule.forced_local;
        const int first = min(rule.forced_first, visible);
        kept = rule.top_k - first - min(rule.forced_local, visible - first);
    }
};

/// Merges columns [0, count) of the buffer, blocks from `block` on, into the warp's row.
template <typename S>
__device__ void merge_row(S& shared, const DeviceRule& rule, float scale, int row, int block,
                          int count) {
    constexpr int kKept = sizeof(shared.list[0]) / sizeof(uint64_t);
    const int lane = threadIdx.x % kWarp, id = block + lane;
    WarpTopK list{lane < kKept ? shared.list[row][lane] : 0};
    const bool candidate = lane < count && id >= rule.forced_first && id < shared.limit[row];
    const uint64_t key = candidate ? candidate_key(scale * shared.scores.at(row, lane), id) : 0;
    const int kept = shared.kept[row];
    const uint32_t wanted = __ballot_sync(kAllLanes, kept > 0 && key > list.threshold(kept));
    if (wanted == 0) return;
    list.offer(key, wanted);
    if (lane < kKept) shared.list[row][lane] = list.key;
}

template <typename Shape, int BlockSize, int Kept>
__global__ void __launch_bounds__(kTileThreads, 1)
    index_select(const __grid_constant__ IndexSelectArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Shape, Kept>*>(memory);
    constexpr int kBlocksPerTile = kTileKeys / BlockSize;
    constexpr int kTilesPerMerge = 32 / kBlocksPerTile;

    const QueryTile tile = args.tiles[blockIdx.x];
    const int rows = tile.queries * args.groups;
    const int blocks = (tile.most_visible + BlockSize - 1) / BlockSize - args.rule.forced_local;
    const int all_tiles = max(0, (blocks + kBlocksPerTile - 1) / kBlocksPerTile);
    const int per_split = (all_tiles + args.splits - 1) / args.splits;
    const int first_tile = min(static_cast<int>(blockIdx.y) * per_split, all_tiles);
    const int count = min(per_split, all_tiles - first_tile);

    if (threadIdx.x == 0) shared.ring.init();
    for (int row = threadIdx.x; row < kTileRows; row += kTileThreads) {
        const RowRule own(args.rule,
                          row < rows ? args.visible[tile.query + row / args.groups] : 0,
                          BlockSize);
        shared.limit[row] = own.limit;
        shared.kept[row] = own.kept;
        for (int i = 0; i < Kept; ++i) shared.list[row][i] = 0;
    }
    __syncthreads();

    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == kConsumers) {
        fewer_registers<24>();
        if (threadIdx.x % kWarpgroup == 0)
            produce<Shape>(&args.index_k, 0, tile.key + int64_t{first_tile} * kTileKeys, count,
                           shared.tiles[0], shared.ring);
        return;
    }
    more_registers<240>();
    RowOperand<Shape> operand[2];
    const int64_t query_bytes = int64_t{args.groups} * Shape::kRowBytes;
    for (int half = 0; half < 2; ++half)
        operand[half].load(static_cast<const char*>(args.index_q) + tile.query * query_bytes,
                           query_bytes, args.groups, rows, first_row(warpgroup, half));

    const int lane = threadIdx.x % kWarp;
    const int warp_rows[2] = {first_row(warpgroup, 0) - lane / 4, first_row(warpgroup, 1) - lane / 4};
    auto merge = [&](int half, int t) {  // the tiles of the current round up to t
        const int in_round = t % kTilesPerMerge;
        __syncwarp();
        for (int i = 0; i < 16; ++i)
            merge_row(shared, args.rule, args.scale, warp_rows[half] + i,
                      (first_tile + t - in_round) * kBlocksPerTile,
                      (in_round + 1) * kBlocksPerTile);
        __syncwarp();
    };
    consume(operand, count, shared.tiles[0], shared.ring,
            [&](int half, int t, const float(&sum)[kSums]) {
                const int column = t % kTilesPerMerge * kBlocksPerTile;
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    float best[kBlocksPerTile];
                    best[0] = row_max<0, BlockSize / 8>(sum, side);
                    if constexpr (kBlocksPerTile == 2)
                        best[1] = row_max<BlockSize / 8, 2 * BlockSize / 8>(sum, side);
#pragma unroll
                    for (int b = 0; b < kBlocksPerTile; ++b)
                        if (lane % 4 == side)
                            shared.scores.at(warp_rows[half] + lane / 4 + 8 * side, column + b) =
                                best[b];
                }
                if (t % kTilesPerMerge == kTilesPerMerge - 1 || t == count - 1) merge(half, t);
            });

    __syncwarp();
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 16; ++i) {
            const int row = warp_rows[half] + i;
            if (row >= rows) break;
            const int64_t out_row = tile.query * args.groups + row;
            const WarpTopK list{lane < Kept ? shared.list[row][lane] : 0};
            if (args.splits > 1) {
                if (lane < Kept)
                    args.partial[(out_row * args.splits + blockIdx.y) * Kept + lane] = list.key;
                continue;
            }
            const int visible = shared.limit[row] + args.rule.forced_local;
            write_ids(list, args.rule.top_k, visible, args.rule.forced_first,
                      args.rule.forced_local, args.ids + out_row * args.rule.top_k);
        }
    }
}

/// Merges the lists of the splits: a warp per row.
template <int Kept>
__global__ void merge_splits(const IndexSelectArgs args) {
    const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
    if (row >= args.queries * args.groups) return;
    const RowRule own(args.rule, args.visible[row / args.groups], args.block_size);
    const uint64_t* const keys = args.partial + row * args.splits * Kept;
    WarpTopK list;
    const int lane = threadIdx.x % kWarp;
    for (int i = lane; i - lane < args.splits * Kept && own.kept > 0; i += kWarp) {
        const uint64_t key = i < args.splits * Kept ? keys[i] : 0;
        list.offer(key, __ballot_sync(kAllLanes, key > list.threshold(own.kept)));
    }
    write_ids(list, args.rule.top_k, own.visible, args.rule.forced_first, args.rule.forced_local,
              args.ids + row * args.rule.top_k);
}

template <typename Shape, int BlockSize, int Kept>
cudaError_t launch(const IndexSelectArgs& args, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<Shape, Kept>);
    auto* const kernel = index_select<Shape, BlockSize, Kept>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const dim3 grid(static_cast<unsigned>(args.tile_count), static_cast<unsigned>(args.splits));
    kernel<<<grid, kTileThreads, kBytes, stream>>>(args);
    if (args.splits > 1) {
        constexpr int kThreads = 128;
        const int64_t threads = args.queries * args.groups * kWarp;
        merge_splits<Kept><<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads,
                             0, stream>>>(args);
    }
    return cudaGetLastError();
}

template <typename Shape>
cudaError_t launch_shape(const IndexSelectArgs& args, cudaStream_t stream) {
    if (args.block_size == 64)
        return args.rule.top_k <= 16 ? launch<Shape, 64, 16>(args, stream)
                                     : launch<Shape, 64, 32>(args, stream);
    return args.rule.top_k <= 16 ? launch<Shape, 128, 16>(args, stream)
                                 : launch<Shape, 128, 32>(args, stream);
}

}  // namespace

cudaError_t launch_index_select_sm90(const IndexSelectArgs& args, cudaStream_t stream) {
    if (args.element_bytes == 1) return launch_shape<ScoreShape<128, 1>>(args, stream);
    if (args.index_dim == 64) return launch_shape<ScoreShape<64, 2>>(args, stream);
    return launch_shape<ScoreShape<128, 2>>(args, stream);
}

}  // namespace msa::gpu
