// SPDX-License-Identifier: MIT
// Split-K decode, for too few queries to fill the chip with tiles. A cluster of thread blocks
// computes 16 heads of one (query, group). Of C thread blocks, each takes every C-th of the
// selected blocks, and each of its 4 warps a quarter of a block's keys. With blocks of 32, two
// warps take half each.
//
//   read_queries     loads the 16 heads as operands of the matrix product, the same in every warp
//   attend           online softmax; tiles, which are the keys or the values of a block, pass
//                    through a ring in shared memory (TMA)
//   put_warp_part    stores a warp's outputs, running maxima and sums in shared memory
//   send_to_owners   merges the warps' parts, and sends each head to the thread block that owns it
//   write_half       an owner merges C parts for each of its heads, and writes out and lse
//
// One launch, no workspace. Keys that the query does not see are never multiplied.
//
// All thread blocks are on the chip at once: waves would begin and merge one after the other, and
// each begins with a chain of dependent reads. So the size of a cluster depends on their number,
// and with it how many share an SM and the tiles of a ring (form_of):
//
//   up to 16 clusters   8 thread blocks each, one to an SM, with all tiles of two blocks, and a
//                       warm-up
//   more                the largest of 4, 2 and 1 that makes at most 256 thread blocks, or else 1
//                       (2 with 256 channels, for which a block of 128 keys is two of 64); each has
//                       half of an SM, for a ring of three tiles of 32 KB: up to 192 KB are under
//                       way to an SM
//
// The place of a tile is asked for the next one as soon as the tile is multiplied. The ids of all
// blocks, and the rows where they lie, are read at the beginning, one block per lane; the length on
// the device, which the copies do not need, behind them.
//
// Warm-up: the keys that index_select streams evict this kernel's instructions from L2. So the
// kernel runs all its code twice. The first pass works on no data, while the previous kernel ends,
// and brings the instructions back. The second pass waits for that kernel and does the work. Where
// thread blocks share an SM there is no first pass: many begin only when the previous kernel ends,
// and it would take longer than it saves. Data that the previous kernel writes are read past L1
// (__ldcg), because the warm-up may have left old data there.
#include "gpu/device/attend_e4m3_sm90.cuh"
#include "gpu/device/decode_keys_e4m3.cuh"
#include "gpu/device/decode_keys_sm90.cuh"
#include "gpu/device/decode_tiles_sm90.cuh"
#include "gpu/device/join_ranks.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_decode_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kThreads = kDecodeWarps * kWarp;

/// Thread blocks of a cluster, at least `least`, and those that have room on an SM.
struct DecodeForm {
    int cluster, to_sm;
};
DecodeForm form_of(int64_t clusters, int least) {
    constexpr int64_t kAlone = kMostExchanging;  // so many any chip holds at once, one to an SM
    int cluster = kDecodeCluster;
    if (clusters * cluster <= kAlone) return {cluster, 1};
    do cluster /= 2;
    while (cluster > least && clusters * cluster > 2 * kAlone);
    return {cluster, 2};
}

/// The heads of the part as an operand; heads that are not there are 0.
template <int Dim>
__device__ void read_queries(const SparseDecodeArgs& args, const DecodePart& part,
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

/// Scores become weights. Earlier results must be multiplied by `factor`.
template <typename T, int Sums>
__device__ void weigh(float (&score)[Sums], const int (&seen)[2],
                      [[maybe_unused]] const float (&row_scale)[2],
                      [[maybe_unused]] const BlockScales& scales, float scale,
                      RunningSoftmax<T>& softmax, float (&factor)[2]) {
    if constexpr (kIsE4m3<T>) {
        const auto step = softmax.meet(score, seen, row_scale, scales, factor);
        if (step.any)
            softmax.weigh(score, step, scales, factor);
        else
            for (float& x : score) x = 0;
    } else {
        softmax.step(score, seen, scale * kLog2E, factor);
    }
}

/// Attends to the blocks of this thread block. The warm-up takes whatever the tiles hold.
template <typename T, int Dim, int BlockSize, int Tiles>
__device__ void attend(const SparseDecodeArgs& args, const DecodePart& part,
                       const DecodeBlocks<BlockSize, Dim == 256>& blocks,
                       DecodeMemory<T, Dim, BlockSize, Tiles>& shared,
                       const uint32_t (&rows)[Dim / 4], const float (&row_scale)[2], bool live,
                       float (&out)[Dim / 2], RunningSoftmax<T>& softmax) {
    constexpr int kKeys = kWarpKeys<BlockSize>;
    const int first = static_cast<int>(threadIdx.x) / kWarp * kKeys;  // key
    const bool takes_keys = kDecodeWarps * kKeys == BlockSize || first < BlockSize;
    [[maybe_unused]] const auto chunk_at = [](char* tile) {
        return
            [tile](int key, int chunk) { return chunk_of<BlockSize * kSwizzle>(tile, key, chunk); };
    };
    const auto arrived = [&](int tile) {
        const int stage = stage_of<Tiles>(tile);
        if (live) shared.full[stage].wait(parity_of<Tiles>(tile));
        return shared.tiles[stage];
    };
    for (int n = 0; n < blocks.count; ++n) {
        const int id = blocks.id_of(n);
        const int64_t seen = part.visible.count - int64_t{id} * BlockSize;
        const int seen_here = static_cast<int>(min(seen, int64_t{BlockSize})) - first;
        const int both[2] = {seen_here, seen_here};
        float score[kKeys / 2], factor[2];
        [[maybe_unused]] BlockScales scales{1, 0, 1};
        if (takes_keys) {
            if constexpr (kIsE4m3<T>) {
                if (live)
                    scales = fresh_block_scales(
                        args.scales, int64_t{part.first_block + id} * args.groups + part.group);
                scores_of_e4m3<Dim>(score, rows, chunk_at(arrived(2 * n)), first);
            } else {
                scores_of<T, Dim, BlockSize>(score, rows, arrived(2 * n), first);
            }
        }
        replace_tile(args, part, blocks, shared, 2 * n);
        if (takes_keys) {
            weigh<T>(score, both, row_scale, scales, args.scale, softmax, factor);
#pragma unroll
            for (int i = 0; i < Dim / 2; ++i) out[i] *= factor[i / 2 % 2];
            char* const v = arrived(2 * n + 1);
            clear_unseen<Dim* static_cast<int>(sizeof(T)) / 16, BlockSize>(v, first,
                                                                           first + seen_here);
            if constexpr (kIsE4m3<T>) {
                if (seen_here > 0) add_values_e4m3<Dim>(out, score, chunk_at(v), first);
            } else {
                if (seen_here > 0) add_values<T, Dim, BlockSize>(out, score, v, first);
            }
        }
        replace_tile(args, part, blocks, shared, 2 * n + 1);
    }
    __syncthreads();
}

/// A warp's part, where the tiles were.
template <typename T, int Dim, int BlockSize, int Tiles>
__device__ void put_warp_part(DecodeMemory<T, Dim, BlockSize, Tiles>& shared,
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

/// Joins the warps' parts and sends each head to its owner, as many heads to each thread block.
template <typename T, int Dim, int BlockSize, int Tiles>
__device__ void send_to_owners(DecodeMemory<T, Dim, BlockSize, Tiles>& shared,
                               const DecodePart& part, float scale) {
    constexpr int kQuads = Dim / 4;  // of a head
#pragma unroll
    for (int i = threadIdx.x; i < kDecodeHeads * kQuads; i += kThreads) {
        const int head = i / kQuads, quad = i % kQuads;
        float best = -INFINITY;
        for (int w = 0; w < kDecodeWarps; ++w) best = fmaxf(best, shared.best[w][head]);
        float4 sum{};
        float total = 0;
        for (int w = 0; w < kDecodeWarps; ++w) {
            const float weight = weight_of(shared.best[w][head], best, scale);
            const float4 more = reinterpret_cast<const float4*>(shared.out[w][head])[quad];
            sum.x = fmaf(weight, more.x, sum.x), sum.y = fmaf(weight, more.y, sum.y);
            sum.z = fmaf(weight, more.z, sum.z), sum.w = fmaf(weight, more.w, sum.w);
            total = fmaf(weight, shared.total[w][head], total);
        }
        const int owner = head * part.cluster / kDecodeHeads;
        const int place = part.place(part.rank, head - owner * part.own_heads);
        const uint32_t barrier = address_in_cluster(&shared.all_parts, owner);
        send(address_in_cluster(&shared.parts.out[place][4 * quad], owner), sum, barrier);
        if (quad == 0)
            send(address_in_cluster(&shared.parts.sums[place], owner), make_float2(best, total),
                 barrier);
    }
}

/// Joins the parts of half of the channels of a head, and writes the result; called by a warp,
/// whose lanes weigh a part each. `half`: of this thread block's heads. The warm-up writes nothing.
template <typename T, bool Exchanged, int Dim, int BlockSize, int Tiles>
__device__ void write_half(const SparseDecodeArgs& args, const RankExchange& exchange,
                           const DecodePart& part,
                           const DecodeMemory<T, Dim, BlockSize, Tiles>& shared, float scale,
                           bool live, int half) {
    constexpr int kPerLane = Dim / 2 / kWarp;
    const int lane = threadIdx.x % kWarp, own_head = half / 2;
    const int head = part.own_heads * part.rank + own_head;
    const int channel = half % 2 * (Dim / 2) + lane * kPerLane;
    float of_part[kDecodeCluster][kPerLane] = {};
#pragma unroll
    for (int n = 0; n < kDecodeCluster; ++n)
        if (n < part.cluster)
            for (int i = 0; i < kPerLane; ++i)
                of_part[n][i] = shared.parts.out[part.place(n, own_head)][channel + i];
    const auto [own, share] = shared.parts.sums[part.place(lane % part.cluster, own_head)];
    float best = own;
    for (int step = part.cluster / 2; step > 0; step /= 2)
        best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, step));
    const float weight = weight_of(own, best, scale);
    float all = weight * share, mine[kPerLane] = {};
    for (int step = part.cluster / 2; step > 0; step /= 2)
        all += __shfl_xor_sync(kAllLanes, all, step);
#pragma unroll
    for (int n = 0; n < kDecodeCluster; ++n) {
        if (n >= part.cluster) break;
        const float w = __shfl_sync(kAllLanes, weight, n);
        for (int i = 0; i < kPerLane; ++i) mine[i] = fmaf(w, of_part[n][i], mine[i]);
    }
    if (!live || part.first_head + head >= part.heads) return;
    if constexpr (Exchanged)
        join_ranks(exchange, static_cast<int>(2 * (part.first_row + head)) + half % 2, scale, mine,
                   best, all);
    const bool any = all != 0;
    auto* const to = static_cast<Stored<T>*>(args.out) + (part.first_row + head) * Dim;
    for (int i = 0; i < kPerLane; ++i)
        to[channel + i] = rounded<Stored<T>>(any ? mine[i] / all : 0);
    if (half % 2 == 0 && lane == 0)
        args.lse[part.first_row + head] =
            any ? fmaf(best, kIsE4m3<T> ? kLn2 : args.scale, logf(all)) : -INFINITY;
}

template <typename T, int Dim, int BlockSize, bool Exchanged, int ToSm>
__global__ void __launch_bounds__(kThreads, ToSm)
    decode(const __grid_constant__ SparseDecodeArgs args,
           const __grid_constant__ RankExchange exchange) {
    extern __shared__ __align__(1024) char memory[];
    constexpr int kTiles = kDecodeTiles<T, Dim, BlockSize, ToSm>;
    auto& shared = *reinterpret_cast<DecodeMemory<T, Dim, BlockSize, kTiles>*>(memory);
    if (threadIdx.x == 0) {
        prefetch_map(&args.k), prefetch_map(&args.v);
        shared.all_parts.init(1);
        for (Barrier& full : shared.full) full.init(1);
        fence_barriers();
    }
    DecodePart part(args);
    __syncthreads();

    uint32_t rows[Dim / 4];
    float row_scale[2] = {};  // of e4m3
    constexpr int kFirstPass = ToSm == 1 ? 0 : 1;
#pragma unroll 1
    for (int pass = kFirstPass; pass < 2; ++pass) {
        const bool live = pass == 1;
        if (threadIdx.x == 0) shared.all_parts.expect(sizeof(shared.parts));
        arrive_in_cluster();
        if (live) wait_for_previous_kernel();
        const DecodeBlocks<BlockSize, Dim == 256> blocks(args, part, live);
#pragma unroll 1
        for (int tile = 0; tile < kTiles; ++tile) fetch_tile(args, part, blocks, shared, tile);
        if (live) launch_dependents();
        if (live) part.visible.count -= fewer_keys(args.key_map, part.sequence);
        if (pass == kFirstPass || !args.q_settled) {
            if constexpr (kIsE4m3<T>)
                read_queries_e4m3<Dim>(args, part.first_row, part.heads - part.first_head, rows,
                                       row_scale);
            else
                read_queries<Dim>(args, part, rows);
        }

        float out[Dim / 2] = {};
        RunningSoftmax<T> softmax;
        attend(args, part, blocks, shared, rows, row_scale, live, out, softmax);
        put_warp_part(shared, out, softmax);
        __syncthreads();
        wait_for_cluster();  // the others' memory may be written
        const float scale = kIsE4m3<T> ? 1.0F : args.scale * kLog2E;  // of the largest scores
        send_to_owners(shared, part, scale);
        shared.all_parts.wait(pass != kFirstPass);
        for (int half = static_cast<int>(threadIdx.x) / kWarp; half < 2 * part.own_heads;
             half += kDecodeWarps)
            write_half<T, Exchanged>(args, exchange, part, shared, scale, live, half);
        fence_shared();
        __syncthreads();  // before the tiles, where the warps' parts were, are copied anew
    }
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_decode_sm90(const SparseDecodeArgs& args, cudaStream_t stream,
                                      const RankExchange* exchange) {
    const int64_t clusters = sparse_decode_clusters(args.queries, args.groups, args.group_size());
    const DecodeForm form = form_of(clusters, args.head_dim == 256 ? 2 : 1);
    return by_head_sizes<T, true>(args.head_dim, args.block_size, [&]<int Dim, int Size>() {
        constexpr int BlockSize = Dim == 256 ? kSparseWideStepKeys : Size;
        const auto run = [&]<bool Exchanged, int ToSm>() {
            auto* const kernel = decode<T, Dim, BlockSize, Exchanged, ToSm>;
            using S = DecodeMemory<T, Dim, BlockSize, kDecodeTiles<T, Dim, BlockSize, ToSm>>;
            static_assert(ToSm == 1 || sizeof(S) <= kHalfOfAnSm);
            const cudaError_t error = allow_shared<S>(kernel);
            if (error != cudaSuccess) return error;
            return launch_early_in_clusters(
                kernel, form.cluster, static_cast<unsigned>(clusters * form.cluster), kThreads,
                sizeof(S), stream, args, exchange != nullptr ? *exchange : RankExchange{});
        };
        if constexpr (Dim < 256)
            if (exchange != nullptr) return run.template operator()<true, 1>();
        if (form.to_sm == 1) return run.template operator()<false, 1>();
        return run.template operator()<false, 2>();
    });
}

#define MSA_INSTANTIATE(T)                                                                   \
    template cudaError_t launch_sparse_decode_sm90<T>(const SparseDecodeArgs&, cudaStream_t, \
                                                      const RankExchange*);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
