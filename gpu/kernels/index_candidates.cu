// SPDX-License-Identifier: MIT
#include "gpu/device/row_rule.cuh"
#include "gpu/device/row_scores.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/index_candidates.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kScanThreads = 1024;

/// The threads that work on one row: a warp, or a thread block.
template <int Threads>
struct Team {
    static_assert(Threads == kWarp || Threads % kWarp == 0);
    struct Shared {
        int part[2][Threads / kWarp];
        int places[2];
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
    /// Of values that are at least 0.
    __device__ uint32_t largest(uint32_t value) {
        value = __reduce_max_sync(kAllLanes, value);
        if constexpr (Threads > kWarp) {
            int* const part = shared.part[turn ^= 1];
            if (threadIdx.x % kWarp == 0) part[threadIdx.x / kWarp] = static_cast<int>(value);
            __syncthreads();
#pragma unroll
            for (int w = 0; w < Threads / kWarp; ++w)
                value = max(value, static_cast<uint32_t>(part[w]));
        }
        return value;
    }
    __device__ void clear_places() {
        if (thread() < 2) shared.places[thread()] = 0;
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

/// The n-th largest of the team's keys; 0 if there are fewer that are not 0.
template <int Each, typename Team>
__device__ uint32_t nth_largest(Team& team, const uint32_t (&key)[Each], int n) {
    uint32_t found = 0;
    for (int bit = 31; bit >= 0; --bit) {
        const uint32_t tried = found | 1U << bit;
        int above = 0;
#pragma unroll
        for (int e = 0; e < Each; ++e) above += key[e] >= tried;
        if (team.sum(above) >= n) found = tried;
    }
    return found;
}

/// The listed blocks of one row, spread over the threads of a team.
template <int Threads, int Each>
struct Listed {
    uint32_t upper[Each], lower[Each];  // bounds (ordered_key); 0: none
    int block[Each];
    uint32_t cut = 0;  // what a list has dropped is not above it; 0: nothing was

    __device__ Listed(const IndexSelectArgs& args, const QueryTile& tile, int row_of_tile,
                      int thread) {
        const int64_t query = tile.query + row_of_tile / args.groups;
        const PartLists<kCoarseListed> from(args, args.of_query[query], row_of_tile % args.groups);
        const CoarseRow row = args.coarse_rows[tile.query * args.groups + row_of_tile];
#pragma unroll
        for (int e = 0; e < Each; ++e) {
            const int at = e * Threads + thread;  // of the lists, one after another
            const uint64_t key = at < from.parts * kCoarseListed ? __ldcg(from.list(0) + at) : 0;
            upper[e] = static_cast<uint32_t>(key >> 32);
            block[e] = block_of(key);
            lower[e] = 0;
            if (key == 0) continue;
            const CoarseBlock of = coarse_block(args.coarse_blocks, tile.first_block + block[e]);
            lower[e] = ordered_key(score_of_key(upper[e]) - 2 * row.error(of.norm, of.error));
            if (at % kCoarseListed == kCoarseListed - 1) cut = max(cut, upper[e]);
        }
    }
    /// Leaves the candidates for `kept` places and returns whether these are all there are.
    __device__ bool keep_candidates(Team<Threads>& team, int kept) {
        const uint32_t least = nth_largest(team, lower, kept);
#pragma unroll
        for (int e = 0; e < Each; ++e)
            if (upper[e] < least) upper[e] = lower[e] = 0;
        cut = team.largest(cut);
        return cut == 0 || least > cut;
    }
};

template <int Threads, int Each>
__device__ void find_of_row(const IndexCandidates& args, const QueryTile& tile, int row_of_tile,
                            Team<Threads>& team) {
    const IndexSelectArgs& listed = args.listed;
    const int64_t row = tile.query * listed.groups + row_of_tile;
    const RowRule own(listed.rule, seen_keys(listed.visible, row / listed.groups),
                      listed.block_size);
    const int kept = max(own.kept, 0);
    Listed<Threads, Each> found(listed, tile, row_of_tile, team.thread());
    bool marked = !found.keep_candidates(team, max(kept, 1)) && kept > 0;
    // Of a block that is above it, at most `kept` blocks reach the lower bound, itself included.
    const uint32_t sure_above = nth_largest(team, found.upper, kept + 1);
    int sure = 0, again = 0;
#pragma unroll
    for (int e = 0; e < Each; ++e) {
        sure += found.lower[e] > sure_above;
        again += found.upper[e] != 0 && !(found.lower[e] > sure_above);
    }
    sure = team.sum(sure);
    again = sure >= kept ? 0 : team.sum(again);
    marked |= again > kMostRescored;
    if (marked || kept == 0) sure = again = 0;
    if (team.thread() == 0) {
        args.rows[row] = {static_cast<uint8_t>(sure), static_cast<uint8_t>(again)};
        args.marked[row] = marked ? 1 : 0;
    }
    if (sure + again == 0) return;
    team.clear_places();
#pragma unroll
    for (int e = 0; e < Each; ++e) {
        const bool is_sure = found.lower[e] > sure_above;
        const bool is_open = again > 0 && found.upper[e] != 0 && !is_sure;
        const int sure_at = team.place(0, is_sure), open_at = team.place(1, is_open);
        if (is_sure) listed.ids[row * listed.rule.top_k + sure_at] = found.block[e];
        if (!is_open) continue;
        args.blocks[row * kMostRescored + open_at] = found.block[e];
        atomicAdd(args.counts + tile.first_block + found.block[e], 1);
    }
    team.sync();
}

template <int Threads, int Each>
__global__ void __launch_bounds__(Threads > kThreads ? Threads : kThreads)
    find(const __grid_constant__ IndexCandidates args) {
    constexpr int kTeams = Threads > kThreads ? 1 : kThreads / Threads;
    __shared__ typename Team<Threads>::Shared shared[kTeams];
    const int own = static_cast<int>(threadIdx.x) / Threads;
    Team<Threads> team{shared[own]};
    const QueryTile tile = args.tiles[blockIdx.x];
    const int rows = tile.queries * args.listed.groups;
    for (int row = own + static_cast<int>(blockIdx.y) * kTeams; row < rows;
         row += kTeams * static_cast<int>(gridDim.y))
        find_of_row<Threads, Each>(args, tile, row, team);
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

/// A warp per row, a lane per use. The order of a block's uses has no influence.
__global__ void __launch_bounds__(kThreads) place(const __grid_constant__ IndexCandidates args) {
    const QueryTile tile = args.tiles[blockIdx.x];
    const int64_t first = tile.query * args.listed.groups;
    const int rows = tile.queries * args.listed.groups, lane = threadIdx.x % kWarp;
    for (int n = threadIdx.x / kWarp; n < rows; n += kThreads / kWarp) {
        const int64_t row = first + n;
        if (lane >= args.rows[row].again) continue;
        const int64_t use = row * kMostRescored + lane;
        const int block = tile.first_block + args.blocks[use];
        const int at = atomicSub(args.counts + block, 1) - 1;
        args.uses[args.starts[block] + at] = static_cast<int32_t>(use);
    }
}

/// A warp per row.
__global__ void __launch_bounds__(kThreads) pick(const __grid_constant__ IndexCandidates args) {
    const IndexSelectArgs& listed = args.listed;
    const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
    if (row >= listed.queries * listed.groups || args.marked[row] != 0) return;
    const RowRule own(listed.rule, seen_keys(listed.visible, row / listed.groups),
                      listed.block_size);
    const int lane = threadIdx.x % kWarp;
    const RowCandidates has = args.rows[row];
    int32_t* const ids = listed.ids + row * listed.rule.top_k;
    const int32_t sure = lane < has.sure ? ids[lane] : 0;
    const int64_t use = row * kMostRescored + lane;
    const uint64_t key =
        sort_descending(lane < has.again ? candidate_key(args.scores[use], args.blocks[use]) : 0);
    const int picked = max(0, min(own.kept - has.sure, __popc(__ballot_sync(kAllLanes, key != 0))));
    // Lanes: those that are surely in, the best of the others, the oldest forced, the newest.
    const int32_t best = __shfl_sync(kAllLanes, block_of(key), (lane - has.sure) & (kWarp - 1));
    const int first = has.sure + picked, local = first + own.first;
    int32_t id = sure;
    if (lane >= has.sure) id = best;
    if (lane >= first) id = lane - first;
    if (lane >= local) id = own.visible - own.local + (lane - local);
    if (lane >= local + own.local) id = INT32_MAX;
    write_ids<1>({id}, listed.rule.top_k, {ids});
}

}  // namespace

cudaError_t launch_find_candidates(const IndexCandidates& args, cudaStream_t stream) {
    constexpr int kFew = 4, kTeam = 512;
    const auto tiles = static_cast<unsigned>(args.tile_count);
    if (args.listed.most_parts <= kFew)
        find<kWarp, kFew><<<tiles, kThreads, 0, stream>>>(args);
    else
        find<kTeam, kMostIndexParts * kCoarseListed / kTeam>
            <<<dim3(tiles, static_cast<unsigned>(args.listed.groups)), kTeam, 0, stream>>>(args);
    scan<<<1, kScanThreads, 0, stream>>>(args);
    place<<<tiles, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_pick_candidates(const IndexCandidates& args, cudaStream_t stream) {
    constexpr int kRows = kThreads / kWarp;
    const int64_t rows = args.listed.queries * args.listed.groups;
    pick<<<static_cast<unsigned>((rows + kRows - 1) / kRows), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace msa::cuda
