// SPDX-License-Identifier: MIT
// index_select fused: scores of blocks, and the best k of each row, in one pass over the keys.
//
//   producer    one thread streams tiles of 128 keys through a ring in shared memory (TMA), of 256
//               channels of 16 bits in two stages of 64 keys
//   consumers   hold their rows (query, group) as an operand in registers, multiply it with a tile
//               (wgmma) and reduce the products of each block to their maximum, per row
//   merge       every 32 blocks, a warp merges the maxima of a row into its list of the best k,
//               which stays in shared memory
//   write_ids   at the end, a list and the forced blocks become ascending ids
// The local block needs no score, so every scored block is wholly visible and nothing is masked.
//
// With few queries (decode), tiles have 64 rows. Where tiles are few or unlike, the keys of the
// long ones are cut into parts (gpu/tile_parts.h). If the scores of the call are few, parts write
// them, and select_blocks_warp makes ids of them. Else each part writes its list, and a second
// kernel, merge_splits or merge_few, merges the lists of a row. Where lengths are on the device
// (gpu/device/part_now.cuh), each thread block of a decode finds its own part; of longer chunks, a
// kernel before this one finds those of all.
//
// The producer may start before the previous kernel has ended if no earlier work writes the keys
// (IndexSelectArgs::keys_settled). It always waits for the queries.
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/merge_few.cuh"
#include "gpu/device/merge_splits.cuh"
#include "gpu/device/merge_turns.cuh"
#include "gpu/device/part_now.cuh"
#include "gpu/device/row_lists.cuh"
#include "gpu/device/score_pages_sm90.cuh"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

using namespace sm90;
static_assert(kIndexPrefillRows == PrefillRows::kRows && kIndexDecodeRows == DecodeRows::kRows &&
              kIndexTileKeys == kTileKeys && kIndexMergeBlocks == kWarp);

/// Rows of many queries. Of rows of at most 128 bytes four warpgroups of operands of 8 bits fit:
/// while one merges, three multiply.
template <typename Shape>
using SelectRows =
    std::conditional_t<Shape::kBytes == 1 && Shape::kRowBytes <= 128, TileRows<4, 1>, PrefillRows>;
static_assert(SelectRows<ScoreShape<128, __nv_fp8_e4m3>>::kRows == kIndexPrefillRows);

enum class Result : uint8_t { lists, scores };

struct NoLists {};  // where scores are written

template <typename Shape, typename Rows, int Kept, Result Made>
struct Shared {
    static constexpr bool kManyWarps = Rows::kConsumers == 4;
    // What fits beside the lists; of few rows, twice on an SM.
    static constexpr int kRingBytes = Rows::kConsumers == 1      ? 65536
                                      : kManyWarps && Kept == 32 ? 81920
                                                                 : 131072;
    static constexpr int kStages = kRingBytes / Shape::kTileBytes;
    char tiles[kStages][Shape::kTileBytes];
    RowBuffer<Rows> scores;
    using Lists = std::conditional_t<kManyWarps, WaitingLists<Rows::kRows, Kept>,
                                     SortedLists<Rows::kRows, Kept>>;
    std::conditional_t<Made == Result::lists, Lists, NoLists> lists;
    int limit[Rows::kRows];  // candidates are blocks [forced_first, limit)
    Ring<kStages> ring;
};

/// Up to so many rows of a tile, two a warp, are merged one after the other: a row alone has to
/// wait less than four together.
constexpr int kFewRows = 8;

/// The tile's row at a place: neighbours are with different warps, so that few keep all busy.
template <typename Rows>
__device__ int row_at(int place) {
    constexpr int kWarps = Rows::kRows / 16;
    return place % 16 * kWarps + place / 16;
}

/// Writes this thread's maxima of a stage, the tile's `piece`th, to `scores` at `place`, the tile's
/// blocks from `column` on. Of a block of two stages, the maximum of the first waits in `earlier`.
template <int BlockSize, typename Shape, typename Rows>
__device__ void store_maxima(const typename Shape::Sum (&sum)[Shape::kSums],
                             RowBuffer<Rows>& scores, int place, int own_block, int column,
                             int piece, bool no_negative, float& earlier) {
    constexpr int kColumns = BlockSize < Shape::kKeys ? BlockSize : Shape::kKeys;  // of a maximum
    constexpr int kKept = kKeptMaxima<kColumns, Shape::kSums>;
    float best[kKept];
    keep_maxima<kColumns>(sum, best, no_negative);
    if constexpr (kColumns < BlockSize) {
        if (piece == 0) {
            earlier = best[0];
            return;
        }
        best[0] = max_or_nan(best[0], earlier);
    }
    if (own_block * BlockSize < Shape::kKeys)
#pragma unroll
        for (int n = 0; n < kKept; ++n)
            scores.at(place, column + piece * Shape::kKeys / BlockSize + own_block + 2 * n) =
                best[n];
}

template <typename Shape, typename Rows, int BlockSize, int Kept, Result Made>
__global__ void __launch_bounds__(Rows::kThreads, Rows::kBlocksPerSm)
    index_select(const __grid_constant__ IndexSelectArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using S = Shared<Shape, Rows, Kept, Made>;
    constexpr bool kLists = Made == Result::lists;
    auto& shared = *reinterpret_cast<S*>(memory);
    constexpr int kBlocksPerTile = kTileKeys / BlockSize;
    constexpr int kStagesPerTile = kTileKeys / Shape::kKeys;
    using Turns = MergeTurns<kBlocksPerTile, kMergeTurns<Shape, Rows>>;

    PartNow part{};
    const bool on_device = args.now.tiles != nullptr;  // the lengths
    const bool finds = Rows::kConsumers == 1 && on_device;
    if (finds) {
        if (!args.keys_settled) wait_for_previous_kernel();
        static_assert(sizeof(shared.tiles) >= kMostTilesNow * sizeof(int) || Rows::kConsumers > 1);
        if (!find_part(args.now, args.key_map, reinterpret_cast<int*>(shared.tiles[0]), part))
            return;
    } else if (on_device) {
        wait_for_previous_kernel();
        part = found_part(args.now.found + blockIdx.x);
        if (part.piece.parts == 0) return;
    } else {
        part.piece = args.parts[blockIdx.x];
        if constexpr (kLists) part.lists = first_lists(args, part.piece);
    }
    const TilePart& piece = part.piece;
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

    if (threadIdx.x == 0) shared.ring.init(Rows::kConsumers);
    for (int place = threadIdx.x; place < Rows::kRows; place += Rows::kThreads) {
        const int row = row_at<Rows>(place);
        const int seen =
            row < rows ? seen_keys(args.visible, tile.query + row / args.groups) - part.fewer : 0;
        const RowRule own(rule, max(seen, 0), BlockSize);
        shared.limit[place] = own.limit;
        if constexpr (kLists) shared.lists.keep(place, own.kept);
    }
    if constexpr (kLists) shared.lists.clear(Rows::kThreads);
    __syncthreads();

    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == Rows::kConsumers) {
        setmaxnreg_dec<Rows::kProducerRegisters>();
        // Keys of few rows are read once: what else L2 has, as instructions, may stay.
        constexpr Keep keep = Rows::kConsumers == 1 ? Keep::shortest : Keep::normal;
        const int producers = args.key_map.paged() ? kWarp : 1;
        if (static_cast<int>(threadIdx.x) % kWarpgroup >= producers) return;
        if (!args.keys_settled) wait_for_previous_kernel();
        if (producers == 1)
            produce<Shape>(&args.index_k, 0, tile.key + int64_t{first_tile} * kTileKeys,
                           count * kStagesPerTile, shared.tiles[0], shared.ring, keep);
        else
            produce_pages<Shape>(&args.index_k, args.key_map, 0,
                                 args.key_map.first(tile) + first_tile * kTileKeys,
                                 count * kStagesPerTile, shared.tiles[0], shared.ring, keep);
        return;
    }
    wait_for_previous_kernel();
    launch_dependents();
    setmaxnreg_inc<Rows::kConsumerRegisters>();
    if (finds) tell_queries(args, part);
    RowOperand<Shape> operand[Rows::kHalves];
    const int row_bytes = args.index_dim * Shape::kBytes;
    const int64_t query_bytes = int64_t{args.groups} * row_bytes;
#pragma unroll
    for (int half = 0; half < Rows::kHalves; ++half) {
        const int place = first_row<Rows>(warpgroup, half);
        operand[half].load(static_cast<const char*>(args.index_q) + tile.query * query_bytes,
                           query_bytes, args.groups, rows,
                           {row_at<Rows>(place), row_at<Rows>(place + 8)}, row_bytes);
    }

    const int lane = threadIdx.x % kWarp;
    const int warp_place = first_row<Rows>(warpgroup, 0) - lane / 4;  // of half 0
    const Turns turns(warpgroup, Rows::kConsumers, count);
    const auto scales = tile_scales<typename Shape::Value>(args, tile, rows, blocks, row_at<Rows>);
    const RowsOfTile<decltype(&row_at<Rows>)> of_tile{args, tile, rows, blocks, row_at<Rows>};
    // body<how many rows a warp takes at once>()
    const auto by_rows = [&](const auto& body) {
        if constexpr (Rows::kConsumers == 1)
            if (rows <= kFewRows) return body.template operator()<1>();
        body.template operator()<4>();
    };
    auto merge = [&](int half, int end, bool all) {  // after `end` tiles, those whose turn it is
        __syncwarp();
        const int begin_turn = all ? 0 : turns.turn(end);
        const int end_turn = all ? Turns::kTurns : begin_turn + 1;
        const int first = warp_place + half * kHalfRows, stop = first + end_turn * Turns::kRows;
        by_rows([&]<int AtOnce>() {
            for (int place = first + begin_turn * Turns::kRows;
                 place < stop && row_at<Rows>(place) < rows; place += AtOnce) {
                const int first_block = first_tile * kBlocksPerTile;
                const int last_block = end * kBlocksPerTile;
                const int begin_block =
                    turns.begin((place - first) / Turns::kRows, end) * kBlocksPerTile;
                if constexpr (!kLists)
                    write_scores<AtOnce>(of_tile, shared, scales, place, first_block, begin_block,
                                         last_block);
                else
                    offer_scores<AtOnce>(shared, rule, scales, place, first_block, begin_block,
                                         last_block);
            }
        });
        __syncwarp();
    };
    // Of this thread's maxima. asm keeps them in registers, or they are found again for every tile.
    int own_place = warp_place + lane / 4 + 8 * (lane % 2), own_block = lane % 4 / 2;
    asm volatile("" : "+r"(own_place), "+r"(own_block));
    bool no_negative[Rows::kHalves] = {};  // whether the list is past negative scores
    float earlier[Rows::kHalves] = {};
    consume(operand, count * kStagesPerTile, shared.tiles[0], shared.ring,
            [&](int half, int stage, const typename Shape::Sum(&sum)[Shape::kSums]) {
                const int t = stage / kStagesPerTile, piece = stage % kStagesPerTile;
                const int place = own_place + half * kHalfRows;
                store_maxima<BlockSize, Shape>(sum, shared.scores, place, own_block,
                                               t % Turns::kTiles * kBlocksPerTile, piece,
                                               no_negative[half], earlier[half]);
                if (piece == kStagesPerTile - 1 && (t == count - 1 || turns.due(t + 1))) {
                    merge(half, t + 1, t == count - 1);
                    if constexpr (kLists) no_negative[half] = !shared.lists.takes_negative(place);
                }
            });

    if constexpr (kLists) {
        __syncwarp();
        by_rows([&]<int AtOnce>() {
            for (int half = 0; half < Rows::kHalves; ++half)
                write_lists<Kept, AtOnce>(args, shared, piece, part.lists,
                                          warp_place + half * kHalfRows, 16, row_at<Rows>);
        });
    }
}

/// The parts of a call with lengths on the device, those of the last queries first: they see the
/// most keys of their sequence.
__global__ void __launch_bounds__(kWarpgroup)
    find_parts(const __grid_constant__ IndexSelectArgs args) {
    extern __shared__ int keys_of_tile[];
    if (!args.keys_settled) wait_for_previous_kernel();
    PartNow part{};
    const bool any = find_part(args.now, args.key_map, keys_of_tile, part);
    // An earlier call may still read the memory that is written from here on.
    wait_for_previous_kernel();
    launch_dependents();
    if (any) tell_queries(args, part);
    if (threadIdx.x == 0) args.now.found[gridDim.x - 1 - blockIdx.x] = any ? part : PartNow{};
}
struct FindShared {
    int keys_of_tile[kMostTilesNow];
};
cudaError_t launch_find(const IndexSelectArgs& args, cudaStream_t stream) {
    const cudaError_t error = allow_shared<FindShared>(find_parts);
    if (error != cudaSuccess) return error;
    return launch_early(find_parts, dim3(static_cast<unsigned>(args.part_count)), kWarpgroup,
                        sizeof(int) * static_cast<size_t>(args.now.tile_count), stream, args);
}

template <typename Shape, typename Rows, int BlockSize, int Kept, Result Made = Result::lists>
cudaError_t launch(const IndexSelectArgs& args, cudaStream_t stream,
                   const CandidateExchange* exchange) {
    using S = Shared<Shape, Rows, Kept, Made>;
    auto* const kernel = index_select<Shape, Rows, BlockSize, Kept, Made>;
    cudaError_t error = allow_shared<S>(kernel);
    const dim3 grid(static_cast<unsigned>(args.part_count));
    if (args.now.found != nullptr && error == cudaSuccess) error = launch_find(args, stream);
    if (error != cudaSuccess) return error;
    error = launch_early(kernel, grid, Rows::kThreads, sizeof(S), stream, args);
    if (Made != Result::lists || args.most_parts == 1 || error != cudaSuccess) return error;
    if (exchange == nullptr && has_few_parts(args))
        return launch_early(merge_few<Kept>, merge_few_blocks(args), kMergeRows * kWarp, 0, stream,
                            args);
    const int threads = merge_threads<Kept>(args, exchange);
    const auto rows = static_cast<unsigned>(args.queries * args.groups);
    if (exchange != nullptr)
        return launch_early(merge_splits<Kept, true>, rows, threads, 0, stream, args, *exchange);
    return launch_early(merge_splits<Kept, false>, rows, threads, 0, stream, args,
                        CandidateExchange{});
}

template <typename Shape, typename Rows>
cudaError_t launch_rows(const IndexSelectArgs& args, cudaStream_t stream,
                        const CandidateExchange* exchange) {
    return by_block_size(args.block_size, [&]<int BlockSize>() {
        // 16 has no meaning where no lists are made.
        if (args.scores.scores != nullptr)
            return launch<Shape, Rows, BlockSize, 16, Result::scores>(args, stream, nullptr);
        return args.rule.top_k <= 16 ? launch<Shape, Rows, BlockSize, 16>(args, stream, exchange)
                                     : launch<Shape, Rows, BlockSize, 32>(args, stream, exchange);
    });
}

template <typename Shape>
cudaError_t launch_shape(const IndexSelectArgs& args, cudaStream_t stream,
                         const CandidateExchange* exchange) {
    return args.decode ? launch_rows<Shape, DecodeRows>(args, stream, exchange)
                       : launch_rows<Shape, SelectRows<Shape>>(args, stream, exchange);
}

}  // namespace

template <typename T>
cudaError_t launch_index_select_sm90(const IndexSelectArgs& args, cudaStream_t stream,
                                     const CandidateExchange* exchange) {
    const auto launch_dim = [&]<int Dim>() {
        return launch_shape<ScoreShape<Dim, T, index_stage_keys(Dim * sizeof(T))>>(args, stream,
                                                                                   exchange);
    };
    return by_index_dim(args.index_dim, launch_dim);
}

#define MSA_INSTANTIATE(T)                                                                 \
    template cudaError_t launch_index_select_sm90<T>(const IndexSelectArgs&, cudaStream_t, \
                                                     const CandidateExchange*);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
