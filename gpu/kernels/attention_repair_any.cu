// SPDX-License-Identifier: MIT
// Tiled kernels multiply masked probabilities (0) by values that the query does not see. If such a
// value is not finite, the output becomes NaN. So it does where a row's scores rise faster than the
// softmax follows (gpu/device/softmax.cuh). These rows are rare; they are marked and computed again
// here, one query at a time.
#include "gpu/device/support.cuh"
#include "gpu/kernels/kernels.h"

namespace msa::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    repair(Heads<T> in, HeadTiling tiling, KeySupport support, int64_t rows, const int32_t* marked,
           Output out, float* lse) {
    extern __shared__ float4 shared[];
    wait_for_previous_kernel();
    launch_dependents();
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < rows; first += step) {
        const int64_t mine = first + threadIdx.x;
        if (!__syncthreads_or(mine < rows && marked[mine] != 0)) continue;
        for (int64_t row = first; row < min(first + blockDim.x, rows); ++row) {
            if (marked[row] == 0) continue;
            for (int part = 0; part < tiling.parts; ++part) {
                attend_to_support(in, tiling, support, row / support.kv_heads,
                                  row % support.kv_heads, part, out, lse, &shared[0].x);
                __syncthreads();
            }
        }
    }
}

}  // namespace

void attention_repair_any(const Call& call, const AttentionInput& in, View<const int32_t, 3> ids,
                          const AttentionOutput& to, const int32_t* marked) {
    constexpr int64_t kBlocks = 512;
    by_index_element(in.q.element(), [&]<typename T>() {
        const Heads<T> heads = sparse_heads<T>(call.problem, call.layout, in);
        const HeadTiling tiling = tile_heads(heads.heads, 1, heads.width);
        const int64_t rows = call.problem.queries() * call.problem.kv_heads;
        const auto blocks = std::min(ceil_div(rows, tiling.warps() * kWarp), kBlocks);
        launch_attend_if(call.device.begins_early(), call, repair<T>, static_cast<unsigned>(blocks),
                         tiling.warps(), heads.width, heads, tiling, key_support(call, ids), rows,
                         marked, output(to.out), to.lse.data());
        check_launch("attention_repair");
    });
}

}  // namespace msa::cuda
