// SPDX-License-Identifier: MIT
// The loss of every token with its gradient, and sums of losses.
#include "gpu/device/max_or_nan.cuh"
#include "gpu/train/kernels.h"
#include "gpu/train/vector.cuh"

namespace msa::cuda {
namespace {

/// A warp per row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(T* logits, const int32_t* targets, float* losses, int64_t rows,
                         int64_t vocabulary, float factor, bool gradient) {
    const int64_t row = global_thread() / kWarp;
    if (row >= rows) return;
    logits += row * vocabulary;
    const int64_t target = targets[row];
    if (target == train::Ops::kNoTarget) {
        if (lane_id() == 0) losses[row] = 0;
        if (gradient)
            for (int64_t v = lane_id(); v < vocabulary; v += kWarp) put(logits + v, 0);
        return;
    }
    const float own = load(logits + target);
    float largest = -INFINITY;
    for (int64_t v = lane_id(); v < vocabulary; v += kWarp)
        largest = max_or_nan(largest, load(logits + v));
    largest = warp_max_or_nan(largest);
    float sum = 0;
    for (int64_t v = lane_id(); v < vocabulary; v += kWarp) sum += expf(load(logits + v) - largest);
    sum = warp_sum(sum);
    if (lane_id() == 0) losses[row] = logf(sum) + largest - own;
    if (!gradient) return;
    __syncwarp();  // all lanes have read the target's logit
    const float scale = factor / sum;
    for (int64_t v = lane_id(); v < vocabulary; v += kWarp)
        put(logits + v, expf(load(logits + v) - largest) * scale - (v == target ? factor : 0.0F));
}

/// A thread block's sum of its threads' values, in one order, for thread 0.
__device__ double block_sum(double value) {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ double sums[kWarps];
    value = warp_sum(value);
    if (lane_id() == 0) sums[warp_id()] = value;
    __syncthreads();
    double all = 0;
    if (threadIdx.x == 0)
        for (const double of_warp : sums) all += of_warp;
    return all;
}

/// parts [gridDim.x]: thread block b has the values b, b + gridDim.x, ... by kThreads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    total_kernel(const T* values, int64_t count, double* parts) {
    double sum = 0;
    for (int64_t i = global_thread(); i < count; i += int64_t{gridDim.x} * kThreads)
        sum += static_cast<double>(values[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

}  // namespace

void total(cudaStream_t stream, In<1> values, double* parts, double* sum) {
    const int64_t count = values.shape()[0];
    const auto launch = [&](auto* list) {
        total_kernel<<<static_cast<unsigned>(kTotalParts), kThreads, 0, stream>>>(list, count,
                                                                                  parts);
    };
    if (values.element() == Element::f64)
        launch(values.as<const double>().data());
    else
        launch(values.as<const float>().data());
    check_launch("total");
    total_kernel<<<1, kThreads, 0, stream>>>(static_cast<const double*>(parts), kTotalParts, sum);
    check_launch("total, sums");
}

void cross_entropy(cudaStream_t stream, Out<2> logits, const int32_t* targets, float* losses,
                   float factor, bool gradient) {
    const auto [rows, vocabulary] = logits.shape();
    if (rows == 0) return;
    by_train_element(logits.element(), [&, rows = rows, vocabulary = vocabulary]<typename T>() {
        cross_entropy_kernel<<<blocks_for(rows * kWarp), kThreads, 0, stream>>>(
            static_cast<T*>(logits.data()), targets, losses, rows, vocabulary, factor, gradient);
    });
    check_launch("cross_entropy");
}

}  // namespace msa::cuda
