// SPDX-License-Identifier: MIT
// How a sequence is divided: closed forms.
#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "core/parallel/plan.h"

namespace msa::parallel {
namespace {

Problem sequence(int64_t queries, int64_t keys, int64_t block_size = 128) {
    Problem p = square_problem(0, 64, 4, 128, 128, block_size);
    p.batch = PackedBatch({0, queries}, {0, keys});
    return p;
}

TEST(ZigZag, ChunksOfTheMillion) {
    constexpr int64_t kTokens = 1 << 20;
    for (int ranks : {1, 2, 4, 8, 64}) {
        const ZigZag plan(sequence(kTokens, kTokens), ranks);
        const int64_t each = kTokens / (2 * ranks);
        ASSERT_EQ(std::ssize(plan.chunks()), 2 * ranks);
        for (int64_t c = 0; c < 2 * ranks; ++c) {
            const Chunk& chunk = plan.chunks()[static_cast<size_t>(c)];
            EXPECT_EQ(chunk.queries, (QueryRange{c * each, (c + 1) * each}));
            EXPECT_EQ(chunk.own_keys, (KeyRange{c * each, each}));
            EXPECT_EQ(chunk.problem.queries(), each);
            EXPECT_EQ(chunk.problem.keys(), (c + 1) * each);
            EXPECT_EQ(chunk.rank, c < ranks ? c : 2 * ranks - 1 - c);
        }
        // Exactly one share of the N (N + 1) / 2 pairs.
        for (int rank = 0; rank < ranks; ++rank)
            EXPECT_EQ(plan.pairs_of(rank), double{kTokens} * (kTokens + 1) / 2 / ranks);
    }
}

TEST(ZigZag, CoversEveryQueryOnce) {
    for (int64_t block : {16, 37, 128})
        for (int64_t queries : {0, 1, 31, 500, 4097, 10000})
            for (int64_t ahead : {0, 1000})
                for (int ranks : {1, 2, 3, 5, 8}) {
                    const Problem p = sequence(queries, queries + ahead, block);
                    const ZigZag plan(p, ranks);
                    int64_t at = 0, of_ranks = 0, longest = 0;
                    for (const Chunk& chunk : plan.chunks()) {
                        EXPECT_EQ(chunk.queries.begin, at);
                        EXPECT_TRUE(at % ZigZag::unit(p) == 0 || at == queries) << at;
                        EXPECT_EQ(chunk.own_keys.first, ahead + at);
                        EXPECT_EQ(chunk.problem.keys(), ahead + chunk.queries.end);
                        at = chunk.queries.end;
                        longest = std::max(longest, chunk.problem.queries());
                    }
                    EXPECT_EQ(at, queries);
                    double pairs = 0;
                    for (int rank = 0; rank < ranks; ++rank) {
                        of_ranks += plan.queries_of(rank);
                        pairs += plan.pairs_of(rank);
                        const auto [early, late] = plan.of(rank);
                        EXPECT_EQ(early->rank, rank);
                        EXPECT_EQ(late->rank, rank);
                        EXPECT_LE(early->queries.end, late->queries.begin);
                    }
                    EXPECT_EQ(of_ranks, queries);
                    const auto n = static_cast<double>(queries), a = static_cast<double>(ahead);
                    EXPECT_EQ(pairs, n * a + n * (n + 1) / 2);
                    EXPECT_LE(longest, ceil_div(queries, 2 * ranks) + ZigZag::unit(p));
                }
}

TEST(ZigZag, UnitsAreWholeBlocksAndTiles) {
    EXPECT_EQ(ZigZag::unit(sequence(1, 1, 128)), 128);
    EXPECT_EQ(ZigZag::unit(sequence(1, 1, 16)), 32);
    EXPECT_EQ(ZigZag::unit(sequence(1, 1, 24)), 96);
}

TEST(SplitKeys, PartsAreWholeBlocks) {
    for (int64_t block : {16, 128})
        for (int64_t keys : {1, 16, 500, 70000})
            for (int ranks : {1, 2, 3, 8}) {
                const Problem p = sequence(1, keys, block);
                const SplitKeys split(p, ranks);
                int64_t at = 0, blocks = 0;
                for (int rank = 0; rank < ranks; ++rank) {
                    const KeyPart& part = split.of(rank);
                    EXPECT_EQ(part.first_block, blocks);
                    EXPECT_EQ(part.keys.first, at);
                    EXPECT_EQ(part.problem.blocks(), part.blocks);
                    EXPECT_LE(std::abs(part.blocks - p.blocks() / ranks), 1);
                    // The one query sees all of it.
                    EXPECT_EQ(visible_keys(part.problem)[0].count, part.keys.count);
                    at += part.keys.count;
                    blocks += part.blocks;
                }
                EXPECT_EQ(at, keys);
                EXPECT_EQ(blocks, p.blocks());
            }
}

TEST(SplitKeys, AQuerySeesWhatIsNotBehindIt) {
    // Queries at 92 to 99; the second part begins at key 48, the third at key 96.
    const Problem p = sequence(8, 100, 16);
    const SplitKeys split(p, 3);
    for (int64_t i = 0; i < 8; ++i) {
        int64_t seen = 0;
        for (int rank = 0; rank < 3; ++rank)
            seen += visible_keys(split.of(rank).problem)[static_cast<size_t>(i)].count;
        EXPECT_EQ(seen, 93 + i);
    }
    EXPECT_EQ(split.of(2).keys, (KeyRange{64, 36}));
}

TEST(Plans, RefuseWhatCannotBeDivided) {
    Problem several = sequence(0, 0);
    several.batch = PackedBatch({0, 5, 9}, {0, 5, 9});
    Problem placed = sequence(2, 9);
    placed.batch = PackedBatch({0, 2}, {0, 9}, {3, 5});
    Problem window = sequence(1, 100);
    window.window = 7;
    const auto refuses = [](const auto& call, const std::string& why) {
        try {
            call();
            ADD_FAILURE() << "must refuse: " << why;
        } catch (const InputError& error) {
            EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
        }
    };
    refuses([&] { ZigZag(several, 2); }, "the batch has 2 sequences, must have 1");
    refuses([&] { ZigZag(placed, 2); }, "has query positions, must have none");
    refuses([&] { ZigZag(sequence(9, 5), 2); }, "9 queries, must have at most as many as its 5");
    refuses([&] { ZigZag(sequence(5, 5), 0); }, "ranks are 0, must be at least 1");
    refuses([&] { SplitKeys(window, 2); }, "the window is 7, must be absent");
    EXPECT_NO_THROW(ZigZag(window, 2));
}

}  // namespace
}  // namespace msa::parallel
