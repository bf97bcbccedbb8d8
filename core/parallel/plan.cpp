// SPDX-License-Identifier: MIT
#include "core/parallel/plan.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/kernel_sizes.h"

namespace msa::parallel {
namespace {

void check_divisible(const Problem& p, int ranks) {
    p.validate();
    require(ranks >= 1, "ranks are ", ranks, ", must be at least 1");
    require(p.sequences() == 1, "the batch has ", p.sequences(),
            " sequences, must have 1: ranks divide one sequence, and take several whole");
    require(p.batch.query_positions().empty(),
            "the batch has query positions, must have none: its last query sits on its last key");
    require(p.queries() <= p.keys(), "the sequence has ", p.queries(),
            " queries, must have at most as many as its ", p.keys(), " keys");
}

Problem with_batch(Problem p, PackedBatch batch) {
    p.batch = std::move(batch);
    return p;
}

}  // namespace

int64_t ZigZag::unit(const Problem& p) {
    return std::lcm(p.block_size, int64_t{cuda::kSparseTileQueries});
}

ZigZag::ZigZag(const Problem& p, int ranks) : problem_(p), ranks_(ranks) {
    check_divisible(p, ranks);
    const int64_t count = 2 * int64_t{ranks}, each = unit(p), units = ceil_div(p.queries(), each);
    const auto start = [&](int64_t c) { return std::min(units * c / count * each, p.queries()); };
    const int64_t ahead = p.keys() - p.queries();
    for (int64_t c = 0; c < count; ++c) {
        const QueryRange rows{start(c), start(c + 1)};
        const int64_t queries = rows.end - rows.begin;
        chunks_.push_back({static_cast<int>(std::min(c, count - 1 - c)), rows,
                           KeyRange{ahead + rows.begin, queries},
                           with_batch(p, PackedBatch({0, queries}, {0, ahead + rows.end}))});
    }
}

std::array<const Chunk*, 2> ZigZag::of(int rank) const {
    MSA_CHECK(0 <= rank && rank < ranks_);
    return {&chunks_[static_cast<size_t>(rank)],
            &chunks_[chunks_.size() - 1 - static_cast<size_t>(rank)]};
}

int64_t ZigZag::queries_of(int rank) const {
    const auto [early, late] = of(rank);
    return early->problem.queries() + late->problem.queries();
}

double ZigZag::pairs_of(int rank) const {
    double pairs = 0;
    for (const Chunk* chunk : of(rank)) {
        const auto queries = static_cast<double>(chunk->problem.queries());
        pairs += queries * static_cast<double>(chunk->problem.keys()) - queries * (queries - 1) / 2;
    }
    return pairs;
}

SplitKeys::SplitKeys(const Problem& p, int ranks) : problem_(p) {
    check_divisible(p, ranks);
    require(!p.window, "the window is ", p.window.value_or(0),
            ", must be absent where keys are divided among ranks");
    const int64_t ahead = p.keys() - p.queries();
    for (int64_t r = 0; r < ranks; ++r) {
        const int64_t first = p.blocks() * r / ranks, end = p.blocks() * (r + 1) / ranks;
        const int64_t key = first * p.block_size;
        const int64_t keys = std::min(end * p.block_size, p.keys()) - key;
        // A query behind the part sits on the part's last key, one ahead of it before the first.
        std::vector<int64_t> positions(static_cast<size_t>(p.queries()));
        for (int64_t i = 0; i < p.queries(); ++i)
            positions[static_cast<size_t>(i)] =
                std::max<int64_t>(-1, std::min(ahead + i - key, keys - 1));
        parts_.push_back(
            {first, end - first, KeyRange{key, keys},
             with_batch(p, PackedBatch({0, p.queries()}, {0, keys}, std::move(positions)))});
    }
}

}  // namespace msa::parallel
