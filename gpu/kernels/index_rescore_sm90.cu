// SPDX-License-Identifier: MIT
// The scores of uses are the products that index_select_sm90 forms: the same matrix instruction, of
// 64 rows and 128 keys, with the channels in the same order. A sum in it depends on its row and key
// alone. So a score is the same, bit for bit, whichever rows are beside it.
#include "gpu/device/element.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/kernels/index_rescore_sm90.h"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kRowThreads = 256;

/// A warp per row.
template <typename T, int Dim>
__global__ void __launch_bounds__(kRowThreads)
    coarse_rows(const T* index_q, int64_t rows, float scale, int8_t* to, CoarseRow* bounds) {
    constexpr int kEach = Dim / kWarp;
    const int64_t row = int64_t{blockIdx.x} * (kRowThreads / kWarp) + threadIdx.x / kWarp;
    if (row >= rows) return;
    const int64_t first = row * Dim + threadIdx.x % kWarp * kEach;
    float value[kEach], largest = 0;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
        value[n] = load(index_q + first + n);
        if (isfinite(value[n])) largest = fmaxf(largest, fabsf(value[n]));
    }
    largest = warp_max(largest);
    const float own = fminf(fmaxf(largest / Int8::kLargest, kLeastScale), kMostScale);
    float norm = 0, read = 0, error = 0;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
        const float stored = rintf(fminf(fmaxf(value[n] / own, -Int8::kLargest), Int8::kLargest));
        to[first + n] = static_cast<int8_t>(stored);
        const float lost = fmaf(-own, stored, value[n]);  // one rounding
        norm = fmaf(value[n], value[n], norm);
        read = fmaf(own * stored, own * stored, read);
        error = fmaf(lost, lost, error);
    }
    norm = warp_sum(norm), read = warp_sum(read), error = warp_sum(error);
    if (threadIdx.x % kWarp == 0)
        bounds[row] = coarse_row(scale, Dim, own, sqrtf(norm), sqrtf(read), sqrtf(error));
}

template <typename Shape>
struct Shared {
    char tile[Shape::kTileBytes];
    Barrier full;
};

/// A warpgroup takes an equal share of the work items, which are in the order of the blocks.
template <typename Shape, int BlockSize>
__global__ void __launch_bounds__(kWarpgroup, 4) rescore(const __grid_constant__ RescoreArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Shape>*>(memory);
    constexpr int kBlocksPerTile = kTileKeys / BlockSize;
    const IndexCandidates& of = args.candidates;
    const int items = of.items[of.all_blocks];
    const auto share_start = [&](unsigned n) {
        return static_cast<int>(int64_t{items} * n / gridDim.x);
    };
    const int first_item = share_start(blockIdx.x), last_item = share_start(blockIdx.x + 1);
    if (first_item == last_item) return;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barriers();
    }
    __syncthreads();
    int block = 0;  // the last that begins at or before the item
    for (int end = of.all_blocks; end - block > 1;) {
        const int middle = (block + end) / 2;
        if (of.items[middle] <= first_item)
            block = middle;
        else
            end = middle;
    }
    const int lane = threadIdx.x % kWarp;
    const int place = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
    int loaded = -1, within = 0;
    uint32_t parity = 0;
    for (int item = first_item; item < last_item; ++item) {
        while (of.items[block + 1] <= item) ++block;
        if (block != loaded) {
            const SequenceBlock keys = args.sequence_blocks[block];
            within = keys.block % kBlocksPerTile;
            __syncthreads();  // all products with the tile before are done
            if (threadIdx.x == 0) {
                shared.full.expect(Shape::kTileBytes);
                for (int box = 0; box < Shape::kBoxes; ++box)
                    copy_box(shared.tile + box * Shape::kBoxBytes, &args.index_k,
                             box * kSwizzle / Shape::kBytes,
                             static_cast<int>(keys.key) - within * BlockSize, &shared.full);
            }
            shared.full.wait(parity);
            parity ^= 1;
            loaded = block;
        }
        const int begin = of.starts[block] + (item - of.items[block]) * kItemUses;
        const int end = min(begin + kItemUses, of.starts[block + 1]);
        for (int first = begin; first < end; first += kHalfRows) {
            int row[2], use[2];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int at = first + place + 8 * side;
                use[side] = at < end ? of.uses[at] : -1;
                row[side] = use[side] < 0 ? INT_MAX : use[side] / of.most;
            }
            RowOperand<Shape> rows;
            rows.load(static_cast<const char*>(args.index_q), Shape::kRowBytes, 1, INT_MAX, row);
            float sum[kSums];
            multiply(sum, rows, keys_low(shared.tile));
            wgmma_wait<0>();
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float best = 0;
#pragma unroll
                for (int n = 0; n < kBlocksPerTile; ++n)
                    if (n == within) best = row_max<BlockSize>(sum, side, n);
                if (lane % 4 == side && use[side] >= 0)
                    of.scores[use[side]] = scaled_score(of.pass.scale, 1, best);
            }
        }
    }
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const RescoreArgs& args, cudaStream_t stream) {
    using Shape = ScoreShape<Dim, T>;
    auto* const kernel = rescore<Shape, BlockSize>;
    const cudaError_t error = allow_shared<Shared<Shape>>(kernel);
    if (error != cudaSuccess) return error;
    kernel<<<static_cast<unsigned>(args.thread_blocks), kWarpgroup, sizeof(Shared<Shape>),
             stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_coarse_rows(const void* index_q, int64_t rows, int width, float scale,
                               int8_t* to, CoarseRow* bounds, cudaStream_t stream) {
    constexpr int kRows = kRowThreads / kWarp;
    auto* const kernel = width == 64 ? coarse_rows<T, 64> : coarse_rows<T, 128>;
    kernel<<<static_cast<unsigned>((rows + kRows - 1) / kRows), kRowThreads, 0, stream>>>(
        static_cast<const T*>(index_q), rows, scale, to, bounds);
    return cudaGetLastError();
}

template <typename T>
cudaError_t launch_rescore(const RescoreArgs& args, cudaStream_t stream) {
    const IndexSelectArgs& listed = args.candidates.pass;
    return by_sizes(listed.index_dim, listed.block_size, [&]<int Dim, int BlockSize>() {
        return launch<T, Dim, BlockSize>(args, stream);
    });
}

#define MSA_INSTANTIATE(T)                                                                \
    template cudaError_t launch_coarse_rows<T>(const void*, int64_t, int, float, int8_t*, \
                                               CoarseRow*, cudaStream_t);                 \
    template cudaError_t launch_rescore<T>(const RescoreArgs&, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
