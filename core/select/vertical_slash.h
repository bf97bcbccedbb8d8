// SPDX-License-Identifier: MIT
// MInference's vertical-slash estimate: every query is assumed to attend like the last queries of
// the prompt, by key (vertical lines of the attention map) and by distance (slashes).
#pragma once

#include <cstdint>
#include <vector>

#include "core/select/policy.h"

namespace msa {

class VerticalSlash {
public:
    /// Uses the last `probe` queries of every sequence's prompt.
    VerticalSlash(const SelectorLayer&, int64_t probe);

    /// Attention of the probing queries to the keys of block b, plus their attention at the
    /// distances at which the query at `position` sees the block.
    float score(int64_t sequence, int64_t group, int64_t position, int64_t block) const;

private:
    /// Adds one query's weights, the mean over `heads` heads, on the `seen` keys that it sees.
    void add_row(size_t at, int64_t seen, int64_t heads, View<const float, 1> mean);
    const std::vector<double>& of(const std::vector<std::vector<double>>& sums, int64_t sequence,
                                  int64_t group) const {
        return sums[static_cast<size_t>(sequence * groups_ + group)];
    }

    int64_t groups_, block_size_;
    std::vector<std::vector<double>> vertical_, slash_;  // [S * Hkv][n+1] sums up to key, distance
};

}  // namespace msa
