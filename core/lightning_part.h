// SPDX-License-Identifier: MIT
// What core/lightning_kl.cpp works on: some queries and a block of keys, and running sums of
// exponentials.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace msa {

/// Logarithm of an empty sum.
inline constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

/// sum of exp(logit) as exp(top) * sum.
struct ExpSum {
    double top = kEmptyLse, sum = 0;

    void add(const Eigen::Ref<const Eigen::ArrayXf>& logits) {
        if (logits.size() == 0) return;
        const float most = logits.maxCoeff();
        if (most > top) {
            sum *= std::exp(top - double{most});
            top = most;
        }
        sum += double{(logits - static_cast<float>(top)).exp().sum()};
    }
    double lse() const { return top + std::log(sum); }
};

/// Rows of a tile that have a block in their support, and its keys.
struct Part {
    std::vector<int64_t> rows;        // queries
    int64_t first = 0, position = 0;  // of its keys: packed, and in their sequence
    int64_t count = 0;
    std::vector<int64_t> begin, end;  // of each row: keys that the Main Branch sees; the end is
                                      // also that of the indexer, which begins at 0
};

}  // namespace msa
