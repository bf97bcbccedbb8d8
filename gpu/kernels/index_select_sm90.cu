// SPDX-License-Identifier: MIT
// index_select fused: scores of blocks, and the best k of each row, in one pass over the keys.
//
//   producer    one thread streams tiles of 128 keys through a ring in shared memory (TMA)
//   consumers   hold their rows (query, group) as an operand in registers, multiply it with a tile
//               (wgmma) and reduce the products of each block to their maximum, per row
//   merge       every 32 blocks, a warp merges the maxima of a row into its list of the best k,
//               which stays in shared memory
//   write_ids   at the end, a list and the forced blocks become ascending ids
// The local block needs no score, so every scored block is wholly visible and nothing is masked.
//
// Where few queries share their keys (decode), tiles have 64 rows, and the keys are split over the
// chip: each part writes its list, and merge_splits, a second kernel, makes one list of a row's.
//
// The producer may start before the kernel ahead has ended, where nothing ahead writes the keys
// (IndexSelectArgs::keys_settled). The queries are always waited for.
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/merge_turns.cuh"
#include "gpu/device/rank_exchange.cuh"
#include "gpu/device/row_lists.cuh"
#include "gpu/device/row_rule.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/index_select_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;
static_assert(kIndexPrefillRows == PrefillRows::kRows && kIndexDecodeRows == DecodeRows::kRows &&
              kIndexTileKeys == kTileKeys);

/// Rows of many queries. Four warpgroups of operands of 8 bits fit: while one merges, three
/// multiply.
template <typename T>
using SelectRows = std::conditional_t<sizeof(T) == 1, TileRows<4, 1>, PrefillRows>;
static_assert(SelectRows<__nv_fp8_e4m3>::kRows == kIndexPrefillRows);

template <typename Shape, typename Rows, int Kept>
struct Shared {
    static constexpr bool kManyWarps = Rows::kConsumers == 4;
    // What fits beside the lists; of few rows, twice on an SM.
    static constexpr int kRingBytes = Rows::kConsumers == 1      ? 65536
                                      : kManyWarps && Kept == 32 ? 81920
                                                                 : 131072;
    static constexpr int kStages = kRingBytes / Shape::kTileBytes;
    char tiles[kStages][Shape::kTileBytes];
    RowBuffer<Rows> scores;
    std::conditional_t<kManyWarps, WaitingLists<Rows::kRows, Kept>, SortedLists<Rows::kRows, Kept>>
        lists;
    int limit[Rows::kRows];  // candidates are blocks [forced_first, limit)
    Ring<kStages> ring;
};

/// The tile's row at a place: neighbours are with different warps, so that few keep all busy.
template <typename Rows>
__device__ int row_at(int place) {
    constexpr int kWarps = Rows::kRows / 16;
    return place % 16 * kWarps + place / 16;
}

/// The lists of one row that the splits made, and the score of each one's first key once more, as
/// the key has it.
template <int Kept>
struct SplitLists {
    uint64_t* lists;
    uint32_t* heads;
    __device__ SplitLists(const IndexSelectArgs& args, int64_t row)
        : lists(args.partial + row * args.splits * (Kept + 1)),
          heads(reinterpret_cast<uint32_t*>(lists + args.splits * Kept)) {}
    __device__ uint64_t* list(int split) const { return lists + int64_t{split} * Kept; }
};

/// Offers the scores of this part's blocks [begin, end), at most 32, to `Places` rows of the warp,
/// from `place` on: at once, as each waits for its exchanges. `first`: id of the part's block 0.
template <int Places, typename S>
__device__ void offer_scores(S& shared, const DeviceRule& rule, float scale, int place, int first,
                             int begin, int end) {
    const int block = end - kWarp + static_cast<int>(threadIdx.x % kWarp), id = first + block;
    const bool counts = block >= begin && id >= rule.forced_first;
    float score[Places];
#pragma unroll
    for (int n = 0; n < Places; ++n) {  // reads, whether they count or not, wait for nothing
        const float scaled = scale * shared.scores.at(place + n, block & (kWarp - 1));
        score[n] = counts & (id < shared.limit[place + n]) ? scaled : -INFINITY;
    }
    shared.lists.offer(place, score, id);
}

template <typename Shape, typename Rows, int BlockSize, int Kept>
__global__ void __launch_bounds__(Rows::kThreads, Rows::kBlocksPerSm)
    index_select(const __grid_constant__ IndexSelectArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using S = Shared<Shape, Rows, Kept>;
    auto& shared = *reinterpret_cast<S*>(memory);
    constexpr int kBlocksPerTile = kTileKeys / BlockSize;
    constexpr int kAtOnce = Rows::kConsumers == 1 ? 1 : 4;  // one a warp where there are few
    using Turns = MergeTurns<kBlocksPerTile, kMergeTurns<Shape, Rows>>;

    const QueryTile tile = args.tiles[blockIdx.x];
    const int rows = tile.queries * args.groups;
    const DeviceRule& rule = args.rule;
    const int blocks = (tile.most_visible + BlockSize - 1) / BlockSize - rule.forced_local;
    const int all_tiles = max(0, (blocks + kBlocksPerTile - 1) / kBlocksPerTile);
    const auto split_start = [&](int split) {
        return static_cast<int>(int64_t{all_tiles} * split / args.splits);
    };
    const int first_tile = split_start(static_cast<int>(blockIdx.y));
    const int count = split_start(static_cast<int>(blockIdx.y) + 1) - first_tile;
    const int64_t first_key = tile.key + int64_t{first_tile} * kTileKeys;

    if (threadIdx.x == 0) shared.ring.init(Rows::kConsumers);
    for (int place = threadIdx.x; place < Rows::kRows; place += Rows::kThreads) {
        const int row = row_at<Rows>(place);
        const RowRule own(rule,
                          row < rows ? seen_keys(args.visible, tile.query + row / args.groups) : 0,
                          BlockSize);
        shared.limit[place] = own.limit;
        shared.lists.clear(place, own.kept);
    }
    __syncthreads();

    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == Rows::kConsumers) {
        setmaxnreg_dec<Rows::kProducerRegisters>();
        if (threadIdx.x % kWarpgroup == 0) {
            if (!args.keys_settled) wait_for_previous_kernel();
            // Keys of few rows are read once: what else L2 has, as instructions, may stay.
            produce<Shape>(&args.index_k, 0, first_key, count, shared.tiles[0], shared.ring,
                           Rows::kConsumers == 1 ? Keep::shortest : Keep::normal);
        }
        return;
    }
    wait_for_previous_kernel();
    launch_dependents();
    setmaxnreg_inc<Rows::kConsumerRegisters>();
    RowOperand<Shape> operand[Rows::kHalves];
    const int64_t query_bytes = int64_t{args.groups} * Shape::kRowBytes;
    for (int half = 0; half < Rows::kHalves; ++half) {
        const int place = first_row<Rows>(warpgroup, half);
        operand[half].load(static_cast<const char*>(args.index_q) + tile.query * query_bytes,
                           query_bytes, args.groups, rows,
                           {row_at<Rows>(place), row_at<Rows>(place + 8)});
    }

    const int lane = threadIdx.x % kWarp;
    const int warp_place = first_row<Rows>(warpgroup, 0) - lane / 4;  // of half 0
    const Turns turns(warpgroup, Rows::kConsumers);
    auto merge = [&](int half, int end, bool all) {  // after `end` tiles, those whose turn it is
        __syncwarp();
        const int begin_turn = all ? 0 : turns.turn(end);
        const int end_turn = all ? Turns::kTurns : begin_turn + 1;
        const int first = warp_place + half * kHalfRows, stop = first + end_turn * Turns::kRows;
        for (int place = first + begin_turn * Turns::kRows;
             place < stop && row_at<Rows>(place) < rows; place += kAtOnce)
            offer_scores<kAtOnce>(shared, rule, args.scale, place, first_tile * kBlocksPerTile,
                                  turns.begin((place - first) / Turns::kRows, end) * kBlocksPerTile,
                                  end * kBlocksPerTile);
        __syncwarp();
    };
    consume(operand, count, shared.tiles[0], shared.ring,
            [&](int half, int t, const float(&sum)[kSums]) {
                const int column = t % Turns::kTiles * kBlocksPerTile;
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    float best[kBlocksPerTile];
#pragma unroll
                    for (int b = 0; b < kBlocksPerTile; ++b)
                        best[b] = row_max<BlockSize>(sum, side, b);
#pragma unroll
                    for (int b = 0; b < kBlocksPerTile; ++b)
                        if (lane % 4 == side)
                            shared.scores.at(warp_place + half * kHalfRows + lane / 4 + 8 * side,
                                             column + b) = best[b];
                }
                if (t == count - 1 || turns.due(t + 1)) merge(half, t + 1, t == count - 1);
            });

    __syncwarp();
    for (int half = 0; half < Rows::kHalves; ++half) {
        for (int i = 0; i < 16; i += kAtOnce) {
            const int place = warp_place + half * kHalfRows + i;
            if (row_at<Rows>(place) >= rows) break;
            WarpTopK list[kAtOnce];
            shared.lists.whole(place, list);
            int32_t id[kAtOnce]{}, *ids[kAtOnce]{};
#pragma unroll
            for (int n = 0; n < kAtOnce && row_at<Rows>(place + n) < rows; ++n) {
                const int64_t out_row = tile.query * args.groups + row_at<Rows>(place + n);
                if (args.splits == 1) {
                    ids[n] = args.ids + out_row * rule.top_k;
                    id[n] = unsorted_id(list[n], rule.top_k,
                                        shared.limit[place + n] + rule.forced_local,
                                        rule.forced_first, rule.forced_local);
                    continue;
                }
                const SplitLists<Kept> to(args, out_row);
                if (lane < Kept) to.list(blockIdx.y)[lane] = list[n].key;
                if (lane == 0) to.heads[blockIdx.y] = static_cast<uint32_t>(list[n].key >> 32);
            }
            if (args.splits == 1) write_ids(id, rule.top_k, ids);
        }
    }
}

/// A row's best keys of this part, in order, go to all ranks; the keys of all come to `all`.
template <int Kept>
__device__ RowRule exchange_keys(const CandidateExchange& x, int block_size, int groups,
                                 const uint64_t* best, uint64_t* all) {
    const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
    const int other = lane / Kept, slot = lane % Kept;
    const uint32_t round = __ldcg(x.rounds + row) + 1;
    if (other < x.ranks) {
        const uint64_t key = best[slot];
        put_word(x.inbox[other] + word_at(x, round, x.rank, row, slot), static_cast<uint32_t>(key),
                 static_cast<uint32_t>(key >> 32), round);
        const uint2 word = take_word(x.inbox[x.rank] + word_at(x, round, other, row, slot), round);
        all[lane] = (uint64_t{word.y} << 32) | word.x;
    }
    __syncthreads();
    if (lane == 0) x.rounds[row] = round;
    return {x.rule, seen_keys(x.visible, row / groups), block_size};
}

/// Of the picked blocks, in any order, those of this part, as ids of the part.
template <int Kept>
__device__ void write_own_ids(const CandidateExchange& x, const RowRule& part, int top_k,
                              uint64_t key, bool stays, const int (&staying)[Kept]) {
    const int lane = static_cast<int>(threadIdx.x);
    const int block = block_of(key), end = x.first_block + x.blocks;
    int place = part.first, own = 0;
#pragma unroll
    for (int n = 0; n < Kept; ++n) {
        const bool mine = staying[n] >= x.first_block && staying[n] < end;
        own += mine;
        place += mine && staying[n] < block;
    }
    int32_t* const ids = x.own_ids + int64_t{blockIdx.x} * top_k;
    if (stays && block >= x.first_block && block < end) ids[place] = block - x.first_block;
    const int newest = lane - part.first - own;  // behind those of both
    if (lane < part.first) ids[lane] = lane;
    if (newest >= 0 && lane < top_k)
        ids[lane] = newest < part.local ? part.visible - part.local + newest : -1;
}

/// Merges the lists of the splits: a thread block per row, a thread per head, 32 / Kept lists at a
/// time per warp. The k-th best of the best heads at each lane bounds the k-th best key from below,
/// so most lists are never read, and few keys are left to be ranked.
/// Where keys are divided among ranks (Exchanged), the best of this one are exchanged first.
template <int Kept, bool Exchanged>
__global__ void __launch_bounds__(kMostIndexSplits)
    merge_splits(const __grid_constant__ IndexSelectArgs args,
                 const __grid_constant__ CandidateExchange exchange) {
    __shared__ uint32_t heads[kMostIndexSplits];
    __shared__ int lists[kMostIndexSplits];
    __shared__ uint64_t found[kMostIndexSplits];  // at most 32 of each warp
    __shared__ int list_count, found_count;
    __shared__ uint32_t least;  // score of any key that may stay
    __shared__ int staying[Kept];
    const int lane = threadIdx.x % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
    const int split = static_cast<int>(threadIdx.x);
    const int64_t row = blockIdx.x;
    launch_dependents();
    RowRule own(args.rule, seen_keys(args.visible, row / args.groups), args.block_size);
    const int kept = max(own.kept, 1);  // of none kept, the list is not read
    const SplitLists<Kept> from(args, row);
    // Places in a row that several warps fill, in any order.
    auto append = [&](auto* to, int& count, bool wanted, auto value) {
        const uint32_t all = __ballot_sync(kAllLanes, wanted);
        int at = lane == 0 && all != 0 ? atomicAdd(&count, __popc(all)) : 0;
        at = __shfl_sync(kAllLanes, at, 0);
        if (wanted) to[at + __popc(all & ((1U << lane) - 1))] = value;
    };

    wait_for_previous_kernel();
    const uint32_t head = split < args.splits ? __ldcg(from.heads + split) : 0;
    heads[split] = head;
    if (split < Kept) staying[split] = INT32_MAX;
    __syncthreads();
    if (split < kWarp) {  // alone, it is faster than all of them
        uint32_t best = head;
#pragma unroll 4
        for (int w = 1; w < warps; ++w) best = max(best, heads[w * kWarp + lane]);
        int better = 0;
#pragma unroll
        for (int step = 1; step < kWarp; ++step)
            better += __shfl_xor_sync(kAllLanes, best, step) > best;
        least = max(1U, __reduce_min_sync(kAllLanes, better < kept ? best : UINT32_MAX));
        list_count = found_count = 0;
    }
    __syncthreads();
    append(lists, list_count, head >= least, split);
    __syncthreads();

    constexpr int kAtOnce = kWarp / Kept;
    const auto key_at = [&](int n) {  // of lists n to n + kAtOnce - 1, where it may matter
        const int mine = n + lane / Kept;
        const uint64_t key = mine < list_count ? __ldcg(from.list(lists[mine]) + lane % Kept) : 0;
        return key >> 32 >= least ? key : 0;
    };
    const int first = (split - lane) / Kept, step = warps * kAtOnce;
    WarpTopK list{key_at(first)};
    if (first + step < list_count) list.key = sort_descending(list.key);
    for (int n = first + step; n < list_count; n += step) {
        const uint64_t key = key_at(n);
        list.offer(key, __ballot_sync(kAllLanes, key != 0));
    }
    append(found, found_count, list.key != 0, list.key);
    __syncthreads();

    // A key's rank tells whether it stays, the rank of its block among those that stay, where.
    int all = found_count;
    uint64_t key = split < all ? found[split] : 0;
    auto rank_of_key = [&](int count) {
        int rank = 0;
        if (split - lane < count)
#pragma unroll 8
            for (int n = 0; n < count; ++n) rank += found[n] > key;
        return rank;
    };
    int rank = rank_of_key(all);
    const RowRule part = own;
    if constexpr (Exchanged) {
        __shared__ uint64_t best[Kept];
        if (split < Kept) best[split] = 0;
        __syncthreads();
        // Blocks by their numbers in the whole sequence; a key has the complement.
        if (key != 0 && rank < Kept) best[rank] = key - static_cast<uint32_t>(exchange.first_block);
        __syncthreads();
        own = exchange_keys<Kept>(exchange, args.block_size, args.groups, best, found);
        key = split < exchange.ranks * Kept ? found[split] : 0;
        rank = rank_of_key(exchange.ranks * Kept);
        all = __syncthreads_count(key != 0);
    }
    const bool stays = key != 0 && rank < own.kept;
    if (stays) staying[rank] = block_of(key);
    __syncthreads();
    int place = own.first;
#pragma unroll
    for (int n = 0; n < Kept; ++n) place += staying[n] < block_of(key);
    int32_t* const ids = args.ids + row * args.rule.top_k;
    if (stays) ids[place] = block_of(key);
    const int newest = split - own.first - min(all, own.kept);  // behind those of both
    if (split < own.first) ids[split] = split;
    if (newest >= 0 && split < args.rule.top_k)
        ids[split] = newest < own.local ? own.visible - own.local + newest : -1;
    if constexpr (Exchanged)
        write_own_ids<Kept>(exchange, part, args.rule.top_k, key, stays, staying);
}

template <typename Shape, typename Rows, int BlockSize, int Kept>
cudaError_t launch(const IndexSelectArgs& args, cudaStream_t stream,
                   const CandidateExchange* exchange) {
    using S = Shared<Shape, Rows, Kept>;
    auto* const kernel = index_select<Shape, Rows, BlockSize, Kept>;
    cudaError_t error = allow_shared<S>(kernel);
    if (error != cudaSuccess) return error;
    const dim3 grid(static_cast<unsigned>(args.tile_count), static_cast<unsigned>(args.splits));
    error = launch_early(kernel, grid, Rows::kThreads, sizeof(S), stream, args);
    if (args.splits == 1 || error != cudaSuccess) return error;
    // Two threads per list, so that those that matter are read in fewer rounds.
    const int wanted = max(2 * args.splits, exchange != nullptr ? exchange->ranks * Kept : 0);
    const int threads = min(kMostIndexSplits, static_cast<int>(ceil_div(wanted, kWarp)) * kWarp);
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
        return args.rule.top_k <= 16 ? launch<Shape, Rows, BlockSize, 16>(args, stream, exchange)
                                     : launch<Shape, Rows, BlockSize, 32>(args, stream, exchange);
    });
}

template <typename Shape>
cudaError_t launch_shape(const IndexSelectArgs& args, cudaStream_t stream,
                         const CandidateExchange* exchange) {
    return args.decode
               ? launch_rows<Shape, DecodeRows>(args, stream, exchange)
               : launch_rows<Shape, SelectRows<typename Shape::Value>>(args, stream, exchange);
}

}  // namespace

template <typename T>
cudaError_t launch_index_select_sm90(const IndexSelectArgs& args, cudaStream_t stream,
                                     const CandidateExchange* exchange) {
    return args.index_dim == 64 ? launch_shape<ScoreShape<64, T>>(args, stream, exchange)
                                : launch_shape<ScoreShape<128, T>>(args, stream, exchange);
}
template cudaError_t launch_index_select_sm90<MSA_KERNEL_ELEMENT>(const IndexSelectArgs&,
                                                                  cudaStream_t,
                                                                  const CandidateExchange*);

}  // namespace msa::cuda
