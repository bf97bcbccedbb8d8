// SPDX-License-Identifier: MIT
// The products of index_kl, KV-outer. A thread block keeps a block's keys and loops over the
// queries that use it, 64 per tile, with their heads in steps of 64 columns.
//
//   S' = K Q'     p = mean over heads of 2^(scale S' - lse)     T' = K_idx Q_idx'
//   D' = 2^(index_scale T' - index_lse) - p     dK_idx += D' Q_idx     dQ_idx part = D K_idx
//
// A warpgroup for each 64 keys holds its rows of K, the register operand of S', and of dK_idx.
// While the tensor cores compute the scores of a step, the warpgroup takes the exponentials of the
// previous step and sums over heads: first within a thread, then over the four threads that share a
// row. The means wait in shared memory, at each thread's own place, until the tile's index scores
// are computed. D' enters its two products as two values of T: the rounded value and the rounding
// error. It goes into dK_idx from registers, and into dQ_idx through shared memory (stmatrix
// transposes it), where the keys of both warpgroups come together; each warpgroup computes 64
// channels of dQ_idx. A use's part of dQ_idx goes to its slot, in float. There are four producer
// warps: one takes items and gathers q by TMA through a ring buffer, one loads lse, one index_k and
// index_q, and one the uses of tiles.
//
// D' is 0 for a key that is not seen, but 0 times a value that is not finite is NaN. So if a tile
// has a score that is not finite, the operands of its two products are made finite in shared
// memory, and index_k is loaded again afterwards. For such a key that is seen, D' is NaN already.
//
// Cycles per tile and SM with both dims 128, G 16 and 128 keys: 8192 for S', 512 for T', 2048 for
// the products of D', and 9216 for exponentials and logarithms, of which 8192 overlap with S'.
// Shared memory: 4096 for Q, 2048 for TMA's writes, 2048 for the products of D'. Predicted: 13.5
// thousand cycles.
#include <algorithm>
#include <numbers>

#include "gpu/device/kl_gather_sm90.cuh"
#include "gpu/device/kl_worker_sm90.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/kernels/index_kl_sm90.h"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

using namespace sm90;

/// By all consumers: numbers in shared memory that are not finite become 0.
template <typename T>
__device__ void make_finite(char* from, int bytes, int thread, int threads) {
    for (int i = 16 * thread; i < bytes; i += 16 * threads) {
        uint4& x = *reinterpret_cast<uint4*>(from + i);
        x = make_uint4(finite_or_zero<T>(x.x), finite_or_zero<T>(x.y), finite_or_zero<T>(x.z),
                       finite_or_zero<T>(x.w));
    }
}

/// By all consumers, before the tile's last two products, and behind them.
template <typename Worker>
__device__ void hide_unsound(const Worker& w) {
    using S = typename Worker::S;
    using T = typename Worker::Value;
    const int thread = static_cast<int>(threadIdx.x);
    auto& index_q = w.shared.index_q[stage_of<S::kTileStages>(w.tile)];
    make_finite<T>(index_q[0], sizeof index_q, thread, Worker::kWorkThreads);
    make_finite<T>(w.shared.index_k[0], sizeof w.shared.index_k, thread, Worker::kWorkThreads);
    fence_shared();
    barrier_of<1>(Worker::kWorkThreads);
}
template <typename Worker>
__device__ void bring_keys_back(const Worker& w, const SequenceBlock& block) {
    constexpr int kChunks = Worker::S::kIndexBoxes * 8;  // of 16 bytes in a row
    barrier_of<1>(Worker::kWorkThreads);
    for (int i = static_cast<int>(threadIdx.x); i < Worker::S::kMain * 64 * kChunks;
         i += Worker::kWorkThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int64_t key = block.key + row;
        char* const to = w.shared.index_k[chunk / 8] + row * kSwizzle + (chunk ^ row) % 8 * 16;
        *reinterpret_cast<uint4*>(to) =
            key < w.args.keys
                ? reinterpret_cast<const uint4*>(w.args.blocks.index_k)[key * kChunks + chunk]
                : uint4{};
    }
    fence_shared();
    barrier_of<1>(Worker::kWorkThreads);
}

/// Starts 64 channels of dQ_idx, `more` boxes behind this warpgroup's first.
template <typename Worker>
__device__ __forceinline__ void start_queries(const Worker& w, typename Worker::Sums& s, int more) {
    using S = typename Worker::S;
    wgmma_fence();
#pragma unroll
    for (int side = 0; side < 2; ++side)  // what rounding left lies behind the rounded values
#pragma unroll
        for (int step = 0; step < S::kMain * 4; ++step)
            multiply_in<typename Worker::Value, true>(
                s, operand(w.high_rows, (side * S::kMain + step / 4) * kKlRowsBox + step % 4 * 32),
                operand(w.index_k_columns, more * S::kKeyBox + step * 16 * kSwizzle),
                side + step > 0);
    wgmma_commit();
}
template <int Side, typename Worker>
__device__ __forceinline__ void store_row(const Worker& w, const typename Worker::Sums& s,
                                          const KlUses& uses, int more) {
    const int slot = uses.slot[w.row + 8 * Side];
    if (slot < 0) return;
    float* const to = w.args.blocks.d_query + int64_t{slot} * (Worker::S::kIndexBoxes * 64) +
                      64 * (w.part + more) + 2 * w.quad;
#pragma unroll
    for (int j = 0; j < 8; ++j)
        __stcs(reinterpret_cast<float2*>(to + 8 * j),
               make_float2(s[4 * j + 2 * Side], s[4 * j + 2 * Side + 1]));
}
template <typename Worker>
__device__ __forceinline__ void store_queries(const Worker& w, typename Worker::Sums& s,
                                              const KlUses& uses, int more) {
    settle(s);
    if (w.part >= Worker::S::kIndexBoxes) return;
    store_row<0>(w, s, uses, more);
    store_row<1>(w, s, uses, more);
}

/// The KL of the tile's uses on the block's keys, by the first 64 consumers.
template <typename Worker>
__device__ void store_kl(const Worker& w, const KlUses& uses) {
    const auto use = static_cast<int>(threadIdx.x);
    if (w.args.blocks.kl == nullptr || use >= kKlRows || uses.slot[use] < 0) return;
    double sum = 0;
    for (const auto& of_warp : w.shared.kl) sum += double{of_warp[use]};
    w.args.blocks.kl[uses.slot[use]] = sum * (std::numbers::ln2 / kKlUnit<typename Worker::Value>);
}

/// Both products of t - p, which is in `s`; then all that the tile took is free.
template <typename Worker>
__device__ __forceinline__ void multiply_differences(Worker& w, typename Worker::Sums& s,
                                                     const KlUses& uses,
                                                     const SequenceBlock& block) {
    using S = typename Worker::S;
    auto& shared = w.shared;
    uint32_t high[kKlSums / 2], low[kKlSums / 2];
#pragma unroll
    for (int n = 0; n < kKlSums / 2; ++n) {
        const SplitPair<typename Worker::Value> pair(s[2 * n], s[2 * n + 1]);
        high[n] = pair.high, low[n] = pair.low;
    }
    const uint32_t to = shared_address(shared.high[w.part]) + w.part_row;
#pragma unroll
    for (int n = 0; n < kKlSums / 2; n += 4) {
        store_transposed(to + n / 2 * 8 * kSwizzle, high[n], high[n + 1], high[n + 2], high[n + 3]);
        store_transposed(to + S::kMain * kKlRowsBox + n / 2 * 8 * kSwizzle, low[n], low[n + 1],
                         low[n + 2], low[n + 3]);
    }
    fence_shared();
    __syncwarp();
    if (w.lane == 0) shared.parts_full.arrive();
    shared.parts_full.wait(parity_of<1>(w.tile));
    const bool unsound = shared.unsound == w.tile + 1;
    if (unsound) hide_unsound(w);
    constexpr int kLast = S::kMain < S::kIndexBoxes ? 1 : 0;  // of this warpgroup's boxes
    if constexpr (kLast == 1) {
        start_queries(w, s, 0);
        wgmma_wait<0>();
        store_queries(w, s, uses, 0);
    }
    start_queries(w, s, kLast);
    const uint32_t index_q =
        w.index_q_rows + stage_of<S::kTileStages>(w.tile) * (S::kIndexBoxes * kKlRowsBox >> 4);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKlRows / 16; ++step) {
        multiply_in<typename Worker::Value, true>(w.d_keys, high + 4 * step,
                                                  operand(index_q, step * 16 * kSwizzle), true);
        multiply_in<typename Worker::Value, true>(w.d_keys, low + 4 * step,
                                                  operand(index_q, step * 16 * kSwizzle), true);
    }
    wgmma_commit();
    store_kl(w, uses);
    wgmma_wait<1>();
    store_queries(w, s, uses, kLast);
    wgmma_wait<0>();
    settle(w.d_keys);
    if (unsound) bring_keys_back(w, block);
    __syncwarp();
    if (w.lane == 0) {
        shared.parts_empty.arrive();
        shared.tile_empty[stage_of<S::kTileStages>(w.tile)].arrive();
    }
}

/// One tile: a product is in flight behind a step's exponentials, the index scores behind the last
/// one's. No product is in flight from one lap to the next: ptxas would let none run beside other
/// instructions then (its C7514).
template <typename Worker>
__device__ __forceinline__ void pass_tile(Worker& w, int count, const SequenceBlock& block) {
    using S = typename Worker::S;
    const int last = kl_laps<Worker::kHeadBits>(count) - 1;
    typename Worker::Sums even, odd;
    typename Worker::Lse lse;
#pragma unroll 1
    for (int lap = 0;; ++lap) {
        w.template start_step<0>(even);
        w.template read_lse<0>(lse);
        w.template start_step<1>(odd);
        w.template teach<0, 1>(even, lse, lap);
        w.template read_lse<1>(lse);
        w.template start_step<2>(even);
        w.template teach<1, 1>(odd, lse, lap);
        w.template read_lse<2>(lse);
        w.template start_step<3>(odd);
        w.template teach<2, 1>(even, lse, lap);
        w.template read_lse<3>(lse);
        ++w.lap;
        if (lap == last) break;
        w.template teach<3, 0>(odd, lse, lap);
    }
    w.start_index_scores(even);
    w.template teach<3, 1>(odd, lse, last);
    wgmma_wait<0>();
    settle(even);
    const KlUses& uses = w.shared.uses[stage_of<S::kTileStages>(w.tile)];
    w.shared.parts_empty.wait(parity_of<1>(w.tile) ^ 1);
    w.compare(even, uses);
    multiply_differences(w, even, uses, block);
    ++w.tile;
}

/// A consumer: items until there are none.
template <typename T, int HeadBits, int Dim, int IndexDim, int BlockSize>
__device__ void work(const KlTunedArgs& args, KlMemory<Dim, IndexDim, BlockSize>& shared,
                     int part) {
    KlWorker<T, HeadBits, Dim, IndexDim, BlockSize> w(args, shared, part);
    const KlBlocks& a = args.blocks;
    const int first_row = 64 * part + w.row, row[2] = {first_row, first_row + 8};
    for (;; ++w.item) {
        const KlWork& given = wait_item(shared, w.item);
        const int uses = __shfl_sync(kAllLanes, given.uses(), 0), number = given.number;
        const int group = given.item.group;
        const SequenceBlock block = a.blocks[given.item.block];
        give_item_back(shared, w.item);
        if (uses == 0) return;
        const int64_t key_bytes = int64_t{a.groups} * Dim * 2;
        w.keys.load(reinterpret_cast<const char*>(a.k) + block.key * key_bytes + group * Dim * 2,
                    key_bytes, 1, block.keys, row);
#pragma unroll
        for (float& sum : w.d_keys) sum = 0;
#pragma unroll 1
        for (int first = 0; first < uses; first += kKlRows)
            pass_tile(w, min(kKlRows, uses - first), block);
        if (w.lane == 0) shared.keys_empty.arrive();
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float* const to =
                a.d_keys + (int64_t{number} * BlockSize + row[side]) * IndexDim + 2 * w.quad;
#pragma unroll
            for (int j = 0; j < IndexDim / 8; ++j)
                __stcs(reinterpret_cast<float2*>(to + 8 * j),
                       make_float2(w.d_keys[4 * j + 2 * side], w.d_keys[4 * j + 2 * side + 1]));
        }
    }
}

template <typename T, int HeadBits, int Dim, int IndexDim, int BlockSize>
__global__ void __launch_bounds__(KlShape<Dim, IndexDim, BlockSize>::kThreads,
                                  KlShape<Dim, IndexDim, BlockSize>::kBlocksPerProcessor)
    kl_blocks_sm90(const __grid_constant__ KlTunedArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using S = KlShape<Dim, IndexDim, BlockSize>;
    auto& shared = *reinterpret_cast<KlMemory<Dim, IndexDim, BlockSize>*>(memory);
    // Columns that no head fills stay 0: their probability is 0, but 0 times NaN is not.
    for (int i = static_cast<int>(threadIdx.x) * 16; i < int{sizeof shared.q};
         i += S::kThreads * 16)
        *reinterpret_cast<uint4*>(memory + i) = uint4{};
    fence_shared();
    if (threadIdx.x == 0) shared.init();
    __syncthreads();
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
    if (warpgroup < S::kMain) {
        setmaxnreg_inc<S::kMainRegisters>();
        work<T, HeadBits>(args, shared, warpgroup);
    } else {
        setmaxnreg_dec<S::kProducerRegisters>();
        const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
        if (warp == 0) gather_queries<HeadBits>(args, shared);
        if (warp == 1) gather_lse<HeadBits>(args, shared);
        if (warp == 2) gather_index(args, shared);
        if (warp == 3) gather_uses<T>(args, shared);
    }
}

template <typename T, int Dim, int IndexDim, int BlockSize>
cudaError_t launch(const KlTunedArgs& args, int64_t most_items, int sms, cudaStream_t stream) {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    using Memory = KlMemory<Dim, IndexDim, BlockSize>;
    static_assert(S::kBlocksPerProcessor * (sizeof(Memory) + 1024) <= 228 << 10);
    const int bits = kl_head_bits(args.blocks.group_size());
    auto* const kernel = bits == 4   ? kl_blocks_sm90<T, 4, Dim, IndexDim, BlockSize>
                         : bits == 3 ? kl_blocks_sm90<T, 3, Dim, IndexDim, BlockSize>
                                     : kl_blocks_sm90<T, 2, Dim, IndexDim, BlockSize>;
    const cudaError_t error = allow_shared<Memory>(kernel);
    if (error != cudaSuccess) return error;
    const auto blocks = std::min<int64_t>(most_items, S::kBlocksPerProcessor * sms);
    kernel<<<static_cast<unsigned>(blocks), S::kThreads, sizeof(Memory), stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_kl_blocks_sm90(const KlTunedArgs& args, int64_t most_items, int sms,
                                  cudaStream_t stream) {
    if (most_items == 0) return cudaSuccess;
    const KlBlocks& a = args.blocks;
    const bool wide = a.block_size == 128;
    if (a.head_dim == 64)
        return wide ? launch<T, 64, 64, 128>(args, most_items, sms, stream)
                    : launch<T, 64, 64, 64>(args, most_items, sms, stream);
    if (a.index_dim == 64)
        return wide ? launch<T, 128, 64, 128>(args, most_items, sms, stream)
                    : launch<T, 128, 64, 64>(args, most_items, sms, stream);
    return wide ? launch<T, 128, 128, 128>(args, most_items, sms, stream)
                : launch<T, 128, 128, 64>(args, most_items, sms, stream);
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_kl_blocks_sm90<T>(const KlTunedArgs&, int64_t, int, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
