// SPDX-License-Identifier: MIT
// Operations of which every thread owns a few neighbouring elements.
#include "gpu/train/kernels.h"
#include "gpu/train/vector.cuh"

namespace msa::cuda {
namespace {

template <int Width, typename X, typename Y>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const X* x, float factor, Y* y, int64_t count, bool accumulate) {
    const int64_t at = global_thread() * Width;
    if (at >= count) return;
    float value[Width], sum[Width] = {};
    load_vector(x + at, value);
    if (accumulate) load_vector(y + at, sum);
#pragma unroll
    for (int i = 0; i < Width; ++i)
        sum[i] = accumulate ? sum[i] + factor * value[i] : factor * value[i];
    store_vector(y + at, sum);
}

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const T* gate, const T* up, T* y, int64_t count) {
    const int64_t at = global_thread() * Width;
    if (at >= count) return;
    float g[Width], u[Width];
    load_vector(gate + at, g);
    load_vector(up + at, u);
#pragma unroll
    for (int i = 0; i < Width; ++i) g[i] = g[i] * sigmoid(g[i]) * u[i];
    store_vector(y + at, g);
}

/// silu'(g) = s (1 + g (1 - s)) with s = 1 / (1 + exp(-g)).
template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    swiglu_grad_kernel(const T* gate, const T* up, const T* d_y, T* d_gate, T* d_up,
                       int64_t count) {
    const int64_t at = global_thread() * Width;
    if (at >= count) return;
    float g[Width], u[Width], d[Width];
    load_vector(gate + at, g);
    load_vector(up + at, u);
    load_vector(d_y + at, d);
#pragma unroll
    for (int i = 0; i < Width; ++i) {
        const float s = sigmoid(g[i]);
        const float along = d[i] * u[i] * s * (1 + g[i] * (1 - s));
        u[i] = d[i] * g[i] * s;
        g[i] = along;
    }
    store_vector(d_gate + at, g);
    store_vector(d_up + at, u);
}

/// A thread turns Width pairs of one head; `pairs` of a head are `half`.
template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(T* heads, const int32_t* positions, const float* table, int64_t tokens,
                  int64_t head_count, int64_t dims, int64_t half, float direction) {
    const int64_t each = half / Width, thread = global_thread();
    if (thread >= tokens * head_count * each) return;
    const int64_t c = thread % each * Width, head = thread / each, token = head / head_count;
    const float* const angle = table + (positions[token] * half + c) * 2;
    T* const low = heads + head * dims + c;
    T* const high = low + half;
    float a[Width], b[Width];
    load_vector(low, a);
    load_vector(high, b);
#pragma unroll
    for (int i = 0; i < Width; ++i) {
        const float cosine = angle[2 * i], sine = direction * angle[2 * i + 1];
        const float turned = a[i] * cosine - b[i] * sine;
        b[i] = b[i] * cosine + a[i] * sine;
        a[i] = turned;
    }
    store_vector(low, a);
    store_vector(high, b);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    repeat_kernel(const T* one, T* many, int64_t count, int64_t heads, int64_t dims) {
    const int64_t at = global_thread();
    if (at < count) many[at] = one[at / (heads * dims) * dims + at % dims];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_heads_kernel(const T* many, T* one, int64_t count, int64_t heads, int64_t dims) {
    const int64_t at = global_thread();
    if (at >= count) return;
    const T* const first = many + at / dims * heads * dims + at % dims;
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) sum += load(first + h * dims);
    put(one + at, sum);
}

}  // namespace

void add(cudaStream_t stream, In<1> x, float factor, Out<1> y, Sum sum) {
    const int64_t count = x.shape()[0];
    if (count == 0) return;
    by_train_element(x.element(), [&]<typename X>() {
        by_train_element(y.element(), [&]<typename Y>() {
            by_width(
                count,
                [&]<int Width>() {
                    add_kernel<Width><<<blocks_for(count / Width), kThreads, 0, stream>>>(
                        static_cast<const X*>(x.data()), factor, static_cast<Y*>(y.data()), count,
                        sum == Sum::add);
                },
                x.data(), y.data());
        });
    });
    check_launch("add");
}

void swiglu(cudaStream_t stream, In<2> gate, In<2> up, Out<2> y) {
    const int64_t count = element_count(gate.shape());
    if (count == 0) return;
    by_train_element(gate.element(), [&]<typename T>() {
        by_width(
            count,
            [&]<int Width>() {
                swiglu_kernel<Width><<<blocks_for(count / Width), kThreads, 0, stream>>>(
                    static_cast<const T*>(gate.data()), static_cast<const T*>(up.data()),
                    static_cast<T*>(y.data()), count);
            },
            gate.data(), up.data(), y.data());
    });
    check_launch("swiglu");
}

void swiglu_grad(cudaStream_t stream, In<2> gate, In<2> up, In<2> d_y, Out<2> d_gate, Out<2> d_up) {
    const int64_t count = element_count(gate.shape());
    if (count == 0) return;
    by_train_element(gate.element(), [&]<typename T>() {
        by_width(
            count,
            [&]<int Width>() {
                swiglu_grad_kernel<Width><<<blocks_for(count / Width), kThreads, 0, stream>>>(
                    static_cast<const T*>(gate.data()), static_cast<const T*>(up.data()),
                    static_cast<const T*>(d_y.data()), static_cast<T*>(d_gate.data()),
                    static_cast<T*>(d_up.data()), count);
            },
            gate.data(), up.data(), d_y.data(), d_gate.data(), d_up.data());
    });
    check_launch("swiglu_grad");
}

void rotate(cudaStream_t stream, Out<3> heads, const int32_t* positions, View<const float, 3> table,
            bool backward) {
    const auto [tokens, head_count, dims] = heads.shape();
    const int64_t half = table.extent(1), pairs = tokens * head_count * half;
    if (pairs == 0) return;
    by_train_element(heads.element(), [&]<typename T>() {
        const auto launch = [&, tokens = tokens, head_count = head_count,
                             dims = dims]<int Width>() {
            rotate_kernel<Width><<<blocks_for(pairs / Width), kThreads, 0, stream>>>(
                static_cast<T*>(heads.data()), positions, table.data(), tokens, head_count, dims,
                half, backward ? -1.0F : 1.0F);
        };
        if (dims % 8 == 0)
            by_width(half, launch, heads.data());
        else
            launch.template operator()<1>();
    });
    check_launch("rotate");
}

void repeat(cudaStream_t stream, In<2> one, Out<3> many) {
    const int64_t count = element_count(many.shape());
    if (count == 0) return;
    by_train_element(one.element(), [&]<typename T>() {
        repeat_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
            static_cast<const T*>(one.data()), static_cast<T*>(many.data()), count, many.shape()[1],
            many.shape()[2]);
    });
    check_launch("repeat");
}

void sum_heads(cudaStream_t stream, In<3> many, Out<2> one) {
    const int64_t count = element_count(one.shape());
    if (count == 0) return;
    by_train_element(many.element(), [&]<typename T>() {
        sum_heads_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
            static_cast<const T*>(many.data()), static_cast<T*>(one.data()), count, many.shape()[1],
            many.shape()[2]);
    });
    check_launch("sum_heads");
}

}  // namespace msa::cuda
