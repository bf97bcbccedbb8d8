// SPDX-License-Identifier: MIT
#include "analysis/entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace msa::analysis {

Entropy::Entropy(int64_t query_heads) : entropy_(static_cast<size_t>(query_heads)) {}

void Entropy::add(const Problem& p, View<const float, 3> q, View<const float, 3> mean_key,
                  View<const float, 2> lse, View<const float, 1> sinks) {
    add_rows(entropy_, p.queries(), [&](int64_t i, RowValues values) {
        for (int64_t h = 0; h < p.query_heads; ++h) {
            if (lse(i, h) == -std::numeric_limits<float>::infinity()) continue;
            double dot = 0;
            for (int64_t d = 0; d < p.head_dim; ++d)
                dot += double{q(i, h, d)} * double{mean_key(i, h, d)};
            double entropy = double{lse(i, h)} - p.softmax_scale() * dot;
            if (sinks) entropy -= std::exp(double{sinks(h)} - double{lse(i, h)}) * double{sinks(h)};
            // In this order max() keeps NaN.
            values[static_cast<size_t>(h)] =
                p.softcap ? std::numeric_limits<double>::quiet_NaN() : std::max(entropy, 0.0);
        }
    });
}

}  // namespace msa::analysis
