// SPDX-License-Identifier: MIT
// The attention distribution of one query and head, written out: what metrics and selectors are
// compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/problem.h"
#include "core/selection.h"
#include "core/tensor.h"

namespace msa::test {

/// scale * q . k of every key that query i of head h sees, by position.
inline std::vector<double> logits(const Problem& p, View<const float, 3> q, View<const float, 3> k,
                                  int64_t i, int64_t h) {
    const KeyRange seen = visible_keys(p)[static_cast<size_t>(i)];
    std::vector<double> all(static_cast<size_t>(seen.count), 0.0);
    for (size_t j = 0; j < all.size(); ++j)
        for (int64_t d = 0; d < p.head_dim; ++d)
            all[j] += p.softmax_scale() * double{q(i, h, d)} *
                      double{k(seen.first + static_cast<int64_t>(j), h / p.group_size(), d)};
    return all;
}

/// Their softmax over the keys of the blocks `ids` [Nq, Hkv, k] (absent: over all), 0 elsewhere.
inline std::vector<double> softmax(const Problem& p, View<const float, 3> q, View<const float, 3> k,
                                   View<const int32_t, 3> ids, int64_t i, int64_t h) {
    std::vector<double> weights = logits(p, q, k, i, h);
    double top = -HUGE_VAL, sum = 0;
    for (double logit : weights) top = std::max(top, logit);
    for (size_t j = 0; j < weights.size(); ++j) {
        bool in = !ids;
        for (int64_t slot = 0; ids && slot < ids.extent(2); ++slot)
            in |= ids(i, h / p.group_size(), slot) == static_cast<int64_t>(j) / p.block_size;
        weights[j] = in ? std::exp(weights[j] - top) : 0;
        sum += weights[j];
    }
    for (double& weight : weights) weight = sum > 0 ? weight / sum : 0;
    return weights;
}

}  // namespace msa::test
