// SPDX-License-Identifier: MIT
// What the consumers of the gradient's kernel leave in memory: their part of each step's dQ, and
// the sums of their keys.
#pragma once

#include "gpu/device/grad_stage_sm90.cuh"

namespace msa::cuda::sm90 {

/// dQ of a step that is done, in the channels of consumer `part`: 64 of them at a time.
template <typename T, int Dim, int BlockSize>
class QueryParts {
    using S = GradShape<Dim, BlockSize>;
    using SharedHere = Shared<Dim, BlockSize>;
    using Sums = float[kRows / 2];

public:
    /// `row`: the first of the thread's two rows.
    __device__ QueryParts(const SparseGradArgs& args, SharedHere& shared, int part, int row)
        : args_(args), shared_(shared) {
        const int box = min(part * S::kOwnBoxes, S::kBoxes - 1);
        k_columns_ = operand_low(shared_address(shared.k + box * S::kKeyBox));
        soft_rows_ = operand_low(shared_address(shared.d_scores));
        for (int side = 0; side < 2; ++side) {
            use_[side] = args.query_of_row(row + 8 * side);
            in_slot_[side] = (row + 8 * side - use_[side] * args.group_size) * (Dim / 8) + 8 * box +
                             static_cast<int>(threadIdx.x) % 4;
            if (use_[side] >= args.step_queries || part >= S::kBoxes) use_[side] = -1;
        }
        forget();
    }

    /// No step is done.
    __device__ void forget() { slot_[0] = slot_[1] = -1; }
    /// The step at `stage` is next.
    __device__ void read_slots(int stage) {
        for (int side = 0; side < 2; ++side)
            slot_[side] = use_[side] < 0 ? -1 : shared_.slot[stage][use_[side]];
    }
    /// Until dS' of step `at` is there.
    __device__ void wait(uint32_t at) {
        shared_.soft_full[stage_of<S::kSoftStages>(at)].wait(parity_of<S::kSoftStages>(at));
    }
    /// Of step `at`, `more` boxes behind this warpgroup's first.
    __device__ void start(Sums& sum, uint32_t at, int more = 0) {
        const uint32_t soft =
            soft_rows_ + stage_of<S::kSoftStages>(at) * (S::kParts * kRowsBox >> 4);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BlockSize / 16; ++step)
            multiply_in<T, true>(sum, operand(soft, step / 4 * kRowsBox + step % 4 * 32),
                                 operand(k_columns_, more * S::kKeyBox + step * 16 * kSwizzle),
                                 step > 0);
        wgmma_commit();
    }
    __device__ void store(Sums& sum, int more = 0) {
        settle(sum);
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
                    word[n] = pack<T>(sum[j], sum[j + 1]);
                }
                __stcs(to + 4 * i, make_uint4(word[0], word[1], word[2], word[3]));
            }
        }
    }
    /// Where a warpgroup has two boxes: the second one.
    __device__ void form_more(Sums& sum, uint32_t at) {
        if constexpr (S::kOwnBoxes > 1) {
            static_assert(S::kOwnBoxes == 2);
            start(sum, at, 1);
            wgmma_wait<0>();
            store(sum, 1);
        }
    }

private:
    const SparseGradArgs& args_;
    SharedHere& shared_;
    uint32_t k_columns_, soft_rows_;  // operands of the first stage
    int in_slot_[2],
        use_[2];   // of the thread's two rows: 16 bytes within the slot, query of the step
    int slot_[2];  // of the step before; where its 16-byte pieces begin
};

/// dK or dV of an item: of a block in parts to its part, otherwise to the block's keys. One adder
/// per address in a launch: the sum has an order. `key`: the first of the thread's two.
template <int Dim, int BlockSize>
__device__ void store_sum(const SparseGradArgs& args, const SequenceBlock& block, int part,
                          int group, int key, const float (&sum)[Dim / 2], bool of_values) {
    const int quad = threadIdx.x % 4;
    const GradWorkspace& work = args.workspace;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int mine = key + 8 * side;
        if (part >= 0) {
            float* const to = work.parts +
                              ((int64_t{part} * 2 + (of_values ? 1 : 0)) * BlockSize + mine) * Dim +
                              2 * quad;
#pragma unroll
            for (int j = 0; j < Dim / 8; ++j)
                *reinterpret_cast<float2*>(to + 8 * j) =
                    make_float2(sum[4 * j + 2 * side], sum[4 * j + 2 * side + 1]);
        } else if (mine < block.keys) {
            float* const to = (of_values ? work.d_v : work.d_k) +
                              (int64_t{block.key + mine} * args.groups + group) * Dim + 2 * quad;
#pragma unroll
            for (int j = 0; j < Dim / 8; ++j)
                add_two(to + 8 * j, sum[4 * j + 2 * side], sum[4 * j + 2 * side + 1]);
        }
    }
}

}  // namespace msa::cuda::sm90
