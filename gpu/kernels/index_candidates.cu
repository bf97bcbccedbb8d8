// SPDX-License-Identifier: MIT
#include <algorithm>

#include "gpu/device/row_rule.cuh"
#include "gpu/device/row_scores.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/index_candidates.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kScanThreads = 1024;

/// The threads that work on one row: a warp, or a thread block.
template <int Threads>
struct Team {
    static_assert(Threads == kWarp || Threads % kWarp == 0);
    struct Shared {
        int part[2][Threads / kWarp];
        int places[3];
    };
    Shared& shared;
    int turn = 0;  // of the halves of `part`: a sum is read while the next is written

    __device__ static int thread() { return static_cast<int>(threadIdx.x) % Threads; }
    __device__ int sum(int value) {
        value = __reduce_add_sync(kAllLanes, value);
        if constexpr (Threads > kWarp) {
            int* const part = shared.part[turn ^= 1];
            if (threadIdx.x % kWarp == 0) part[threadIdx.x / kWarp] = value;
            __syncthreads();
            value = 0;
#pragma unroll
            for (int w = 0; w < Threads / kWarp; ++w) value += part[w];
        }
        return value;
    }
    __device__ void clear_places() {
        if (thread() < 3) shared.places[thread()] = 0;
        sync();
    }
    /// The next free place of a list, for each thread that wants one.
    __device__ int place(int list, bool wanted) {
        const uint32_t all = __ballot_sync(kAllLanes, wanted);
        const int lane = threadIdx.x % kWarp;
        int at = lane == 0 && all != 0 ? atomicAdd(&shared.places[list], __popc(all)) : 0;
        at = __shfl_sync(kAllLanes, at, 0);
        return at + __popc(all & ((1U << lane) - 1));
    }
    __device__ void sync() const {
        if constexpr (Threads > kWarp)
            __syncthreads();
        else
            __syncwarp();
    }
};

/// The n-th largest of the team's keys, 0 if there are fewer that are not 0. `reach(key)`: how many
/// of the thread's keys are at least `key`.
template <typename Team, typename Reach>
__device__ uint32_t nth_largest(Team& team, int n, Reach reach) {
    uint32_t found = 0;
    for (int bit = 31; bit >= 0; --bit) {
        const uint32_t tried = found | 1U << bit;
        if (team.sum(reach(tried)) >= n) found = tried;
    }
    return found;
}

/// What the pass over the copy says of a row's blocks, numbered from the first that counts.
struct RowBounds {
    const float* bounds;  // upper ones
    const float* coarse_blocks;
    CoarseRow row;
    int first, count;  // ids

    __device__ RowBounds(const IndexSelectArgs& args, const QueryTile& tile, int64_t of, int limit)
        : bounds(args.scores.of_row(of) + args.rule.forced_first),
          coarse_blocks(args.coarse_blocks +
                        3 * (int64_t{tile.first_block} + args.rule.forced_first)),
          row(args.coarse_rows[of]),
          first(args.rule.forced_first),
          count(max(0, limit - first)) {}
    __device__ uint32_t upper(int n) const { return ordered_key(bounds[n]); }
    __device__ uint32_t lower(int n) const {
        const CoarseBlock of = coarse_block(coarse_blocks, n);
        return ordered_key(bounds[n] - 2 * row.error(of.norm, of.error));
    }
};

/// A row's blocks of which some may be among its best, in shared memory, spread over a team.
template <int Threads>
struct Listed {
    static constexpr int kMost = most_candidates(Threads == kWarp ? 0 : INT_MAX);
    uint32_t upper[kMost], lower[kMost];  // bounds (ordered_key); 0: none
    int id[kMost];

    /// Those whose upper bound is at least `reached`, at least 1. Their number becomes that of the
    /// team's places 0; of more than kMost, some are missing.
    __device__ void fill(Team<Threads>& team, const RowBounds& from, uint32_t reached) {
        for (int begin = 0; begin < from.count; begin += Threads) {
            const int n = begin + team.thread();
            const uint32_t bound = n < from.count ? from.upper(n) : 0;
            const int at = team.place(0, bound >= reached);
            if (bound < reached || at >= kMost) continue;
            upper[at] = bound, lower[at] = from.lower(n), id[at] = from.first + n;
        }
        team.sync();
    }
    __device__ static uint32_t nth(Team<Threads>& team, const uint32_t (&key)[kMost], int count,
                                   int n) {
        return nth_largest(team, n, [&](uint32_t tried) {
            int reach = 0;
            for (int at = team.thread(); at < count; at += Threads) reach += key[at] >= tried;
            return reach;
        });
    }
};

/// A bound that the lower bounds of at least n blocks reach, at least 1: the n-th largest of the
/// threads' best. Most often it is the n-th best lower bound of all, or one a few places below.
template <int Threads>
__device__ uint32_t reached_by(Team<Threads>& team, const RowBounds& from, int n) {
    constexpr int kBest = Threads == kWarp ? 4 : 1;  // of a thread
    uint32_t best[kBest]{};
    for (int begin = team.thread(); begin < from.count; begin += kBest * Threads)
#pragma unroll
        for (int e = 0; e < kBest; ++e) {
            const int at = begin + e * Threads;
            if (at < from.count) best[e] = max(best[e], from.lower(at));
        }
    const uint32_t found = nth_largest(team, n, [&](uint32_t tried) {
        int reach = 0;
#pragma unroll
        for (int e = 0; e < kBest; ++e) reach += best[e] >= tried;
        return reach;
    });
    return max(1U, found);
}

template <int Threads>
__device__ void find_of_row(const IndexCandidates& args, const QueryTile& tile, int row_of_tile,
                            Team<Threads>& team, Listed<Threads>& list) {
    const IndexSelectArgs& of = args.pass;
    const int64_t row = tile.query * of.groups + row_of_tile;
    const int64_t place = row - of.scores.first_row;  // in the piece
    const RowRule own(of.rule, seen_keys(of.visible, row / of.groups), of.block_size);
    const RowBounds from(of, tile, row, own.limit);
    const int kept = max(own.kept, 0);
    team.clear_places();
    int listed = 0;
    if (kept > 0) {
        list.fill(team, from, reached_by(team, from, kept));
        listed = team.shared.places[0];
    }
    const bool marked = listed > list.kMost;
    if (marked) listed = 0;
    // Of a block that is above the second, at most `kept` blocks reach the lower bound, itself
    // included. An n-th of 0 is of fewer than n.
    const uint32_t least = max(1U, list.nth(team, list.lower, listed, kept));
    const uint32_t sure_above = list.nth(team, list.upper, listed, kept + 1);
    const auto is_sure = [&](int at) { return at < listed && list.lower[at] > sure_above; };
    const auto is_open = [&](int at) {
        return at < listed && list.upper[at] >= least && !(list.lower[at] > sure_above);
    };
    int sure = 0, again = 0;
    for (int at = team.thread(); at < listed; at += Threads)
        sure += is_sure(at), again += is_open(at);
    sure = team.sum(sure);
    again = sure >= kept ? 0 : team.sum(again);
    if (team.thread() == 0) {
        args.rows[place] = {static_cast<uint16_t>(sure), static_cast<uint16_t>(again)};
        args.marked[row] = marked ? 1 : 0;
    }
    for (int begin = 0; begin < listed; begin += Threads) {
        const int at = begin + team.thread();
        const bool in = is_sure(at), open = again > 0 && is_open(at);
        const int sure_at = team.place(1, in), open_at = team.place(2, open);
        if (in) of.ids[row * of.rule.top_k + sure_at] = list.id[at];
        if (!open) continue;
        args.blocks[place * args.most + open_at] = list.id[at];
        atomicAdd(args.counts + tile.first_block + list.id[at], 1);
    }
    team.sync();
}

template <int Threads>
__global__ void __launch_bounds__(std::max(Threads, kThreads))
    find(const __grid_constant__ IndexCandidates args) {
    constexpr int kTeams = std::max(Threads, kThreads) / Threads;
    __shared__ typename Team<Threads>::Shared shared[kTeams];
    __shared__ Listed<Threads> list[kTeams];
    const int own = static_cast<int>(threadIdx.x) / Threads;
    Team<Threads> team{shared[own]};
    const QueryTile tile = args.tiles[blockIdx.x];
    const int rows = tile.queries * args.pass.groups;
    for (int row = own + static_cast<int>(blockIdx.y) * kTeams; row < rows;
         row += kTeams * static_cast<int>(gridDim.y))
        find_of_row<Threads>(args, tile, row, team, list[own]);
}

/// A thread block adds up the blocks' uses and work items.
__global__ void __launch_bounds__(kScanThreads) scan(const __grid_constant__ IndexCandidates args) {
    __shared__ int2 warps[kScanThreads / kWarp];
    const auto thread = static_cast<int>(threadIdx.x);
    const int lane = thread % kWarp;
    const int each = (args.all_blocks + kScanThreads - 1) / kScanThreads;
    const int first = min(thread * each, args.all_blocks),
              last = min(first + each, args.all_blocks);
    const auto items = [](int uses) { return (uses + kItemUses - 1) / kItemUses; };
    int2 own{};
    for (int b = first; b < last; ++b) own.x += args.counts[b], own.y += items(args.counts[b]);
    int2 before = own;  // inclusive, of the warp
    for (int step = 1; step < kWarp; step *= 2) {
        const int x = __shfl_up_sync(kAllLanes, before.x, step),
                  y = __shfl_up_sync(kAllLanes, before.y, step);
        if (lane >= step) before.x += x, before.y += y;
    }
    if (lane == kWarp - 1) warps[thread / kWarp] = before;
    __syncthreads();
    before.x -= own.x, before.y -= own.y;
    for (int w = 0; w < thread / kWarp; ++w) before.x += warps[w].x, before.y += warps[w].y;
    for (int b = first; b < last; ++b) {
        args.starts[b] = before.x, args.items[b] = before.y;
        before.x += args.counts[b], before.y += items(args.counts[b]);
    }
    if (thread == kScanThreads - 1)
        args.starts[args.all_blocks] = before.x, args.items[args.all_blocks] = before.y;
}

/// A warp per row. The order of a block's uses has no influence.
__global__ void __launch_bounds__(kThreads) place(const __grid_constant__ IndexCandidates args) {
    const QueryTile tile = args.tiles[blockIdx.x];
    const int64_t first = tile.query * args.pass.groups - args.pass.scores.first_row;
    const int rows = tile.queries * args.pass.groups;
    const int warp = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
    for (int n = warp; n < rows; n += kWarps * static_cast<int>(gridDim.y)) {
        const int64_t row = first + n;
        const int again = args.rows[row].again;
        for (int at = threadIdx.x % kWarp; at < again; at += kWarp) {
            const int64_t use = row * args.most + at;
            const int block = tile.first_block + args.blocks[use];
            const int left = atomicSub(args.counts + block, 1) - 1;
            args.uses[args.starts[block] + left] = static_cast<int32_t>(use);
        }
    }
}

/// A warp per row.
__global__ void __launch_bounds__(kThreads) pick(const __grid_constant__ IndexCandidates args) {
    const IndexSelectArgs& pass = args.pass;
    const int64_t place = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
    const int64_t row = pass.scores.first_row + place;
    if (place >= args.row_count || args.marked[row] != 0) return;
    const RowRule own(pass.rule, seen_keys(pass.visible, row / pass.groups), pass.block_size);
    const int lane = threadIdx.x % kWarp;
    const RowCandidates has = args.rows[place];
    int32_t* const ids = pass.ids + row * pass.rule.top_k;
    const int32_t sure = lane < has.sure ? ids[lane] : 0;
    WarpTopK list;
    for (int begin = 0; begin < has.again; begin += kWarp) {
        const int64_t use = place * args.most + begin + lane;
        const uint64_t key =
            begin + lane < has.again ? candidate_key(args.scores[use], args.blocks[use]) : 0;
        list.offer(key, __ballot_sync(kAllLanes, key > list.threshold(own.kept - has.sure)));
    }
    const int picked =
        max(0, min(own.kept - has.sure, __popc(__ballot_sync(kAllLanes, list.key != 0))));
    // Lanes: those that are surely in, the best of the others, the oldest forced, the newest.
    const int32_t best =
        __shfl_sync(kAllLanes, block_of(list.key), (lane - has.sure) & (kWarp - 1));
    const int first = has.sure + picked, local = first + own.first;
    int32_t id = sure;
    if (lane >= has.sure) id = best;
    if (lane >= first) id = lane - first;
    if (lane >= local) id = own.visible - own.local + (lane - local);
    if (lane >= local + own.local) id = INT32_MAX;
    write_ids<1>({id}, pass.rule.top_k, {ids});
}

template <int Threads>
void launch_find(const IndexCandidates& args, cudaStream_t stream) {
    constexpr int kBlock = std::max(Threads, kThreads);
    constexpr int kBegun = 64 * Threads / kBlock;  // thread blocks of a tile: 64 rows at a time
    find<Threads>
        <<<dim3(static_cast<unsigned>(args.tile_count), kBegun), kBlock, 0, stream>>>(args);
}

}  // namespace

cudaError_t launch_find_candidates(const IndexCandidates& args, cudaStream_t stream) {
    constexpr int kTeam = 256, kParts = 8;  // of a tile's rows
    if (args.most == Listed<kWarp>::kMost)
        launch_find<kWarp>(args, stream);
    else
        launch_find<kTeam>(args, stream);
    scan<<<1, kScanThreads, 0, stream>>>(args);
    place<<<dim3(static_cast<unsigned>(args.tile_count), kParts), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_pick_candidates(const IndexCandidates& args, cudaStream_t stream) {
    pick<<<static_cast<unsigned>((args.row_count + kWarps - 1) / kWarps), kThreads, 0, stream>>>(
        args);
    return cudaGetLastError();
}

}  // namespace msa::cuda
