// SPDX-License-Identifier: MIT
// Operands of the Index Branch's operations: scores, selection and KL loss. Shape letters:
// core/problem.h; the operations: core/backend.h.
#pragma once

#include <cstdint>
#include <optional>

#include "core/keys.h"
#include "core/number/operand_scales.h"
#include "core/request.h"
#include "core/tensor.h"

namespace msa {

struct IndexInput {
    In<3> index_q;              // [Nq, Hkv, didx], one head per group
    Keys<2> index_k;            // [Nk, didx] or in pages, one head shared by all groups
    OperandScales scales = {};  // of int8, which index_scores and index_select alone take
};

/// If a row's heads have less probability than this outside their sinks, on average, a float lse is
/// too coarse to recover it.
constexpr double kLeastShare = 1.0 / 8;

/// What index_kl compares.
struct IndexKlInput {
    IndexInput index;            // the Index Branch
    In<3> q, k;                  // the teacher's, as in AttentionInput
    View<const int32_t, 3> ids;  // [Nq, Hkv, k] the selected support; absent: full (warm-up)
    Teacher teacher = Teacher::mean;
    View<const float, 1> sinks = {};  // the teacher's, as in AttentionInput
    /// Results of the forward pass on the same support (LSE fusion, sec:kernel:sparse_kl): the lse
    /// of sparse_attention with these ids, or of dense_attention without ids; and the lse of
    /// index_select. Absent: computed.
    View<const float, 2> main_lse = {};   // [Nq, Hq] natural log, sinks included
    View<const float, 2> index_lse = {};  // [Nq, Hkv] likewise
    /// Gradients are of gradient_scale * (the sum of all rows' kl). Absent: 1 / (Nq Hkv), the
    /// gradient of the mean.
    std::optional<double> gradient_scale = {};
};

/// kl or both gradients may be absent, but not all: training needs gradients alone.
struct IndexKlOutput {
    View<double, 2> kl;        // [Nq, Hkv]; a row without a visible key in its support: 0
    View<float, 3> d_index_q;  // [Nq, Hkv, didx]; both absent or both present
    View<float, 2> d_index_k;  // [Nk, didx]
};

}  // namespace msa
