// SPDX-License-Identifier: MIT
#include <algorithm>

#include "gpu/device/half_pair.cuh"
#include "gpu/half_types.h"
#include "gpu/kernels/non_finite.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256, kPerLoad = 8;
constexpr int64_t kMostBlocks = 1024;  // of a span
constexpr int64_t kMostSpans = 65535;  // at once: the limit of a grid

template <typename T>
__device__ bool has_not_finite(uint4 eight) {
    constexpr uint32_t kExponent = kExponentBits<T>;
    const uint32_t words[] = {eight.x, eight.y, eight.z, eight.w};
    bool found = false;
    for (const uint32_t word : words)
        found |= (word & kExponent) == kExponent || (word >> 16 & kExponent) == kExponent;
    return found;
}

/// A row of thread blocks per span and kMostSpans spans further; `row` loads hold a key's values.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    look_at_spans(const uint4* values, int64_t row, const KeyRange* spans, int64_t span_count,
                  int32_t* found) {
    bool bad = false;
    for (int64_t s = blockIdx.y; s < span_count; s += gridDim.y) {
        const KeyRange span = spans[s];
        const int64_t end = (span.first + span.count) * row;
        for (int64_t i = span.first * row + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end;
             i += int64_t{gridDim.x} * kThreads)
            bad |= has_not_finite<T>(__ldcs(values + i));
    }
    if (bad) *found = 1;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    look_at_all(const uint4* values, int64_t count, int32_t* found) {
    bool bad = false;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
         i += int64_t{gridDim.x} * kThreads)
        bad |= has_not_finite<T>(__ldcs(values + i));
    if (bad) *found = 1;
}

}  // namespace

void find_non_finite(const Call& call, std::initializer_list<Out<3>> tensors, int32_t* found) {
    check(cudaMemsetAsync(found, 0, sizeof *found, call.stream()), "clearing memory");
    for (const Out<3>& values : tensors) {
        const int64_t count = element_count(values.shape()) / kPerLoad;
        const int64_t blocks = std::min(kMostBlocks, (count + kThreads - 1) / kThreads);
        if (blocks == 0) continue;
        by_half(values.element(), [&]<typename T>() {
            look_at_all<T><<<static_cast<unsigned>(blocks), kThreads, 0, call.stream()>>>(
                static_cast<const uint4*>(values.data()), count, found);
        });
        check_launch("find_non_finite");
    }
}

void find_non_finite(const Call& call, In<3> values, View<const KeyRange, 1> spans, int64_t most,
                     int32_t* found) {
    check(cudaMemsetAsync(found, 0, sizeof *found, call.stream()), "clearing memory");
    const int64_t row = values.shape()[1] * values.shape()[2] / kPerLoad;
    const int64_t blocks = std::min(kMostBlocks, (most * row + kThreads - 1) / kThreads);
    if (blocks == 0 || spans.size() == 0) return;
    const dim3 grid(static_cast<unsigned>(blocks),
                    static_cast<unsigned>(std::min(kMostSpans, spans.size())));
    by_half(values.element(), [&]<typename T>() {
        look_at_spans<T><<<grid, kThreads, 0, call.stream()>>>(
            static_cast<const uint4*>(values.data()), row, spans.data(), spans.size(), found);
    });
    check_launch("find_non_finite");
}

}  // namespace msa::cuda
