// SPDX-License-Identifier: MIT
// The building blocks of the cpu backend: products of a strip of rows with packed panels, and one
// step of the online softmax. All sizes are fixed, so results do not depend on threads.
//
// A product is c[row, column] = sum over t of a[row, t] b[t, column], kStrip rows and one panel of
// columns at a time.
//   q k^T   t runs over dims, columns are keys (pack_keys)
//   p v     t runs over keys, columns are dims (pack_values)
// Logits are kept in base 2: pack_queries with the factor of LogitRule.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "core/key_tokens.h"
#include "core/tensor.h"

namespace msa::cpu {

#ifdef __AVX512F__
inline constexpr int64_t kLanes = 16;
#else
inline constexpr int64_t kLanes = 8;
#endif
inline constexpr int64_t kStrip = 6;           // rows of one product: 6 x 2 vectors fill AVX2
inline constexpr int64_t kBatch = 4 * kStrip;  // rows multiplied by a panel while it lies in L1
inline constexpr int64_t kPanel = 2 * kLanes;  // columns of one panel
inline constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Columns rounded up to whole panels: the least row stride of a product's result.
constexpr int64_t padded(int64_t columns) { return ceil_div(columns, kPanel) * kPanel; }

/// Floats of the panels of a [depth, columns] operand.
constexpr int64_t panel_floats(int64_t depth, int64_t columns) { return depth * padded(columns); }

/// Right operand [depth, columns]: ceil(columns / kPanel) panels [depth, kPanel], one after the
/// other, the last one filled up with zeros.
struct Panels {
    const float* data;
    int64_t depth;
    int64_t columns;
};

/// Left operand: rows `stride` floats apart.
struct Strip {
    const float* data;
    int64_t stride;
    int64_t rows;
};

/// Left operand of a whole tile: writes the heads [first_head, first_head + heads) of the queries,
/// times `factor`, to rows [(query, head), width]. Heads that share keys are adjacent.
void pack_queries(View<const float, 3> q, QueryRange queries, int64_t first_head, int64_t heads,
                  float factor, float* rows);

/// Panels of the transpose of the rows of the tokens [first, first + count), of one head.
Panels pack_keys(const KeyTokens<float>& rows, int64_t head, int64_t first, int64_t count,
                 float* panels);

/// Panels of these rows.
Panels pack_values(const KeyTokens<float>& rows, int64_t head, int64_t first, int64_t count,
                   float* panels);

/// How the Main Branch's products become base-2 logits: queries are packed with `factor`; with a
/// cap, the product x becomes cap * tanh(x).
struct LogitRule {
    float factor;
    float cap = 0;  // 0: none
};
inline LogitRule main_logits(const Problem& p) {
    if (!p.softcap) return {static_cast<float>(p.softmax_scale() * kLog2E)};
    return {static_cast<float>(p.softmax_scale() / *p.softcap),
            static_cast<float>(*p.softcap * kLog2E)};
}

/// values[j] = cap * tanh(values[j]) in place, within 16 roundoffs of cap; NaN stays NaN. Does
/// nothing if cap is 0. Reads up to kLanes - 1 floats after the values and keeps them.
void cap_row(float* values, int64_t count, float cap);

/// c = a b; writes padded(b.columns) columns.
void multiply(Strip a, Panels b, float* c, int64_t c_stride);

/// c[r] = factor[r] c[r] + p[r] v for at most kBatch rows of weights p [rows, p_stride]. Row r
/// takes the keys [hidden[r], visible[r]) with 0 <= hidden[r] <= visible[r] <= v.depth; hidden
/// absent: from 0. A row's sum does not depend on the other rows. Overwrites p up to the largest
/// visible[r].
void add_values(float* p, int64_t p_stride, int64_t rows, Panels v, const int64_t* visible,
                const float* factor, float* c, int64_t c_stride, const int64_t* hidden = nullptr);
/// Factors that leave c unscaled.
constexpr std::array<float, kStrip> kKeep{1, 1, 1, 1, 1, 1};

/// Sum and reference point of the exponentials of one row: sum of exp2(logit - reference) so far.
/// The reference follows the maximum lazily, at most 8 below it. The sum over steps is a double,
/// because with a million keys thousands of steps are added, each far smaller than the sum.
struct OnlineSum {
    float reference = -kInfinity;
    double sum = 0;
};

/// Result of a step: the sum over the new logits, and the factor that rescales all earlier sums.
struct SoftmaxStep {
    float sum;
    float factor;
};

/// c += a^T b: row j of c gets the sum over b.depth rows t of a[t, j] b[t], for `columns` columns
/// of a [b.depth, a_stride]. Row t takes part in its first visible[t] columns; visible does not
/// decrease. Beyond them a is 0 and b[t] has no influence, not even if it is NaN.
void add_transposed(const float* a, int64_t a_stride, int64_t columns, Panels b,
                    const int64_t* visible, float* c, int64_t c_stride);

/// One row of a backward pass: `count` base-2 logits become p = exp2(logit - lse), as exp2_row
/// makes them, and d_p becomes p (d_p - d). Both are 0 from `count` to `end`, which lies within
/// padded(end) floats.
void softmax_gradient(float* logits, float* d_p, int64_t count, int64_t end, float lse, float d);

/// Adds `count` more base-2 logits of a row to `state` and replaces them by exp2(logit -
/// reference). exp2 is within 2 ulp; below 2^-125 it is 0. NaN gives NaN. Reads up to kLanes - 1
/// floats after them and keeps them.
SoftmaxStep softmax_step(float* logits, int64_t count, OnlineSum& state);

/// The same for at most kBatch rows, `stride` floats apart: row r adds its logits [hidden[r],
/// seen[r]), and factor[r] becomes that of its step.
void softmax_steps(float* logits, int64_t stride, int64_t rows, const int64_t* hidden,
                   const int64_t* seen, OnlineSum* states, float* factor);

/// Natural log of the sum of exponentials; -inf for no logits.
float log_sum(const OnlineSum& state);

/// logits[j] = exp2(logits[j] - reference); like softmax_step.
void exp2_row(float* logits, int64_t count, float reference);

/// sum[j] += exp2(logits[j] - reference), or the larger of the two, NaN if one is; keeps the
/// logits. Reads past the end like softmax_step, of `sum` too.
void add_exp2(const float* logits, int64_t count, float reference, float* sum);
void keep_larger_exp2(const float* logits, int64_t count, float reference, float* largest);

/// difference[j] = exp2(logits[j] - reference) - from[j], and 0 from `count` to padded(end).
void exp2_difference(const float* logits, const float* from, int64_t count, int64_t end,
                     float reference, float* difference);

/// 2^x, for a single value of at most 127; like softmax_step.
float exp2(float x);

/// Maximum of `count` values; NaN if one of them is, -inf for none. Reads like softmax_step.
float max_or_nan(const float* values, int64_t count);

}  // namespace msa::cpu
