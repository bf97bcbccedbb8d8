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
#include "gpu/device/stream_mma.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_grad_sm80.h"

namespace msa::cuda {
namespace {

/// Keys: sparse_grad_tile_keys() of the block size. Rows of a step, of which Stages are there.
template <int Dim, int Keys, int Rows, int Stages>
struct Shared {
    static constexpr int kDim = Dim, kKeys = Keys, kRows = Rows, kStages = Stages;
    static constexpr int kUsesAhead = Stages + 2;  // steps
    static constexpr int kWarps = Keys / 16, kThreads = kWarps * kWarp;
    static constexpr int kRowTiles = Rows / 16;
    static constexpr int kChannels = Dim * kRowTiles / kWarps;  // of dQ of a warp
    uint16_t q[kStages][kRows * Dim], d_out[kStages][kRows * Dim];
    uint16_t k[Keys * Dim], v[Keys * Dim];
    uint16_t d_scores[Keys * kRows];  // dS', in T
    float lse[kStages][kRows], delta[kStages][kRows];
    GradUse uses[kUsesAhead + 1][kRows];  // of each row of a step; rows of none have any
    int least_seen[kStages][kRows / kWarp];
    int taken;

    /// Of dS': 16 bytes of a key, rows from 8 chunk on. Permuted as MmaTile.
    __device__ uint32_t soft(int key, int chunk) {
        const int swizzle = Rows == 32 ? key >> 1 & 3 : (key & 1) << 2 | (key >> 1 & 3);
        return address_in_shared(d_scores) + key * Rows * 2 + ((chunk ^ swizzle) << 4);
    }
    __device__ const GradUse& use(int step, int row) const {
        return uses[step % (kUsesAhead + 1)][row];
    }
};

__device__ inline void copy_float(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address_in_shared(to)), "l"(from)
                 : "memory");
}
__device__ inline void store_word(uint32_t address, uint32_t word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

/// Brings the steps of an item.
template <typename SharedHere>
struct Steps {
    static constexpr int Dim = SharedHere::kDim, kKeys = SharedHere::kKeys,
                         kRows = SharedHere::kRows, kStages = SharedHere::kStages,
                         kUsesAhead = SharedHere::kUsesAhead;
    const SparseGradArgs& args;
    SharedHere& shared;
    const GradUse* uses;
    int group, count;

    /// Does a row of a step have a use?
    __device__ bool has(int step, int row) const {
        const int use = args.query_of_row(row);
        return use < args.step_queries && step * args.step_queries + use < count;
    }
    /// Starts the copies of a step's uses.
    __device__ void fetch_uses(int step) const {
        const int row = static_cast<int>(threadIdx.x);
        if (row >= kRows || !has(step, row)) return;
        const int use = step * args.step_queries + args.query_of_row(row);
        copy_chunk(&shared.uses[step % (kUsesAhead + 1)][row], uses + use, true);
    }
    /// Starts the copies of a step's rows, whose uses are there; none behind the last one.
    __device__ void fetch(int step) const {
        constexpr int kChunks = Dim / kChunk, kAtOnce = SharedHere::kThreads / kChunks;
        if (step * args.step_queries >= count) return;
        const int stage = step % kStages, first_head = group * args.group_size;
        const auto from = [&](int row) {  // (query, head)
            const int head = row - args.query_of_row(row) * args.group_size;
            return int64_t{shared.use(step, row).query} * args.query_heads + first_head + head;
        };
        const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
        for (int first = 0; first < kRows; first += kAtOnce) {
            const int row = first + static_cast<int>(threadIdx.x) / kChunks;
            const bool there = has(step, row);
            const int64_t at = there ? from(row) * Dim + chunk * kChunk : 0;
            copy_chunk(MmaTile<Dim>{shared.q[stage]}.chunk(row, chunk),
                       static_cast<const uint16_t*>(args.q) + at, there);
            copy_chunk(MmaTile<Dim>{shared.d_out[stage]}.chunk(row, chunk),
                       static_cast<const uint16_t*>(args.d_out) + at, there);
        }
        const int row = static_cast<int>(threadIdx.x);
        if (row >= kRows) return;
        const bool there = has(step, row);
        const int64_t at = there ? from(row) : args.queries * args.query_heads;
        copy_float(shared.lse[stage] + row, args.workspace.lse + at);
        copy_float(shared.delta[stage] + row, args.workspace.delta + at);
        const int least = __reduce_min_sync(kAllLanes, there ? shared.use(step, row).seen : kKeys);
        if (lane_id() == 0) shared.least_seen[stage][warp_id()] = least;
    }
};

/// sum [16, Rows] = 16 keys times the rows of a stage, which begin at these bytes.
template <typename T, int Dim, int Rows>
__device__ void form_scores(float (&sum)[Rows / 2], const LaneWords<Dim>& words, uint32_t keys,
                            uint32_t rows) {
    for (float& x : sum) x = 0;
#pragma unroll
    for (int step = 0; step < Dim / 32; ++step) {
        const uint4 low = words.at(0, step, keys), high = words.at(8, step, keys);
#pragma unroll
        for (int j = 0; j < Rows / 8; ++j)
            multiply_words<T>(sum + 4 * j, low, high, words.at(8 * j, step, rows));
    }
}

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
        float d_k[1][Dim / 2] = {}, d_v[1][Dim / 2] = {};
        for (int step = 0; step < steps; ++step) {
            wait_for_groups<kStages - 1>();
            __syncthreads();
            add(all, step, d_k, d_v);
            __syncthreads();
            all.fetch(step + kStages);
            all.fetch_uses(step + kUsesAhead);
            commit_copies();
            form_queries(all, step);
        }
        wait_for_groups<0>();
        store_sums(item, block, d_k[0], d_v[0]);
    }

private:
    /// Adds a step's rows to the sums of the keys, and leaves dS'.
    __device__ void add(const StepsHere& all, int step, float (&d_k)[1][Dim / 2],
                        float (&d_v)[1][Dim / 2]) {
        const int stage = step % kStages, first = warp_id() * 16, quad = lane_id() % 4;
        const auto offset = static_cast<uint32_t>(stage) * kStageBytes;
        const float scale = args_.scale * kLog2E;
        float p[kRows / 2], ds[kRows / 2];
        const auto keys = static_cast<uint32_t>(first) * Dim * 2;
        form_scores<T, Dim, kRows>(p, words_, kK + keys, kQ + offset);
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const float2 lse =
                *reinterpret_cast<const float2*>(shared_.lse[stage] + 8 * j + 2 * quad);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float* const x = p + 4 * j + 2 * side;
                x[0] = exp2_fast(fmaf(x[0], scale, -lse.x));
                x[1] = exp2_fast(fmaf(x[1], scale, -lse.y));
            }
        }
        form_scores<T, Dim, kRows>(ds, words_, kV + keys, kDOut + offset);
        if (min(shared_.least_seen[stage][0], shared_.least_seen[stage][kRows / kWarp - 1]) < Keys)
            hide_keys(all, step, first, p, ds);
        uint32_t p_word[1][kRows / 4], ds_word[1][kRows / 4];
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const float2 delta =
                *reinterpret_cast<const float2*>(shared_.delta[stage] + 8 * j + 2 * quad);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const float* const x = p + 4 * j + 2 * side;
                const float* const y = ds + 4 * j + 2 * side;
                p_word[0][2 * j + side] = pack<T>(x[0], x[1]);
                ds_word[0][2 * j + side] =
                    pack<T>(x[0] * (y[0] - delta.x), x[1] * (y[1] - delta.y));
            }
        }
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
            for (int side = 0; side < 2; ++side)
                store_word(shared_.soft(first + lane_id() / 4 + 8 * side, j) + 4 * quad,
                           ds_word[0][2 * j + side]);
        multiply_values<T, Dim, 1, kRows>(d_v, p_word, columns_, kDOut + offset);
        multiply_values<T, Dim, 1, kRows>(d_k, ds_word, columns_, kQ + offset);
    }

    __device__ void hide_keys(const StepsHere& all, int step, int first, float (&p)[kRows / 2],
                              float (&ds)[kRows / 2]) const {
        const int key = first + lane_id() / 4;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = 8 * j + 2 * (lane_id() % 4) + i;
                const int seen = all.has(step, row) ? shared_.use(step, row).seen : 0;
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    if (key + 8 * side >= seen)
                        p[4 * j + 2 * side + i] = ds[4 * j + 2 * side + i] = 0;
            }
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
    __device__ void store_sums(const GradItem& item, const SequenceBlock& block,
                               const float (&d_k)[Dim / 2], const float (&d_v)[Dim / 2]) {
        const int quad = lane_id() % 4;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int mine = warp_id() * 16 + lane_id() / 4 + 8 * side;
            if (item.part < 0 && mine >= block.keys) continue;
            const int64_t at = item.part >= 0
                                   ? (int64_t{item.part} * 2 * Keys + mine) * Dim
                                   : (int64_t{block.key + mine} * args_.groups + item.group) * Dim;
            float* const to_k =
                (item.part >= 0 ? args_.workspace.parts : args_.workspace.d_k) + at + 2 * quad;
            float* const to_v =
                (item.part >= 0 ? args_.workspace.parts + Keys * Dim : args_.workspace.d_v) + at +
                2 * quad;
            const auto store = [&](float* to, const float(&sum)[Dim / 2]) {
#pragma unroll
                for (int j = 0; j < Dim / 8; ++j) {
                    auto* const two = reinterpret_cast<float2*>(to + 8 * j);
                    const float2 old = item.part >= 0 ? float2{} : *two;
                    *two = make_float2(old.x + sum[4 * j + 2 * side],
                                       old.y + sum[4 * j + 2 * side + 1]);
                }
            };
            store(to_k, d_k);
            store(to_v, d_v);
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
    using Large = Shared<Dim, Keys, kGradStepRows, 2>;
    static_assert(sizeof(Large) <= grad_shared_sm80(Dim, Keys));
    if constexpr (grad_shared_sm80(Dim, Keys) > kLeastShared) {
        using Small = Shared<Dim, Keys, kGradSmallRows, Keys == 128 ? 1 : 2>;
        static_assert(sizeof(Small) <= kLeastShared);
        if (!large) return launch<T, Small>(args, sms, stream);
    }
    return launch<T, Large>(args, sms, stream);
}

template <typename T>
cudaError_t launch_products(const SparseGradArgs& args, bool large, int sms, cudaStream_t stream) {
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
