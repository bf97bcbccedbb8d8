// SPDX-License-Identifier: MIT
// Working data of core/indexer/lightning_kl.cpp: some queries with a block of keys, and running
// sums of exponentials.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace msa {

/// Logarithm of an empty sum.
inline constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

/// sum of exp(logit) as exp(running_max) * sum.
struct ExpSum {
    double running_max = kEmptyLse, sum = 0;

    void add(const Eigen::Ref<const Eigen::ArrayXf>& logits) {
        if (logits.size() == 0) return;
        const float most = logits.maxCoeff();
        if (most > running_max) {
            sum *= std::exp(running_max - double{most});
            running_max = most;
        }
        sum += double{(logits - static_cast<float>(running_max)).exp().sum()};
    }
    double lse() const { return running_max + std::log(sum); }
};

/// A block of keys, and the rows of a tile that have it in their support.
struct Part {
    std::vector<int64_t> rows;        // queries
    int64_t first = 0, position = 0;  // of its first key: packed index, position in its sequence
    int64_t count = 0;
    std::vector<int64_t> begin, end;  // of each row: keys that the Main Branch sees; the end is
                                      // also that of the indexer, which begins at 0
};

}  // namespace msa
