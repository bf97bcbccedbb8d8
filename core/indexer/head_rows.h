// SPDX-License-Identifier: MIT
// Heads of an operand as matrices.
#pragma once

#include <Eigen/Core>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

using HeadRows =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
               Eigen::OuterStride<>>;

/// Rows [begin, end) of one head of [n, heads, width].
inline HeadRows rows_of_head(View<const float, 3> all, int64_t head, QueryRange range) {
    const int64_t width = all.extent(2);
    return {range.begin < range.end ? all[range.begin][head].data() : nullptr,
            range.end - range.begin, width, Eigen::OuterStride<>(all.extent(1) * width)};
}

}  // namespace msa
