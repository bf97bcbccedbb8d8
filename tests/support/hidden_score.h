// SPDX-License-Identifier: MIT
// Operands whose best blocks have a score that an int8 copy loses wholly, so that bounds of half
// the size would leave these blocks out.
#pragma once

#include <algorithm>

#include "tests/support/runner.h"

namespace msa::test {

inline Problem hidden_score_problem() { return square_problem(48 * 32, 2, 2, 64, 64, 32); }

/// Queries are 127 in the first channel and 0.4375 in the others, which is 0 in int8. Every 16th
/// block has a key of 1 in these others and scores 0.4375 * 63; some of the rest have one in the
/// first channel that scores three quarters of that, all others one that scores a fifth. The
/// numbers are exact in every type of 16 bits.
inline Operands hidden_score(const Problem& p) {
    Operands o = make_operands({"hidden", p, {}}, Element::f32);
    std::fill_n(o.index_q.data(), o.index_q.size(), 0.4375F);
    std::fill_n(o.index_k.data(), o.index_k.size(), 0.0F);
    for (int64_t row = 0; row < o.index_q.size() / p.index_dim; ++row)
        o.index_q.data()[row * p.index_dim] = 127;
    for (int64_t b = 0; b < o.index_k.extent(0) / p.block_size; ++b) {
        const int64_t key = (b + 1) * p.block_size - 1;
        if (b % 16 == 5)
            std::fill_n(&o.index_k(key, 1), p.index_dim - 1, 1.0F);
        else
            o.index_k(key, 0) = b % 8 == 2 ? 167 * 0x1p-10F : 45 * 0x1p-10F;
    }
    return o;
}

}  // namespace msa::test
