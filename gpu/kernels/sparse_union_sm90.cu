// SPDX-License-Identifier: MIT
// One producer thread streams queries, keys and values (TMA); two consumer warpgroups hold 64 rows
// each. The product Q K^T of the next block runs beside P V of the last one and the softmax
// between them. Persistent: the producer runs ahead into the next tile. A tile then adds what
// KV-outer left in its queries' slots, each weighted by its share of the softmax denominator, and
// writes the result: the second phase of KV-outer, beside what needs none.
#include <algorithm>

#include "gpu/device/attend_sm90.cuh"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kStages = 2;

template <int Dim, int BlockSize>
struct Shared {
    using S = AttendShape<Dim, BlockSize>;
    char q[S::kQueryBytes];
    char k[kStages][S::kKeyBytes];
    char v[kStages][S::kKeyBytes];
    UnionBlock blocks[kStages];
    Ring<kStages> k_ring, v_ring;
    Barrier q_full, q_empty;
};

/// A (tile, group) pair. Group major, so that tiles that run together share keys.
struct Item {
    QueryTile tile;
    int group, count;
    const UnionBlock* blocks;

    __device__ Item(const SparseArgs& args, int index) {
        tile = args.tiles[index % args.tile_count];
        group = index / args.tile_count;
        count = args.workspace.block_counts[index];
        blocks = args.workspace.blocks + int64_t{index} * args.top_k * args.tile_queries();
    }
};

/// The producer warp; its first lane issues the copies.
template <int Dim, int BlockSize>
__device__ void produce_blocks(const SparseArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = AttendShape<Dim, BlockSize>;
    Cursor<kStages> at;
    uint32_t q_parity = 1;
    const bool issues = threadIdx.x % kWarp == 0;
    const int items = args.tile_count * args.groups;
    for (int index = static_cast<int>(blockIdx.x); index < items;
         index += static_cast<int>(gridDim.x)) {
        const Item item(args, index);
        if (item.count == 0) continue;
        shared.q_empty.wait(q_parity);
        q_parity ^= 1;
        if (issues) {
            shared.q_full.expect(S::kQueryBytes);
            for (int box = 0; box < S::kBoxes; ++box)
                copy_box(shared.q + box * S::kQueryBox, &args.q_tile, 64 * box,
                         item.group * args.group_size(), static_cast<int>(item.tile.query),
                         &shared.q_full);
        }
        UnionBlock next = item.blocks[0];
        for (int n = 0; n < item.count; ++n, at.advance()) {
            const UnionBlock block = next;
            if (n + 1 < item.count) next = item.blocks[n + 1];
            const int row = static_cast<int>(item.tile.key) + block.block * BlockSize;
            Barrier &k_full = shared.k_ring.full[at.stage], &v_full = shared.v_ring.full[at.stage];
            shared.k_ring.empty[at.stage].wait(at.parity ^ 1);
            if (issues) {
                shared.blocks[at.stage] = block;
                k_full.expect(S::kKeyBytes);
                for (int box = 0; box < S::kBoxes; ++box)
                    copy_box(shared.k[at.stage] + box * S::kKeyBox, &args.k,
                             item.group * Dim + 64 * box, row, &k_full);
            }
            shared.v_ring.empty[at.stage].wait(at.parity ^ 1);
            if (issues) {
                v_full.expect(S::kKeyBytes);
                for (int box = 0; box < S::kBoxes; ++box)
                    copy_box(shared.v[at.stage] + box * S::kKeyBox, &args.v,
                             item.group * Dim + 64 * box, row, &v_full);
            }
        }
    }
}

/// Adds slots [0, count) to one of this thread's rows with softmax state (best, total), base 2;
/// `first` is slot 0 as a row of partial_out, each further slot lies `stride` rows on. By a whole
/// warp, alike but for `first`.
template <int Dim>
__device__ void add_slots(const SparseWorkspace& work, int64_t first, int stride, int count,
                          float (&out)[Dim / 2], int side, float& best, float& total) {
    constexpr int kAtOnce = 4;  // slots, one lse of them per lane
    const int quad = threadIdx.x % kAtOnce, head = threadIdx.x % kWarp / kAtOnce;
    const float* const lse = work.partial_lse + first;
    const auto* const partial = static_cast<const uint4*>(work.partial_out) + first * (Dim / 8);
    float most = best;
    for (int slot = quad; slot < count; slot += kAtOnce) most = fmaxf(most, lse[slot * stride]);
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    const float factor = exp2_fast(best - most);
    best = most;
    total *= factor;
#pragma unroll
    for (int j = 0; j < Dim / 8; ++j)
        out[4 * j + 2 * side] *= factor, out[4 * j + 2 * side + 1] *= factor;
#pragma unroll 1
    for (int slot = 0; slot < count; slot += kAtOnce) {
        const float mine = slot + quad < count ? lse[(slot + quad) * stride] : -INFINITY;
        uint4 chunk[kAtOnce][Dim / 32];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
            for (int i = 0; i < Dim / 32; ++i)
                chunk[n][i] = slot + n < count
                                  ? __ldcs(partial + int64_t{slot + n} * stride * (Dim / 8) +
                                           slot_chunk(i, head))
                                  : uint4{};
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
            const float weight = exp2_fast(__shfl_sync(kAllLanes, mine, n, kAtOnce) - best);
            total += weight;
#pragma unroll
            for (int i = 0; i < Dim / 32; ++i) add_chunk(out, side, i, chunk[n][i], weight);
        }
    }
}

template <int Dim, int BlockSize>
__global__ void __launch_bounds__(AttendRows::kThreads, 1)
    union_attention(const __grid_constant__ SparseArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Dim, BlockSize>*>(memory);
    using S = AttendShape<Dim, BlockSize>;
    if (threadIdx.x == 0) {
        shared.k_ring.init(AttendRows::kConsumers);
        shared.v_ring.init(AttendRows::kConsumers);
        shared.q_full.init(1);
        shared.q_empty.init(4 * AttendRows::kConsumers);
        fence_barriers();
    }
    __syncthreads();
    wait_for_previous_kernel();
    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == AttendRows::kConsumers) {
        fewer_registers<24>();
        if (threadIdx.x % kWarpgroup < kWarp) produce_blocks(args, shared);
        return;
    }
    more_registers<AttendRows::kConsumerRegisters>();

    const int heads = args.group_size();
    const bool leader = threadIdx.x % kWarp == 0;  // releases for its warp
    const int lane = threadIdx.x % kWarp;
    const int row = warpgroup * 64 + threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
    const int query[2] = {row / heads, (row + 8) / heads};
    const float scale = args.scale * kLog2E;
    const char* const q = shared.q + warpgroup * 64 * kSwizzle;
    Cursor<kStages> k_at, v_at;
    uint32_t q_parity = 0;
    const int items = args.tile_count * args.groups;
    for (int index = static_cast<int>(blockIdx.x); index < items;
         index += static_cast<int>(gridDim.x)) {
        const Item item(args, index);
        int visible[2];
        for (int side = 0; side < 2; ++side)
            visible[side] = query[side] < item.tile.queries
                                ? seen_keys(args.visible, item.tile.query + query[side])
                                : 0;
        float out[Dim / 2] = {};
        Softmax softmax;
        if (item.count > 0) {
            uint32_t p[BlockSize / 4];
            float factor[2];
            auto take = [&](float(&sum)[BlockSize / 2]) {  // scores of the block at k_at
                const UnionBlock block = shared.blocks[k_at.stage];
                __syncwarp();  // all lanes have read it
                if (leader) shared.k_ring.empty[k_at.stage].arrive();
                k_at.advance();
                int seen[2];
                for (int side = 0; side < 2; ++side)
                    seen[side] = (block.queries >> query[side]) & 1
                                     ? visible[side] - block.block * BlockSize
                                     : 0;
                softmax.step(sum, seen, scale, factor);
            };
            auto keep_p = [&](const float(&sum)[BlockSize / 2]) {
#pragma unroll
                for (int i = 0; i < BlockSize / 4; ++i) p[i] = pack(sum[2 * i], sum[2 * i + 1]);
            };
            shared.q_full.wait(q_parity);
            shared.k_ring.full[k_at.stage].wait(k_at.parity);
            {
                float sum[BlockSize / 2];
                start_scores<Dim, BlockSize>(sum, q, shared.k[k_at.stage]);
                wgmma_wait<0>();
                take(sum);
                keep_p(sum);
            }
            for (int n = 1; n < item.count; ++n) {
                float sum[BlockSize / 2];
                shared.k_ring.full[k_at.stage].wait(k_at.parity);
                start_scores<Dim, BlockSize>(sum, q, shared.k[k_at.stage]);
                shared.v_ring.full[v_at.stage].wait(v_at.parity);
                start_values<Dim, BlockSize>(out, p, shared.v[v_at.stage], n > 1);
                wgmma_wait<1>();
                take(sum);
                wgmma_wait<0>();
                if (leader) shared.v_ring.empty[v_at.stage].arrive();
                v_at.advance();
                if (__any_sync(0xFFFFFFFF, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
                    for (int i = 0; i < Dim / 2; ++i) out[i] *= factor[i / 2 % 2];
                }
                keep_p(sum);
            }
            if (leader) shared.q_empty.arrive();
            q_parity ^= 1;
            shared.v_ring.full[v_at.stage].wait(v_at.parity);
            start_values<Dim, BlockSize>(out, p, shared.v[v_at.stage], item.count > 1);
            wgmma_wait<0>();
            if (leader) shared.v_ring.empty[v_at.stage].arrive();
            v_at.advance();
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float total = softmax.total[side];
            total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
            total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
            float best = softmax.best[side] * scale;
            const bool wanted = query[side] < item.tile.queries;  // of the whole warp
            const int64_t at = item.tile.query + query[side], chunk_row = args.row(at, item.group);
            const int head = (row + 8 * side) % heads;
            const int slots = wanted ? __popc(args.workspace.in_slots[chunk_row]) : 0;
            if (slots > 0)
                add_slots<Dim>(args.workspace, chunk_row * args.top_k * heads + head, heads, slots,
                               out, side, best, total);
            const bool any = total != 0;  // NaN alone leaves no best score, but a total
            const float factor = any ? 1 / total : 0;
            if (wanted && has_nan(out, side, factor)) args.workspace.marked[chunk_row] = 1;
            const int64_t out_row = at * args.query_heads + item.group * heads + head;
            store_row(out, side, factor, wanted, static_cast<char*>(args.out) + out_row * Dim * 2);
            if (wanted && lane % 4 == 0)
                args.lse[out_row] = any ? (best + log2f(total)) * kLn2 : -INFINITY;
        }
    }
}

template <int Dim, int BlockSize>
cudaError_t launch(const SparseArgs& args, int processors, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<Dim, BlockSize>);
    auto* const kernel = union_attention<Dim, BlockSize>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int64_t items = int64_t{args.tile_count} * args.groups;
    return launch_early(kernel, dim3(static_cast<unsigned>(std::min<int64_t>(items, processors))),
                        AttendRows::kThreads, kBytes, stream, args);
}

}  // namespace

cudaError_t launch_sparse_union_sm90(const SparseArgs& args, int processors, cudaStream_t stream) {
    if (args.head_dim == 128)
        return args.block_size == 128 ? launch<128, 128>(args, processors, stream)
                                      : launch<128, 64>(args, processors, stream);
    return args.block_size == 128 ? launch<64, 128>(args, processors, stream)
                                  : launch<64, 64>(args, processors, stream);
}

}  // namespace msa::cuda
