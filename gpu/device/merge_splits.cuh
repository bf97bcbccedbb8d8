// SPDX-License-Identifier: MIT
// Merges the lists that the parts of index_select made for a row.
#pragma once

#include "gpu/device/early.cuh"
#include "gpu/device/rank_exchange.cuh"
#include "gpu/device/row_rule.cuh"
#include "gpu/device/row_scores.cuh"
#include "gpu/device/seen_keys.cuh"

namespace msa::cuda {
namespace {  // a copy for each kernel, since kernels are compiled for different devices

/// Sends a row's best candidates of this part, in order, to all ranks, and receives those of all
/// ranks in `all`. Returns the rule for the whole sequence.
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

/// Writes the picked blocks that lie in this part, as ids of the part. `staying`: all picked
/// blocks, in any order.
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
    const int newest = lane - part.first - own;  // the newest come after the oldest and the picked
    if (lane < part.first) ids[lane] = lane;
    if (newest >= 0 && lane < top_k)
        ids[lane] = newest < part.local ? part.visible - part.local + newest : -1;
}

/// Merges the lists of the parts. A thread block takes a row, which may have one part and be done;
/// a thread takes the head of a list, its best score; a warp reads 32 / Kept lists at a time. The
/// best heads of the lanes bound the k-th best candidate from below, so most lists are never read,
/// and few candidates are left to be ranked. If keys are divided among ranks (Exchanged), the best
/// of each rank are exchanged first.
template <int Kept, bool Exchanged>
__global__ void __launch_bounds__(kMostIndexParts)
    merge_splits(const __grid_constant__ IndexSelectArgs args,
                 const __grid_constant__ CandidateExchange exchange) {
    __shared__ uint32_t heads[kMostIndexParts];
    __shared__ int lists[kMostIndexParts];
    __shared__ uint64_t found[kMostIndexParts];  // at most 32 of each warp
    __shared__ int list_count, found_count;
    __shared__ uint32_t least;  // the least score (ordered_key) that may stay
    __shared__ int staying[Kept];
    const int lane = threadIdx.x % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
    const int split = static_cast<int>(threadIdx.x);
    const int64_t row = blockIdx.x;
    launch_dependents();
    if (args.now.tiles != nullptr) wait_for_previous_kernel();
    const ListsOfQuery query(args, static_cast<int>(blockIdx.x) / args.groups);
    RowRule own(args.rule, query.seen, args.block_size);
    const int kept = max(own.kept, 1);  // if none is kept, the list is not read
    const PartLists<Kept> from(args, query.lists, static_cast<int>(blockIdx.x) % args.groups);
    // Places in a row that several warps fill, in any order.
    auto append = [&](auto* to, int& count, bool wanted, auto value) {
        const uint32_t all = __ballot_sync(kAllLanes, wanted);
        int at = lane == 0 && all != 0 ? atomicAdd(&count, __popc(all)) : 0;
        at = __shfl_sync(kAllLanes, at, 0);
        if (wanted) to[at + __popc(all & ((1U << lane) - 1))] = value;
    };

    wait_for_previous_kernel();
    if (from.parts == 1) return;
    const uint32_t head = split < from.parts ? __ldcg(from.heads + split) : 0;
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
    const auto key_at = [&](int n) {  // of lists n to n + kAtOnce - 1; 0 if it cannot stay
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

    // A key's rank decides whether it stays. The rank of its block among those that stay is its
    // place.
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
        // Numbers the block in the whole sequence; a key holds the complement of the number.
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
    const int newest = split - own.first - min(all, own.kept);  // after the oldest and the picked
    if (split < own.first) ids[split] = split;
    if (newest >= 0 && split < args.rule.top_k)
        ids[split] = newest < own.local ? own.visible - own.local + newest : -1;
    if constexpr (Exchanged)
        write_own_ids<Kept>(exchange, part, args.rule.top_k, key, stays, staying);
}

/// Threads of merge_splits: two per list, so that the lists that matter are read in fewer rounds.
template <int Kept>
int merge_threads(const IndexSelectArgs& args, const CandidateExchange* exchange) {
    const int wanted = max(2 * args.most_parts, exchange != nullptr ? exchange->ranks * Kept : 0);
    return min(kMostIndexParts, static_cast<int>(ceil_div(wanted, kWarp)) * kWarp);
}

}  // namespace
}  // namespace msa::cuda
