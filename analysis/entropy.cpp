// SPDX-License-Identifier: MIT
#include "analysis/entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/tolerance.h"

namespace msa::analysis {

namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargestError = 0.01;  // nats

}  // namespace

Entropy::Entropy(int64_t query_heads) : entropy_(static_cast<size_t>(query_heads)) {}

void Entropy::add(const Problem& p, View<const float, 3> q, View<const float, 3> mean_key,
                  View<const float, 2> lse, View<const float, 1> sinks) {
    add_rows(entropy_, p.queries(), [&](int64_t i, RowValues values) {
        for (int64_t h = 0; h < p.query_heads; ++h) {
            if (lse(i, h) == -std::numeric_limits<float>::infinity()) continue;
            double dot = 0, size = 0;
            for (int64_t d = 0; d < p.head_dim; ++d) {
                const double product = double{q(i, h, d)} * double{mean_key(i, h, d)};
                dot += product;
                size += std::abs(product);
            }
            double entropy = double{lse(i, h)} - p.softmax_scale() * dot;
            if (sinks) entropy -= std::exp(double{sinks(h)} - double{lse(i, h)}) * double{sinks(h)};
            const double error =
                entropy_bound(std::abs(double{lse(i, h)}), p.softmax_scale(), size, 1);
            // In this order max() keeps NaN.
            values[static_cast<size_t>(h)] =
                p.softcap || error > kLargestError ? kUndefined : std::max(entropy, 0.0);
        }
    });
}

}  // namespace msa::analysis
