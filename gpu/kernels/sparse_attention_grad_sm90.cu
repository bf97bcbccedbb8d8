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

#include "gpu/device/grad_slots_sm90.cuh"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kRows = kGradStepRows;
constexpr int kRowsBox = kRows * kSwizzle;  // bytes
constexpr int kItemStages = 2;
constexpr int kWide = 64;  // keys of a warpgroup, columns of a product into 32 registers

template <int Dim, int BlockSize>
struct GradShape {
    static constexpr int kBoxes = Dim / 64;
    static constexpr int kKeyBox = BlockSize * kSwizzle;  // bytes
    static constexpr int kKeyBytes = kBoxes * kKeyBox;
    static constexpr int kMain = BlockSize / kWide;  // warpgroups that hold dK and dV
    static constexpr int kStages = 4, kSoftStages = 2;
    static constexpr int kThreads = (kMain + 1) * kWarpgroup;
    static constexpr bool kSmall = Dim == 64 && BlockSize == 64;
    static constexpr int kBlocksPerProcessor = kSmall ? 2 : 1;
    static constexpr int kMainRegisters = kSmall ? 200 : 224;
};

template <int Dim, int BlockSize>
struct Shared {
    using S = GradShape<Dim, BlockSize>;
    char q[S::kStages][S::kBoxes][kRowsBox];
    char d_out[S::kStages][S::kBoxes][kRowsBox];
    char k[S::kKeyBytes];
    char v[S::kKeyBytes];
    char d_scores[S::kSoftStages][S::kMain][kRowsBox];  // [rows][64 keys]
    float lse[S::kStages][kRows], delta[S::kStages][kRows];
    uint8_t seen[S::kStages][kRows];             // keys of the block that a row sees
    int slot[S::kStages][kGradMostStepQueries];  // of the queries, in 16 bytes; negative: none
    int least_seen[S::kStages];
    GradItem items[kItemStages];
    Barrier item_full[kItemStages], item_empty[kItemStages];
    Barrier full[S::kStages], empty[S::kStages];                    // q, d_out and what they need
    Barrier soft_full[S::kSoftStages], soft_empty[S::kSoftStages];  // d_scores
    Barrier keys_full, keys_empty;
};

/// Registers that a product wrote may be read from here on.
template <int N>
__device__ void settle(float (&x)[N]) {
#pragma unroll
    for (float& one : x) asm volatile("" : "+f"(one)::"memory");
}

/// swizzled_operand() of shared memory by its address, as a low word that steps of bytes / 16 are
/// added to; warps agree on it, so that it is kept in uniform registers.
__device__ inline uint32_t operand_low(uint32_t address, uint32_t box_bytes = 16) {
    return __shfl_sync(kAllLanes, (box_bytes >> 4 << 16) | (address >> 4), 0);
}
__device__ inline uint64_t operand(uint32_t low, int bytes) {
    constexpr uint64_t kHigh = (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32);
    return kHigh | (low + static_cast<uint32_t>(bytes >> 4));
}

__device__ inline void copy_float(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
/// Arrives at the barrier once this thread's copies so far are there.
__device__ inline void arrive_after_copies(Barrier& barrier) {
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
        : "memory");
}
/// Four 8 x 8 matrices of bf16, transposed: lane l names the row l % 8 of matrix l / 8.
__device__ inline void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                        uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
__device__ inline void add_two(float* to, float x, float y) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

/// Where a count stands in a ring.
template <int Stages>
__device__ int stage_of(uint32_t count) {
    return static_cast<int>(count % Stages);
}
template <int Stages>
__device__ uint32_t parity_of(uint32_t count) {
    return count / Stages % 2;
}

/// Every role: waits for the n-th item of the thread block, and gives its place back.
template <typename Memory>
__device__ const GradItem& wait_item(Memory& shared, uint32_t n) {
    shared.item_full[stage_of<kItemStages>(n)].wait(parity_of<kItemStages>(n));
    return shared.items[stage_of<kItemStages>(n)];
}
template <typename Memory>
__device__ void give_item_back(Memory& shared, uint32_t n) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) shared.item_empty[stage_of<kItemStages>(n)].arrive();
}

/// The producer warp of items, q and d_out, a lane per query.
template <int Dim, int BlockSize>
__device__ void gather(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = GradShape<Dim, BlockSize>;
    const int lane = threadIdx.x % kWarp, heads = args.group_size;
    const int queries = args.step_queries, found = args.workspace.counts[0];
    const uint32_t bytes = static_cast<uint32_t>(2 * queries * heads * Dim * 2);
    const int row = min(lane, queries - 1) * heads * kSwizzle;
    const auto take = [&] {
        int taken = 0;
        if (lane == 0) taken = atomicAdd(args.workspace.counts + 2, 1);
        taken = __shfl_sync(kAllLanes, taken, 0);
        return taken < found ? args.workspace.items[taken] : GradItem{};
    };
    uint32_t at = 0;
    GradItem item = take();
    for (uint32_t taken = 0;; ++taken) {
        const int item_stage = stage_of<kItemStages>(taken);
        shared.item_empty[item_stage].wait(parity_of<kItemStages>(taken) ^ 1);
        if (lane == 0) {
            shared.items[item_stage] = item;
            shared.item_full[item_stage].arrive();
        }
        if (item.count == 0) return;
        const int group = item.group, count = item.count;
        const GradUse* const uses = args.workspace.uses + item.begin;
        item = take();
        // Places that are left over repeat the last query.
        const auto query_of = [&](int first) { return uses[min(first + lane, count - 1)].query; };
        int next = query_of(0);
        for (int first = 0; first < count; first += queries, ++at) {
            const int query = next, stage = stage_of<S::kStages>(at);
            next = query_of(first + queries);
            Barrier& full = shared.full[stage];
            shared.empty[stage].wait(parity_of<S::kStages>(at) ^ 1);
            if (lane == 0) full.expect(bytes);
            __syncwarp();
            if (lane < queries)
#pragma unroll
                for (int box = 0; box < S::kBoxes; ++box) {
                    copy_box(shared.q[stage][box] + row, &args.q_one, 64 * box, group * heads,
                             query, &full, Keep::longest);
                    copy_box(shared.d_out[stage][box] + row, &args.d_out_one, 64 * box,
                             group * heads, query, &full, Keep::longest);
                }
        }
    }
}

/// The producer warp of keys and values, and of what a step's rows need, two rows a lane: rows that
/// no query fills leave no probability.
template <int Dim, int BlockSize>
__device__ void gather_rows(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = GradShape<Dim, BlockSize>;
    const int lane = threadIdx.x % kWarp, heads = args.group_size;
    const int queries = args.step_queries;
    int use[2], head[2];
    for (int half = 0; half < 2; ++half) {
        use[half] = args.query_of_row(lane + kWarp * half);
        head[half] = lane + kWarp * half - use[half] * heads;
        if (use[half] >= queries) use[half] = 1 << 30;
    }
    const int none = static_cast<int>(args.queries * args.query_heads);
    uint32_t at = 0;
    for (uint32_t taken = 0;; ++taken) {
        const GradItem& item = wait_item(shared, taken);
        const int count = item.count, group = item.group, block = item.block;
        const GradUse* const uses = args.workspace.uses + item.begin;
        give_item_back(shared, taken);
        if (count == 0) return;
        const int first_head = group * heads;
        int4 next[2];  // query, slot, seen
        const auto fetch = [&](int first) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                next[half] = first + use[half] < count
                                 ? reinterpret_cast<const int4*>(uses)[first + use[half]]
                                 : make_int4(-1, -1, BlockSize, 0);
        };
        fetch(0);
        shared.keys_empty.wait(parity_of<1>(taken) ^ 1);
        if (lane == 0) {
            const int key = args.key_blocks[block].key;
            shared.keys_full.expect(2 * S::kKeyBytes);
            for (int box = 0; box < S::kBoxes; ++box) {
                const int column = group * Dim + 64 * box;
                copy_box(shared.k + box * S::kKeyBox, &args.k, column, key, &shared.keys_full);
                copy_box(shared.v + box * S::kKeyBox, &args.v, column, key, &shared.keys_full);
            }
        }
        __syncwarp();
        for (int first = 0; first < count; first += queries, ++at) {
            const int stage = stage_of<S::kStages>(at);
            const int4 mine[2] = {next[0], next[1]};
            fetch(first + queries);
            const int least = __reduce_min_sync(kAllLanes, min(mine[0].z, mine[1].z));
            shared.empty[stage].wait(parity_of<S::kStages>(at) ^ 1);
            if (lane == 0) shared.least_seen[stage] = least;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = lane + kWarp * half;
                const int from = mine[half].x < 0
                                     ? none
                                     : mine[half].x * args.query_heads + first_head + head[half];
                copy_float(shared.lse[stage] + row, args.workspace.lse + from);
                copy_float(shared.delta[stage] + row, args.workspace.delta + from);
                shared.seen[stage][row] =
                    static_cast<uint8_t>(min(max(mine[half].z, 0), BlockSize));
                if (head[half] == 0 && use[half] < kGradMostStepQueries)
                    shared.slot[stage][use[half]] =
                        mine[half].y < 0 ? -1 : mine[half].y * heads * (Dim / 8);
            }
            arrive_after_copies(shared.full[stage]);
            __syncwarp();
            if (lane == 0) shared.full[stage].arrive();
        }
    }
}

/// A consumer: dK and dV of the keys from 64 `part` on, and channels of dQ.
template <int Dim, int BlockSize>
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
            multiply_bf16(sum, operand(keys, step / 4 * S::kKeyBox + step % 4 * 32),
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
            multiply_bf16<true>(s, operand(soft, step / 4 * kRowsBox + step % 4 * 32),
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
                    word[n] = pack(s[j], s[j + 1]);
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
                    const float* const p = s + 4 * j + 2 * side;
                    const float* const x = ds + 4 * j + 2 * side;
                    p_word[2 * j + side] = pack(p[0], p[1]);
                    ds_word[2 * j + side] = pack(p[0] * (x[0] - delta.x), p[1] * (x[1] - delta.y));
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
                multiply_bf16<true>(d_v, p_word + 4 * step, operand(d_out, step * 16 * kSwizzle),
                                    true);
#pragma unroll
            for (int step = 0; step < kRows / 16; ++step)
                multiply_bf16<true>(d_k, ds_word + 4 * step, operand(q, step * 16 * kSwizzle),
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
        const KeyBlock block = args.key_blocks[item.block];
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

/// A warp that has nothing else to do: d_q of the chunk before, a (query, group) pair at a time.
/// Before its loads it fetches `Ahead` times 512 bytes of each slot to L2.
template <int Dim, int Ahead>
__device__ void add_full_slots(const SparseGradArgs& args) {
    if (args.full_slots == nullptr) return;
    const int lane = threadIdx.x % kWarp;
    const FullSlots full{(args.tiles - args.chunk_tiles)->query, args.tiles->query,
                         static_cast<const uint4*>(args.full_slots)};
    const int pairs = static_cast<int>(full.end - full.first) * args.groups;
    const auto take = [&] {
        int pair = 0;
        if (lane == 0) pair = atomicAdd(args.workspace.counts + 3, 1);
        return __shfl_sync(kAllLanes, pair, 0);
    };
    constexpr int kAhead = Ahead * kWarp;
    const int chunks = args.group_size * (Dim / 8);
    for (int pair = take(); pair < pairs;) {
        const int next = take();
        const int32_t* const ids = args.ids + (full.first * args.groups + pair) * args.top_k;
        const bool filled = lane < args.top_k && ids[lane] >= 0;
        const int count = __popc(__ballot_sync(kAllLanes, filled));
#pragma unroll 1
        for (int first = 0; first < chunks; first += kWarp) {
            if (Ahead > 0 && first + kAhead < chunks)
                prefetch_slots<Dim>(args, full, pair, first + kAhead);
            else if (Ahead > 0 && next < pairs && first + kAhead - chunks < chunks)
                prefetch_slots<Dim>(args, full, next, first + kAhead - chunks);
            add_slots<Dim>(args, full, pair, count, first + lane, first + lane < chunks);
        }
        pair = next;
    }
}

template <int Dim, int BlockSize>
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
        form_products(args, shared, warpgroup);
        add_full_slots<Dim, 0>(args);
    } else {
        setmaxnreg_dec<56>();
        const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
        if (warp == 0) gather(args, shared);
        if (warp == 1) gather_rows(args, shared);
        add_full_slots<Dim, 2>(args);
    }
}

template <int Dim, int BlockSize>
cudaError_t launch(const SparseGradArgs& args, int processors, cudaStream_t stream) {
    using S = GradShape<Dim, BlockSize>;
    constexpr int kBytes = sizeof(Shared<Dim, BlockSize>);
    static_assert(kBytes <= kMostSharedBytes);
    auto* const kernel = grad_products<Dim, BlockSize>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    kernel<<<static_cast<unsigned>(S::kBlocksPerProcessor * processors), S::kThreads, kBytes,
             stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_grad_products(const SparseGradArgs& args, int processors, cudaStream_t stream) {
    if (args.head_dim == 128)
        return args.block_size == 128 ? launch<128, 128>(args, processors, stream)
                                      : launch<128, 64>(args, processors, stream);
    return args.block_size == 128 ? launch<64, 128>(args, processors, stream)
                                  : launch<64, 64>(args, processors, stream);
}

cudaError_t launch_sparse_attention_grad_sm90(const SparseGradArgs& args, int processors,
                                              cudaStream_t stream) {
    cudaError_t error = launch_grad_prepare(args, stream);
    for (int c = 0; c < args.chunks() && error == cudaSuccess; ++c) {
        const int scheduled = c % args.batch_chunks;
        if (scheduled == 0) error = launch_grad_schedule(args, c, stream);
        const SparseGradArgs chunk = args.chunk(c, scheduled);
        if (error == cudaSuccess) error = launch_grad_products(chunk, processors, stream);
        if (error == cudaSuccess) error = launch_grad_parts(chunk, processors, stream);
    }
    if (error == cudaSuccess) error = launch_grad_slots(args.chunk(args.chunks() - 1, 0), stream);
    return error == cudaSuccess ? launch_grad_finish(args, stream) : error;
}

}  // namespace msa::cuda
