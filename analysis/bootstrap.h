// SPDX-License-Identifier: MIT
// Confidence intervals of means over queries, by the bootstrap (Efron 1979). Neighbouring queries
// see much the same keys, so blocks of queries are drawn, not single ones. With several sequences,
// sequences are drawn first, then blocks of each (two-stage cluster bootstrap).
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace msa::analysis {

/// The least number of units to draw from. With fewer, an interval says little: that of the mean of
/// two values is these two values.
inline constexpr int64_t kLeastUnits = 6;

/// [draws, blocks]: how often each block is in each sample with replacement. `sequences` [blocks]:
/// the sequence of each block. A sample draws as many sequences as there are; each drawn sequence
/// gives as many blocks as it has. With fewer than kLeastUnits sequences, blocks are drawn as if
/// all belonged to one sequence. The same arguments give the same draws.
Tensor<int32_t, 2> bootstrap_draws(std::span<const int64_t> sequences, int64_t draws,
                                   uint64_t seed);

/// An estimate with its 95 % interval.
struct Estimate {
    double value = 0, low = 0, high = 0;

    /// The ends of the interval; the value itself where there is none.
    double least() const { return std::isnan(low) ? value : low; }
    double most() const { return std::isnan(high) ? value : high; }
};

/// The value with the 2.5 % and 97.5 % quantiles of the draws, linearly interpolated. Both are NaN
/// if a draw is NaN or there are none.
Estimate with_interval(double value, std::vector<double> draws);

}  // namespace msa::analysis
