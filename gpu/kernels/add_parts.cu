// SPDX-License-Identifier: MIT
#include "gpu/kernels/add_parts.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256, kEach = 8;  // values of a thread

unsigned blocks_for(int64_t count) {
    return static_cast<unsigned>(ceil_div(count, int64_t{kThreads} * kEach));
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(const uint4* parts, int64_t vectors, float4* sums) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= vectors) return;
    const uint4 part = parts[i];
    const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&part);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float2 low = __bfloat1622float2(pairs[2 * half]),
                     high = __bfloat1622float2(pairs[2 * half + 1]);
        float4& sum = sums[2 * i + half];
        sum = {sum.x + low.x, sum.y + low.y, sum.z + high.x, sum.w + high.y};
    }
}

__global__ void __launch_bounds__(kThreads)
    round_kernel(const float4* sums, int64_t vectors, uint4* to) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= vectors) return;
    uint4 rounded;
    auto* const pairs = reinterpret_cast<__nv_bfloat162*>(&rounded);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float4 sum = sums[2 * i + half];
        pairs[2 * half] = __floats2bfloat162_rn(sum.x, sum.y);
        pairs[2 * half + 1] = __floats2bfloat162_rn(sum.z, sum.w);
    }
    to[i] = rounded;
}

}  // namespace

void add_parts(const Call& call, const __nv_bfloat16* parts, int64_t count, float* sums) {
    if (count == 0) return;
    add_kernel<<<blocks_for(count), kThreads, 0, call.stream()>>>(
        reinterpret_cast<const uint4*>(parts), count / kEach, reinterpret_cast<float4*>(sums));
    check_launch("add_parts");
}

void round_sums(const Call& call, const float* sums, int64_t count, __nv_bfloat16* to) {
    if (count == 0) return;
    round_kernel<<<blocks_for(count), kThreads, 0, call.stream()>>>(
        reinterpret_cast<const float4*>(sums), count / kEach, reinterpret_cast<uint4*>(to));
    check_launch("round_sums");
}

}  // namespace msa::cuda
