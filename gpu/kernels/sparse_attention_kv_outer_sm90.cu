// SPDX-License-Identifier: MIT
// The first phase of KV-outer. A block's keys and values stay in shared memory while the kernel
// loops over the queries that selected it.
//
//   stream_blocks   one thread copies the keys and values of the next block (TMA)
//   gather          one warp per consumer copies queries, a lane per query, into that consumer's
//                   ring buffer
//   consumers       two warpgroups take 64 rows at a time, each from its own ring buffer, so that
//                   one multiplies while the other takes exponentials
//
// A row has one softmax per block, so there is no running maximum over blocks. Its output is
// normalised and goes to a slot with the log of the denominator; gpu/kernels/
// sparse_attention_union_sm90.cu adds the slots of a row.
#include <algorithm>
#include <climits>

#include "gpu/device/attend_e4m3_sm90.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kConsumers = AttendRows::kConsumers;
constexpr int kPassRows = kSparsePassRows, kMostPassQueries = kSparsePassQueries;
static_assert(kMostPassQueries == kWarp);
/// Place or head of a row that is not there: negative, also with another number of rows added.
constexpr int kNowhere = INT_MIN / 2;

/// What the consumers need of a BlockUse.
struct PassUse {
    int place, seen;
};

/// Scales of e4m3 operands: of the rows of passes, and of the blocks at hand. Other types have
/// none.
template <typename T, int QueryStages, int BlockStages>
struct PassScales {};
template <int QueryStages, int BlockStages>
struct PassScales<__nv_fp8_e4m3, QueryStages, BlockStages> {
    float row[kConsumers][QueryStages][kPassRows];
    BlockScales block[BlockStages];
};

// Registers of a thread. Producers with fewer keep a part of what they need in local memory.
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <= AttendRows::kRegisters);

template <typename T, int Dim, int BlockSize>
struct Shared {
    using S = OperandShape<T, Dim, BlockSize>;
    static constexpr int kBlockBytes = S::kKeyBytes + S::kValueBytes;
    static constexpr int kQueryBytes = kConsumers * S::kBoxes * kPassRows * kSwizzle;  // of a stage
    static constexpr int kQueryStages = Dim == 256 ? 1 : kBlockBytes <= 32768 ? 4 : 3;
    /// Keys and values of as many blocks as there is room for beside barriers and uses: the next
    /// ones are there when a block of few uses is done.
    static constexpr int kBlockStages =
        std::min(4, (kMostSharedBytes - 2048 - kQueryStages * kQueryBytes) / kBlockBytes);
    char q[kConsumers][kQueryStages][S::kBoxes][kPassRows * kSwizzle];
    char k[kBlockStages][S::kKeyBytes];
    char v[kBlockStages][S::kValueBytes];
    int there[kBlockStages];  // keys of the block's sequence from its start on
    PassUse uses[kConsumers][kQueryStages][kMostPassQueries];
    Ring<kQueryStages> q_ring[kConsumers];
    Ring<kBlockStages> k_ring, v_ring;
    PassScales<T, kQueryStages, kBlockStages> scales;
};

/// Those of the round.
struct Items {
    const KeyBlockItem* first;
    int count;

    __device__ explicit Items(const SparseKvOuterArgs& args) {
        const SparseRound& round = args.workspace.rounds[args.round];
        first = args.workspace.items + round.first_chunk * args.most_items();
        count = round.items;
    }
    /// Read ahead, as what an item says is read after it; empty behind the last one.
    __device__ KeyBlockItem at(int i) const { return i < count ? first[i] : KeyBlockItem{}; }
};

/// The uses of an item that one consumer takes: `queries` at a time, every other time. Rows of a
/// pass that they leave over are empty.
struct Passes {
    int first, step, queries;

    __device__ Passes(const SparseKvOuterArgs& args, int consumer)
        : queries(min(kPassRows / args.group_size(), kMostPassQueries)) {
        first = consumer * queries;
        step = kConsumers * queries;
    }
    __device__ int of(const KeyBlockItem& item) const {
        return max(0, (item.count - first + step - 1) / step);
    }
};

/// The producer warp of one consumer's queries.
template <typename T, int Dim, int BlockSize>
__device__ void gather(const SparseKvOuterArgs& args, Shared<T, Dim, BlockSize>& shared,
                       int consumer) {
    using S = OperandShape<T, Dim, BlockSize>;
    constexpr int kRowBytes = S::kBoxes * kSwizzle, kRowsPerLane = kPassRows / kWarp;
    const int lane = threadIdx.x % kWarp, heads = args.group_size();
    const Items items(args);
    const Passes passes(args, consumer);
    Cursor<Shared<T, Dim, BlockSize>::kQueryStages> at;
    KeyBlockItem coming = items.at(blockIdx.x);
    for (int i = blockIdx.x; i < items.count; i += gridDim.x) {
        const KeyBlockItem item = coming;
        coming = items.at(i + gridDim.x);
        const BlockUse* const uses = args.workspace.uses + item.begin;
        auto use_of = [&](int first) {
            return lane < passes.queries && first + lane < item.count ? uses[first + lane]
                                                                      : BlockUse{0, kNowhere, 0, 0};
        };
        BlockUse next = use_of(passes.first);
        for (int first = passes.first; first < item.count; first += passes.step, at.advance()) {
            const BlockUse use = next;
            next = use_of(first + passes.step);
            Barrier& full = shared.q_ring[consumer].full[at.stage];
            [[maybe_unused]] float row_scale[kRowsPerLane];
            if constexpr (kIsE4m3<T>)
                for (int n = 0; n < kRowsPerLane; ++n) {
                    const int row = lane + n * kWarp;
                    const int query =
                        __shfl_sync(kAllLanes, use.query, min(row / heads, kWarp - 1));
                    row_scale[n] = args.scales.q.at(int64_t{query} * args.query_heads +
                                                    item.group * heads + row % heads);
                }
            shared.q_ring[consumer].empty[at.stage].wait(at.parity ^ 1);
            if (lane < passes.queries)
                shared.uses[consumer][at.stage][lane] = {use.place, use.seen};
            if constexpr (kIsE4m3<T>)
                for (int n = 0; n < kRowsPerLane; ++n)
                    shared.scales.row[consumer][at.stage][lane + n * kWarp] = row_scale[n];
            __syncwarp();
            const int count = min(passes.queries, item.count - first);
            if (lane == 0) full.expect(static_cast<uint32_t>(count * heads * kRowBytes));
            __syncwarp();
            if (lane < count)
                for (int box = 0; box < S::kBoxes; ++box)
                    copy_box(shared.q[consumer][at.stage][box] + lane * heads * kSwizzle, &args.q,
                             64 * box, item.group * heads, use.query, &full, Keep::longest);
        }
    }
}

/// The producer thread of keys and values.
template <typename T, int Dim, int BlockSize>
__device__ void stream_blocks(const SparseKvOuterArgs& args, Shared<T, Dim, BlockSize>& shared) {
    using S = OperandShape<T, Dim, BlockSize>;
    Cursor<Shared<T, Dim, BlockSize>::kBlockStages> at;
    const Items items(args);
    const auto key_of = [&](const KeyBlockItem& item) {
        return item.count > 0 ? args.workspace.uses[item.begin].key : 0;
    };
    KeyBlockItem coming = items.at(blockIdx.x);
    int coming_key = key_of(coming);
    for (int i = blockIdx.x; i < items.count; i += gridDim.x, at.advance()) {
        const KeyBlockItem item = coming;
        const int key = coming_key;
        coming = items.at(i + gridDim.x);
        coming_key = key_of(coming);
        const TileRowsAt rows(args.key_map, key);
        const int there = args.key_map.keys_from(key);
        const auto copy = [&](char* to, const CUtensorMap* from, Barrier& full) {
            full.expect(S::kKeyBytes);
            copy_keys<S::kBoxes, S::kKeyBox>(to, from, args.key_map, rows, item.group, full,
                                             Keep::shortest);
        };
        const int64_t number = int64_t{item.block} * args.groups + item.group;  // of its scales
        [[maybe_unused]] BlockScales scales{};
        if constexpr (kIsE4m3<T>) scales = block_scales_at(args.scales, number);
        shared.k_ring.empty[at.stage].wait(at.parity ^ 1);
        if constexpr (kIsE4m3<T>) shared.scales.block[at.stage] = scales;
        shared.there[at.stage] = there;
        copy(shared.k[at.stage], &args.k, shared.k_ring.full[at.stage]);
        shared.v_ring.empty[at.stage].wait(at.parity ^ 1);
        if constexpr (kIsE4m3<T>) {
            Barrier& full = shared.v_ring.full[at.stage];
            full.expect(S::kValueBytes);
            copy_bytes(shared.v[at.stage], args.values + number * S::kValueBytes, S::kValueBytes,
                       &full, Keep::shortest);
        } else {
            copy(shared.v[at.stage], &args.v, shared.v_ring.full[at.stage]);
        }
    }
}

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(AttendRows::kThreads, 1)
    kv_outer(const __grid_constant__ SparseKvOuterArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<T, Dim, BlockSize>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr bool kNarrow = kIsE4m3<T>;
    constexpr bool kWide = Dim == 256;  // no registers for outputs beside scores
    if (threadIdx.x == 0) {
        for (auto& ring : shared.q_ring) ring.init(1);
        shared.k_ring.init(kConsumers);
        shared.v_ring.init(kConsumers);
    }
    __syncthreads();
    wait_for_previous_kernel();
    const int consumer = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (consumer == kConsumers) {
        setmaxnreg_dec<kProducerRegisters>();
        const int warp = threadIdx.x % kWarpgroup / kWarp;
        if (warp < kConsumers) gather(args, shared, warp);
        if (threadIdx.x % kWarpgroup == kConsumers * kWarp) stream_blocks(args, shared);
        return;
    }
    setmaxnreg_inc<kConsumerRegisters>();

    const int heads = args.group_size(), lane = threadIdx.x % kWarp;
    const bool leader = lane == 0;  // releases for its warp
    const int row = threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
    const float scale = args.scale * kLog2E;
    const Passes passes(args, consumer);
    int pass_query[2], head[2];
    for (int side = 0; side < 2; ++side) {
        const int query = (row + 8 * side) / heads;
        pass_query[side] = min(query, passes.queries - 1);
        head[side] = query < passes.queries ? (row + 8 * side) % heads : kNowhere;
    }
    Cursor<Memory::kQueryStages> q_at;
    Cursor<Memory::kBlockStages> at;
    const Items items(args);
    KeyBlockItem coming = items.at(blockIdx.x);
    for (int i = blockIdx.x; i < items.count; i += gridDim.x, at.advance()) {
        const int count = passes.of(coming);
        coming = items.at(i + gridDim.x);
        char *const k = shared.k[at.stage], *const v = shared.v[at.stage];
        shared.k_ring.full[at.stage].wait(at.parity);
        if (count == 0) {
            if (leader) shared.k_ring.empty[at.stage].arrive();
            shared.v_ring.full[at.stage].wait(at.parity);
            if (leader) shared.v_ring.empty[at.stage].arrive();
            continue;
        }
        uint32_t p[kNarrow ? BlockSize / 8 : BlockSize / 4];
        float out[Dim / 2];
        int place[2];  // rows of the slots where those in p go; negative: nowhere
        RunningSoftmax<T> softmax;
        [[maybe_unused]] BlockScales scales{};
        if constexpr (kNarrow) scales = shared.scales.block[at.stage];
        auto start = [&](float(&sum)[BlockSize / 2]) {
            shared.q_ring[consumer].full[q_at.stage].wait(q_at.parity);
            start_scores_of<T, Dim, BlockSize, kPassRows>(sum, shared.q[consumer][q_at.stage][0],
                                                          k);
        };
        auto start_out = [&] {
            if constexpr (kNarrow)
                start_values_e4m3<Dim, BlockSize>(out, p, operand_low(shared_address(v)));
            else
                start_values<T, Dim, BlockSize>(out, p, v, false);
        };
        // Scores of the pass at q_at to probabilities, with the rows' places.
        auto take = [&](float(&sum)[BlockSize / 2]) {
            int seen[2];
            for (int side = 0; side < 2; ++side) {
                const PassUse use = shared.uses[consumer][q_at.stage][pass_query[side]];
                seen[side] = use.seen;
                place[side] = use.place + head[side];
            }
            [[maybe_unused]] float row_scale[2];
            if constexpr (kNarrow)
                for (int side = 0; side < 2; ++side)
                    row_scale[side] =
                        scale * shared.scales.row[consumer][q_at.stage][row + 8 * side];
            __syncwarp();
            if (leader) shared.q_ring[consumer].empty[q_at.stage].arrive();
            q_at.advance();
            float factor[2];
            softmax = {};
            if constexpr (kNarrow)  // rows that see no key are not stored
                softmax.weigh(sum, softmax.meet(sum, seen, row_scale, scales, factor), scales,
                              factor);
            else
                softmax.step(sum, seen, scale, factor);
        };
        float inverse[2], lse[2];  // of the rows in p
        auto normalise = [&] {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float total = softmax.sum[side];
                total += __shfl_xor_sync(kAllLanes, total, 1);
                total += __shfl_xor_sync(kAllLanes, total, 2);
                inverse[side] = __fdividef(1, total);
                if constexpr (kNarrow)
                    lse[side] = softmax.best(side) + __log2f(total);
                else
                    lse[side] = fmaf(softmax.reference[side], scale, __log2f(total));
            }
        };
        auto store = [&] {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                if (place[side] < 0) continue;
                store_slot<Stored<T>>(out, side, inverse[side], args.workspace.partial_out,
                                      place[side]);
                if (lane % 4 == 0) args.workspace.partial_lse[place[side]] = lse[side];
            }
        };
        {
            float sum[BlockSize / 2] = {};
            start(sum);
            wgmma_wait<0>();
            take(sum);
            keep_weights<T>(p, sum);
        }
        shared.v_ring.full[at.stage].wait(at.parity);
        if constexpr (!kNarrow)
            if (shared.there[at.stage] < BlockSize)  // behind the last token of a page
                clear_behind<Memory::S::kBoxes, Memory::S::kKeyBox>(v, shared.there[at.stage],
                                                                    BlockSize, 1 + consumer);
        for (int n = 1; n < count; ++n) {
            float sum[BlockSize / 2];
            start_out();
            if (!kWide) start(sum);
            normalise();
            wgmma_wait<kWide ? 0 : 1>();
            store();
            if (kWide) start(sum);
            wgmma_wait<0>();
            take(sum);
            keep_weights<T>(p, sum);
        }
        if (leader) shared.k_ring.empty[at.stage].arrive();
        start_out();
        normalise();
        wgmma_wait<0>();
        if (leader) shared.v_ring.empty[at.stage].arrive();
        store();
    }
    launch_dependents();
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_kv_outer_sm90(const SparseKvOuterArgs& args, int sms,
                                        cudaStream_t stream) {
    return by_head_sizes<T, true>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        using S = Shared<T, Dim, BlockSize>;
        auto* const kernel = kv_outer<T, Dim, BlockSize>;
        const cudaError_t error = allow_shared<S>(kernel);
        if (error != cudaSuccess) return error;
        return launch_early(kernel, dim3(static_cast<unsigned>(sms)), AttendRows::kThreads,
                            sizeof(S), stream, args);
    });
}

#define MSA_INSTANTIATE(T)                                                             \
    template cudaError_t launch_sparse_kv_outer_sm90<T>(const SparseKvOuterArgs&, int, \
                                                        cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
