// SPDX-License-Identifier: MIT
#include <cub/block/block_scan.cuh>

#include "gpu/device/exp2.cuh"
#include "gpu/device/mma_tile.cuh"
#include "gpu/kernels/index_kl_mma.h"

namespace msa::cuda {
namespace {

constexpr int kWorkers = 8;  // warps that multiply; of the four behind them, the first fetches
constexpr int kWorkThreads = kWorkers * kWarp, kBlockThreads = kWorkThreads + 4 * kWarp;
constexpr int kWorkRegisters = 240, kFetchRegisters = 24;
constexpr int kThreads = 256, kListThreads = 1024;
constexpr int kStepKeys = 16, kStepQueries = 16;  // of a product
constexpr int kWarpColumns = 32;                  // (query, head) of a warp
constexpr int kMetaBuffers = 3;

unsigned blocks_for(int64_t threads) {
    return static_cast<unsigned>(ceil_div(threads, int64_t{kThreads}));
}

/// The first place from `begin` on, before `end`, where `is_before` does not hold.
template <typename IsBefore>
__device__ int64_t partition_point(int64_t begin, int64_t end, IsBefore is_before) {
    while (begin < end) {
        const int64_t middle = (begin + end) / 2;
        if (is_before(middle))
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/// Keys of the block that the query sees.
__device__ int seen_of_block(const KlBlocks& a, const SequenceBlock& block, int64_t query) {
    const int64_t seen = a.visible[query].count - int64_t{block.block} * a.block_size;
    return static_cast<int>(max(int64_t{0}, min(seen, int64_t{block.keys})));
}

/// The uses of a list by the piece; none where the block is not of the round.
__device__ QueryRange uses_of(const KlBlocks& a, int list) {
    if (a.reverse.starts != nullptr) {
        const int64_t begin = a.reverse.starts[list], end = a.reverse.starts[list + 1];
        const auto first_from = [&](int64_t query) {
            return partition_point(begin, end,
                                   [&](int64_t use) { return a.reverse.queries[use] < query; });
        };
        return {first_from(a.piece.begin), first_from(a.piece.end)};
    }
    const SequenceBlock block = a.blocks[list % a.block_count];
    if (block.block < a.first_block || block.block >= a.first_block + a.slots) return {0, 0};
    const int64_t begin = max(block.queries.begin, a.piece.begin),
                  end = max(begin, min(block.queries.end, a.piece.end));
    return {partition_point(begin, end,
                            [&](int64_t query) { return seen_of_block(a, block, query) == 0; }),
            end};
}

__global__ void __launch_bounds__(kListThreads) list_items(KlBlocks a) {
    using Scan = cub::BlockScan<int, kListThreads>;
    __shared__ typename Scan::TempStorage storage;
    int before = 0;
    for (int first = 0; first < a.lists(); first += kListThreads) {
        const int list = first + static_cast<int>(threadIdx.x);
        const QueryRange uses = list < a.lists() ? uses_of(a, list) : QueryRange{0, 0};
        const auto count =
            static_cast<int>((uses.end - uses.begin + kKlItemUses - 1) / kKlItemUses);
        int start = 0, sum = 0;
        __syncthreads();
        Scan(storage).ExclusiveSum(count, start, sum);
        start += before;
        if (list < a.lists()) a.item_starts[list] = start;
        for (int n = 0; n < count; ++n) {
            const int64_t begin = uses.begin + int64_t{n} * kKlItemUses;
            a.items[start + n] = {begin, min(begin + kKlItemUses, uses.end), list % a.block_count,
                                  list / a.block_count};
        }
        before += sum;
    }
    if (threadIdx.x == 0) a.item_starts[a.lists()] = before;
}

/// The warps that multiply wait for each other.
__device__ void work_barrier() { barrier_of<1>(kWorkThreads); }
/// They and the one that fetches, behind each tile.
__device__ void tile_barrier() { barrier_of<2>(kWorkThreads + kWarp); }

/// What a tile of queries must know of them.
template <int kQueries>
struct TileMeta {
    int64_t query[kQueries];    // -1: none
    int64_t slot[kQueries];     // its number in [piece, Hkv, slots]
    float index_lse[kQueries];  // base 2
    int seen[kQueries];         // keys of the block; 0: none
    int most_seen;
};

/// Where of the row's slots the block is.
__device__ int slot_of(const KlBlocks& a, const SequenceBlock& block, int64_t row) {
    if (a.ids == nullptr) return block.block - a.first_block;
    const int32_t* const ids = a.ids + row * a.slots;  // ascending, the padding, -1, behind
    return static_cast<int>(partition_point(0, a.slots, [&](int64_t slot) {
        return static_cast<uint32_t>(ids[slot]) < static_cast<uint32_t>(block.block);
    }));
}

/// By one warp.
template <int kQueries>
__device__ void fetch_meta(const KlBlocks& a, const KlItem& item, const SequenceBlock& block,
                           int64_t first, TileMeta<kQueries>& to) {
    int most = 0;
    for (int i = lane_id(); i < kQueries; i += kWarp) {
        const int64_t use = first + i;
        int64_t query = -1, slot = 0;
        int seen = 0;
        float lse = 0;
        if (use < item.end) {
            query = a.reverse.queries != nullptr ? a.reverse.queries[use] : use;
            seen = seen_of_block(a, block, query);
            const int64_t row = query * a.groups + item.group;
            slot = (row - a.piece.begin * a.groups) * a.slots + slot_of(a, block, row);
            if (a.index_lse != nullptr) lse = a.index_lse[row] * kLog2E;
        }
        to.query[i] = query, to.slot[i] = slot, to.index_lse[i] = lse, to.seen[i] = seen;
        most = max(most, seen);
    }
    for (int step = kWarp / 2; step > 0; step /= 2)
        most = max(most, __shfl_xor_sync(kAllLanes, most, step));
    if (lane_id() == 0) to.most_seen = most;
}

/// The queries' index rows, by one warp, without waiting.
template <int kQueries, int kIndexDim>
__device__ void fetch_index_rows(const KlBlocks& a, int group, const TileMeta<kQueries>& meta,
                                 const MmaTile<kIndexDim>& to) {
    constexpr int kChunks = MmaTile<kIndexDim>::kChunks;
    for (int i = lane_id(); i < kQueries * kChunks; i += kWarp) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int64_t query = max(meta.query[row], int64_t{0});
        copy_chunk(to.chunk(row, chunk),
                   a.index_q + (query * a.groups + group) * kIndexDim + chunk * kChunk,
                   meta.query[row] >= 0);
    }
}

/// Of the two that tiles take in turns.
template <int kQueries, int kIndexDim>
__device__ MmaTile<kIndexDim> rows_of_tile(const MmaTile<kIndexDim>& rows, int tile) {
    return {rows.at + tile % 2 * (kQueries * kIndexDim)};
}

/// What the first tile needs, by one warp; without waiting.
template <int kQueries, int kIndexDim>
__device__ void fetch_first(const KlBlocks& a, const KlItem& item, const SequenceBlock& block,
                            int tiles, TileMeta<kQueries>* meta, const MmaTile<kIndexDim>& rows) {
    for (int t = 0; t < min(2, tiles); ++t)
        fetch_meta(a, item, block, item.begin + t * kQueries, meta[t]);
    __syncwarp();
    fetch_index_rows(a, item.group, meta[0], rows);
}

/// The rest, by one warp that stays two tiles ahead, the index rows one.
template <int kQueries, int kIndexDim>
__device__ void fetch_tiles(const KlBlocks& a, const KlItem& item, const SequenceBlock& block,
                            int tiles, TileMeta<kQueries>* meta, const MmaTile<kIndexDim>& rows) {
    for (int t = 0; t < tiles; ++t) {
        if (t + 1 < tiles)
            fetch_index_rows(a, item.group, meta[(t + 1) % kMetaBuffers],
                             rows_of_tile<kQueries>(rows, t + 1));
        if (t + 2 < tiles)
            fetch_meta(a, item, block, item.begin + int64_t{t + 2} * kQueries,
                       meta[(t + 2) % kMetaBuffers]);
        wait_for_copies();
        tile_barrier();
    }
}

/// Rows of the block, `stride` values apart, by the whole thread block; zeros behind the last key.
template <int kWidth>
__device__ void fetch_keys(const __nv_bfloat16* from, int64_t stride, int keys, int rows,
                           const MmaTile<kWidth>& to) {
    constexpr int kChunks = MmaTile<kWidth>::kChunks;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks;
         i += static_cast<int>(blockDim.x)) {
        const int row = i / kChunks, chunk = i % kChunks;
        copy_chunk(to.chunk(row, chunk), from + min(row, keys - 1) * stride + chunk * kChunk,
                   row < keys);
    }
}

/// How the warps share the index scores of a tile: 16 keys each, and where there are fewer keys,
/// a part of the queries.
struct ScoreShare {
    int first_key, part, parts;

    __device__ explicit ScoreShare(int block_size) {
        const int steps = block_size / kStepKeys;
        first_key = warp_id() % steps * kStepKeys;
        part = warp_id() / steps, parts = kWorkers / steps;
    }
};

/// Scores of the warp's 16 keys and of the queries from `first` on, not scaled: rows are keys,
/// sums[n] columns 8 n on.
template <int kIndexDim>
__device__ void index_scores_of(const MmaTile<kIndexDim>& keys, int first_key,
                                const MmaTile<kIndexDim>& rows, int first, float (&sums)[2][4]) {
    const int lane = lane_id();
    for (auto& sum : sums)
        for (float& value : sum) value = 0;
#pragma unroll
    for (int step = 0; step < MmaTile<kIndexDim>::kSteps; ++step) {
        const uint4 low = keys.words_of(first_key + lane / 4, step);
        const uint4 high = keys.words_of(first_key + 8 + lane / 4, step);
#pragma unroll
        for (int n = 0; n < 2; ++n)
            multiply_words(sums[n], low, high, rows.words_of(first + 8 * n + lane / 4, step));
    }
}

/// Key and query of element e of sums[n] above.
__device__ int key_of(int first_key, int e) { return first_key + lane_id() / 4 + 8 * (e / 2); }
__device__ int query_of(int first, int n, int e) {
    return first + 8 * n + 2 * (lane_id() % 4) + e % 2;
}

// ---- lse of the index scores -------------------------------------------------------------------

constexpr int kLseQueries = 64;

template <int kIndexDim>
struct LseShared {
    MmaTile<kIndexDim> keys, rows;  // rows: of two tiles
    TileMeta<kLseQueries>* meta;
    float (*most)[kLseQueries], (*sum)[kLseQueries];  // of each 16 keys

    static constexpr int kSteps = kKlMostKeys / kStepKeys;
    static constexpr int kBytes = MmaTile<kIndexDim>::bytes(kKlMostKeys + 2 * kLseQueries) +
                                  kMetaBuffers * int{sizeof(TileMeta<kLseQueries>)} +
                                  2 * kSteps * kLseQueries * int{sizeof(float)};

    __device__ explicit LseShared(char* at) {
        const auto take = [&](int bytes) { return at += bytes, at - bytes; };
        keys.at = reinterpret_cast<__nv_bfloat16*>(take(MmaTile<kIndexDim>::bytes(kKlMostKeys)));
        rows.at =
            reinterpret_cast<__nv_bfloat16*>(take(MmaTile<kIndexDim>::bytes(2 * kLseQueries)));
        meta = reinterpret_cast<TileMeta<kLseQueries>*>(take(kMetaBuffers * int{sizeof(*meta)}));
        most = reinterpret_cast<float(*)[kLseQueries]>(take(kSteps * int{sizeof(*most)}));
        sum = reinterpret_cast<float(*)[kLseQueries]>(take(kSteps * int{sizeof(*sum)}));
    }
};

/// Largest and sum of the warp's 16 keys for each of 16 queries from `first` on.
template <int kIndexDim>
__device__ void sum_of_keys(const LseShared<kIndexDim>& shared, const TileMeta<kLseQueries>& meta,
                            const MmaTile<kIndexDim>& rows, int first_key, int first, float scale) {
    float sums[2][4];
    index_scores_of(shared.keys, first_key, rows, first, sums);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int query = query_of(first, n, i), seen = meta.seen[query];
            const auto scaled = [&](int e) {
                return key_of(first_key, e) < seen ? sums[n][e] * scale : -INFINITY;
            };
            const float low = scaled(i), high = scaled(2 + i);
            float most = fmaxf(low, high);
            for (int step = 4; step < kWarp; step *= 2)
                most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
            const float shift = most == -INFINITY ? 0.0F : most;
            float sum = (low == -INFINITY ? 0.0F : exp2_fast(low - shift)) +
                        (high == -INFINITY ? 0.0F : exp2_fast(high - shift));
            for (int step = 4; step < kWarp; step *= 2)
                sum += __shfl_xor_sync(kAllLanes, sum, step);
            if (lane_id() < 4) {
                shared.most[first_key / kStepKeys][query] = shift;
                shared.sum[first_key / kStepKeys][query] = sum;
            }
        }
}

template <int kIndexDim>
__global__ void __launch_bounds__(kBlockThreads) slot_lse(const __grid_constant__ KlBlocks a) {
    extern __shared__ uint4 memory[];
    if (static_cast<int>(blockIdx.x) >= a.item_starts[a.lists()]) return;
    const LseShared<kIndexDim> shared(reinterpret_cast<char*>(memory));
    const KlItem item = a.items[blockIdx.x];
    const SequenceBlock block = a.blocks[item.block];
    const auto tiles = static_cast<int>((item.end - item.begin + kLseQueries - 1) / kLseQueries);
    fetch_keys(a.index_k + block.key * kIndexDim, kIndexDim, block.keys, a.block_size, shared.keys);
    if (warp_id() == kWorkers) fetch_first(a, item, block, tiles, shared.meta, shared.rows);
    wait_for_copies();
    __syncthreads();
    if (warp_id() >= kWorkers) {
        if (warp_id() == kWorkers) fetch_tiles(a, item, block, tiles, shared.meta, shared.rows);
        return;
    }
    const ScoreShare share(a.block_size);
    const float scale = a.index_scale * kLog2E;
    const int steps = a.block_size / kStepKeys;
    for (int t = 0; t < tiles; ++t) {
        const TileMeta<kLseQueries>& meta = shared.meta[t % kMetaBuffers];
        for (int first = share.part * kStepQueries; first < kLseQueries;
             first += share.parts * kStepQueries)
            sum_of_keys(shared, meta, rows_of_tile<kLseQueries>(shared.rows, t), share.first_key,
                        first, scale);
        work_barrier();
        if (const auto query = static_cast<int>(threadIdx.x);
            query < kLseQueries && meta.query[query] >= 0) {
            float most = -INFINITY, sum = 0;
            for (int s = 0; s < steps; ++s)
                if (shared.sum[s][query] != 0) most = fmaxf(most, shared.most[s][query]);
            for (int s = 0; s < steps; ++s)
                if (const float part = shared.sum[s][query]; part != 0)
                    sum += part * exp2f(shared.most[s][query] - most);
            a.slot_lse[meta.slot[query]] = sum == 0 ? -INFINITY : (most + log2f(sum)) * kLn2;
        }
        tile_barrier();
    }
}

/// Slots of a row that hold something.
__device__ int used_slots(const KlBlocks& a, int64_t query, int64_t row) {
    if (a.ids == nullptr) {
        const int64_t blocks = (a.visible[query].count + a.block_size - 1) / a.block_size;
        return static_cast<int>(max(int64_t{0}, min(blocks - a.first_block, int64_t{a.slots})));
    }
    const int32_t* const ids = a.ids + row * a.slots;
    int used = 0;
    while (used < a.slots && ids[used] != kNoBlock) ++used;
    return used;
}

__global__ void __launch_bounds__(kThreads) join_lse(KlBlocks a, bool first, float* lse) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= (a.piece.end - a.piece.begin) * a.groups) return;
    const int64_t row = a.piece.begin * a.groups + i;
    const float* const slots = a.slot_lse + i * a.slots;
    const int used = used_slots(a, row / a.groups, row);
    const float before = first ? -INFINITY : lse[row];
    float most = before;
    for (int s = 0; s < used; ++s) most = fmaxf(most, slots[s]);
    const float shift = most == -INFINITY ? 0.0F : most;
    float sum = expf(before - shift);
    for (int s = 0; s < used; ++s) sum += expf(slots[s] - shift);
    lse[row] = sum == 0 ? -INFINITY : shift + logf(sum);
}

// ---- gradients ---------------------------------------------------------------------------------

template <int kDim, int kIndexDim, int kGroup>
struct KlShape {
    static constexpr int kQueries = kGroup == 16 ? 16 : kGroup == 8 ? 32 : 64;
    static constexpr int kMainWarps = kQueries * kGroup / kWarpColumns;  // the others wait
    static constexpr int kColumnTiles = kWarpColumns / 8;
    using Meta = TileMeta<kQueries>;
    static_assert(kMainWarps <= kWorkers && kQueries % kStepQueries == 0);
};

template <int kDim, int kIndexDim, int kGroup>
struct KlShared {
    using Shape = KlShape<kDim, kIndexDim, kGroup>;
    static constexpr int kQueries = Shape::kQueries;
    static constexpr int kTeacherStride = kKlMostKeys + 4;
    MmaTile<kDim> keys;
    MmaTile<kIndexDim> index_keys, rows;  // rows: of two tiles
    MmaTile<kKlMostKeys> high, low;       // t - p by query, in two parts
    float* teacher;                       // p [kQueries][kTeacherStride]
    float* kl;                            // of each 16 keys, [8][kQueries]
    typename Shape::Meta* meta;
    int* unsound;  // the tile's index operands hold what is not finite

    static constexpr int kBytes = MmaTile<kDim>::bytes(kKlMostKeys) +
                                  MmaTile<kIndexDim>::bytes(kKlMostKeys + 2 * kQueries) +
                                  2 * MmaTile<kKlMostKeys>::bytes(kQueries) +
                                  kQueries * (kTeacherStride + kWorkers) * int{sizeof(float)} +
                                  kMetaBuffers * int{sizeof(typename Shape::Meta)} + 16;

    __device__ explicit KlShared(char* at) {
        const auto take = [&](int bytes) { return at += bytes, at - bytes; };
        const auto take_rows = [&](int bytes) {
            return reinterpret_cast<__nv_bfloat16*>(take(bytes));
        };
        keys.at = take_rows(MmaTile<kDim>::bytes(kKlMostKeys));
        index_keys.at = take_rows(MmaTile<kIndexDim>::bytes(kKlMostKeys));
        rows.at = take_rows(MmaTile<kIndexDim>::bytes(2 * kQueries));
        high.at = take_rows(MmaTile<kKlMostKeys>::bytes(kQueries));
        low.at = take_rows(MmaTile<kKlMostKeys>::bytes(kQueries));
        teacher = reinterpret_cast<float*>(take(kQueries * kTeacherStride * int{sizeof(float)}));
        kl = reinterpret_cast<float*>(take(kQueries * kWorkers * int{sizeof(float)}));
        meta = reinterpret_cast<typename Shape::Meta*>(take(kMetaBuffers * int{sizeof(*meta)}));
        unsound = reinterpret_cast<int*>(take(16));
    }
};

/// The warp's 32 (query, head) of a tile, in registers: column 8 j + lane / 4 of tile j.
template <int kDim, int kIndexDim, int kGroup>
struct MainColumns {
    using Shape = KlShape<kDim, kIndexDim, kGroup>;
    static constexpr int kSteps = MmaTile<kDim>::kSteps;
    uint4 words[Shape::kColumnTiles][kSteps];
    float lse[Shape::kColumnTiles][2];  // base 2, of columns 8 j + 2 (lane % 4) + i

    __device__ void fetch(const KlBlocks& a, int group, const typename Shape::Meta& meta) {
        const int first = warp_id() * kWarpColumns, lane = lane_id();
#pragma unroll
        for (int j = 0; j < Shape::kColumnTiles; ++j) {
            const int column = first + 8 * j + lane / 4;
            const int64_t query = meta.query[column / kGroup];
            const __nv_bfloat16* const row =
                a.q + (query * a.heads + group * kGroup + column % kGroup) * kDim;
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
                words[j][step] =
                    query < 0
                        ? uint4{}
                        : *reinterpret_cast<const uint4*>(row + (4 * step + lane % 4) * kChunk);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int own = first + 8 * j + 2 * (lane % 4) + i;
                const int64_t of = meta.query[own / kGroup];
                lse[j][i] = of < 0
                                ? 0.0F
                                : a.main_lse[of * a.heads + group * kGroup + own % kGroup] * kLog2E;
            }
        }
    }

    /// Means over the heads of the queries' probabilities of 16 keys, into `teacher`.
    __device__ void teach(const MmaTile<kDim>& keys, int first_key, float scale,
                          const typename Shape::Meta& meta, int stride, float* teacher) const {
        const int lane = lane_id(), own = lane % 4, key = first_key + lane / 4;
        float p[Shape::kColumnTiles][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const uint4 low = keys.words_of(key, step), high = keys.words_of(key + 8, step);
#pragma unroll
            for (int j = 0; j < Shape::kColumnTiles; ++j)
                multiply_words(p[j], low, high, words[j][step]);
        }
        const int first_query = warp_id() * kWarpColumns / kGroup;
        const auto store = [&](int query, int side, float sum) {
            const int at = first_query + query, k = key + 8 * side;
            teacher[at * stride + k] = k < meta.seen[at] ? sum * (1.0F / kGroup) : 0.0F;
        };
        float sums[Shape::kColumnTiles][2];
#pragma unroll
        for (int j = 0; j < Shape::kColumnTiles; ++j)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float two[2];
                for (int i = 0; i < 2; ++i)
                    two[i] = exp2_fast(fmaf(p[j][2 * side + i], scale, -lse[j][i]));
                float sum = two[0] + two[1];
                if constexpr (kGroup >= 4) sum += __shfl_xor_sync(kAllLanes, sum, 1);
                if constexpr (kGroup >= 8) sum += __shfl_xor_sync(kAllLanes, sum, 2);
                sums[j][side] = sum;
            }
        if constexpr (kGroup == 16) {  // a lane stores one of two queries' two sides
            const float both[4] = {sums[0][0] + sums[1][0], sums[0][1] + sums[1][1],
                                   sums[2][0] + sums[3][0], sums[2][1] + sums[3][1]};
            store(own / 2, own % 2,
                  own == 0   ? both[0]
                  : own == 1 ? both[1]
                  : own == 2 ? both[2]
                             : both[3]);
        } else {
#pragma unroll
            for (int j = 0; j < Shape::kColumnTiles; ++j)
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    if constexpr (kGroup == 8) {
                        if (own == j) store(j, side, sums[j][side]);
                    } else if constexpr (kGroup == 4) {
                        if (own % 2 == side) store(2 * j + own / 2, side, sums[j][side]);
                    } else {
                        store(4 * j + own, side, sums[j][side]);
                    }
                }
        }
    }
};

/// d_index_k of the warp's 16 keys: sums[d] of dimensions 8 d on, rows are keys.
template <int kIndexDim>
using KeySums = float[kIndexDim / 8][4];

/// B of two products. Where an index score is not finite, t - p is NaN, and 0 where the key is not
/// seen: the operand is made finite, so that 0 stays 0.
template <int kIndexDim>
__device__ void load_sound(const MmaTile<kIndexDim>& from, int row, int column, bool sound,
                           uint32_t (&b)[4]) {
    from.load_b(b, row, column);
    if (!sound)
        for (uint32_t& pair : b) pair = finite_or_zero(pair);
}

/// t - p of the warp's 16 keys and of the queries from `first` on, to shared memory, and their
/// part of d_index_k.
template <typename Shared, int kIndexDim>
__device__ void compare(const KlBlocks& a, const Shared& shared,
                        const typename Shared::Shape::Meta& meta, const MmaTile<kIndexDim>& rows,
                        int first_key, int first, KeySums<kIndexDim>& sums) {
    float score[2][4];
    index_scores_of(shared.index_keys, first_key, rows, first, score);
    const float scale = a.index_scale * kLog2E;
    float kl[2][2] = {};
    bool finite = true;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = key_of(first_key, e), query = query_of(first, n, e);
            const float log_t = fmaf(score[n][e], scale, -meta.index_lse[query]);
            const bool is_finite = isfinite(score[n][e]);
            finite = finite && is_finite;
            if (key >= meta.seen[query]) {
                score[n][e] = 0;
                continue;
            }
            const float p = shared.teacher[query * Shared::kTeacherStride + key];
            if (a.kl != nullptr && !(p <= 0)) kl[n][e % 2] += p * (log2f(p) - log_t) * kLn2;
            score[n][e] = is_finite ? exp2_fast(log_t) - p : NAN;
        }
    if (a.kl != nullptr)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                for (int step = 4; step < kWarp; step *= 2)
                    kl[n][i] += __shfl_xor_sync(kAllLanes, kl[n][i], step);
                if (lane_id() < 4)
                    shared.kl[first_key / kStepKeys * Shared::kQueries + query_of(first, n, i)] =
                        kl[n][i];
            }
    uint32_t high[4], low[4];  // rows are keys, columns queries
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const SplitPair pair(score[n][2 * side], score[n][2 * side + 1]);
            high[2 * n + side] = pair.high, low[2 * n + side] = pair.low;
            const int key = key_of(first_key, 2 * side), query = query_of(first, n, 0);
            const auto& h = reinterpret_cast<const __nv_bfloat162&>(pair.high);
            const auto& l = reinterpret_cast<const __nv_bfloat162&>(pair.low);
            shared.high.value(query, key) = h.x, shared.high.value(query + 1, key) = h.y;
            shared.low.value(query, key) = l.x, shared.low.value(query + 1, key) = l.y;
        }
    const bool sound = __all_sync(kAllLanes, finite) != 0;
    if (!sound) *shared.unsound = 1;
#pragma unroll
    for (int d = 0; d < kIndexDim / 8; d += 2) {
        uint32_t b[4];
        load_sound(rows, first, 8 * d, sound, b);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            multiply_16x8(sums[d + n], high, b + 2 * n);
            multiply_16x8(sums[d + n], low, b + 2 * n);
        }
    }
}

/// The tile's part of d_index_q, to the slots: 16 queries and 16 dimensions at a time for a warp.
template <typename Shared, int kIndexDim>
__device__ void store_d_query(const KlBlocks& a, const Shared& shared,
                              const typename Shared::Shape::Meta& meta,
                              const MmaTile<kIndexDim>& keys, int most_seen) {
    constexpr int kColumns = kIndexDim / 16, kUnits = Shared::kQueries / kStepQueries * kColumns;
    const bool sound = *shared.unsound == 0;
    for (int unit = warp_id(); unit < kUnits; unit += kWorkers) {
        const int first = unit / kColumns * kStepQueries, column = unit % kColumns * 16;
        float sums[2][4] = {};
        const auto query_at = [&](int e) { return first + lane_id() / 4 + 8 * (e / 2); };
        const auto column_at = [&](int n, int e) {
            return column + 8 * n + 2 * (lane_id() % 4) + e % 2;
        };
        for (int key = 0; key < most_seen; key += kStepKeys) {
            uint32_t high[4], low[4], b[4];
            shared.high.load_a(high, first, key);
            shared.low.load_a(low, first, key);
            load_sound(keys, key, column, sound, b);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                multiply_16x8(sums[n], high, b + 2 * n);
                multiply_16x8(sums[n], low, b + 2 * n);
            }
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int query = query_at(2 * side);
            if (meta.query[query] < 0) continue;
#pragma unroll
            for (int n = 0; n < 2; ++n)
                *reinterpret_cast<float2*>(a.d_query + meta.slot[query] * kIndexDim +
                                           column_at(n, 0)) = {sums[n][2 * side],
                                                               sums[n][2 * side + 1]};
        }
    }
}

/// The item's part of d_index_k. Warps that shared keys are added up in order, through memory that
/// the keys leave.
template <int kIndexDim, typename Shared>
__device__ void store_d_keys(const KlBlocks& a, const Shared& shared, const ScoreShare& share,
                             const KeySums<kIndexDim>& sums, float* to) {
    float* const others = reinterpret_cast<float*>(shared.keys.at);  // [parts][Bk][didx]
    const auto at = [&](int d, int e) {
        return key_of(share.first_key, e) * kIndexDim + query_of(8 * d, 0, e);
    };
    work_barrier();
    if (share.part > 0)
#pragma unroll
        for (int d = 0; d < kIndexDim / 8; ++d)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                others[(share.part - 1) * a.block_size * kIndexDim + at(d, e)] = sums[d][e];
    work_barrier();
    if (share.part > 0) return;
#pragma unroll
    for (int d = 0; d < kIndexDim / 8; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float sum = sums[d][e];
            for (int part = 1; part < share.parts; ++part)
                sum += others[(part - 1) * a.block_size * kIndexDim + at(d, e)];
            to[at(d, e)] = sum;
        }
}

template <int kDim, int kIndexDim, int kGroup>
__global__ void __launch_bounds__(kBlockThreads, 1) kl_blocks(const __grid_constant__ KlBlocks a) {
    using Shared = KlShared<kDim, kIndexDim, kGroup>;
    using Shape = typename Shared::Shape;
    constexpr int kQueries = Shape::kQueries;
    extern __shared__ uint4 memory[];
    if (static_cast<int>(blockIdx.x) >= a.item_starts[a.lists()]) return;
    const Shared shared(reinterpret_cast<char*>(memory));
    const KlItem item = a.items[blockIdx.x];
    const SequenceBlock block = a.blocks[item.block];
    const auto tiles = static_cast<int>((item.end - item.begin + kQueries - 1) / kQueries);
    fetch_keys(a.k + (block.key * a.groups + item.group) * kDim, int64_t{a.groups} * kDim,
               block.keys, a.block_size, shared.keys);
    fetch_keys(a.index_k + block.key * kIndexDim, kIndexDim, block.keys, a.block_size,
               shared.index_keys);
    if (warp_id() == kWorkers) fetch_first(a, item, block, tiles, shared.meta, shared.rows);
    if (threadIdx.x == 0) *shared.unsound = 0;
    wait_for_copies();
    __syncthreads();
    if (warp_id() >= kWorkers) {
        give_up_registers<kFetchRegisters>();
        if (warp_id() == kWorkers) fetch_tiles(a, item, block, tiles, shared.meta, shared.rows);
        return;
    }
    take_registers<kWorkRegisters>();
    const bool teaches = warp_id() < Shape::kMainWarps;
    const ScoreShare share(a.block_size);
    const float scale = a.scale * kLog2E;
    MainColumns<kDim, kIndexDim, kGroup> columns;
    KeySums<kIndexDim> sums = {};
    if (teaches) columns.fetch(a, item.group, shared.meta[0]);
    for (int t = 0; t < tiles; ++t) {
        const typename Shape::Meta& meta = shared.meta[t % kMetaBuffers];
        const MmaTile<kIndexDim> rows = rows_of_tile<kQueries>(shared.rows, t);
        const int most_seen = meta.most_seen;
        if (teaches)
            for (int key = 0; key < most_seen; key += kStepKeys)
                columns.teach(shared.keys, key, scale, meta, Shared::kTeacherStride,
                              shared.teacher);
        work_barrier();
        if (teaches && t + 1 < tiles)  // on their way while the index is compared
            columns.fetch(a, item.group, shared.meta[(t + 1) % kMetaBuffers]);
        for (int first = share.part * kStepQueries; first < kQueries;
             first += share.parts * kStepQueries)
            compare(a, shared, meta, rows, share.first_key, first, sums);
        work_barrier();
        store_d_query(a, shared, meta, shared.index_keys, most_seen);
        if (const auto query = static_cast<int>(threadIdx.x);
            a.kl != nullptr && query < kQueries && meta.query[query] >= 0) {
            double sum = 0;
            for (int step = 0; step < a.block_size / kStepKeys; ++step)
                sum += double{shared.kl[step * kQueries + query]};
            a.kl[meta.slot[query]] = sum;
        }
        tile_barrier();
        if (threadIdx.x == 0) *shared.unsound = 0;  // its next writer is behind a barrier
    }
    store_d_keys<kIndexDim>(a, shared, share, sums,
                            a.d_keys + int64_t{blockIdx.x} * a.block_size * kIndexDim);
}

__global__ void __launch_bounds__(kThreads)
    sum_slots(KlBlocks a, float gradient, bool first, float* d_index_q, double* kl) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const int vectors = a.index_dim / 4;
    const int64_t in_piece = i / vectors, row = a.piece.begin * a.groups + in_piece;
    const auto part = static_cast<int>(i % vectors);
    if (in_piece >= (a.piece.end - a.piece.begin) * a.groups) return;
    const int used = used_slots(a, row / a.groups, row);
    const auto* from =
        reinterpret_cast<const float4*>(a.d_query) + in_piece * a.slots * vectors + part;
    float4 sum{};
    for (int s = 0; s < used; ++s) {
        const float4 value = from[int64_t{s} * vectors];
        sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
    }
    auto& to = reinterpret_cast<float4*>(d_index_q)[row * vectors + part];
    const float4 before = first ? float4{} : to;
    to = {before.x + gradient * sum.x, before.y + gradient * sum.y, before.z + gradient * sum.z,
          before.w + gradient * sum.w};
    if (kl == nullptr || part != 0) return;
    double all = first ? 0 : kl[row];
    for (int s = 0; s < used; ++s) all += a.kl[in_piece * a.slots + s];
    kl[row] = all;
}

__global__ void __launch_bounds__(kThreads)
    sum_items(KlBlocks a, float gradient, float* d_index_k) {
    const SequenceBlock block = a.blocks[blockIdx.x];
    const int values = block.keys * a.index_dim;
    for (int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); i < values;
         i += static_cast<int>(gridDim.y) * kThreads) {
        float sum = 0;
        for (int group = 0; group < a.groups; ++group) {
            const int32_t* const starts = a.item_starts + group * a.block_count + blockIdx.x;
            for (int item = starts[0]; item < starts[1]; ++item)
                sum += a.d_keys[int64_t{item} * a.block_size * a.index_dim + i];
        }
        d_index_k[block.key * a.index_dim + i] += gradient * sum;
    }
}

template <typename Kernel>
cudaError_t launch_items(Kernel* kernel, int bytes, const KlBlocks& a, int64_t most_items,
                         cudaStream_t stream) {
    if (most_items == 0) return cudaSuccess;
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<static_cast<unsigned>(most_items), kBlockThreads, static_cast<size_t>(bytes),
             stream>>>(a);
    return cudaGetLastError();
}

template <int kDim, int kIndexDim>
cudaError_t launch_group(const KlBlocks& a, int64_t most_items, cudaStream_t stream) {
    const auto launch = [&]<int kGroup>() {
        return launch_items(kl_blocks<kDim, kIndexDim, kGroup>,
                            KlShared<kDim, kIndexDim, kGroup>::kBytes, a, most_items, stream);
    };
    switch (a.group_size()) {
        case 2: return launch.template operator()<2>();
        case 4: return launch.template operator()<4>();
        case 8: return launch.template operator()<8>();
        default: return launch.template operator()<16>();
    }
}

}  // namespace

cudaError_t launch_kl_items(const KlBlocks& a, cudaStream_t stream) {
    list_items<<<1, kListThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_kl_slot_lse(const KlBlocks& a, int64_t most_items, cudaStream_t stream) {
    return a.index_dim == 64
               ? launch_items(slot_lse<64>, LseShared<64>::kBytes, a, most_items, stream)
               : launch_items(slot_lse<128>, LseShared<128>::kBytes, a, most_items, stream);
}

cudaError_t launch_kl_join_lse(const KlBlocks& a, bool first, float* lse, cudaStream_t stream) {
    const int64_t rows = (a.piece.end - a.piece.begin) * a.groups;
    join_lse<<<blocks_for(rows), kThreads, 0, stream>>>(a, first, lse);
    return cudaGetLastError();
}

cudaError_t launch_kl_blocks(const KlBlocks& a, int64_t most_items, cudaStream_t stream) {
    if (a.head_dim == 64) return launch_group<64, 64>(a, most_items, stream);
    return a.index_dim == 64 ? launch_group<128, 64>(a, most_items, stream)
                             : launch_group<128, 128>(a, most_items, stream);
}

cudaError_t launch_kl_sum_slots(const KlBlocks& a, float gradient, bool first, float* d_index_q,
                                double* kl, cudaStream_t stream) {
    const int64_t rows = (a.piece.end - a.piece.begin) * a.groups;
    sum_slots<<<blocks_for(rows * (a.index_dim / 4)), kThreads, 0, stream>>>(a, gradient, first,
                                                                             d_index_q, kl);
    return cudaGetLastError();
}

cudaError_t launch_kl_sum_items(const KlBlocks& a, float gradient, float* d_index_k,
                                cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(a.block_count), 8);
    sum_items<<<grid, kThreads, 0, stream>>>(a, gradient, d_index_k);
    return cudaGetLastError();
}

}  // namespace msa::cuda
