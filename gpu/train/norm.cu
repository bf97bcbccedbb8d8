// SPDX-License-Identifier: MIT
// RMS norm by rows and its gradient. Neighbouring lanes of a warp, as many as a row has use for,
// share a row; a warp has the rows of kWarp / lanes such groups in hand.
#include <algorithm>

#include "gpu/device/warp.cuh"
#include "gpu/train/kernels.h"
#include "gpu/train/vector.cuh"

namespace msa::cuda {
namespace {

constexpr int64_t kParts = 512;  // of the rows, each with its own sum of d_w

/// Lanes of a row: a power of two.
int lanes_for(int64_t width, int vector) {
    int lanes = 1;
    while (lanes < kWarp && int64_t{lanes} * vector < width) lanes *= 2;
    return lanes;
}

/// The sum over the lanes of a row, in one order; all lanes of the warp take part.
__device__ float row_sum(float value, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
}

__device__ float inverse_rms(float squares, int64_t width) {
    return 1 / sqrtf(squares / static_cast<float>(width) +
                     static_cast<float>(train::Ops::kNormEpsilon));
}

/// The part of a row's sum of x^2 that this lane has.
template <int Width, typename T>
__device__ float squares_of(const T* row, int64_t width, int lane, int lanes) {
    float sum = 0;
    for (int64_t c = lane * Width; c < width; c += lanes * Width) {
        float x[Width];
        load_vector(row + c, x);
#pragma unroll
        for (int i = 0; i < Width; ++i) sum = fmaf(x[i], x[i], sum);
    }
    return sum;
}

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const T* x, const float* w, T* y, int64_t rows, int64_t width, int lanes) {
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const int64_t row = global_thread() / lanes;
    const bool valid = row < rows;
    x += row * width;
    y += row * width;
    const float squares = valid ? squares_of<Width>(x, width, lane, lanes) : 0.0F;
    const float inverse = inverse_rms(row_sum(squares, lanes), width);
    if (!valid) return;
    for (int64_t c = lane * Width; c < width; c += lanes * Width) {
        float value[Width];
        load_vector(x + c, value);
#pragma unroll
        for (int i = 0; i < Width; ++i) value[i] = value[i] * inverse * w[c + i];
        store_vector(y + c, value);
    }
}

/// Where the lanes of a row keep their sums of d_w in shared memory: those of a row's vector lie
/// `lanes` apart, and those of the next row so that the rows of a warp take different banks.
struct SumPlaces {
    int lanes;
    int64_t stride;  // from row to row

    __host__ __device__ SumPlaces(int lanes_of_row, int vector, int64_t width)
        : lanes(lanes_of_row),
          stride(ceil_div(width, int64_t{lanes} * vector) * lanes * vector + lanes) {}
    /// Of element i of the lane's vector that begins at column c.
    __device__ int64_t place(int64_t c, int lane, int i, int vector) const {
        return c - int64_t{lane} * vector + int64_t{i} * lanes + lane;
    }
    __device__ int64_t place(int64_t column, int vector) const {
        const int i = static_cast<int>(column % vector);
        return place(column - i, static_cast<int>(column / vector % lanes), i, vector);
    }
};

/// With u = x / rms and g = d_y w: d_x = (g - u mean(g u)) / rms, d_w = the sum of d_y u. A thread
/// block has `each` rows; what it adds to d_w becomes row blockIdx.x of parts [gridDim.x, width].
template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_grad_kernel(const T* x, const float* w, const T* d_y, T* d_x, int64_t rows,
                         int64_t width, int64_t each, int lanes, bool accumulate, float* parts) {
    extern __shared__ float4 shared[];
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const int group = static_cast<int>(threadIdx.x) / lanes;
    const int groups = static_cast<int>(blockDim.x) / lanes;
    const SumPlaces places(lanes, Width, width);
    float* const all_sums = &shared[0].x;  // [groups, stride]
    float* const d_weight = all_sums + group * places.stride;
    for (int64_t c = lane * Width; c < width; c += lanes * Width)
#pragma unroll
        for (int i = 0; i < Width; ++i) d_weight[places.place(c, lane, i, Width)] = 0;
    const int64_t begin = blockIdx.x * each, end = min(begin + each, rows);
    for (int64_t first = begin; first < end; first += groups) {
        const int64_t row = first + group;
        const bool valid = row < end;
        const T *const x_row = x + row * width, *const d_row = d_y + row * width;
        float squares = 0, along = 0;  // sums of x^2 and of g x
        if (valid)
            for (int64_t c = lane * Width; c < width; c += lanes * Width) {
                float value[Width], d[Width];
                load_vector(x_row + c, value);
                load_vector(d_row + c, d);
#pragma unroll
                for (int i = 0; i < Width; ++i) {
                    squares = fmaf(value[i], value[i], squares);
                    along = fmaf(d[i] * w[c + i], value[i], along);
                }
            }
        const float inverse = inverse_rms(row_sum(squares, lanes), width);
        const float mean = row_sum(along, lanes) * inverse / static_cast<float>(width);
        if (!valid) continue;
        for (int64_t c = lane * Width; c < width; c += lanes * Width) {
            float value[Width], d[Width], to[Width] = {};
            load_vector(x_row + c, value);
            load_vector(d_row + c, d);
            if (accumulate) load_vector(d_x + row * width + c, to);
#pragma unroll
            for (int i = 0; i < Width; ++i) {
                const float unit = value[i] * inverse;
                d_weight[places.place(c, lane, i, Width)] += d[i] * unit;
                to[i] += (d[i] * w[c + i] - unit * mean) * inverse;
            }
            store_vector(d_x + row * width + c, to);
        }
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) {
        float sum = 0;
        for (int g = 0; g < groups; ++g)
            sum += all_sums[g * places.stride + places.place(c, Width)];
        parts[blockIdx.x * width + c] = sum;
    }
}

/// to [width] += the sum over the rows of parts [count, width], in order. A thread block has kWarp
/// columns.
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int64_t count, int64_t width, float* to) {
    constexpr int kWarps = kThreads / kWarp;
    __shared__ float sums[kWarps][kWarp];
    const int64_t column = int64_t{blockIdx.x} * kWarp + lane_id();
    float sum = 0;
    if (column < width)
        for (int64_t part = warp_id(); part < count; part += kWarps)
            sum += parts[part * width + column];
    sums[warp_id()][lane_id()] = sum;
    __syncthreads();
    if (warp_id() > 0 || column >= width) return;
    float all = to[column];
    for (const auto& of_warp : sums) all += of_warp[lane_id()];
    to[column] = all;
}

/// How a gradient is launched: thread blocks, their threads, and memory.
struct GradLaunch {
    int64_t parts, each;  // rows of a part
    int threads, lanes, bytes;
};

GradLaunch plan_grad(int64_t rows, int64_t width, int vector) {
    constexpr int64_t kMostBytes = int64_t{96} << 10;
    GradLaunch plan{};
    plan.lanes = lanes_for(width, vector);
    const int64_t row_bytes = SumPlaces(plan.lanes, vector, width).stride * int64_t{sizeof(float)};
    const int64_t fit = kMostBytes / row_bytes;  // groups
    if (fit * plan.lanes < kWarp)
        throw UnsupportedError(concat("cuda: the gradient of rms_norm takes rows of at most ",
                                      kMostBytes / int64_t{sizeof(float)} - 2 * 8 * kWarp,
                                      " channels, not ", width));
    plan.threads = kThreads;
    while (plan.threads / plan.lanes > fit) plan.threads /= 2;
    plan.bytes = static_cast<int>(plan.threads / plan.lanes * row_bytes);
    plan.parts = std::min(kParts, ceil_div(rows, int64_t{plan.threads / plan.lanes}));
    plan.each = ceil_div(rows, plan.parts);
    plan.parts = ceil_div(rows, plan.each);
    return plan;
}

}  // namespace

void rms_norm(cudaStream_t stream, In<2> x, const float* w, Out<2> y) {
    const auto [rows, width] = x.shape();
    if (rows == 0) return;
    by_train_element(x.element(), [&, rows = rows, width = width]<typename T>() {
        by_width(
            width,
            [&]<int Width>() {
                const int lanes = lanes_for(width, Width);
                rms_norm_kernel<Width><<<blocks_for(rows * lanes), kThreads, 0, stream>>>(
                    static_cast<const T*>(x.data()), w, static_cast<T*>(y.data()), rows, width,
                    lanes);
            },
            x.data(), y.data());
    });
    check_launch("rms_norm");
}

int64_t norm_parts(int64_t rows, int64_t width) { return std::min(kParts, rows) * width; }

void rms_norm_grad(cudaStream_t stream, In<2> x, const float* w, In<2> d_y, Out<2> d_x, float* d_w,
                   Sum sum, float* parts) {
    const auto [rows, width] = x.shape();
    if (rows == 0) return;
    int64_t count = 0;
    by_train_element(x.element(), [&, rows = rows, width = width]<typename T>() {
        by_width(
            width,
            [&]<int Width>() {
                const GradLaunch plan = plan_grad(rows, width, Width);
                const auto kernel = rms_norm_grad_kernel<Width, T>;
                check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           plan.bytes),
                      "rms_norm_grad: asking for shared memory");
                kernel<<<static_cast<unsigned>(plan.parts), static_cast<unsigned>(plan.threads),
                         static_cast<size_t>(plan.bytes), stream>>>(
                    static_cast<const T*>(x.data()), w, static_cast<const T*>(d_y.data()),
                    static_cast<T*>(d_x.data()), rows, width, plan.each, plan.lanes,
                    sum == Sum::add, parts);
                count = plan.parts;
            },
            x.data(), d_y.data(), d_x.data());
    });
    check_launch("rms_norm_grad");
    add_parts_kernel<<<static_cast<unsigned>(ceil_div(width, int64_t{kWarp})), kThreads, 0,
                       stream>>>(parts, count, width, d_w);
    check_launch("rms_norm_grad, sums");
}

}  // namespace msa::cuda
