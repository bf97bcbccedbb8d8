// SPDX-License-Identifier: MIT
#include "gpu/device/half_pair.cuh"
#include "gpu/half_types.h"
#include "gpu/kernels/add_parts.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256, kEach = 8;  // values of a thread

unsigned blocks_for(int64_t count) {
    return static_cast<unsigned>(ceil_div(count, int64_t{kThreads} * kEach));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const uint4* parts, int64_t vectors, float4* sums) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= vectors) return;
    const uint4 part = parts[i];
    const auto* const pairs = reinterpret_cast<const uint32_t*>(&part);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float2 low = unpack<T>(pairs[2 * half]), high = unpack<T>(pairs[2 * half + 1]);
        float4& sum = sums[2 * i + half];
        sum = {sum.x + low.x, sum.y + low.y, sum.z + high.x, sum.w + high.y};
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const float4* sums, int64_t vectors, uint4* to) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= vectors) return;
    uint4 rounded;
    auto* const pairs = reinterpret_cast<uint32_t*>(&rounded);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float4 sum = sums[2 * i + half];
        pairs[2 * half] = pack<T>(sum.x, sum.y);
        pairs[2 * half + 1] = pack<T>(sum.z, sum.w);
    }
    to[i] = rounded;
}

}  // namespace

void add_parts(const Call& call, Element element, const void* parts, int64_t count, float* sums) {
    if (count == 0) return;
    by_half(element, [&]<typename T>() {
        add_kernel<T><<<blocks_for(count), kThreads, 0, call.stream()>>>(
            static_cast<const uint4*>(parts), count / kEach, reinterpret_cast<float4*>(sums));
    });
    check_launch("add_parts");
}

void round_sums(const Call& call, Element element, const float* sums, int64_t count, void* to) {
    if (count == 0) return;
    by_half(element, [&]<typename T>() {
        round_kernel<T><<<blocks_for(count), kThreads, 0, call.stream()>>>(
            reinterpret_cast<const float4*>(sums), count / kEach, static_cast<uint4*>(to));
    });
    check_launch("round_sums");
}

}  // namespace msa::cuda
