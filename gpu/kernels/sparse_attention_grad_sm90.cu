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
#include "gpu/device/grad_queries_sm90.cuh"
#include "gpu/device/grad_slots_sm90.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {
namespace {

using namespace sm90;

/// A consumer: the warpgroup of the keys from 64 `part` on: their dK and dV, and 64 channels of dQ.
/// With two sides the first one has dV of all keys, the second one dK. The object lives in
/// registers.
template <typename T, int Dim, int BlockSize>
class Consumer {
    using S = GradShape<Dim, BlockSize>;
    using SharedHere = Shared<Dim, BlockSize>;
    using Sums = float[Dim / 2];             // of dK or dV: two rows, at intervals of 8 channels
    using Scores = float[kRows / 2];         // of S' or dP': two keys, at intervals of 8 rows
    using ScoreWords = uint32_t[kRows / 4];  // the same in T
    using Rows = float2[kRows / 8];          // lse or delta of the rows that a thread has scores of
    static constexpr int kToOut = offsetof(SharedHere, d_out) - offsetof(SharedHere, q);

public:
    __device__ Consumer(const SparseGradArgs& args, SharedHere& shared, int part)
        : args_(args), shared_(shared), part_(part), queries_(args, shared, part, row_of_thread()) {
        const int warp = threadIdx.x % kWarpgroup / kWarp;
        const int of_keys = S::kTwoSides ? 0 : part * kWide;
        key_ = of_keys + row_of_thread();
        soft_row_ = (lane_ / 16 * 8 + lane_ % 8) * kSwizzle +
                    (((2 * warp + lane_ / 8 % 2) ^ (lane_ % 8)) * 16);
        k_rows_ = operand_low(shared_address(shared.k + of_keys * kSwizzle));
        v_rows_ = operand_low(shared_address(shared.v + of_keys * kSwizzle));
        q_rows_ = operand_low(shared_address(shared.q), kRowsBox);
    }

    /// Takes items until none is left.
    __device__ void work() {
        for (uint32_t taken = 0;; ++taken) {
            const GradItem& item = wait_item(shared_, taken);
            int left = __shfl_sync(kAllLanes, item.count, 0);
            if (left == 0) return;
            for (auto& sums : sums_)
                for (float& sum : sums) sum = 0;
            queries_.forget();
            shared_.keys_full.wait(parity_of<1>(taken));
            for (; left > 0; left -= args_.step_queries, ++at_) {
                if constexpr (S::kTwoSides)
                    step_of_side();
                else
                    step();
            }
            for (auto& sums : sums_) settle(sums);
            queries_.wait(at_ - 1);
            queries_.start(s_, at_ - 1);
            wgmma_wait<0>();
            queries_.store(s_);
            queries_.form_more(s_, at_ - 1);
            if (leader_) shared_.keys_empty.arrive();
            store_sums(item, taken);
        }
    }

private:
    __device__ static int row_of_thread() {
        return static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 +
               static_cast<int>(threadIdx.x) % kWarp / 4;
    }

    /// Adds 64 rows of queries to the sums of the keys; dQ of the step before goes to its slots.
    __device__ void step() {
        const int stage = stage_of<S::kStages>(at_);
        ScoreWords p_word, ds_word;
        shared_.full[stage].wait(parity_of<S::kStages>(at_));
        const uint32_t q = q_rows_ + stage * (kStage >> 4), d_out = q + (kToOut >> 4);
        Rows delta;
        form_scores(stage, q, d_out, delta);
        pack_scores(delta, p_word, ds_word);
        hand_over(ds_word);
        queries_.wait(at_ - 1);
        queries_.start(s_, at_ - 1);
        wgmma_fence();
        start_sums(sums_[1], p_word, d_out);
        start_sums(sums_[0], ds_word, q);
        end_step(stage);
    }
    /// Behind the products that a step starts, of which those of dQ are the first.
    __device__ void end_step(int stage) {
        wgmma_commit();
        wgmma_wait<1>();
        queries_.store(s_);
        queries_.form_more(s_, at_ - 1);
        if (leader_) shared_.soft_empty[stage_of<S::kSoftStages>(at_ - 1)].arrive();
        queries_.read_slots(stage);
        __syncwarp();
        wgmma_wait<0>();
        if (leader_) shared_.empty[stage].arrive();
    }

    /// The same for dV or dK. The side of dV forms P' for both.
    __device__ void step_of_side() {
        const bool of_values = part_ == 0;
        const int stage = stage_of<S::kStages>(at_);
        shared_.full[stage].wait(parity_of<S::kStages>(at_));
        const uint32_t q = q_rows_ + stage * (kStage >> 4), d_out = q + (kToOut >> 4);
        Rows of_row;
        read_rows(of_values ? shared_.lse[stage] : shared_.delta[stage], of_row);
        const bool all_seen = shared_.least_seen[stage] >= BlockSize;
        start_scores(s_, of_values ? k_rows_ : v_rows_, of_values ? q : d_out);
        wgmma_wait<0>();
        settle(s_);
        if (of_values) weigh(of_row);
        if (!all_seen) hide_keys(stage, s_);
        ScoreWords word;
        auto* const weights = &shared_.weights[0][threadIdx.x % kWarpgroup];
        if (of_values) {
            shared_.weights_empty.wait(parity_of<1>(at_) ^ 1);
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j)
                weights[j * kWarpgroup] =
                    make_float4(s_[4 * j], s_[4 * j + 1], s_[4 * j + 2], s_[4 * j + 3]);
            __syncwarp();
            if (leader_) shared_.weights_full.arrive();
#pragma unroll
            for (int j = 0; j < kRows / 4; ++j) word[j] = pack<T>(s_[2 * j], s_[2 * j + 1]);
        } else {
            shared_.weights_full.wait(parity_of<1>(at_));
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j) {
                const float4 p = weights[j * kWarpgroup];
                const float2 delta = of_row[j];
                const float* const x = s_ + 4 * j;
                word[2 * j] = pack<T>(p.x * (x[0] - delta.x), p.y * (x[1] - delta.y));
                word[2 * j + 1] = pack<T>(p.z * (x[2] - delta.x), p.w * (x[3] - delta.y));
            }
            __syncwarp();
            if (leader_) shared_.weights_empty.arrive();
            hand_over(word);
        }
        queries_.wait(at_ - 1);
        queries_.start(s_, at_ - 1);
        wgmma_fence();
        start_sums(sums_[0], word, of_values ? d_out : q);
        end_step(stage);
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
        weigh(lse_of);
        read_rows(shared_.delta[stage], delta);
        wgmma_wait<0>();
        settle(ds_);
        if (!all_seen) hide_keys(stage, s_, ds_);
    }

    /// S' in s_ becomes P'.
    __device__ void weigh(const Rows& lse_of) {
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
    }

    __device__ void read_rows(const float* from, Rows& to) const {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j)
            to[j] = *reinterpret_cast<const float2*>(from + 8 * j + 2 * quad_);
    }

    template <typename... Each>
    __device__ void hide_keys(int stage, Each&... of) {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const uchar2 seen =
                *reinterpret_cast<const uchar2*>(shared_.seen[stage] + 8 * j + 2 * quad_);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int i = 4 * j + 2 * side;
                if (key_ + 8 * side >= seen.x) ((of[i] = 0), ...);
                if (key_ + 8 * side >= seen.y) ((of[i + 1] = 0), ...);
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
        const uint32_t to =
            shared_address(shared_.d_scores[soft][S::kTwoSides ? 0 : part_]) + soft_row_;
#pragma unroll
        for (int j = 0; j < kRows / 8; j += 2)
            store_transposed(to + j * 8 * kSwizzle, words[2 * j], words[2 * j + 1],
                             words[2 * j + 2], words[2 * j + 3]);
        fence_shared();
        __syncwarp();
        if (leader_) shared_.soft_full[soft].arrive();
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

    __device__ void store_sums(const GradItem& item, uint32_t taken) {
        const int32_t item_part = item.part, group = item.group;
        const SequenceBlock block = args_.key_blocks[item.block];
        give_item_back(shared_, taken);
#pragma unroll
        for (int n = 0; n < kSums; ++n)
            store_sum<Dim, BlockSize>(args_, block, item_part, group, key_, sums_[n],
                                      S::kTwoSides ? part_ == 0 : n == 1);
    }

    static constexpr int kStage = sizeof(SharedHere::q) / S::kStages;
    static constexpr int kSums = S::kTwoSides ? 1 : 2;
    const SparseGradArgs& args_;
    SharedHere& shared_;
    const int part_;
    const int lane_ = threadIdx.x % kWarp, quad_ = lane_ % 4;
    const bool leader_ = lane_ == 0;
    const float scale_ = args_.scale * kLog2E;
    int key_;            // of the block; the other: + 8
    uint32_t soft_row_;  // for stmatrix: this lane's row, and its 16 bytes in the swizzle
    // Operands of the first stage; stages are a constant number of bytes apart.
    uint32_t k_rows_, v_rows_, q_rows_;
    uint32_t at_ = 0;  // steps so far
    Scores s_, ds_;
    Sums sums_[kSums];  // dK, dV
    QueryParts<T, Dim, BlockSize> queries_;
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
    if (threadIdx.x == 0) shared.init();
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
    if (args.head_dim == 256) return launch<T, 256, 64>(args, sms, stream);
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
