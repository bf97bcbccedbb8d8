// SPDX-License-Identifier: MIT
// How sure a mean over queries is, by the bootstrap (Efron 1979). Neighbouring queries look at much
// the same keys, so that blocks of them are drawn, not single ones; where there are several
// sequences, these are drawn first, and then blocks of each (two-stage cluster bootstrap).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace msa::analysis {

/// [draws, blocks]: how often each block is in each sample with replacement. `sequences` [blocks]:
/// the sequence of each block. A sample has as many sequences as there are, and of each time that a
/// sequence is drawn as many blocks as it has. The same arguments give the same draws.
Tensor<int32_t, 2> bootstrap_draws(std::span<const int64_t> sequences, int64_t draws,
                                   uint64_t seed);

/// An estimate with its 95 % interval.
struct Estimate {
    double value = 0, low = 0, high = 0;
};

/// The value with the 2.5 % and 97.5 % points of the same number over the draws, linear between
/// neighbours. Both are NaN where a draw is NaN or there is none.
Estimate with_interval(double value, std::vector<double> draws);

}  // namespace msa::analysis
