// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "core/problem.h"
#include "tests/support/refusal.h"

namespace msa {
namespace {

using test::refusal;

std::string refusal_after(void (*change)(Problem&)) {
    Problem p = square_problem(10, 4, 2, 32, 16, 16);
    change(p);
    return refusal([&] { p.validate(); });
}

TEST(Problem, DerivedSizes) {
    Problem p = square_problem(100, 8, 2, 64, 16, 32);
    EXPECT_EQ(p.queries(), 100);
    EXPECT_EQ(p.keys(), 100);
    EXPECT_EQ(p.group_size(), 4);
    EXPECT_EQ(p.blocks(), 4);
    EXPECT_DOUBLE_EQ(p.softmax_scale(), 1 / 8.0);
    EXPECT_DOUBLE_EQ(p.index_scale(), 1 / 4.0);
    p.batch = PackedBatch({0, 33, 40, 100}, {0, 33, 40, 100});
    EXPECT_EQ(p.blocks(), 2);  // of the longest sequence, 60 tokens
}

TEST(Problem, RefusalsNameTheValueAndTheRule) {
    EXPECT_EQ(refusal_after([](Problem&) {}), "");
    EXPECT_EQ(refusal_after([](Problem& p) { p.query_heads = 5; }),
              "query_heads is 5, must be a positive multiple of kv_heads = 2");
    EXPECT_EQ(refusal_after([](Problem& p) { p.kv_heads = 0; }),
              "kv_heads is 0, must be at least 1");
    EXPECT_EQ(refusal_after([](Problem& p) { p.head_dim = 8; }),
              "head_dim is 8, must be from 16 to 512");
    EXPECT_EQ(refusal_after([](Problem& p) { p.index_dim = 257; }),
              "index_dim is 257, must be from 16 to 256");
    EXPECT_EQ(refusal_after([](Problem& p) { p.index_dim = 0; }), "");
    EXPECT_EQ(refusal_after([](Problem& p) { p.block_size = 4; }),
              "block_size is 4, must be from 8 to 256");
    EXPECT_EQ(refusal([] {
                  PackedBatch({0, 7, 5, 10}, {0, 10, 10, 10});
              }),
              "cu_seqlens_q[2] is 5, must not be below cu_seqlens_q[1] = 7");
    EXPECT_EQ(refusal([] { PackedBatch({0, 10}, {1, 10}); }), "cu_seqlens_k[0] is 1, must be 0");
    EXPECT_EQ(refusal([] {
                  PackedBatch({0, 10}, {0, 5, 10});
              }),
              "cu_seqlens_q has 2 entries, cu_seqlens_k 3; they must have the same number");
    EXPECT_EQ(refusal_after([](Problem& p) { p.softmax_scale_override = -1; }),
              "softmax_scale is -1, must be finite and positive");
    EXPECT_EQ(refusal([] {
                  PackedBatch({0, 10}, {0, 10}, {1, 2});
              }),
              "query_positions has 2 entries, must have one per query = 10");
    EXPECT_EQ(refusal([] {
                  PackedBatch({0, 10}, {0, 10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 10});
              }),
              "query_positions[9] is 10, must be below the keys of its sequence = 10");
    EXPECT_EQ(refusal([] {
                  PackedBatch({0, 10}, {0, 10}, {0, 1, 5, 3, 4, 5, 6, 7, 8, 9});
              }),
              "query_positions[3] is 3, must not be below the one before it in its sequence");
}

TEST(VisibleKeys, OneRuleForPrefillPrefixAndDecode) {
    Problem p = square_problem(3, 1, 1, 16, 0, 8);
    EXPECT_EQ(visible_keys(p), (std::vector<KeyRange>{{0, 1}, {0, 2}, {0, 3}}));
    p.batch = PackedBatch({0, 2, 3, 5}, {0, 5, 9, 10});  // 2 queries on 5 keys, 1 on 4, 2 on 1
    EXPECT_EQ(visible_keys(p), (std::vector<KeyRange>{{0, 4}, {0, 5}, {5, 4}, {9, 0}, {9, 1}}));
}

TEST(VisibleKeys, PositionsOverrideTheRule) {
    Problem p = square_problem(3, 1, 1, 16, 0, 8);
    p.batch = PackedBatch(p.batch.cu_seqlens_q(), {0, 50}, {0, 7, 49});
    p.validate();
    EXPECT_EQ(visible_keys(p), (std::vector<KeyRange>{{0, 1}, {0, 8}, {0, 50}}));
}

TEST(PackedBatch, CopiesShareOneLayout) {
    const PackedBatch batch({0, 3}, {0, 50}, {0, 7, 49});
    const PackedBatch copy = batch;
    EXPECT_EQ(copy.identity(), batch.identity());
    EXPECT_EQ(&copy.visible_keys(), &batch.visible_keys());
    const PackedBatch same({0, 3}, {0, 50}, {0, 7, 49}), other({0, 3}, {0, 50}, {0, 7, 48});
    EXPECT_NE(same.identity(), batch.identity());
    EXPECT_TRUE(same == batch);
    EXPECT_FALSE(other == batch);
    EXPECT_EQ(batch.longest_keys(), 50);
    EXPECT_EQ(batch.longest_queries(), 3);
}

TEST(WithQueries, KeepsEveryRowsKeys) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 4, 4, 9}, {0, 20, 22, 27});
    const std::vector<KeyRange> all = visible_keys(p);
    for (int64_t begin = 0; begin <= 9; ++begin)
        for (int64_t end = begin; end <= 9; ++end) {
            const Problem part = p.with_queries({begin, end});
            part.validate();
            EXPECT_EQ(visible_keys(part),
                      std::vector<KeyRange>(all.begin() + begin, all.begin() + end));
            // A slice of a slice is the slice.
            const Problem again = p.with_queries({0, end}).with_queries({begin, end});
            EXPECT_EQ(visible_keys(again), visible_keys(part));
        }
}

TEST(WithQueryRows, SamplesAcrossSequences) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 4, 4, 9}, {0, 4, 4, 9});
    const std::vector<KeyRange> all = visible_keys(p);
    const std::vector<int64_t> rows{0, 3, 4, 4, 8};
    const Problem part = p.with_query_rows(rows);
    part.validate();
    EXPECT_EQ(part.batch.cu_seqlens_q(), (std::vector<int64_t>{0, 2, 2, 5}));
    const std::vector<KeyRange> visible = visible_keys(part);
    for (size_t i = 0; i < rows.size(); ++i)
        EXPECT_EQ(visible[i], all[static_cast<size_t>(rows[i])]);
}

TEST(Blocks, AreNumberedThroughSequences) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 2, 2, 5}, {0, 9, 17, 17});
    EXPECT_EQ(block_starts(p), (std::vector<int64_t>{0, 2, 3, 3}));
    EXPECT_EQ(query_sequences(p), (std::vector<int64_t>{0, 0, 2, 2, 2}));
}

TEST(QueryTiles, CoverTheRowsAndRespectSequences) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 5, 5, 12}, {0, 5, 5, 12});
    EXPECT_EQ(query_tiles(p, 4), (std::vector<QueryRange>{{0, 4}, {4, 5}, {5, 9}, {9, 12}}));
}

}  // namespace
}  // namespace msa
