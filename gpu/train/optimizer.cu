// SPDX-License-Identifier: MIT
// What is done with the list of all parameters: norms of its parts, and AdamW in double, as
// core/indexer/adamw.cpp has it.
#include <cmath>

#include "gpu/device/warp.cuh"
#include "gpu/train/kernels.h"
#include "gpu/train/vector.cuh"

namespace msa::cuda {
namespace {

/// A thread block per part of the list and tile of the part: parts [count, kNormTiles].
__global__ void __launch_bounds__(kThreads)
    square_tiles_kernel(const float* values, const int64_t* starts, double* parts) {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ double sums[kWarps];
    const int64_t first = starts[blockIdx.x], size = starts[blockIdx.x + 1] - first;
    const int64_t each = ceil_div(size, kNormTiles), begin = blockIdx.y * each;
    const int64_t end = min(begin + each, size);
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
        const double value = double{values[first + i]};
        sum += value * value;
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[warp_id()] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    double all = 0;
    for (const double of_warp : sums) all += of_warp;
    parts[blockIdx.x * kNormTiles + blockIdx.y] = all;
}

/// A warp per part of the list.
__global__ void __launch_bounds__(kThreads)
    add_square_tiles_kernel(const double* parts, int64_t count, double* sums) {
    const int64_t part = global_thread() / kWarp;
    if (part >= count) return;
    double sum = 0;
    for (int64_t tile = lane_id(); tile < kNormTiles; tile += kWarp)
        sum += parts[part * kNormTiles + tile];
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[part] = sum;
}

struct Update {
    AdamW rule;
    double lr, factor, correction1, correction2;
};

__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Update u, float* weights, const float* gradient, float* first, float* second,
                 int64_t count) {
    const int64_t i = global_thread();
    if (i >= count) return;
    const double g = double{static_cast<float>(double{gradient[i]} * u.factor)};
    const double m = u.rule.beta1 * double{first[i]} + (1 - u.rule.beta1) * g;
    const double v = u.rule.beta2 * double{second[i]} + (1 - u.rule.beta2) * g * g;
    first[i] = static_cast<float>(m);
    second[i] = static_cast<float>(v);
    const double move = m / u.correction1 / (sqrt(v / u.correction2) + u.rule.epsilon);
    weights[i] =
        static_cast<float>(double{weights[i]} * (1 - u.lr * u.rule.weight_decay) - u.lr * move);
}

}  // namespace

void squared_norms(cudaStream_t stream, const float* values, const int64_t* starts, int64_t count,
                   double* parts, double* sums) {
    if (count == 0) return;
    const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(kNormTiles));
    square_tiles_kernel<<<grid, kThreads, 0, stream>>>(values, starts, parts);
    check_launch("squared_norms");
    add_square_tiles_kernel<<<blocks_for(count * kWarp), kThreads, 0, stream>>>(parts, count, sums);
    check_launch("squared_norms, sums");
}

void adamw(cudaStream_t stream, const AdamW& rule, int64_t step, double lr, double factor,
           View<float, 1> weights, const float* gradient, float* first, float* second) {
    if (weights.size() == 0) return;
    const auto count = static_cast<double>(step);
    const Update update{rule, lr, factor, 1 - std::pow(rule.beta1, count),
                        1 - std::pow(rule.beta2, count)};
    adamw_kernel<<<blocks_for(weights.size()), kThreads, 0, stream>>>(
        update, weights.data(), gradient, first, second, weights.size());
    check_launch("adamw");
}

}  // namespace msa::cuda
