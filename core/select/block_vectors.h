// SPDX-License-Identifier: MIT
// For selectors whose score is the product of one vector per query and one per key block. Calls the
// backend's index_scores with the blocks' vectors as keys, once per group.
#pragma once

#include <cstdint>
#include <vector>

#include "core/select/policy.h"

namespace msa {

/// `count` keys [dh] of one group, `stride` floats apart.
struct KeyRows {
    const float* data;
    int64_t stride;
    int64_t count;
    const float* operator[](int64_t j) const { return data + j * stride; }
};

/// The keys of the packed tokens [first, first + count) of a group, on the host.
KeyRows key_rows(View<const float, 3> k, int64_t group, int64_t first, int64_t count);

/// Vectors of all blocks, sequence after sequence, and their products with queries.
class VectorScores {
public:
    /// vectors [Hkv, blocks of all sequences, width] on the host.
    VectorScores(const SelectorLayer&, View<const float, 3> vectors);
    /// Scores [Nq, Hkv, B] on the host for query vectors [Nq, Hkv, width]; 0 for blocks that a
    /// query does not see.
    Tensor<float, 3> score(Backend&, const Problem& chunk, View<const float, 3> queries) const;

private:
    struct Part {  // some of the channels: an index head is no wider than kMaxIndexDim
        int64_t first, width;
        std::vector<Mirror<2>> keys;  // [Hkv] of [blocks, width]
    };
    void add_part(Backend&, const Problem& chunk, View<const float, 3> queries, const Part&,
                  View<float, 3> scores) const;

    std::vector<int64_t> starts_;  // [S+1] first block of each sequence
    std::vector<Part> parts_;
};

/// VectorScores whose block vectors are functions of a block's keys. The local block's vector uses
/// only the keys that the query sees.
class BlockVectors {
public:
    /// Computes a block's vector [width] from its keys.
    using OfKeys = void (*)(const KeyRows& keys, View<float, 1> vector);
    /// Adds one head's contribution, from q [dh], to the query's vector [width].
    using OfQuery = void (*)(View<const float, 1> q, View<float, 1> vector);

    BlockVectors(const SelectorLayer&, int64_t width, OfKeys of_keys, OfQuery of_query);

    /// Scores [Nq, Hkv, B] on the host for q [Nq, Hq, dh] on the host.
    Tensor<float, 3> score(const SelectorLayer&, const Problem& chunk,
                           View<const float, 3> q) const;

private:
    int64_t width_;
    OfKeys of_keys_;
    OfQuery of_query_;
    VectorScores products_;
};

/// An OfKeys that takes the mean.
void mean_of_keys(const KeyRows& keys, View<float, 1> mean);
/// An OfQuery that takes q itself.
void add_query(View<const float, 1> q, View<float, 1> sum);
/// [Nq, Hkv, width]: query vectors, summed over each group's heads.
Tensor<float, 3> group_vectors(const SelectorLayer&, const Problem& chunk, View<const float, 3> q,
                               int64_t width, BlockVectors::OfQuery of_query);

}  // namespace msa
