// SPDX-License-Identifier: MIT
// Operands of what the Index Branch does and how it learns. Shape letters: core/problem.h; the
// operations: core/backend.h.
#pragma once

#include <cstdint>
#include <optional>

#include "core/request.h"
#include "core/tensor.h"

namespace msa {

struct IndexInput {
    In<3> index_q;  // [Nq, Hkv, didx], one head per group
    In<2> index_k;  // [Nk, didx], one head shared by all groups
};

/// If sinks leave less than this of a row's probability, a float lse cannot recover the rest.
constexpr double kLeastShare = 1.0 / 8;

/// What index_kl compares.
struct IndexKlInput {
    IndexInput index;            // the Index Branch
    In<3> q, k;                  // the teacher's, as in AttentionInput
    View<const int32_t, 3> ids;  // [Nq, Hkv, k] the selected support; absent: full (warm-up)
    Teacher teacher = Teacher::mean;
    View<const float, 1> sinks = {};  // the teacher's, as in AttentionInput
    /// What the forward pass knows already (LSE fusion, sec:kernel:sparse_kl), each on the support:
    /// the lse of sparse_attention with these ids, of dense_attention without ids; and that of
    /// index_select. Absent: computed.
    View<const float, 2> main_lse = {};   // [Nq, Hq] natural log, the sinks in it
    View<const float, 2> index_lse = {};  // [Nq, Hkv] likewise
    /// The gradients are those of gradient_scale * (the sum of all rows' kl): the weight of the
    /// loss over the number of its rows. Absent: 1 / (Nq Hkv), of the mean.
    std::optional<double> gradient_scale = {};
};

/// Either may be absent, not both: training asks for gradients alone.
struct IndexKlOutput {
    View<double, 2> kl;        // [Nq, Hkv]; a row without a visible key in its support: 0
    View<float, 3> d_index_q;  // [Nq, Hkv, didx]; both absent or both present
    View<float, 2> d_index_k;  // [Nk, didx]
};

}  // namespace msa
