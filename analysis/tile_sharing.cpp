// SPDX-License-Identifier: MIT
// How many blocks the queries of a tile share, if each chooses by chance: LayerSizes of
// stage_cost.h.
#include <cmath>

#include "analysis/bytes.h"
#include "analysis/stage_cost.h"
#include "core/kernel_sizes.h"
#include "core/problem.h"

namespace msa::analysis {

int64_t LayerSizes::tile_queries() const { return cuda::sparse_tile_queries(group_size()); }

namespace {

/// P(first <= X <= last) of X binomial in `trials` and `chance`.
double probability(int64_t first, int64_t last, int64_t trials, double chance) {
    double sum = 0, ways = 1;  // trials over n
    for (int64_t n = 0; n <= last; ++n) {
        if (n >= first)
            sum += ways * std::pow(chance, real(n)) * std::pow(1 - chance, real(trials - n));
        ways *= real(trials - n) / real(n + 1);
    }
    return sum;
}

/// The chance p of a block to be chosen by a query where `queries` of them together choose `ratio`
/// times as many distinct blocks as one: (1 - (1 - p)^T) / p, which falls from T to 1.
double chance_of(double ratio, int64_t queries) {
    double low = 0, high = 1;
    for (int step = 0; step < 60; ++step) {
        const double p = (low + high) / 2;
        ((1 - std::pow(1 - p, real(queries))) / p > ratio ? low : high) = p;
    }
    return high;
}

}  // namespace

double LayerSizes::union_blocks() const {
    if (given_union_blocks) return *given_union_blocks;
    const double blocks = real(tokens) / real(block_size);
    return blocks * (1 - std::pow(1 - real(top_k) / blocks, real(tile_queries())));
}

LayerSizes::Sharing LayerSizes::sharing() const {
    const int64_t queries = tile_queries(),
                  least = cuda::sparse_least_sharing(group_size(), head_dim, element_bytes(element),
                                                     ceil_div(tokens, block_size), top_k);
    const double k = real(top_k), chance = chance_of(union_blocks() / k, queries);
    return {k / chance * probability(least, queries, queries, chance),
            k * probability(0, least - 2, queries - 1, chance)};
}

}  // namespace msa::analysis
