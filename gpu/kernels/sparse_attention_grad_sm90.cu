// SPDX-License-Identifier: MIT
// The five products of the gradient, KV-outer. A block's keys and values stay in shared memory
// while the kernel loops over its queries, 64 rows (queries x G heads) per step.
//
//   S' = K Q'     P' = 2^(scale S' - lse)     dP' = V dO'     dS' = P' (dP' - delta)
//   dV += P' dO   dK += dS' Q                 dQ part = dS K, to the use's slot
//
// A warpgroup for each 64 keys holds its rows of dK and dV in registers; transposed scores are then
// the register operand of both sums. dS' goes through shared memory (stmatrix transposes it), where
// the keys of both warpgroups come together. Each warpgroup computes 64 channels of the previous
// step's dQ, so that neither waits for the other. One producer warp takes work items from a counter
// and gathers q and d_out by TMA through a ring buffer. A second one loads keys, values, and lse,
// delta, slot and visible keys of the rows. The two remaining warps add the slots of the previous
// chunk (d_q), and all warps help once their own work is done, because products leave memory idle.
//
// Bounds at Hq 64, Hkv 4, dh 128, Bk 128, k 16, N 128K: 21.1 useful TFLOP. Shared memory is as busy
// as the tensor cores: of a step's 2560 cycles of products, S' and dP' read 512 each (64 columns
// wide), dQ 512, dV and dK 256 each, copies in 256, dS 128. L2: 32 KB in and 16 KB out per step.
// Slots: 34 GB written and read.
#include <cstddef>

#include "gpu/device/grad_gather_sm90.cuh"
#include "gpu/device/grad_slots_sm90.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {
namespace {

using namespace sm90;

/// A consumer: the warpgroup of the keys from 64 `part` on: their dK and dV, and 64 channels of dQ.
/// The object lives in registers.
template <typename T, int Dim, int BlockSize>
class Consumer {
    using S = GradShape<Dim, BlockSize>;
    using SharedHere = Shared<Dim, BlockSize>;
    using Sums = float[Dim / 2];             // of dK or dV: two rows, at intervals of 8 channels
    using Scores = float[kRows / 2];         // of S' or dP': two keys, at intervals of 8 rows
    using ScoreWords = uint32_t[kRows / 4];  // the same in T
    using Rows = float2[kRows / 8];          // lse or delta of the rows that a thread has scores of

public:
    __device__ Consumer(const SparseGradArgs& args, SharedHere& shared, int part)
        : args_(args), shared_(shared), part_(part) {
        const int warp = threadIdx.x % kWarpgroup / kWarp;
        const int row = 16 * warp + lane_ / 4;
        key_ = kWide * part + row;
        soft_row_ = (lane_ / 16 * 8 + lane_ % 8) * kSwizzle +
                    (((2 * warp + lane_ / 8 % 2) ^ (lane_ % 8)) * 16);
        k_rows_ = operand_low(shared_address(shared.k + part * kWide * kSwizzle));
        v_rows_ = operand_low(shared_address(shared.v + part * kWide * kSwizzle));
        const int box = min(part, S::kBoxes - 1);  // 64 channels of dQ
        k_columns_ = operand_low(shared_address(shared.k + box * S::kKeyBox));
        q_rows_ = operand_low(shared_address(shared.q), kRowsBox);
        soft_rows_ = operand_low(shared_address(shared.d_scores));
        for (int side = 0; side < 2; ++side) {
            use_[side] = args.query_of_row(row + 8 * side);
            in_slot_[side] =
                (row + 8 * side - use_[side] * args.group_size) * (Dim / 8) + 8 * box + quad_;
            if (use_[side] >= args.step_queries || part >= S::kBoxes) use_[side] = -1;
        }
    }

    /// Takes items until none is left.
    __device__ void work() {
        for (uint32_t taken = 0;; ++taken) {
            const GradItem& item = wait_item(shared_, taken);
            int left = __shfl_sync(kAllLanes, item.count, 0);
            if (left == 0) return;
            for (float& sum : d_k_) sum = 0;
            for (float& sum : d_v_) sum = 0;
            slot_[0] = slot_[1] = -1;
            shared_.keys_full.wait(parity_of<1>(taken));
            for (; left > 0; left -= args_.step_queries, ++at_) step();
            settle(d_k_);
            settle(d_v_);
            wait_before();
            start_queries(0);
            wgmma_wait<0>();
            store_queries(0);
            form_more_queries();
            if (leader_) shared_.keys_empty.arrive();
            store_sums(item, taken);
        }
    }

private:
    /// Adds 64 rows of queries to the sums of the keys; dQ of the step before goes to its slots.
    __device__ void step() {
        constexpr int kStage = sizeof shared_.q / S::kStages;
        constexpr int kToOut = offsetof(SharedHere, d_out) - offsetof(SharedHere, q);
        const int stage = stage_of<S::kStages>(at_);
        ScoreWords p_word, ds_word;
        shared_.full[stage].wait(parity_of<S::kStages>(at_));
        const uint32_t q = q_rows_ + stage * (kStage >> 4), d_out = q + (kToOut >> 4);
        Rows delta;
        form_scores(stage, q, d_out, delta);
        pack_scores(delta, p_word, ds_word);
        hand_over(ds_word);
        wait_before();
        start_queries(0);
        wgmma_fence();
        start_sums(d_v_, p_word, d_out);
        start_sums(d_k_, ds_word, q);
        wgmma_commit();
        wgmma_wait<1>();
        store_queries(0);
        form_more_queries();
        if (leader_) shared_.soft_empty[stage_of<S::kSoftStages>(at_ - 1)].arrive();
        for (int side = 0; side < 2; ++side)
            slot_[side] = use_[side] < 0 ? -1 : shared_.slot[stage][use_[side]];
        __syncwarp();
        wgmma_wait<0>();
        if (leader_) shared_.empty[stage].arrive();
    }

    /// P' in s_ and dP' in ds_, both 0 where a row does not see the key. Reads delta. lse and
    /// least_seen are read before the products start, delta before the last one ends: behind them
    /// they would come late.
    __device__ void form_scores(int stage, uint32_t q, uint32_t d_out, Rows& delta) {
        Rows lse_of;
        read_rows(shared_.lse[stage], lse_of);
        const bool all_seen = shared_.least_seen[stage] >= BlockSize;
        start_scores(s_, k_rows_, q);
        start_scores(ds_, v_rows_, d_out);
        wgmma_wait<1>();
        settle(s_);
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const float2 lse = lse_of[j];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float* const x = s_ + 4 * j + 2 * side;
                x[0] = exp2_fast(fmaf(x[0], scale_, -lse.x));
                x[1] = exp2_fast(fmaf(x[1], scale_, -lse.y));
            }
        }
        read_rows(shared_.delta[stage], delta);
        wgmma_wait<0>();
        settle(ds_);
        if (!all_seen) hide_keys(stage);
    }

    __device__ void read_rows(const float* from, Rows& to) const {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j)
            to[j] = *reinterpret_cast<const float2*>(from + 8 * j + 2 * quad_);
    }

    __device__ void hide_keys(int stage) {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const uchar2 seen =
                *reinterpret_cast<const uchar2*>(shared_.seen[stage] + 8 * j + 2 * quad_);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int i = 4 * j + 2 * side;
                if (key_ + 8 * side >= seen.x) s_[i] = ds_[i] = 0;
                if (key_ + 8 * side >= seen.y) s_[i + 1] = ds_[i + 1] = 0;
            }
        }
    }

    /// P' and dS' in T.
    __device__ void pack_scores(const Rows& delta, ScoreWords& p_word, ScoreWords& ds_word) {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const float* const p = s_ + 4 * j + 2 * side;
                const float* const x = ds_ + 4 * j + 2 * side;
                p_word[2 * j + side] = pack<T>(p[0], p[1]);
                ds_word[2 * j + side] =
                    pack<T>(p[0] * (x[0] - delta[j].x), p[1] * (x[1] - delta[j].y));
            }
        }
    }

    /// dS' into shared memory, where the warpgroups' keys meet.
    __device__ void hand_over(const ScoreWords& words) {
        const int soft = stage_of<S::kSoftStages>(at_);
        shared_.soft_empty[soft].wait(((at_ + 1) / S::kSoftStages % 2) ^ 1);
        const uint32_t to = shared_address(shared_.d_scores[soft][part_]) + soft_row_;
#pragma unroll
        for (int j = 0; j < kRows / 8; j += 2)
            store_transposed(to + j * 8 * kSwizzle, words[2 * j], words[2 * j + 1],
                             words[2 * j + 2], words[2 * j + 3]);
        fence_shared();
        __syncwarp();
        if (leader_) shared_.soft_full[soft].arrive();
    }

    /// Until dS' of the step before is there.
    __device__ void wait_before() {
        shared_.soft_full[stage_of<S::kSoftStages>(at_ - 1)].wait(
            parity_of<S::kSoftStages>(at_ - 1));
    }

    __device__ void start_scores(Scores& sum, uint32_t keys, uint32_t rows) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Dim / 16; ++step)
            multiply_in<T>(sum, operand(keys, step / 4 * S::kKeyBox + step % 4 * 32),
                           operand(rows, step / 4 * kRowsBox + step % 4 * 32), step > 0);
        wgmma_commit();
    }

    /// dV from P' and d_out, dK from dS' and q; the caller commits.
    __device__ void start_sums(Sums& sums, const ScoreWords& words, uint32_t rows) {
#pragma unroll
        for (int step = 0; step < kRows / 16; ++step)
            multiply_in<T, true>(sums, words + 4 * step, operand(rows, step * 16 * kSwizzle), true);
    }

    /// dQ of the step before in s_, `more` boxes behind this warpgroup's first.
    __device__ void start_queries(int more) {
        const uint32_t soft =
            soft_rows_ + stage_of<S::kSoftStages>(at_ - 1) * (S::kMain * kRowsBox >> 4);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BlockSize / 16; ++step)
            multiply_in<T, true>(s_, operand(soft, step / 4 * kRowsBox + step % 4 * 32),
                                 operand(k_columns_, more * S::kKeyBox + step * 16 * kSwizzle),
                                 step > 0);
        wgmma_commit();
    }

    __device__ void store_queries(int more) {
        settle(s_);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (slot_[side] < 0) continue;
            auto* const to = static_cast<uint4*>(args_.workspace.slots) +
                             (slot_[side] + in_slot_[side] + 8 * more);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                uint32_t word[4];
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int j = 4 * (4 * i + n) + 2 * side;
                    word[n] = pack<T>(s_[j], s_[j + 1]);
                }
                __stcs(to + 4 * i, make_uint4(word[0], word[1], word[2], word[3]));
            }
        }
    }

    /// Where one warpgroup has all channels of dQ: the second 64 of them.
    __device__ void form_more_queries() {
        if constexpr (S::kMain < S::kBoxes) {
            start_queries(1);
            wgmma_wait<0>();
            store_queries(1);
        }
    }

    /// Of a block in parts to its part, otherwise to the block's keys. One adder per address in a
    /// launch: the sum has an order.
    __device__ void store_sums(const GradItem& item, uint32_t taken) {
        const int32_t item_part = item.part, group = item.group;
        const SequenceBlock block = args_.key_blocks[item.block];
        give_item_back(shared_, taken);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int mine = key_ + 8 * side;
            if (item_part >= 0) {
                float* const to = args_.workspace.parts +
                                  (int64_t{item_part} * 2 * BlockSize + mine) * Dim + 2 * quad_;
#pragma unroll
                for (int j = 0; j < Dim / 8; ++j) {
                    *reinterpret_cast<float2*>(to + 8 * j) =
                        make_float2(d_k_[4 * j + 2 * side], d_k_[4 * j + 2 * side + 1]);
                    *reinterpret_cast<float2*>(to + BlockSize * Dim + 8 * j) =
                        make_float2(d_v_[4 * j + 2 * side], d_v_[4 * j + 2 * side + 1]);
                }
            } else if (mine < block.keys) {
                const int64_t to =
                    (int64_t{block.key + mine} * args_.groups + group) * Dim + 2 * quad_;
#pragma unroll
                for (int j = 0; j < Dim / 8; ++j) {
                    add_two(args_.workspace.d_k + to + 8 * j, d_k_[4 * j + 2 * side],
                            d_k_[4 * j + 2 * side + 1]);
                    add_two(args_.workspace.d_v + to + 8 * j, d_v_[4 * j + 2 * side],
                            d_v_[4 * j + 2 * side + 1]);
                }
            }
        }
    }

    const SparseGradArgs& args_;
    SharedHere& shared_;
    const int part_;
    const int lane_ = threadIdx.x % kWarp, quad_ = lane_ % 4;
    const bool leader_ = lane_ == 0;
    const float scale_ = args_.scale * kLog2E;
    int key_;            // of the block; the other: + 8
    uint32_t soft_row_;  // for stmatrix: this lane's row, and its 16 bytes in the swizzle
    // Operands of the first stage; stages are a constant number of bytes apart.
    uint32_t k_rows_, v_rows_, k_columns_, q_rows_, soft_rows_;
    int in_slot_[2], use_[2];  // of the two rows of dQ: 16 bytes within the slot, query of the step
    int slot_[2];              // of the step before; where its 16-byte pieces begin
    uint32_t at_ = 0;          // steps so far
    Scores s_, ds_;
    Sums d_k_, d_v_;
};

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
        Consumer<T, Dim, BlockSize>(args, shared, warpgroup).work();
        add_full_slots<T, Dim, 0>(args);
    } else {
        setmaxnreg_dec<S::kProducerRegisters>();
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

#define MSA_INSTANTIATE(T)                                                                \
    template cudaError_t launch_sparse_attention_grad_sm90<T>(const SparseGradArgs&, int, \
                                                              cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
