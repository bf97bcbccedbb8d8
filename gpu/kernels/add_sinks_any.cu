// SPDX-License-Identifier: MIT
// lse' = ln(e^lse + e^sink), out' = out e^(lse - lse'): one warp per (query, head).
#include "gpu/device/element.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/kernels.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void add_sinks_kernel(const float* sinks, int64_t rows, int64_t heads, int width,
                                 Output out, float* lse) {
    const int64_t row = int64_t{blockIdx.x} * kWarps + warp_id();
    if (row >= rows) return;
    const float sink = sinks[row % heads], alone = lse[row];
    __syncwarp();  // all lanes have the lse
    if (sink == -INFINITY) return;
    const float above = sink - alone;
    if (lane_id() == 0)
        lse[row] = above > 0 ? sink + log1pf(expf(-above)) : alone + log1pf(expf(above));
    if (out.data == nullptr) return;
    const float share = 1 / (1 + expf(above));
    for (int d = lane_id(); d < width; d += kWarp)
        out.store(row * width + d, share * out.load(row * width + d));
}

}  // namespace

void add_sinks_any(const Call& call, View<const float, 1> sinks, const Out<3>& out,
                   View<float, 2> lse) {
    const int64_t rows = lse.size();
    if (!sinks || rows == 0) return;
    add_sinks_kernel<<<static_cast<unsigned>(ceil_div(rows, kWarps)), kWarps * kWarp, 0,
                       call.stream()>>>(sinks.data(), rows, lse.extent(1),
                                        static_cast<int>(call.problem.head_dim), output(out),
                                        lse.data());
    check_launch("add_sinks_any");
}

}  // namespace msa::cuda
