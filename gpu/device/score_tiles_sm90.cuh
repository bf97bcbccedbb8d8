// SPDX-License-Identifier: MIT
// Products of fixed rows with a stream of key tiles, for index_select and block_mass.
//
// One producer thread streams tiles of keys through a ring in shared memory (TMA). Consumer
// warpgroups hold their rows as register operands, one or two times 64: while the tensor cores work
// on one half, an epilogue reduces the other. Rows are (query, head) pairs of one QueryTile, heads
// innermost. L2 traffic: one key tile per thread block.
#pragma once

#include "gpu/device/mma_tile.cuh"
#include "gpu/device/pipeline_sm90.cuh"
#include "gpu/device/row_values.cuh"
#include "gpu/device/sm90.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/device/wgmma_f16.cuh"

namespace msa::cuda::sm90 {

constexpr int kTileKeys = 128;
constexpr int kHalfRows = 64;

/// Rows of a thread block: Consumers warpgroups of Halves x 64. One more warpgroup produces.
template <int Consumers, int Halves>
struct TileRows {
    static constexpr int kConsumers = Consumers;
    static constexpr int kHalves = Halves;
    static constexpr int kRows = Consumers * Halves * kHalfRows;
    static constexpr int kThreads = (Consumers + 1) * kWarpgroup;
    static constexpr int kBlocksPerSm = Consumers == 1 ? 2 : 1;
    static constexpr int kConsumerRegisters = Consumers == 1 ? 232 : Consumers == 2 ? 240 : 112;
    static constexpr int kProducerRegisters = 24;
    static constexpr int kRegisters = launch_registers(kThreads, kBlocksPerSm);
    static_assert(Consumers * kConsumerRegisters + kProducerRegisters <= kRegisters);
};
using PrefillRows = TileRows<2, 2>;  // 256
using DecodeRows = TileRows<1, 1>;   // 64; two thread blocks share an SM

constexpr int kSwizzle = 128;  // bytes of a row in one box

/// Keys and rows of Dim channels of type T: __nv_bfloat16, __half, __nv_fp8_e4m3 or int8_t. A tile
/// in the ring has Keys keys.
template <int Dim, typename T, int Keys = kTileKeys>
struct ScoreShape {
    using Value = T;
    using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;
    static constexpr int kDim = Dim, kBytes = sizeof(T), kKeys = Keys;
    static constexpr int kSums = kHalfRows * Keys / kWarpgroup;  // of a thread and half
    static constexpr int kRowBytes = Dim * kBytes;
    static constexpr int kSteps = kRowBytes / 32;  // matrix instructions per half and tile
    static constexpr int kBoxes = (kRowBytes + kSwizzle - 1) / kSwizzle;  // one may be half empty
    static constexpr int kBoxBytes = Keys * kSwizzle;
    static constexpr int kTileBytes = kBoxes * kBoxBytes;
};

template <int Stages>
struct Ring {
    Barrier full[Stages], empty[Stages];  // empty: one arrival per consumer warp

    /// Called by one thread, before a barrier of the thread block.
    __device__ void init(int consumers) {
        for (int s = 0; s < Stages; ++s) full[s].init(1), empty[s].init(4 * consumers);
        fence_barriers();
    }
};

/// The position of a producer or consumer in a ring buffer.
template <int Stages>
struct Cursor {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
};

/// The producer thread: copies `count` tiles of keys from row `key` on, channels from `column` on.
template <typename Shape, int Stages>
__device__ void produce(const CUtensorMap* keys, int column, int64_t key, int count, char* tiles,
                        Ring<Stages>& ring, Keep keep = Keep::normal) {
    Cursor<Stages> at;
    for (int t = 0; t < count; ++t, at.advance()) {
        Barrier& full = ring.full[at.stage];
        ring.empty[at.stage].wait(at.parity ^ 1);
        full.expect(Shape::kTileBytes);
        for (int box = 0; box < Shape::kBoxes; ++box)
            copy_box(tiles + at.stage * Shape::kTileBytes + box * Shape::kBoxBytes, keys,
                     column + box * kSwizzle / Shape::kBytes,
                     static_cast<int>(key) + t * Shape::kKeys, &full, keep);
    }
}

/// The first of the two rows of the tile that this thread's accumulators of `half` belong to; the
/// other is 8 rows further. A warp owns 16 consecutive rows of each half.
template <typename Rows>
__device__ int first_row(int consumer, int half) {
    const int thread = threadIdx.x % kWarpgroup;
    return (Rows::kHalves * consumer + half) * kHalfRows + thread / 32 * 16 + thread % 32 / 4;
}

/// The rows of one half as register operands. Row r is (query r / heads, head r % heads), its
/// channels at base + query * query_bytes + head * row_bytes; rows from `rows` on are 0, as are
/// channels behind row_bytes, a multiple of 16.
template <typename Shape>
struct RowOperand {
    uint32_t word[4 * Shape::kSteps];

    /// `row`: the two rows of this thread.
    __device__ void load(const char* base, int64_t query_bytes, int heads, int rows,
                         const int (&row)[2], int row_bytes = Shape::kRowBytes) {
        const int quad = threadIdx.x % 4;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int r = row[side];
            const char* const from =
                base + r / heads * query_bytes + int64_t{r % heads} * row_bytes + 4 * quad;
#pragma unroll
            for (int s = 0; s < Shape::kSteps; ++s)
#pragma unroll
                for (int part = 0; part < 2; ++part)
                    word[4 * s + 2 * part + side] =
                        r < rows && 32 * s + 16 * part < row_bytes
                            ? *reinterpret_cast<const uint32_t*>(from + 32 * s + 16 * part)
                            : 0;
        }
    }
    /// Rows in shared memory, the warp's from `row` on.
    __device__ void load(const MmaTile<Shape::kRowBytes / 2>& tile, int row) {
#pragma unroll
        for (int s = 0; s < Shape::kSteps; ++s) {
            uint32_t a[4];
            tile.load_a(a, row, 16 * s);
#pragma unroll
            for (int n = 0; n < 4; ++n) word[4 * s + n] = a[n];
        }
    }
};

/// A tile of keys as an operand; operand() adds an offset.
__device__ inline uint32_t keys_low(const char* tile) { return operand_low(shared_address(tile)); }

/// Starts sum = rows x keys of one tile, which has as many keys as there are sums of a row.
template <typename Shape, typename Sum, int Sums>
__device__ void multiply(Sum (&sum)[Sums], const RowOperand<Shape>& rows, uint32_t low) {
    constexpr int kBoxBytes = Sums * kWarpgroup / kHalfRows * kSwizzle;
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < Shape::kSteps; ++s) {
        const uint64_t keys = operand(low, 32 * s / kSwizzle * kBoxBytes + 32 * s % kSwizzle);
        multiply_in<typename Shape::Value>(sum, rows.word + 4 * s, keys, s > 0);
    }
    wgmma_commit();
}

/// A consumer warpgroup: calls epilogue(half, tile, sum) for every half of every tile, in the order
/// of tiles. The next product runs during the first half's epilogue.
template <typename Shape, int Stages, typename Epilogue>
__device__ void consume(const RowOperand<Shape> (&rows)[2], int count, const char* tiles,
                        Ring<Stages>& ring, Epilogue&& epilogue) {
    typename Shape::Sum sum0[Shape::kSums], sum1[Shape::kSums];
    Cursor<Stages> at;
    for (int t = 0; t < count; ++t, at.advance()) {
        const uint32_t keys = keys_low(tiles + at.stage * Shape::kTileBytes);
        ring.full[at.stage].wait(at.parity);
        multiply(sum0, rows[0], keys);
        multiply(sum1, rows[1], keys);
        wgmma_wait<1>();
        epilogue(0, t, sum0);
        wgmma_wait<0>();
        if (threadIdx.x % 32 == 0) ring.empty[at.stage].arrive();
        epilogue(1, t, sum1);
    }
}
template <typename Shape, int Stages, typename Epilogue>
__device__ void consume(const RowOperand<Shape> (&rows)[1], int count, const char* tiles,
                        Ring<Stages>& ring, Epilogue&& epilogue) {
    typename Shape::Sum sum[Shape::kSums];
    Cursor<Stages> at;
    for (int t = 0; t < count; ++t, at.advance()) {
        const uint32_t keys = keys_low(tiles + at.stage * Shape::kTileBytes);
        ring.full[at.stage].wait(at.parity);
        multiply(sum, rows[0], keys);
        wgmma_wait<0>();
        if (threadIdx.x % 32 == 0) ring.empty[at.stage].arrive();
        epilogue(0, t, sum);
    }
}

}  // namespace msa::cuda::sm90
