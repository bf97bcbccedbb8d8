// SPDX-License-Identifier: MIT
// The log-sums of block_mass with mma.sync and cp.async, on any device of compute capability 8.0 or
// later. Tiles, workspace and sums are those of block_mass_sm90.cu.
//
// All warps copy: keys of a group stream through a ring buffer in shared memory, 64 per stage. A
// warp holds 32 rows (query, head) as an operand in registers, so 16 bytes of keys feed four
// products. A block of 128 keys is two stages. What reduces a stage has no branch between rows, so
// that their chains of instructions overlap.
#include "gpu/device/by_sizes.cuh"
#include "gpu/device/log_sums.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/device/stream_mma.cuh"
#include "gpu/kernels/index_select_sm80.h"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

constexpr int kStageKeys = 64, kStages = 4;
/// Rows of a thread block: warps of kM times 16.
struct MassRows {
    static constexpr int kWarps = 8, kM = 2, kWarpRows = 16 * kM, kRows = kWarps * kWarpRows;
    static constexpr int kThreads = kWarps * kWarp;
};
static_assert(MassRows::kRows == kMassTileRows);

template <int Dim>
struct Shared {
    uint16_t keys[kStages][kStageKeys * Dim];
    RowBuffer<MassRows> lse;
};

/// Calls body(m, side) for each of a thread's rows.
template <typename Body>
__device__ void each_row(const Body& body) {
#pragma unroll
    for (int m = 0; m < MassRows::kM; ++m)
#pragma unroll
        for (int side = 0; side < 2; ++side) body(m, side);
}

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(MassRows::kThreads, 1)
    block_log_sums(const __grid_constant__ BlockMassArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Dim>*>(memory);
    constexpr int kM = MassRows::kM, kWarpRows = MassRows::kWarpRows;
    constexpr int kColumns = kStageKeys < BlockSize ? kStageKeys : BlockSize;  // of a log-sum
    constexpr int kRoundStages = kWarp * BlockSize / kStageKeys;               // 32 blocks

    const QueryTile tile = args.tiles[blockIdx.y];
    const int group = static_cast<int>(blockIdx.x);
    const int heads = args.query_heads / args.groups, rows = tile.queries * heads;
    const int stages = (tile.most_visible + kStageKeys - 1) / kStageKeys;
    const auto* const all_keys = static_cast<const uint16_t*>(args.all_keys);
    const auto fetch = [&](int stage) {
        if (stage < stages) {
            const int64_t key = tile.key + int64_t{stage} * kStageKeys;
            // A tile's last keys may lie behind all keys.
            copy_rows<Dim, kStageKeys, MassRows::kThreads>(
                shared.keys[stage % kStages], all_keys + (key * args.groups + group) * Dim,
                int64_t{args.groups} * Dim,
                static_cast<int>(min(args.keys - key, int64_t{kStageKeys})));
        }
        commit_copies();
    };
    for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);
    const int lane = lane_id(), warp_row = warp_id() * kWarpRows;
    const bool any_rows = warp_row < rows;
    WordRows<Dim, kM> operand;
    operand.load([&](int m, int side) {
        const int row = warp_row + 16 * m + 8 * side + lane / 4;
        const int64_t at =
            (tile.query + row / heads) * args.query_heads + group * heads + row % heads;
        return row < rows ? static_cast<const uint16_t*>(args.q) + at * Dim : nullptr;
    });
    int visible[kM][2], least = tile.most_visible;  // least: of the thread's rows
    each_row([&](int m, int side) {
        const int row = warp_row + 16 * m + 8 * side + lane / 4;
        visible[m][side] = row < rows ? seen_keys(args.visible, tile.query + row / heads) : 0;
        least = min(least, visible[m][side]);
    });
    const LaneWords<Dim> keys(address_in_shared(shared.keys));
    const float scale = args.scale * kLog2E;
    RunningLogSum running[kM][2];
    int slot = 0;
    for (int s = 0; s < stages; ++s) {
        wait_for_groups<kStages - 2>();
        __syncthreads();
        fetch(s + kStages - 1);
        if (any_rows) {
            float sum[kM][kStageKeys / 2];
            multiply_keys<T, Dim, kM, kStageKeys>(
                sum, operand, keys, static_cast<uint32_t>(slot) * kStageKeys * Dim * 2);
            const int key = s * kStageKeys, in_round = s % kRoundStages;
            if (__any_sync(kAllLanes, least - key < kStageKeys))
                each_row(
                    [&](int m, int side) { mask_unseen(sum[m], side, visible[m][side] - key); });
            const bool ends = (key + kStageKeys) % BlockSize == 0 || s == stages - 1;
#pragma unroll
            for (int part = 0; part < kStageKeys / kColumns; ++part) {
                each_row([&](int m, int side) {
                    running[m][side].template add<kColumns>(sum[m], side, part, scale,
                                                            key % BlockSize != 0);
                });
                if (!ends) continue;
                float joined[kM][2];
                each_row([&](int m, int side) { joined[m][side] = running[m][side].joined(); });
                each_row([&](int m, int side) {
                    if (lane % 4 == side)
                        shared.lse.at(warp_row + 16 * m + 8 * side + lane / 4,
                                      in_round * kStageKeys / BlockSize + part) = joined[m][side];
                });
            }
            if (in_round == kRoundStages - 1 || s == stages - 1)
                store_log_sums<kWarpRows>(
                    args, tile, shared.lse, warp_row, (s - in_round) * kStageKeys / BlockSize,
                    in_round * kStageKeys / BlockSize + kStageKeys / kColumns);
        }
        slot = slot + 1 == kStages ? 0 : slot + 1;
    }
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const BlockMassArgs& args, cudaStream_t stream) {
    using S = Shared<Dim>;
    static_assert(sizeof(S) <= kLeastShared);
    auto* const kernel = block_log_sums<T, Dim, BlockSize>;
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(S)));
    if (error != cudaSuccess) return error;
    const dim3 grid(static_cast<unsigned>(args.groups), static_cast<unsigned>(args.tile_count));
    kernel<<<grid, MassRows::kThreads, sizeof(S), stream>>>(args);
    return launch_block_mass_normalise(args, stream);
}

}  // namespace

template <typename T>
cudaError_t launch_block_mass_sm80(const BlockMassArgs& args, cudaStream_t stream) {
    return by_sizes(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        return launch<T, Dim, BlockSize>(args, stream);
    });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_block_mass_sm80<T>(const BlockMassArgs&, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
