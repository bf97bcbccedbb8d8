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

/// sum |a - b|^2 over `count` channels, or sum |a|^2 if b is null. Adds into eight interleaved
/// partial sums.
double squared_difference(const float* a, const float* b, int64_t count);
/// [Nq, groups]: the same for each query and group of heads, a and b [Nq, Hq, dh]; b may be absent.
Tensor<double, 2> squared_differences(View<const float, 3> a, View<const float, 3> b,
                                      int64_t groups);

class OutputError {
public:
    explicit OutputError(int64_t query_heads);

    /// A chunk of queries: sparse, dense [Nq, Hq, dh]; kinds [Nq].
    void add(std::span<const RowKind> kinds, View<const float, 3> sparse,
             View<const float, 3> dense);
    /// The same from the sums of each row, [Nq, Hq]: |o_sparse - o_dense|^2 and |o_dense|^2.
    void add(std::span<const RowKind> kinds, View<const double, 2> differences,
             View<const double, 2> norms);

    State state() const;
    void join(const State&);

    // [Hq]: sums over the counted rows of |o_sparse - o_dense|^2 and of |o_dense|^2.
    const std::vector<double>& differences() const { return difference_; }
    const std::vector<double>& norms() const { return norm_; }

    /// [Hq]; NaN if no row was counted or the dense output is 0 (a dead head).
    std::vector<double> relative() const;
    /// Heads whose dense output is 0 on all counted rows, so that they have no relative error. 0 if
    /// no row was counted.
    int64_t dead_heads() const;
    /// Mean of relative() over all heads but the dead ones; NaN if there are none.
    double mean() const;

private:
    std::vector<double> difference_, norm_;  // sums of squares
    int64_t counted_ = 0;                    // rows
};

}  // namespace msa::analysis
