// SPDX-License-Identifier: MIT
// Fused index_select with mma.sync and cp.async. It does what index_select_sm90.cu does, on any
// device of compute capability 8.0 or later.
//
// All warps copy: keys stream through a ring buffer in shared memory, 64 per stage, some stages
// ahead. A warp holds 32 rows (query, group), or 16 with few queries, as an operand in registers,
// and multiplies them with the stage's keys. The maxima of the products of each block wait in
// shared memory. Every 32 blocks, the warp merges them into its rows' lists. The local block needs
// no score, so every scored block is wholly visible and nothing is masked.
#include "gpu/device/by_sizes.cuh"
#include "gpu/device/merge_few.cuh"
#include "gpu/device/merge_splits.cuh"
#include "gpu/device/row_lists.cuh"
#include "gpu/device/row_values.cuh"
#include "gpu/device/stream_mma.cuh"
#include "gpu/kernels/index_select_sm80.h"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

// Rows of Dim values of 16 bits, or twice as many of 8 bits. Tiles have at least 64 values a row.
template <int Dim>
constexpr int kTileDim = Dim < 64 ? 64 : Dim;

constexpr int kStageKeys = 64, kHalves = kIndexTileKeys / kStageKeys;  // stages of a tile of keys

/// How a thread block is cut: Warps warps of M times 16 rows.
template <int Warps, int M, int Stages, int BlocksPerSm>
struct Cut {
    static constexpr int kWarps = Warps, kM = M, kStages = Stages, kBlocksPerSm = BlocksPerSm;
    static constexpr int kThreads = Warps * kWarp, kWarpRows = 16 * M, kRows = Warps * kWarpRows;
};

template <typename C, int Dim, int Kept>
struct Shared {
    uint16_t keys[C::kStages][kStageKeys * kTileDim<Dim>];
    RowBuffer<C> scores;
    SortedLists<C::kRows, Kept> lists;
    int limit[C::kRows];  // candidates are blocks [forced_first, limit)
};

/// The tile's row at a place: neighbours are with different warps, so that few keep all busy.
template <typename C>
__device__ int row_at(int place) {
    return place % C::kWarpRows * C::kWarps + place / C::kWarpRows;
}

template <typename T, typename C, int Dim, int BlockSize, int Kept>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    index_select(const __grid_constant__ IndexSelectArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<C, Dim, Kept>*>(memory);
    constexpr int kM = C::kM, kStages = C::kStages;
    constexpr int kBlocksPerTile = kIndexTileKeys / BlockSize;
    constexpr int kColumns = kStageKeys < BlockSize ? kStageKeys : BlockSize;  // of a maximum
    constexpr int kMergeTiles = kWarp / kBlocksPerTile;
    constexpr int kAtOnce = C::kRows == kIndexDecodeRows ? 1 : 4;  // one a warp where there are few

    const TilePart piece = args.parts[blockIdx.x];
    const QueryTile& tile = piece.tile;
    const int rows = tile.queries * args.groups;
    const DeviceRule& rule = args.rule;
    const int blocks = (tile.most_visible + BlockSize - 1) / BlockSize - rule.forced_local;
    const int all_tiles = max(0, (blocks + kBlocksPerTile - 1) / kBlocksPerTile);
    const auto part_start = [&](int n) {
        return static_cast<int>(int64_t{all_tiles} * n / piece.parts);
    };
    const int first_tile = part_start(piece.part);
    const int count = part_start(piece.part + 1) - first_tile;
    const int64_t first_key = tile.key + int64_t{first_tile} * kIndexTileKeys;
    const auto* const index_k = static_cast<const uint16_t*>(args.all_keys);
    const auto* const index_q =
        static_cast<const uint16_t*>(args.index_q) + tile.query * args.groups * Dim;

    const int stages = count * kHalves;
    const auto fetch = [&](int stage) {
        if (stage < stages) {
            const int64_t key = first_key + int64_t{stage} * kStageKeys;
            // A tile's last keys may lie behind all keys.
            const int64_t there = min(args.keys - key, int64_t{kStageKeys});
            const int64_t from = min(key, args.keys - 1);
            // In halves of wide rows, of which few threads copy as many at once as they must.
            constexpr int kCopied = Dim < 128 ? Dim : 128;
#pragma unroll
            for (int first = 0; first < Dim; first += kCopied)
                copy_rows<kCopied, kStageKeys, C::kThreads, kTileDim<Dim>>(
                    shared.keys[stage % kStages] + first, index_k + from * Dim + first, Dim,
                    static_cast<int>(there));
        }
        commit_copies();
    };
    for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);
    for (int place = threadIdx.x; place < C::kRows; place += C::kThreads) {
        const int row = row_at<C>(place);
        const RowRule own(rule,
                          row < rows ? seen_keys(args.visible, tile.query + row / args.groups) : 0,
                          BlockSize);
        shared.limit[place] = own.limit;
        shared.lists.keep(place, own.kept);
    }
    shared.lists.clear(C::kThreads);

    const int lane = lane_id(), warp_place = warp_id() * C::kWarpRows;
    WordRows<Dim, kM> operand;
    operand.load([&](int m, int side) {
        const int row = row_at<C>(warp_place + 16 * m + 8 * side + lane / 4);
        return row < rows ? index_q + int64_t{row} * Dim : nullptr;
    });
    const auto scales = tile_scales<T>(args, tile, rows, blocks, row_at<C>);
    const auto merge = [&](int end) {  // after `end` tiles
        __syncwarp();
        const int begin = (end - 1) / kMergeTiles * kMergeTiles;
        for (int place = warp_place; place < warp_place + C::kWarpRows && row_at<C>(place) < rows;
             place += kAtOnce)
            offer_scores<kAtOnce>(shared, rule, scales, place, first_tile * kBlocksPerTile,
                                  begin * kBlocksPerTile, end * kBlocksPerTile);
        __syncwarp();
    };

    const LaneWords<kTileDim<Dim>> keys(address_in_shared(shared.keys));
    const bool any_rows = row_at<C>(warp_place) < rows;
    using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;
    Sum best[kM][2][kBlocksPerTile];
    int slot = 0;
    for (int t = 0; t < count; ++t) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            wait_for_groups<kStages - 2>();
            __syncthreads();
            fetch(t * kHalves + half + kStages - 1);
            if (any_rows) {
                Sum sum[kM][kStageKeys / 2];
                multiply_keys<T, Dim, kM, kStageKeys>(
                    sum, operand, keys, static_cast<uint32_t>(slot * sizeof(shared.keys[0])));
#pragma unroll
                for (int part = 0; part < kStageKeys / kColumns; ++part)
#pragma unroll
                    for (int m = 0; m < kM; ++m)
#pragma unroll
                        for (int side = 0; side < 2; ++side) {
                            const Sum* const of = sum[m] + part * kColumns / 2 + 2 * side;
                            Sum two[2] = {of[0], of[1]};
#pragma unroll
                            for (int j = 1; j < kColumns / 8; ++j)
#pragma unroll
                                for (int i = 0; i < 2; ++i)
                                    two[i] = max_or_nan(two[i], of[4 * j + i]);
                            const int block = (half * kStageKeys + part * kColumns) / BlockSize;
                            Sum& to = best[m][side][block];
                            const Sum most = max_or_nan(two[0], two[1]);
                            to = (half * kStageKeys + part * kColumns) % BlockSize == 0
                                     ? most
                                     : max_or_nan(to, most);
                        }
            }
            slot = slot + 1 == kStages ? 0 : slot + 1;
        }
        if (!any_rows) continue;
        const int column = t % kMergeTiles * kBlocksPerTile;
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int b = 0; b < kBlocksPerTile; ++b) {
                    Sum most = best[m][side][b];
                    most = max_or_nan(most, __shfl_xor_sync(kAllLanes, most, 1));
                    most = max_or_nan(most, __shfl_xor_sync(kAllLanes, most, 2));
                    if (lane % 4 == side)
                        shared.scores.at(warp_place + 16 * m + 8 * side + lane / 4, column + b) =
                            static_cast<float>(most);
                }
        if (t == count - 1 || (t + 1) % kMergeTiles == 0) merge(t + 1);
    }
    if (count == 0) __syncthreads();  // the lists were cleared by others
    wait_for_groups<0>();

    __syncwarp();
    write_lists<Kept, kAtOnce>(args, shared, piece, first_lists(args, piece), warp_place,
                               C::kWarpRows, row_at<C>);
}

template <typename T, typename C, int Dim, int BlockSize, int Kept>
cudaError_t launch(const IndexSelectArgs& args, cudaStream_t stream) {
    using S = Shared<C, Dim, Kept>;
    auto* const kernel = index_select<T, C, Dim, BlockSize, Kept>;
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(S)));
    if (error != cudaSuccess) return error;
    const dim3 grid(static_cast<unsigned>(args.part_count));
    kernel<<<grid, C::kThreads, sizeof(S), stream>>>(args);
    if (args.most_parts > 1 && has_few_parts(args))
        merge_few<Kept><<<merge_few_blocks(args), kMergeRows * kWarp, 0, stream>>>(args);
    else if (args.most_parts > 1)
        merge_splits<Kept, false>
            <<<static_cast<unsigned>(args.queries * args.groups),
               static_cast<unsigned>(merge_threads<Kept>(args, nullptr)), 0, stream>>>(
                args, CandidateExchange{});
    return cudaGetLastError();
}

// Of many queries: lists of 16, lists of 32 where shared memory is that of 8.0 and 9.0, and of less
// memory (8.6, 8.9, 12.0). Of few queries: two thread blocks an SM of 164 KB. Rows of 256 values
// are the operand of 16 rows a warp.
template <int Dim, int Kept>
using LargeCut = std::conditional_t<Dim == 256, Cut<8, 1, Kept == 16 ? 4 : 3, 1>,
                                    Cut<8, 2, Kept == 16 ? 5 : 3, 1>>;
template <int Dim, int Kept>
using SmallCut =
    std::conditional_t<Dim == 256, Cut<Kept == 16 ? 8 : 4, 1, 2, 1>,
                       std::conditional_t<Kept == 16, Cut<8, 2, 2, 1>, Cut<4, 2, 3, 1>>>;
template <int Dim>
using DecodeCut = std::conditional_t<Dim == 256, Cut<4, 1, 2, 1>, Cut<4, 1, 3, 2>>;

/// Whether all cuts have the rows that the plan counts on, and their memory suffices.
template <int Dim, int Kept>
constexpr bool are_as_planned() {
    using Large = LargeCut<Dim, Kept>;
    using Small = SmallCut<Dim, Kept>;
    return DecodeCut<Dim>::kRows == kIndexDecodeRows &&
           Large::kRows == index_rows_sm80(true, Kept, 2 * Dim) &&
           Small::kRows == index_rows_sm80(false, Kept, 2 * Dim) &&
           sizeof(Shared<DecodeCut<Dim>, Dim, Kept>) <= kLeastShared &&
           sizeof(Shared<Small, Dim, Kept>) <= kLeastShared &&
           sizeof(Shared<Large, Dim, Kept>) <= kLargeShared;
}

template <typename T, int Dim, int BlockSize, int Kept>
cudaError_t launch_rows(const IndexSelectArgs& args, bool large, cudaStream_t stream) {
    static_assert(are_as_planned<Dim, Kept>());
    if (args.decode) return launch<T, DecodeCut<Dim>, Dim, BlockSize, Kept>(args, stream);
    return large ? launch<T, LargeCut<Dim, Kept>, Dim, BlockSize, Kept>(args, stream)
                 : launch<T, SmallCut<Dim, Kept>, Dim, BlockSize, Kept>(args, stream);
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch_kept(const IndexSelectArgs& args, bool large, cudaStream_t stream) {
    return args.rule.top_k <= 16 ? launch_rows<T, Dim, BlockSize, 16>(args, large, stream)
                                 : launch_rows<T, Dim, BlockSize, 32>(args, large, stream);
}

}  // namespace

template <typename T>
cudaError_t launch_index_select_sm80(const IndexSelectArgs& args, bool large, cudaStream_t stream) {
    return by_index_dim(args.index_dim, [&]<int Dim>() {
        return by_block_size(args.block_size, [&]<int BlockSize>() {
            return launch_kept<T, Dim* static_cast<int>(sizeof(T)) / 2, BlockSize>(args, large,
                                                                                   stream);
        });
    });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_index_select_sm80<T>(const IndexSelectArgs&, bool, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
