// SPDX-License-Identifier: MIT
// With sinks, each head of the teacher is weighted by the share that its sink leaves to the keys.
// An lse that includes the sink does that by itself: the mean over the heads of exp(logit - lse) is
// the teacher times the heads' mean share. So the logarithm of that share is added to the lse. If
// the share is so small that a float lse cannot hold it, the sums of the row are computed again.
#include "core/index_operands.h"
#include "gpu/device/max_or_nan.cuh"
#include "gpu/device/sink_share.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/shared_stream.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256;

/// The (query, group) of a launch, and what they read and write.
struct Rows {
    const float* sinks;
    int64_t rows, groups, heads;  // heads of a group
    float* lse;                   // [rows, heads]
    int32_t* marked;              // [rows] are the sums to be formed anew?

    __device__ int64_t row() const { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }
    __device__ const float* sinks_of(int64_t row) const { return sinks + row % groups * heads; }
};

/// From an lse with the sinks in it.
__global__ void __launch_bounds__(kThreads) from_given(Rows a, const float* given) {
    const int64_t row = a.row();
    if (row >= a.rows) return;
    const float* const sinks = a.sinks_of(row);
    given += row * a.heads;
    float share = 0;
    for (int64_t h = 0; h < a.heads; ++h) share -= expm1f(sinks[h] - given[h]);
    share /= static_cast<float>(a.heads);
    const bool tells = share >= kLeastShare;  // NaN tells nothing
    a.marked[row] = tells ? 0 : 1;
    if (!tells) return;
    for (int64_t h = 0; h < a.heads; ++h) a.lse[row * a.heads + h] = given[h] + logf(share);
}

/// Marked rows: from the lse of the logits alone, which is in its place.
__global__ void __launch_bounds__(kThreads) from_logits(Rows a) {
    const int64_t row = a.row();
    if (row >= a.rows || a.marked[row] == 0) return;
    const float* const sinks = a.sinks_of(row);
    float* const lse = a.lse + row * a.heads;
    float most = -INFINITY, sum = 0;
    for (int64_t h = 0; h < a.heads; ++h) most = max_or_nan(most, log_share(sinks[h], lse[h]));
    if (most == -INFINITY) return;  // the row sees no key
    for (int64_t h = 0; h < a.heads; ++h) sum += expf(log_share(sinks[h], lse[h]) - most);
    const float share = most + logf(sum / static_cast<float>(a.heads));
    for (int64_t h = 0; h < a.heads; ++h) lse[h] += share - log_share(sinks[h], lse[h]);
}

}  // namespace

Tensor<float, 2> teacher_lse_any(const Call& call, const IndexKlInput& in) {
    const Problem& p = call.problem;
    const int64_t rows = p.queries() * p.kv_heads;
    Tensor<float, 2> lse = call.scratch<float, 2>({p.queries(), p.query_heads});
    Tensor<int32_t, 1> marked = call.scratch<int32_t, 1>({rows});
    const Rows a{in.sinks.data(), rows, p.kv_heads, p.group_size(), lse.data(), marked.data()};
    const auto blocks = static_cast<unsigned>(ceil_div(rows, int64_t{kThreads}));
    from_given<<<blocks, kThreads, 0, call.stream()>>>(a, in.main_lse.data());
    check_launch("teacher_lse_any, from main_lse");
    attention_repair_any(call, {in.q, in.k, {}}, in.ids, {{}, lse}, marked.data());
    from_logits<<<blocks, kThreads, 0, call.stream()>>>(a);
    check_launch("teacher_lse_any, from the logits");
    return lse;
}

}  // namespace msa::cuda
