// SPDX-License-Identifier: MIT
// What selectors share whose score is a product of one vector per query and one per key block.
#pragma once

#include <cstdint>
#include <vector>

#include "core/select/selector.h"

namespace msa {

/// Fewer queries than this are not worth a team of threads.
inline constexpr int64_t kSmall = 64;

/// `count` keys [dh] of one group, `stride` floats apart.
struct KeyRows {
    const float* data;
    int64_t stride;
    int64_t count;
    const float* operator[](int64_t j) const { return data + j * stride; }
};

class BlockVectors {
public:
    /// Block's vector [width] from its keys.
    using OfKeys = void (*)(const KeyRows& keys, View<float, 1> vector);
    /// Query's vector [width] from one head's q [dh], added to those of the group's other heads.
    using OfQuery = void (*)(View<const float, 1> q, View<float, 1> vector);

    BlockVectors(int64_t width, OfKeys of_keys, OfQuery of_query)
        : width_(width), of_keys_(of_keys), of_query_(of_query) {}

    /// Makes the vectors of all whole blocks.
    void prepare(const SelectorLayer&);
    /// scores [Nq, Hkv, B]: query's vector times block's vector; of the local block, which may be
    /// seen in part, from the keys that the query sees.
    void score(const SelectorLayer&, const Problem& chunk, View<const float, 3> q,
               View<float, 3> scores) const;

private:
    struct Strip {
        QueryRange queries;
        int64_t group;
        const float* panels;
    };
    void score_strip(const SelectorLayer&, const Problem& chunk, View<const float, 3> q,
                     const std::vector<KeyRange>& visible, const Strip& strip,
                     View<float, 3> scores) const;

    int64_t width_;
    OfKeys of_keys_;
    OfQuery of_query_;
    std::vector<Tensor<float, 1>> panels_;  // [S * Hkv] packed for cpu::multiply
};

/// The keys [first, first + count) of a group, packed tokens.
KeyRows key_rows(View<const float, 3> k, int64_t group, int64_t first, int64_t count);
/// An OfKeys: the mean.
void mean_of_keys(const KeyRows& keys, View<float, 1> mean);
/// An OfQuery: q itself.
void add_query(View<const float, 1> q, View<float, 1> sum);

}  // namespace msa
