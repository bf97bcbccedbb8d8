// SPDX-License-Identifier: MIT
// Products of any size and element: a thread per result, the operands of a thread block's tile in
// shared memory, a step of the depth at a time.
#include "gpu/train/kernels.h"
#include "gpu/train/vector.cuh"

namespace msa::cuda {
namespace {

constexpr int kTile = 16;

/// Element (row, column) of a matrix is at row * row_step + column * column_step.
struct Steps {
    int64_t row, column;
};

__global__ void __launch_bounds__(kTile* kTile)
    product_kernel(Operand left, Steps left_steps, Operand right, Steps right_steps, Output to,
                   int64_t rows, int64_t columns, int64_t depth, bool accumulate) {
    __shared__ float left_tile[kTile][kTile + 1], right_tile[kTile][kTile + 1];
    const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    const int64_t row = int64_t{blockIdx.x} * kTile + y, column = int64_t{blockIdx.y} * kTile + x;
    float sum = 0;
    for (int64_t at = 0; at < depth; at += kTile) {
        left_tile[y][x] = row < rows && at + x < depth
                              ? left.at(row * left_steps.row + (at + x) * left_steps.column)
                              : 0.0F;
        right_tile[y][x] = column < columns && at + y < depth
                               ? right.at((at + y) * right_steps.row + column * right_steps.column)
                               : 0.0F;
        __syncthreads();
        for (int d = 0; d < kTile; ++d) sum = fmaf(left_tile[y][d], right_tile[d][x], sum);
        __syncthreads();
    }
    if (row >= rows || column >= columns) return;
    const int64_t place = row * columns + column;
    to.store(place, accumulate ? to.load(place) + sum : sum);
}

}  // namespace

void product_any(cudaStream_t stream, const Product& p) {
    const int64_t rows = p.rows(), columns = p.columns(), depth = p.depth();
    const auto steps = [](bool transposed, int64_t height, int64_t width) {
        return transposed ? Steps{1, height} : Steps{width, 1};
    };
    const dim3 grid(static_cast<unsigned>(ceil_div(rows, int64_t{kTile})),
                    static_cast<unsigned>(ceil_div(columns, int64_t{kTile})));
    product_kernel<<<grid, dim3(kTile, kTile), 0, stream>>>(
        operand(p.left), steps(p.left_transposed, rows, depth), operand(p.right),
        steps(p.right_transposed, depth, columns), output(p.to), rows, columns, depth,
        p.sum == Sum::add);
    check_launch("product_any");
}

}  // namespace msa::cuda
