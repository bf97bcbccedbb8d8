// SPDX-License-Identifier: MIT
#include "experiments/bench/seen_keys.h"

#include <algorithm>

#include "core/selection.h"

namespace msa::experiments::bench {

SeenKeys::SeenKeys(const Problem& p, const std::vector<int64_t>& tokens, View<const int32_t, 3> ids,
                   int64_t group) {
    const std::vector<KeyRange>& visible = visible_keys(p);
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange range = visible[static_cast<size_t>(i)];
        seen.clear();
        for (int64_t n = 0; n < std::ssize(tokens); ++n) {
            const int64_t at = tokens[static_cast<size_t>(n)] - range.first;
            bool in = at >= 0 && at < range.count;
            if (in && ids.data() != nullptr) {
                const std::span<const int32_t> blocks = selected(ids, i, group);
                in = std::binary_search(blocks.begin(), blocks.end(), at / p.block_size);
            }
            if (in) seen.push_back(n);
        }
        if (seen.empty()) continue;
        queries.push_back(i);
        keys.push_back(seen);
    }
}

double product(const float* a, const float* b, int64_t width) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += double{a[c]} * double{b[c]};
    return sum;
}

}  // namespace msa::experiments::bench
