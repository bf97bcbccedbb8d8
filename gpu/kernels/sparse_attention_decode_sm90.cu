// SPDX-License-Identifier: MIT
// Split-K decode, for too few queries to fill the chip with tiles. A cluster of 8 thread blocks
// computes 16 heads of one (query, group). Each thread block takes every 8th of the selected
// blocks, and each of its 4 warps a quarter of a block's keys. With blocks of 32, two warps take
// half each.
//
//   read_queries     loads the 16 heads as operands of the matrix product, the same in every warp
//   attend           online softmax; two blocks are being copied (TMA) while one is multiplied
//   put_warp_part    stores a warp's outputs, running maxima and sums in shared memory
//   send_to_owners   merges the warps' parts, and sends each head to the thread block that owns it
//   write_heads      an owner merges 8 parts for each of its two heads, and writes out and lse
//
// One launch, no workspace. Keys that the query does not see are never multiplied.
//
// With two large blocks a thread block fills an SM. If there are more thread blocks than SMs, each
// has memory for one, so that three share an SM: while one waits for its block, or merges, others
// multiply.
//
// Warm-up: the keys that index_select streams evict this kernel's instructions from L2. So the
// kernel runs all its code twice. The first pass works on no data, while the previous kernel ends,
// and brings the instructions back. The second pass waits for that kernel and does the work. If
// there are more thread blocks than the chip holds at once, there is no first pass. Data that the
// previous kernel writes are read past L1 (__ldcg), because the warm-up may have left old data
// there.
#include <cooperative_groups.h>

#include <utility>

#include "gpu/device/attend_e4m3_sm90.cuh"
#include "gpu/device/decode_keys_e4m3.cuh"
#include "gpu/device/decode_keys_sm90.cuh"
#include "gpu/device/join_ranks.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_decode_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kCluster = kDecodeCluster, kWarps = kDecodeWarps, kThreads = kWarps * kWarp;
constexpr int kHeads = kDecodeHeads;
constexpr int kOneWave = kMostExchanging;  // thread blocks that any chip holds at once
static_assert(kHeads == 2 * kCluster);

template <typename T, int Dim, int BlockSize, int Stages>
struct Shared {
    using S = OperandShape<T, Dim, BlockSize>;
    static constexpr int kStages = Stages;
    struct Tiles {
        char k[kStages][S::kKeyBytes], v[kStages][S::kKeyBytes];
    };
    union {
        Tiles tiles;
        float out[kWarps][kHeads][Dim];  // after the last tile
    };
    float best[kWarps][kHeads], total[kWarps][kHeads];
    // Of this thread block's two heads, from every one of the cluster; not over the tiles, which it
    // may still need.
    struct alignas(16) {
        float out[kCluster][2][Dim];
        float2 sums[kCluster][2];  // best, total
    } parts;
    Barrier all_parts, k_full[kStages], v_full[kStages];
};

/// What a cluster answers, and this thread block's place in it.
struct Part {
    int rank;  // in the cluster
    int heads, first_head, group;
    int64_t query, row, first_row;  // query; (query, group); (query, head) of the first head
    KeyRange visible;
    int first_key;        // the place of the first key of the query's sequence
    int first_block = 0;  // of the query's sequence, of e4m3

    __device__ explicit Part(const SparseDecodeArgs& args)
        : rank(static_cast<int>(blockIdx.x) % kCluster), heads(args.group_size()) {
        const int parts = (heads + kHeads - 1) / kHeads;
        const int item = static_cast<int>(blockIdx.x) / kCluster;
        first_head = item % parts * kHeads;
        row = item / parts;
        query = row / args.groups;
        group = static_cast<int>(row % args.groups);
        first_row = query * args.query_heads + group * heads + first_head;
        visible = args.visible[query];
        if (args.of_query != nullptr) first_block = args.of_query[query].first_block;
        first_key = args.key_map.paged() ? args.key_map.first(args.of_query[query])
                                         : static_cast<int>(visible.first);
    }
    /// The n-th block of this thread block; -1: none, as in the warm-up.
    __device__ int32_t block(const SparseDecodeArgs& args, int n, bool live) const {
        const int slot = rank + n * kCluster;
        const int32_t id = slot < args.top_k ? __ldcg(args.ids + row * args.top_k + slot) : -1;
        return live ? id : -1;
    }
};

/// Where block `id` lies, for the thread that copies it.
template <int BlockSize>
__device__ TileRowsAt rows_at(const SparseDecodeArgs& args, const Part& part, int id) {
    if (threadIdx.x != 0 || id < 0) return {};
    return {args.key_map, part.first_key + id * BlockSize};
}

/// Starts the copies of block `id`, the n-th of this thread block; none where it is -1.
template <typename Memory>
__device__ void fetch(const SparseDecodeArgs& args, const Part& part, Memory& shared, int n, int id,
                      const TileRowsAt& rows) {
    using S = typename Memory::S;
    constexpr int kStages = Memory::kStages;
    if (threadIdx.x != 0 || id < 0) return;
    const auto copy = [&](char* to, const CUtensorMap* map, Barrier& full) {
        full.expect(S::kKeyBytes);
        copy_keys<S::kBoxes, S::kKeyBox>(to, map, args.key_map, rows, part.group, full);
    };
    copy(shared.tiles.k[n % kStages], &args.k, shared.k_full[n % kStages]);
    copy(shared.tiles.v[n % kStages], &args.v, shared.v_full[n % kStages]);
}

/// The heads of the part as an operand; heads that are not there are 0.
template <int Dim>
__device__ void read_queries(const SparseDecodeArgs& args, const Part& part,
                             uint32_t (&rows)[Dim / 4]) {
    const auto* const q = static_cast<const uint32_t*>(args.q) + part.first_row * (Dim / 2);
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int s = 0; s < Dim / 16; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int head = lane / 4 + 8 * (i % 2);
            rows[4 * s + i] = part.first_head + head < part.heads
                                  ? __ldcg(q + head * (Dim / 2) + 8 * s + 4 * (i / 2) + lane % 4)
                                  : 0;
        }
}

/// Attends to the blocks of this thread block. `ahead`: those under way, by stage. In the warm-up
/// one step is made on whatever the stage holds.
template <typename T, int Dim, int BlockSize, int kStages>
__device__ void attend(const SparseDecodeArgs& args, const Part& part,
                       Shared<T, Dim, BlockSize, kStages>& shared, const uint32_t (&rows)[Dim / 4],
                       const float (&row_scale)[2], bool live, int32_t (&ahead)[kStages],
                       float (&out)[Dim / 2], RunningSoftmax<T>& softmax) {
    constexpr int kKeys = kWarpKeys<BlockSize>;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, first = warp * kKeys;  // key
    const bool takes_keys = kWarps * kKeys == BlockSize || first < BlockSize;
    for (int n = 0; ahead[n % kStages] >= 0; ++n) {
        const int stage = n % kStages;
        const uint32_t parity = n / kStages % 2;
        const int64_t seen = part.visible.count - int64_t{ahead[stage]} * BlockSize;
        const int seen_here = static_cast<int>(min(seen, int64_t{BlockSize})) - first;
        if (takes_keys) {
            float score[kKeys / 2], factor[2];
            char *const k = shared.tiles.k[stage], *const v = shared.tiles.v[stage];
            const int both[2] = {seen_here, seen_here};
            [[maybe_unused]] const auto chunk_at = [](char* tile) {
                return [tile](int key, int chunk) {
                    return chunk_of<BlockSize * kSwizzle>(tile, key, chunk);
                };
            };
            if constexpr (kIsE4m3<T>) {
                const int64_t at =
                    int64_t{part.first_block + ahead[stage]} * args.groups + part.group;
                const BlockScales scales =
                    live ? fresh_block_scales(args.scales, at) : BlockScales{1, 0, 1};
                if (live) shared.k_full[stage].wait(parity);
                scores_of_e4m3<Dim>(score, rows, chunk_at(k), first);
                const auto step = softmax.meet(score, both, row_scale, scales, factor);
                if (step.any)
                    softmax.weigh(score, step, scales, factor);
                else
                    for (float& x : score) x = 0;
            } else {
                if (live) shared.k_full[stage].wait(parity);
                scores_of<T, Dim, BlockSize>(score, rows, k, first);
                softmax.step(score, both, args.scale * kLog2E, factor);
            }
#pragma unroll
            for (int i = 0; i < Dim / 2; ++i) out[i] *= factor[i / 2 % 2];
            if (live) shared.v_full[stage].wait(parity);
            clear_unseen<Dim* static_cast<int>(sizeof(T)) / 16, BlockSize>(v, first,
                                                                           first + seen_here);
            if constexpr (kIsE4m3<T>) {
                if (seen_here > 0) add_values_e4m3<Dim>(out, score, chunk_at(v), first);
            } else {
                if (seen_here > 0) add_values<T, Dim, BlockSize>(out, score, v, first);
            }
        }
        fence_shared();
        __syncthreads();
        ahead[stage] = part.block(args, n + kStages, live);
        fetch(args, part, shared, n + kStages, ahead[stage],
              rows_at<BlockSize>(args, part, ahead[stage]));
    }
}

/// A warp's part, where the tiles were.
template <typename T, int Dim, int BlockSize, int Stages>
__device__ void put_warp_part(Shared<T, Dim, BlockSize, Stages>& shared,
                              const float (&out)[Dim / 2], const RunningSoftmax<T>& softmax) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int head = lane / 4 + 8 * side;
        float total = softmax.sum[side];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        float best;
        if constexpr (kIsE4m3<T>)
            best = softmax.best(side);
        else
            best = softmax.reference[side];
        if (lane % 4 == 0) shared.best[warp][head] = best, shared.total[warp][head] = total;
        put_outputs<T>(out, side, shared.out[warp][head]);
    }
}

/// Joins the warps' parts and sends each head to its owner, two heads to a thread block.
template <typename T, int Dim, int BlockSize, int Stages>
__device__ void send_to_owners(Shared<T, Dim, BlockSize, Stages>& shared, int rank, float scale) {
    constexpr int kQuads = Dim / 4;  // of a head
#pragma unroll
    for (int i = threadIdx.x; i < kHeads * kQuads; i += kThreads) {
        const int head = i / kQuads, quad = i % kQuads;
        float best = -INFINITY;
        for (int w = 0; w < kWarps; ++w) best = fmaxf(best, shared.best[w][head]);
        float4 sum{};
        float total = 0;
        for (int w = 0; w < kWarps; ++w) {
            const float weight = weight_of(shared.best[w][head], best, scale);
            const float4 more = reinterpret_cast<const float4*>(shared.out[w][head])[quad];
            sum.x = fmaf(weight, more.x, sum.x), sum.y = fmaf(weight, more.y, sum.y);
            sum.z = fmaf(weight, more.z, sum.z), sum.w = fmaf(weight, more.w, sum.w);
            total = fmaf(weight, shared.total[w][head], total);
        }
        const int owner = head / 2, own_head = head % 2;
        const uint32_t barrier = address_in_cluster(&shared.all_parts, owner);
        send(address_in_cluster(&shared.parts.out[rank][own_head][4 * quad], owner), sum, barrier);
        if (quad == 0)
            send(address_in_cluster(&shared.parts.sums[rank][own_head], owner),
                 make_float2(best, total), barrier);
    }
}

/// Joins the parts of this thread block's two heads, half of a head's channels per warp, and writes
/// the result; lanes 0 to 7 weigh a part each. The warm-up writes nothing.
template <typename T, bool Exchanged, int Dim, int BlockSize, int Stages>
__device__ void write_heads(const SparseDecodeArgs& args, const RankExchange& exchange,
                            const Part& part, const Shared<T, Dim, BlockSize, Stages>& shared,
                            float scale, bool live) {
    constexpr int kPerLane = Dim / 2 / kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
    const int own_head = warp / 2, head = 2 * part.rank + own_head;
    const int channel = warp % 2 * (Dim / 2) + lane * kPerLane;
    float of_part[kCluster][kPerLane];
#pragma unroll
    for (int n = 0; n < kCluster; ++n)
        for (int i = 0; i < kPerLane; ++i)
            of_part[n][i] = shared.parts.out[n][own_head][channel + i];
    const auto [own, share] = shared.parts.sums[lane % kCluster][own_head];
    float best = own;
    for (int step = kCluster / 2; step > 0; step /= 2)
        best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, step));
    const float weight = weight_of(own, best, scale);
    float all = weight * share, mine[kPerLane] = {};
    for (int step = kCluster / 2; step > 0; step /= 2) all += __shfl_xor_sync(kAllLanes, all, step);
#pragma unroll
    for (int n = 0; n < kCluster; ++n) {
        const float w = __shfl_sync(kAllLanes, weight, n);
        for (int i = 0; i < kPerLane; ++i) mine[i] = fmaf(w, of_part[n][i], mine[i]);
    }
    if (!live || part.first_head + head >= part.heads) return;
    if constexpr (Exchanged)
        join_ranks(exchange, static_cast<int>(2 * (part.first_row + head)) + warp % 2, scale, mine,
                   best, all);
    const bool any = all != 0;
    auto* const to = static_cast<Stored<T>*>(args.out) + (part.first_row + head) * Dim;
    for (int i = 0; i < kPerLane; ++i)
        to[channel + i] = rounded<Stored<T>>(any ? mine[i] / all : 0);
    if (warp % 2 == 0 && lane == 0)
        args.lse[part.first_row + head] =
            any ? fmaf(best, kIsE4m3<T> ? kLn2 : args.scale, logf(all)) : -INFINITY;
}

template <typename T, int Dim, int BlockSize, bool Exchanged, int kStages>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, kStages == 1 ? 3 : 1)
    decode(const __grid_constant__ SparseDecodeArgs args,
           const __grid_constant__ RankExchange exchange) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<T, Dim, BlockSize, kStages>*>(memory);
    const auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) {
        prefetch_map(&args.k), prefetch_map(&args.v);
        shared.all_parts.init(1);
        for (int s = 0; s < kStages; ++s) shared.k_full[s].init(1), shared.v_full[s].init(1);
        fence_barriers();
    }
    Part part(args);
    __syncthreads();

    uint32_t rows[Dim / 4];
    float row_scale[2] = {};  // of e4m3
    const int first_pass = gridDim.x > kOneWave ? 1 : 0;
#pragma unroll 1
    for (int pass = first_pass; pass < 2; ++pass) {
        const bool live = pass == 1;
        if (threadIdx.x == 0) shared.all_parts.expect(sizeof(shared.parts));
        auto all_here = cluster.barrier_arrive();
        if (live) wait_for_previous_kernel();
        if (live) part.visible.count -= fewer_keys(args.key_map, args.of_query, part.query);
        int32_t ahead[kStages];
#pragma unroll
        for (int n = 0; n < kStages; ++n) ahead[n] = part.block(args, n, live);
        TileRowsAt rows_of[kStages];
#pragma unroll
        for (int n = 0; n < kStages; ++n) rows_of[n] = rows_at<BlockSize>(args, part, ahead[n]);
#pragma unroll
        for (int n = 0; n < kStages; ++n) fetch(args, part, shared, n, ahead[n], rows_of[n]);
        if (live) launch_dependents();
        if (pass == first_pass || !args.q_settled) {
            if constexpr (kIsE4m3<T>)
                read_queries_e4m3<Dim>(args, part.first_row, part.heads - part.first_head, rows,
                                       row_scale);
            else
                read_queries<Dim>(args, part, rows);
        }
        if (!live) ahead[0] = 0;

        float out[Dim / 2] = {};
        RunningSoftmax<T> softmax;
        attend(args, part, shared, rows, row_scale, live, ahead, out, softmax);
        put_warp_part(shared, out, softmax);
        __syncthreads();
        cluster.barrier_wait(std::move(all_here));  // the others' memory may be written
        const float scale = kIsE4m3<T> ? 1.0F : args.scale * kLog2E;  // of the largest scores
        send_to_owners(shared, part.rank, scale);
        shared.all_parts.wait(pass != first_pass);
        write_heads<T, Exchanged>(args, exchange, part, shared, scale, live);
        fence_shared();
        __syncthreads();  // before the tiles, where the warps' parts were, are copied anew
    }
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_decode_sm90(const SparseDecodeArgs& args, cudaStream_t stream,
                                      const RankExchange* exchange) {
    return by_operand_sizes<T>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        const int64_t blocks = sparse_decode_blocks(args.queries, args.groups, args.group_size());
        const auto run = [&]<int Stages>(auto* kernel) {
            using S = Shared<T, Dim, BlockSize, Stages>;
            const cudaError_t error = allow_shared<S>(kernel);
            if (error != cudaSuccess) return error;
            return launch_early(kernel, static_cast<unsigned>(blocks), kThreads, sizeof(S), stream,
                                args, exchange != nullptr ? *exchange : RankExchange{});
        };
        if constexpr (sizeof(Shared<T, Dim, BlockSize, 2>) > kMostSharedBytes / 2)
            if (blocks > kOneWave)
                return run.template operator()<1>(decode<T, Dim, BlockSize, false, 1>);
        if constexpr (!kIsE4m3<T>)
            if (exchange != nullptr)
                return run.template operator()<2>(decode<T, Dim, BlockSize, true, 2>);
        return run.template operator()<2>(decode<T, Dim, BlockSize, false, 2>);
    });
}

#define MSA_INSTANTIATE(T)                                                                   \
    template cudaError_t launch_sparse_decode_sm90<T>(const SparseDecodeArgs&, cudaStream_t, \
                                                      const RankExchange*);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
