// SPDX-License-Identifier: MIT
// The five products of the gradient, KV-outer, with mma.sync and cp.async. It does what
// sparse_attention_grad_sm90.cu does, on any device of compute capability 8.0 or later.
//
// A warp for each 16 keys of a block holds its rows of dK and dV in registers. A step takes 64 rows
// (queries x G heads) of q and d_out, or 32 if shared memory is small. Transposed scores are the
// register operand of both sums. dS' goes through shared memory, where the keys of all warps come
// together. Each warp then computes a part of dQ, which goes to the use's slot.
//
// All threads copy the rows of two steps, or one, and read which rows these are two steps before.
#include <cstddef>

#include "gpu/device/grad_slots_sm90.cuh"
#include "gpu/device/grad_steps_sm80.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_grad_sm80.h"

namespace msa::cuda {
namespace {

template <typename T, typename SharedHere>
class Worker {
    static constexpr int Dim = SharedHere::kDim, Keys = SharedHere::kKeys,
                         kRows = SharedHere::kRows, kStages = SharedHere::kStages,
                         kUsesAhead = SharedHere::kUsesAhead;
    using StepsHere = Steps<SharedHere>;
    static constexpr uint32_t kStageBytes = kRows * Dim * 2, kQ = 0, kDOut = kStages * kStageBytes,
                              kK = 2 * kDOut, kV = kK + Keys * Dim * 2;
    static_assert(kV == offsetof(SharedHere, v) && kK == offsetof(SharedHere, k) &&
                  kDOut == offsetof(SharedHere, d_out));

public:
    __device__ Worker(const SparseGradArgs& args, SharedHere& shared)
        : args_(args),
          shared_(shared),
          words_(address_in_shared(&shared)),
          columns_(address_in_shared(&shared)) {}

    __device__ void take(const GradItem& item) {
        const SequenceBlock block = args_.key_blocks[item.block];
        const int64_t stride = int64_t{args_.groups} * Dim;
        const int64_t from = block.key * stride + item.group * Dim;
        const StepsHere all{args_, shared_, args_.workspace.uses + item.begin, item.group,
                            item.count};
        const int steps = (item.count + args_.step_queries - 1) / args_.step_queries;
        constexpr int kThreads = SharedHere::kThreads;
        copy_rows<Dim, Keys, kThreads>(shared_.k, static_cast<const uint16_t*>(args_.all_k) + from,
                                       stride, block.keys);
        copy_rows<Dim, Keys, kThreads>(shared_.v, static_cast<const uint16_t*>(args_.all_v) + from,
                                       stride, block.keys);
        for (int step = 0; step < kUsesAhead; ++step) all.fetch_uses(step);
        commit_copies();
        wait_for_groups<0>();
        __syncthreads();
        for (int step = 0; step < kStages; ++step) {
            all.fetch(step);
            commit_copies();
        }
        float sums[kSums][1][Dim / 2] = {};
        for (int step = 0; step < steps; ++step) {
            wait_for_groups<kStages - 1>();
            __syncthreads();
            if constexpr (kSums == 2)
                add(all, step, sums[0], sums[1]);
            else
                add_one_side(all, step, sums[0]);
            __syncthreads();
            all.fetch(step + kStages);
            all.fetch_uses(step + kUsesAhead);
            commit_copies();
            form_queries(all, step);
        }
        wait_for_groups<0>();
        if constexpr (kSums == 2) {
            store_sum(item, block, sums[0][0], false);
            store_sum(item, block, sums[1][0], true);
        } else {
            store_sum(item, block, sums[0][0], of_values());
        }
    }

private:
    static constexpr int kSums = 2 / SharedHere::kSides;
    using Scores = float[kRows / 2];  // 16 keys of all rows
    using Words = uint32_t[1][kRows / 4];

    /// The first of the warp's keys, and with two sides whether it has their dV.
    __device__ static int first() {
        return (kSums == 2 ? warp_id() : warp_id() % SharedHere::kKeyWarps) * 16;
    }
    __device__ static bool of_values() { return warp_id() >= SharedHere::kKeyWarps; }

    /// Adds a step's rows to the sums of the keys, and leaves dS'.
    __device__ void add(const StepsHere& all, int step, float (&d_k)[1][Dim / 2],
                        float (&d_v)[1][Dim / 2]) {
        const int stage = step % kStages;
        const auto offset = static_cast<uint32_t>(stage) * kStageBytes;
        Scores p, ds;
        const auto keys = static_cast<uint32_t>(first()) * Dim * 2;
        form_scores<T, Dim, kRows>(p, words_, kK + keys, kQ + offset);
        weigh(stage, p);
        form_scores<T, Dim, kRows>(ds, words_, kV + keys, kDOut + offset);
        if (any_hidden(stage)) hide_keys(all, step, p, ds);
        Words p_word, ds_word;
        pack_weights(p, p_word);
        pack_gradient(stage, p, ds, ds_word);
        multiply_values<T, Dim, 1, kRows>(d_v, p_word, columns_, kDOut + offset);
        multiply_values<T, Dim, 1, kRows>(d_k, ds_word, columns_, kQ + offset);
    }

    /// The same where a warp has dK or dV of its keys: that of dV forms P' for both.
    __device__ void add_one_side(const StepsHere& all, int step, float (&sum)[1][Dim / 2]) {
        const int stage = step % kStages;
        const auto offset = static_cast<uint32_t>(stage) * kStageBytes;
        const auto keys = static_cast<uint32_t>(first()) * Dim * 2;
        float4* const weights = shared_.weights + first() / 16 * (kRows / 8 * kWarp) + lane_id();
        Scores x;
        form_scores<T, Dim, kRows>(x, words_, (of_values() ? kK : kV) + keys,
                                   (of_values() ? kQ : kDOut) + offset);
        if (of_values()) weigh(stage, x);
        if (any_hidden(stage)) hide_keys(all, step, x);
        if (of_values())
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j)
                weights[j * kWarp] =
                    make_float4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
        __syncthreads();
        Words word;
        if (of_values()) {
            pack_weights(x, word);
        } else {
            Scores p;
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j)
                *reinterpret_cast<float4*>(p + 4 * j) = weights[j * kWarp];
            pack_gradient(stage, p, x, word);
        }
        multiply_values<T, Dim, 1, kRows>(sum, word, columns_, (of_values() ? kDOut : kQ) + offset);
    }

    /// S' becomes P'.
    __device__ void weigh(int stage, Scores& p) const {
        const float scale = args_.scale * kLog2E;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const float2 lse = of_rows(shared_.lse[stage], j);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float* const x = p + 4 * j + 2 * side;
                x[0] = exp2_fast(fmaf(x[0], scale, -lse.x));
                x[1] = exp2_fast(fmaf(x[1], scale, -lse.y));
            }
        }
    }
    /// Of the two rows of this lane among 8.
    __device__ float2 of_rows(const float* from, int j) const {
        return *reinterpret_cast<const float2*>(from + 8 * j + 2 * (lane_id() % 4));
    }

    __device__ bool any_hidden(int stage) const {
        const auto& least = shared_.least_seen[stage];
        return min(least[0], least[kRows / kWarp - 1]) < Keys;
    }
    /// 0 where a row does not see the key.
    template <typename... Each>
    __device__ void hide_keys(const StepsHere& all, int step, Each&... x) const {
        const int key = first() + lane_id() / 4;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = 8 * j + 2 * (lane_id() % 4) + i;
                const int seen = all.has(step, row) ? shared_.use(step, row).seen : 0;
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    if (key + 8 * side >= seen) ((x[4 * j + 2 * side + i] = 0), ...);
            }
    }

    __device__ void pack_weights(const Scores& p, Words& word) const {
#pragma unroll
        for (int j = 0; j < kRows / 4; ++j) word[0][j] = pack<T>(p[2 * j], p[2 * j + 1]);
    }
    /// dS' from P' and dP': into shared memory too.
    __device__ void pack_gradient(int stage, const Scores& p, const Scores& ds, Words& word) {
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const float2 delta = of_rows(shared_.delta[stage], j);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int i = 4 * j + 2 * side;
                word[0][i / 2] =
                    pack<T>(p[i] * (ds[i] - delta.x), p[i + 1] * (ds[i + 1] - delta.y));
            }
        }
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
            for (int side = 0; side < 2; ++side)
                store_word(
                    shared_.soft(first() + lane_id() / 4 + 8 * side, j) + 4 * (lane_id() % 4),
                    word[0][2 * j + side]);
    }

    /// dQ of 16 rows and kChannels channels, to the slots.
    __device__ void form_queries(const StepsHere& all, int step) {
        constexpr int kChannels = SharedHere::kChannels;
        constexpr int kRowTiles = SharedHere::kRowTiles;
        const int lane = lane_id(), row = warp_id() % kRowTiles * 16;
        const int channel = warp_id() / kRowTiles * kChannels;
        // dS' is stored by keys: loads transpose it.
        const int own_key = lane % 8 + lane / 16 * 8, own_chunk = row / 8 + lane / 8 % 2;
        const uint32_t from = shared_.soft(own_key, own_chunk);
        LaneColumns<Dim> columns = columns_;
        columns.first = (columns.first ^ (channel % 64 << 1)) + channel / 64 * 128 + kK;
        float sum[kChannels / 2] = {};
#pragma unroll
        for (int key = 0; key < Keys; key += 16) {
            uint32_t a[4];
            shared_transposed(a, from + key * kRows * 2);
#pragma unroll
            for (int pair = 0; pair < kChannels / 16; ++pair) {
                uint32_t b[4];
                columns.at(b, key, pair);
                multiply_16x8<T>(sum + 8 * pair, a, b);
                multiply_16x8<T>(sum + 8 * pair + 4, a, b + 2);
            }
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int r = row + lane / 4 + 8 * side;
            if (!all.has(step, r)) continue;
            const int slot = shared_.use(step, r).slot;
            const int head = r - args_.query_of_row(r) * args_.group_size;
            auto* const to = static_cast<uint4*>(args_.workspace.slots) +
                             (slot * args_.group_size + head) * (Dim / 8) + lane % 4;
#pragma unroll
            for (int i = 0; i < kChannels / 32; ++i) {
                uint32_t word[4];
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int j = 4 * (4 * i + n) + 2 * side;
                    word[n] = pack<T>(sum[j], sum[j + 1]);
                }
                const int chunk = channel / 32 + i;  // of 32 channels
                __stcs(to + 4 * chunk, make_uint4(word[0], word[1], word[2], word[3]));
            }
        }
    }

    /// Of a block in parts to its part, otherwise to the block's keys: there is one adder per
    /// address in a launch.
    __device__ void store_sum(const GradItem& item, const SequenceBlock& block,
                              const float (&sum)[Dim / 2], bool of_values) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int mine = first() + lane_id() / 4 + 8 * side;
            if (item.part < 0 && mine >= block.keys) continue;
            const int64_t at =
                item.part >= 0
                    ? (int64_t{item.part} * 2 * Keys + mine + (of_values ? Keys : 0)) * Dim
                    : (int64_t{block.key + mine} * args_.groups + item.group) * Dim;
            const GradWorkspace& work = args_.workspace;
            float* const to = (item.part >= 0 ? work.parts
                               : of_values    ? work.d_v
                                              : work.d_k) +
                              at + 2 * (lane_id() % 4);
#pragma unroll
            for (int j = 0; j < Dim / 8; ++j) {
                auto* const two = reinterpret_cast<float2*>(to + 8 * j);
                const float2 old = item.part >= 0 ? float2{} : *two;
                *two =
                    make_float2(old.x + sum[4 * j + 2 * side], old.y + sum[4 * j + 2 * side + 1]);
            }
        }
    }

    const SparseGradArgs& args_;
    SharedHere& shared_;
    const LaneWords<Dim> words_;  // of all tiles, which lie at multiples of 1024 bytes
    const LaneColumns<Dim> columns_;
};

template <typename T, typename SharedHere>
__global__ void __launch_bounds__(SharedHere::kThreads, 256 / SharedHere::kThreads)
    grad_products(const __grid_constant__ SparseGradArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<SharedHere*>(memory);
    Worker<T, SharedHere> worker(args, shared);
    for (;;) {
        __syncthreads();  // all warps are done with the last item
        if (threadIdx.x == 0) shared.taken = atomicAdd(&args.workspace.counts->items_taken, 1);
        __syncthreads();
        if (shared.taken >= args.workspace.counts->items) return;
        worker.take(args.workspace.items[shared.taken]);
    }
}

template <typename T, typename SharedHere>
cudaError_t launch(const SparseGradArgs& args, int sms, cudaStream_t stream) {
    constexpr int kBytes = sizeof(SharedHere);
    auto* const kernel = grad_products<T, SharedHere>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    int blocks = 0;  // on an SM
    const cudaError_t asked = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, SharedHere::kThreads, kBytes);
    if (asked != cudaSuccess) return asked;
    kernel<<<static_cast<unsigned>(blocks * sms), SharedHere::kThreads, kBytes, stream>>>(args);
    return cudaGetLastError();
}

template <typename T, int Dim, int Keys>
cudaError_t launch_tile(const SparseGradArgs& args, bool large, int sms, cudaStream_t stream) {
    using Large = Shared<Dim, Keys, grad_rows_sm80(Dim), 2>;
    static_assert(sizeof(Large) <= grad_shared_sm80(Dim, Keys));
    if constexpr (Dim <= 128 && grad_shared_sm80(Dim, Keys) > kLeastShared) {
        using Small = Shared<Dim, Keys, kGradSmallRows, Keys == 128 ? 1 : 2>;
        static_assert(sizeof(Small) <= kLeastShared);
        if (!large) return launch<T, Small>(args, sms, stream);
    }
    return launch<T, Large>(args, sms, stream);
}

template <typename T>
cudaError_t launch_products(const SparseGradArgs& args, bool large, int sms, cudaStream_t stream) {
    if (args.head_dim == 256) return launch_tile<T, 256, 64>(args, large, sms, stream);
    const bool wide = sparse_grad_tile_keys(args.block_size) == 128;
    if (args.head_dim == 128)
        return wide ? launch_tile<T, 128, 128>(args, large, sms, stream)
                    : launch_tile<T, 128, 64>(args, large, sms, stream);
    return wide ? launch_tile<T, 64, 128>(args, large, sms, stream)
                : launch_tile<T, 64, 64>(args, large, sms, stream);
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_attention_grad_sm80(const SparseGradArgs& args, bool large, int sms,
                                              cudaStream_t stream) {
    cudaError_t error = launch_grad_prepare<T>(args, stream);
    for (int c = 0; c < args.chunks() && error == cudaSuccess; ++c) {
        const int scheduled = c % args.batch_chunks;
        if (scheduled == 0) error = launch_grad_schedule(args, c, stream);
        const SparseGradArgs chunk = args.chunk(c, scheduled);
        if (error == cudaSuccess) error = launch_products<T>(chunk, large, sms, stream);
        if (error == cudaSuccess) error = launch_grad_parts<T>(chunk, sms, stream);
        if (error == cudaSuccess) error = launch_grad_slots<T>(chunk, stream);
    }
    return error == cudaSuccess ? launch_grad_finish<T>(args, stream) : error;
}

#define MSA_INSTANTIATE(T)                                                                      \
    template cudaError_t launch_sparse_attention_grad_sm80<T>(const SparseGradArgs&, bool, int, \
                                                              cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
