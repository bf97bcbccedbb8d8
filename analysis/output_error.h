// SPDX-License-Identifier: MIT
// Relative error of the sparse output per head, over all counted rows together:
//   sqrt(sum |o_sparse - o_dense|^2) / sqrt(sum |o_dense|^2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/rows.h"
#include "core/tensor.h"

namespace msa::analysis {

class OutputError {
public:
    explicit OutputError(int64_t query_heads);

    /// A chunk of queries: sparse, dense [Nq, Hq, dh]; kinds [Nq].
    void add(std::span<const RowKind> kinds, View<const float, 3> sparse,
             View<const float, 3> dense);

    /// [Hq]; NaN where no row was counted or the dense output is 0: a dead head.
    std::vector<double> relative() const;
    /// Mean over the heads that are not dead; NaN where all are.
    double mean() const;
    /// Heads whose dense output is 0 in all counted rows; 0 where no row was counted.
    int64_t dead_heads() const;

private:
    std::vector<double> difference_, norm_;  // sums of squares
    bool counted_ = false;
};

}  // namespace msa::analysis
