// SPDX-License-Identifier: MIT
// A block's keys and values stay in shared memory while tiles of its queries pass: producer warps
// gather them, a lane per query. One softmax per tile, no running maximum; each output is
// normalised and goes to its query's slot. G is 8 or more.
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
    char q[kStages][S::kQueryBytes];
    char k[kStages][S::kKeyBytes];
    char v[kStages][S::kKeyBytes];
    RowStage<Dim> out[AttendRows::kConsumers * 4];  // per warp
    BlockUse uses[kStages][kWarp];
    Ring<kStages> q_ring, kv_ring;
};

/// A producer warp: it fills stage `warp` of the queries' ring, warp 0 the keys and values too.
template <int Dim, int BlockSize>
__device__ void gather(const SparseArgs& args, Shared<Dim, BlockSize>& shared, int warp) {
    using S = AttendShape<Dim, BlockSize>;
    Cursor<kStages> kv_at;
    const int lane = threadIdx.x % kWarp;
    const int heads = args.group_size(), per_tile = args.tile_queries();
    const int items = *args.workspace.item_count;
    Barrier &full = shared.q_ring.full[warp], &empty = shared.q_ring.empty[warp];
    char* const q = shared.q[warp];
    uint32_t parity = 1;
    int stage = 0;  // of the item's first tile
    for (int i = blockIdx.x; i < items; i += gridDim.x, kv_at.advance()) {
        const KeyBlockItem item = args.workspace.items[i];
        const BlockUse* const uses = args.workspace.uses + item.begin;
        const int first = (warp - stage + kStages) % kStages * per_tile;
        auto use_of = [&](int tile) {
            const int at = tile + lane;
            return lane < per_tile && at < item.count ? uses[at] : BlockUse{0, -1, 0, 0};
        };
        BlockUse next = use_of(first);
        if (warp == 0) {
            shared.kv_ring.empty[kv_at.stage].wait(kv_at.parity ^ 1);
            const int key = uses[0].key;
            if (lane == 0) {
                Barrier& kv_full = shared.kv_ring.full[kv_at.stage];
                kv_full.expect(2 * S::kKeyBytes);
                for (int box = 0; box < S::kBoxes; ++box) {
                    const int column = item.group * Dim + 64 * box, at = box * S::kKeyBox;
                    copy_box(shared.k[kv_at.stage] + at, &args.k, column, key, &kv_full);
                    copy_box(shared.v[kv_at.stage] + at, &args.v, column, key, &kv_full);
                }
            }
        }
        for (int tile = first; tile < item.count; tile += kStages * per_tile) {
            const BlockUse use = next;
            next = use_of(tile + kStages * per_tile);
            empty.wait(parity);
            parity ^= 1;
            shared.uses[warp][lane] = use;
            __syncwarp();
            const int count = min(per_tile, item.count - tile);
            if (lane == 0) full.expect(static_cast<uint32_t>(count * heads * Dim * 2));
            __syncwarp();
            if (lane < count)
                for (int box = 0; box < S::kBoxes; ++box)
                    copy_box(q + box * S::kQueryBox + lane * heads * kSwizzle, &args.q_one,
                             64 * box, item.group * heads, use.query, &full, Keep::longest);
        }
        stage = (stage + (item.count + per_tile - 1) / per_tile) % kStages;
    }
}

template <int Dim, int BlockSize>
__global__ void __launch_bounds__(AttendRows::kThreads, 1)
    kv_outer(const __grid_constant__ SparseArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Dim, BlockSize>*>(memory);
    if (threadIdx.x == 0)
        shared.q_ring.init(AttendRows::kConsumers), shared.kv_ring.init(AttendRows::kConsumers);
    __syncthreads();
    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == AttendRows::kConsumers) {
        fewer_registers<24>();
        const int warp = threadIdx.x % kWarpgroup / kWarp;
        if (warp < kStages) gather(args, shared, warp);
        return;
    }
    more_registers<AttendRows::kConsumerRegisters>();

    const int heads = args.group_size(), per_tile = args.tile_queries();
    const int lane = threadIdx.x % kWarp;
    const bool leader = lane == 0;  // releases for its warp
    const int row = warpgroup * 64 + threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
    const int tile_query[2] = {row / heads, (row + 8) / heads};
    const int tile_head[2] = {row % heads, (row + 8) % heads};
    const float scale = args.scale * kLog2E;
    RowStage<Dim>& stage = shared.out[threadIdx.x / kWarp];
    Cursor<kStages> q_at, kv_at;
    const int items = *args.workspace.item_count;
    auto item_at = [&](int i) {
        return i < items ? args.workspace.items[i] : KeyBlockItem{0, 0, 0, 0};
    };
    KeyBlockItem next = item_at(blockIdx.x);
    for (int i = blockIdx.x; i < items; i += gridDim.x, kv_at.advance()) {
        const KeyBlockItem item = next;
        next = item_at(i + gridDim.x);
        const char *const k = shared.k[kv_at.stage], *const v = shared.v[kv_at.stage];
        const int tiles = (item.count + per_tile - 1) / per_tile;
        uint32_t p[BlockSize / 4];
        float out[Dim / 2];
        int place[2] = {-1, -1};  // (query, group, slot, head) of the rows in p; -1: none
        Softmax softmax;
        auto start = [&](float(&sum)[BlockSize / 2]) {
            shared.q_ring.full[q_at.stage].wait(q_at.parity);
            start_scores<Dim, BlockSize>(sum, shared.q[q_at.stage] + warpgroup * 64 * kSwizzle, k);
        };
        // Scores of the tile at q_at to probabilities, with the rows' places.
        auto take = [&](float(&sum)[BlockSize / 2]) {
            int seen[2];
            for (int side = 0; side < 2; ++side) {
                const BlockUse use = shared.uses[q_at.stage][tile_query[side]];
                seen[side] = use.seen;
                place[side] = use.place < 0 ? -1 : use.place * heads + tile_head[side];
            }
            __syncwarp();
            if (leader) shared.q_ring.empty[q_at.stage].arrive();
            q_at.advance();
            float factor[2];
            softmax = Softmax{};
            softmax.step(sum, seen, scale, factor);
        };
        auto keep_p = [&](const float(&sum)[BlockSize / 2]) {
#pragma unroll
            for (int n = 0; n < BlockSize / 4; ++n) p[n] = pack(sum[2 * n], sum[2 * n + 1]);
        };
        auto store = [&] {
            float inverse[2];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float total = softmax.total[side];
                total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
                total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
                inverse[side] = 1 / total;
                if (place[side] >= 0 && lane % 4 == 0)
                    args.workspace.partial_lse[place[side]] =
                        fmaf(softmax.best[side], scale, log2f(total));
            }
            store_wait();
            __syncwarp();
            stage.fill(out, inverse);
            fence_shared();
            __syncwarp();
            if (leader) {
                for (int box = 0; box < Dim / 64; ++box) {
                    if (place[0] >= 0) store_box(&args.partial, 64 * box, place[0], stage.box[box]);
                    if (heads == 8 && place[1] >= 0)
                        store_box(&args.partial, 64 * box, place[1], stage.box[box] + 8 * kSwizzle);
                }
                store_commit();
            }
        };
        shared.kv_ring.full[kv_at.stage].wait(kv_at.parity);
        {
            float sum[BlockSize / 2];
            start(sum);
            wgmma_wait<0>();
            take(sum);
            keep_p(sum);
        }
        for (int t = 1; t < tiles; ++t) {
            float sum[BlockSize / 2];
            start(sum);
            start_values<Dim, BlockSize>(out, p, v, false);
            wgmma_wait<0>();
            store();
            take(sum);
            keep_p(sum);
        }
        start_values<Dim, BlockSize>(out, p, v, false);
        wgmma_wait<0>();
        if (leader) shared.kv_ring.empty[kv_at.stage].arrive();
        store();
    }
    let_next_kernel_start();
    store_wait();
}

template <int Dim, int BlockSize>
cudaError_t launch(const SparseArgs& args, int processors, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<Dim, BlockSize>);
    auto* const kernel = kv_outer<Dim, BlockSize>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    kernel<<<static_cast<unsigned>(processors), AttendRows::kThreads, kBytes, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_sparse_kv_outer_sm90(const SparseArgs& args, int processors,
                                        cudaStream_t stream) {
    if (args.head_dim == 128)
        return args.block_size == 128 ? launch<128, 128>(args, processors, stream)
                                      : launch<128, 64>(args, processors, stream);
    return args.block_size == 128 ? launch<64, 128>(args, processors, stream)
                                  : launch<64, 64>(args, processors, stream);
}

}  // namespace msa::cuda
