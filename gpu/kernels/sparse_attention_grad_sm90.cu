// SPDX-License-Identifier: MIT
// The five products of the gradient, KV-outer: a block's keys and values stay in shared memory
// while its queries pass, 64 rows (queries x G heads) a step.
//
//   S' = K Q'     P' = 2^(scale S' - lse)     dP' = V dO'     dS' = P' (dP' - delta)
//   dV += P' dO   dK += dS' Q                 dQ part = dS K, to the use's slot
//
// A warpgroup for each 64 keys holds its rows of dK and dV in registers; transposed scores are then
// the register operand of both sums. dS' goes through shared memory (stmatrix transposes it), where
// both warpgroups' keys meet: each forms 64 channels of dQ, of the step before, so that neither
// waits for the other. One producer warp takes work items in turn from a counter and gathers q and
// d_out by TMA through a ring, a second brings keys, values, and lse, delta, slot and visible keys
// of the rows. The two warps left over add the slots of the chunk before (d_q), and all warps do
// once their own work is done: memory is idle beside products.
//
// Bounds at Hq 64, Hkv 4, dh 128, Bk 128, k 16, N 128K: 21.1 useful TFLOP. Shared memory is as busy
// as the tensor cores: of a step's 2560 cycles of products, S' and dP' read 512 each (64 columns
// wide), dQ 512, dV and dK 256 each, copies in 256, dS 128. L2: 32 KB in and 16 KB out per step.
// Slots: 34 GB written and read.
#include <cstddef>

#include "gpu/device/grad_gather_sm90.cuh"
#include "gpu/device/grad_slots_sm90.cuh"
#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {
namespace {

using namespace sm90;

/// A consumer: dK and dV of the keys from 64 `part` on, and channels of dQ.
template <typename T, int Dim, int BlockSize>
__device__ void form_products(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared,
                              int part) {
    using S = GradShape<Dim, BlockSize>;
    using SharedHere = Shared<Dim, BlockSize>;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kWarpgroup / kWarp, quad = lane % 4;
    const bool leader = lane == 0;
    const float scale = args.scale * kLog2E;
    const int row = 16 * warp + lane / 4;  // of dQ; the other: + 8
    const int key = kWide * part + row;    // of the block; the other: + 8
    // stmatrix: this lane's row, and its 16 bytes in the swizzle.
    const uint32_t soft_row =
        (lane / 16 * 8 + lane % 8) * kSwizzle + (((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16);
    // Operands of the first stage; stages are a constant number of bytes apart.
    const uint32_t k_rows = operand_low(shared_address(shared.k + part * kWide * kSwizzle));
    const uint32_t v_rows = operand_low(shared_address(shared.v + part * kWide * kSwizzle));
    const int box = min(part, S::kBoxes - 1);  // 64 channels of dQ
    const uint32_t k_columns = operand_low(shared_address(shared.k + box * S::kKeyBox));
    const uint32_t q_rows = operand_low(shared_address(shared.q), kRowsBox);
    const uint32_t soft_rows = operand_low(shared_address(shared.d_scores));
    constexpr int kStage = sizeof shared.q / S::kStages;
    constexpr int kToOut = offsetof(SharedHere, d_out) - offsetof(SharedHere, q);
    int in_slot[2], use[2];  // of the two rows of dQ: 16 bytes within the slot, query of the step
    for (int side = 0; side < 2; ++side) {
        use[side] = args.query_of_row(row + 8 * side);
        in_slot[side] = (row + 8 * side - use[side] * args.group_size) * (Dim / 8) + 8 * box + quad;
        if (use[side] >= args.step_queries || part >= S::kBoxes) use[side] = -1;
    }
    int slot[2];      // of the step before; where its 16-byte pieces begin
    uint32_t at = 0;  // steps so far
    float s[kRows / 2], ds[kRows / 2];
    const auto start = [&](float(&sum)[kRows / 2], uint32_t keys, uint32_t rows) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Dim / 16; ++step)
            multiply_in<T>(sum, operand(keys, step / 4 * S::kKeyBox + step % 4 * 32),
                           operand(rows, step / 4 * kRowsBox + step % 4 * 32), step > 0);
        wgmma_commit();
    };
    // dQ of the step before in s, `more` boxes behind this warpgroup's first.
    const auto start_queries = [&](int more) {
        const uint32_t soft =
            soft_rows + stage_of<S::kSoftStages>(at - 1) * (S::kMain * kRowsBox >> 4);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BlockSize / 16; ++step)
            multiply_in<T, true>(s, operand(soft, step / 4 * kRowsBox + step % 4 * 32),
                                 operand(k_columns, more * S::kKeyBox + step * 16 * kSwizzle),
                                 step > 0);
        wgmma_commit();
    };
    const auto store_queries = [&](int more) {
        settle(s);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (slot[side] < 0) continue;
            auto* const to =
                static_cast<uint4*>(args.workspace.slots) + (slot[side] + in_slot[side] + 8 * more);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                uint32_t word[4];
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int j = 4 * (4 * i + n) + 2 * side;
                    word[n] = pack<T>(s[j], s[j + 1]);
                }
                __stcs(to + 4 * i, make_uint4(word[0], word[1], word[2], word[3]));
            }
        }
    };
    for (uint32_t taken = 0;; ++taken) {
        const GradItem& item = wait_item(shared, taken);
        int left = __shfl_sync(kAllLanes, item.count, 0);
        if (left == 0) return;
        float d_k[Dim / 2] = {}, d_v[Dim / 2] = {};
        slot[0] = slot[1] = -1;
        shared.keys_full.wait(parity_of<1>(taken));
        for (; left > 0; left -= args.step_queries, ++at) {
            const int stage = stage_of<S::kStages>(at), soft = stage_of<S::kSoftStages>(at);
            uint32_t p_word[kRows / 4], ds_word[kRows / 4];
            shared.full[stage].wait(parity_of<S::kStages>(at));
            const uint32_t q = q_rows + stage * (kStage >> 4), d_out = q + (kToOut >> 4);
            start(s, k_rows, q);
            start(ds, v_rows, d_out);
            float2 lse_of[kRows / 8];
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j)
                lse_of[j] = *reinterpret_cast<const float2*>(shared.lse[stage] + 8 * j + 2 * quad);
            wgmma_wait<1>();
            settle(s);
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j) {
                const float2 lse = lse_of[j];
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    float* const x = s + 4 * j + 2 * side;
                    x[0] = exp2_fast(fmaf(x[0], scale, -lse.x));
                    x[1] = exp2_fast(fmaf(x[1], scale, -lse.y));
                }
            }
            wgmma_wait<0>();
            settle(ds);
            if (shared.least_seen[stage] < BlockSize) {
#pragma unroll
                for (int j = 0; j < kRows / 8; ++j) {
                    const uchar2 seen =
                        *reinterpret_cast<const uchar2*>(shared.seen[stage] + 8 * j + 2 * quad);
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        const int i = 4 * j + 2 * side;
                        if (key + 8 * side >= seen.x) s[i] = ds[i] = 0;
                        if (key + 8 * side >= seen.y) s[i + 1] = ds[i + 1] = 0;
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j) {
                const float2 delta =
                    *reinterpret_cast<const float2*>(shared.delta[stage] + 8 * j + 2 * quad);
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    const float *const p = s + 4 * j + 2 * side, *const x = ds + 4 * j + 2 * side;
                    const int at_word = 2 * j + side;
                    p_word[at_word] = pack<T>(p[0], p[1]);
                    ds_word[at_word] = pack<T>(p[0] * (x[0] - delta.x), p[1] * (x[1] - delta.y));
                }
            }
            shared.soft_empty[soft].wait(((at + 1) / S::kSoftStages % 2) ^ 1);
            const uint32_t to = shared_address(shared.d_scores[soft][part]) + soft_row;
#pragma unroll
            for (int j = 0; j < kRows / 8; j += 2)
                store_transposed(to + j * 8 * kSwizzle, ds_word[2 * j], ds_word[2 * j + 1],
                                 ds_word[2 * j + 2], ds_word[2 * j + 3]);
            fence_shared();
            __syncwarp();
            if (leader) shared.soft_full[soft].arrive();
            shared.soft_full[stage_of<S::kSoftStages>(at - 1)].wait(
                parity_of<S::kSoftStages>(at - 1));
            start_queries(0);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < kRows / 16; ++step)
                multiply_in<T, true>(d_v, p_word + 4 * step, operand(d_out, step * 16 * kSwizzle),
                                     true);
#pragma unroll
            for (int step = 0; step < kRows / 16; ++step)
                multiply_in<T, true>(d_k, ds_word + 4 * step, operand(q, step * 16 * kSwizzle),
                                     true);
            wgmma_commit();
            wgmma_wait<1>();
            store_queries(0);
            if constexpr (S::kMain < S::kBoxes) {
                start_queries(1);
                wgmma_wait<0>();
                store_queries(1);
            }
            if (leader) shared.soft_empty[stage_of<S::kSoftStages>(at - 1)].arrive();
            for (int side = 0; side < 2; ++side)
                slot[side] = use[side] < 0 ? -1 : shared.slot[stage][use[side]];
            __syncwarp();
            wgmma_wait<0>();
            if (leader) shared.empty[stage].arrive();
        }
        settle(d_k);
        settle(d_v);
        shared.soft_full[stage_of<S::kSoftStages>(at - 1)].wait(parity_of<S::kSoftStages>(at - 1));
        start_queries(0);
        wgmma_wait<0>();
        store_queries(0);
        if constexpr (S::kMain < S::kBoxes) {
            start_queries(1);
            wgmma_wait<0>();
            store_queries(1);
        }
        if (leader) shared.keys_empty.arrive();
        // One adder per address in a launch: the sum has an order.
        const int32_t item_part = item.part, group = item.group;
        const SequenceBlock block = args.key_blocks[item.block];
        give_item_back(shared, taken);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int mine = key + 8 * side;
            if (item_part >= 0) {
                float* const to = args.workspace.parts +
                                  (int64_t{item_part} * 2 * BlockSize + mine) * Dim + 2 * quad;
#pragma unroll
                for (int j = 0; j < Dim / 8; ++j) {
                    *reinterpret_cast<float2*>(to + 8 * j) =
                        make_float2(d_k[4 * j + 2 * side], d_k[4 * j + 2 * side + 1]);
                    *reinterpret_cast<float2*>(to + BlockSize * Dim + 8 * j) =
                        make_float2(d_v[4 * j + 2 * side], d_v[4 * j + 2 * side + 1]);
                }
            } else if (mine < block.keys) {
                const int64_t to =
                    (int64_t{block.key + mine} * args.groups + group) * Dim + 2 * quad;
#pragma unroll
                for (int j = 0; j < Dim / 8; ++j) {
                    add_two(args.workspace.d_k + to + 8 * j, d_k[4 * j + 2 * side],
                            d_k[4 * j + 2 * side + 1]);
                    add_two(args.workspace.d_v + to + 8 * j, d_v[4 * j + 2 * side],
                            d_v[4 * j + 2 * side + 1]);
                }
            }
        }
    }
}

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(GradShape<Dim, BlockSize>::kThreads,
                                  GradShape<Dim, BlockSize>::kBlocksPerProcessor)
    grad_products(const __grid_constant__ SparseGradArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Dim, BlockSize>*>(memory);
    using S = GradShape<Dim, BlockSize>;
    // Rows that no query fills stay 0: their probability is 0, but 0 times NaN is not.
    for (int i = static_cast<int>(threadIdx.x) * 16; i < int{2 * sizeof shared.q};
         i += S::kThreads * 16)
        *reinterpret_cast<uint4*>(memory + i) = uint4{};
    fence_shared();
    if (threadIdx.x == 0) {
        for (Barrier& b : shared.item_full) b.init(1);
        for (Barrier& b : shared.item_empty) b.init(4 * S::kMain + 1);
        for (Barrier& b : shared.full) b.init(2 + kWarp);
        for (Barrier& b : shared.empty) b.init(4 * S::kMain);
        for (Barrier& b : shared.soft_full) b.init(4 * S::kMain);
        for (Barrier& b : shared.soft_empty) b.init(4 * S::kMain);
        shared.keys_full.init(1);
        shared.keys_empty.init(4 * S::kMain);
        fence_barriers();
    }
    __syncthreads();
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
    if (warpgroup < S::kMain) {
        setmaxnreg_inc<S::kMainRegisters>();
        form_products<T>(args, shared, warpgroup);
        add_full_slots<T, Dim, 0>(args);
    } else {
        setmaxnreg_dec<56>();
        const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
        if (warp == 0) gather(args, shared);
        if (warp == 1) gather_rows(args, shared);
        add_full_slots<T, Dim, 2>(args);
    }
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const SparseGradArgs& args, int sms, cudaStream_t stream) {
    using S = GradShape<Dim, BlockSize>;
    constexpr int kBytes = sizeof(Shared<Dim, BlockSize>);
    static_assert(kBytes <= kMostSharedBytes);
    auto* const kernel = grad_products<T, Dim, BlockSize>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    kernel<<<static_cast<unsigned>(S::kBlocksPerProcessor * sms), S::kThreads, kBytes, stream>>>(
        args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_grad_products(const SparseGradArgs& args, int sms, cudaStream_t stream) {
    const bool wide = sparse_grad_tile_keys(args.block_size) == 128;
    if (args.head_dim == 128)
        return wide ? launch<T, 128, 128>(args, sms, stream)
                    : launch<T, 128, 64>(args, sms, stream);
    return wide ? launch<T, 64, 128>(args, sms, stream) : launch<T, 64, 64>(args, sms, stream);
}

template <typename T>
cudaError_t launch_sparse_attention_grad_sm90(const SparseGradArgs& args, int sms,
                                              cudaStream_t stream) {
    cudaError_t error = launch_grad_prepare<T>(args, stream);
    for (int c = 0; c < args.chunks() && error == cudaSuccess; ++c) {
        const int scheduled = c % args.batch_chunks;
        if (scheduled == 0) error = launch_grad_schedule(args, c, stream);
        const SparseGradArgs chunk = args.chunk(c, scheduled);
        if (error == cudaSuccess) error = launch_grad_products<T>(chunk, sms, stream);
        if (error == cudaSuccess) error = launch_grad_parts<T>(chunk, sms, stream);
    }
    if (error == cudaSuccess)
        error = launch_grad_slots<T>(args.chunk(args.chunks() - 1, 0), stream);
    return error == cudaSuccess ? launch_grad_finish<T>(args, stream) : error;
}
template cudaError_t launch_sparse_attention_grad_sm90<MSA_KERNEL_ELEMENT>(const SparseGradArgs&,
                                                                           int, cudaStream_t);

}  // namespace msa::cuda
