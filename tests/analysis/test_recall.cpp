// SPDX-License-Identifier: MIT
// Masses are sums of powers of two, so that every expected value is exact.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "analysis/recall.h"
#include "tests/support/random.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::tensor;

/// One query on the last of 32 keys: 4 blocks of 8, block 3 its own.
Problem last_of_32(int64_t groups) {
    Problem p = square_problem(0, groups, groups, 16, 0, 8);
    p.batch = PackedBatch({0, 1}, {0, 32});
    return p;
}

const std::vector<RowKind> kCounted{RowKind::counted};

TEST(Recall, ByHandPerGroup) {
    const auto ids = tensor<int32_t, 3>({1, 2, 2}, {0, 3, 1, 3});
    const auto oracle = tensor<int32_t, 3>({1, 2, 2}, {1, 3, 1, 3});
    const auto mass =
        tensor<float, 3>({1, 2, 4}, {0.125F, 0.5F, 0.125F, 0.25F, 0, 0.75F, 0.125F, 0.125F});
    Recall recall(2, {});
    recall.add(last_of_32(2), kCounted, ids, oracle, mass);
    EXPECT_EQ(recall.block_recall(), (std::vector<double>{0.5, 1}));
    EXPECT_EQ(recall.score_recall(), (std::vector<double>{0.25 / 0.75, 1}));
    EXPECT_EQ(recall.mass_kept(), (std::vector<double>{0.375, 0.875}));
    EXPECT_EQ(recall.oracle_mass(), (std::vector<double>{0.75, 0.875}));
}

TEST(Recall, ExcludeLocalLeavesTheOwnBlockOutOfTheRecallsAlone) {
    const auto ids = tensor<int32_t, 3>({1, 1, 3}, {0, 2, 3});
    const auto oracle = tensor<int32_t, 3>({1, 1, 3}, {0, 1, 3});
    const auto mass = tensor<float, 3>({1, 1, 4}, {0.125F, 0.375F, 0.25F, 0.25F});
    Recall with(1, {}), without(1, {.exclude_local = true});
    for (Recall* recall : {&with, &without})
        recall->add(last_of_32(1), kCounted, ids, oracle, mass);
    EXPECT_EQ(with.block_recall()[0], 2.0 / 3);
    EXPECT_EQ(without.block_recall()[0], 0.5);
    EXPECT_EQ(with.score_recall()[0], 0.5);
    EXPECT_EQ(without.score_recall()[0], 0.25);
    EXPECT_EQ(without.mass_kept(), with.mass_kept());
    EXPECT_EQ(without.oracle_mass(), with.oracle_mass());
    EXPECT_EQ(with.mass_kept()[0], 0.625);
}

TEST(Recall, WhereTheOracleKeepsNothingNothingWasLost) {
    const auto mass = tensor<float, 3>({1, 1, 4}, {0, 0.5F, 0.5F, 0});
    const auto only_local = tensor<int32_t, 3>({1, 1, 1}, {3});
    const auto elsewhere = tensor<int32_t, 3>({1, 1, 1}, {1});
    Recall empty(1, {.exclude_local = true});
    empty.add(last_of_32(1), kCounted, only_local, only_local, mass);
    EXPECT_EQ(empty.block_recall()[0], 1);
    EXPECT_EQ(empty.score_recall()[0], 1);
    Recall no_mass(1, {});
    no_mass.add(last_of_32(1), kCounted, elsewhere, only_local, mass);
    EXPECT_EQ(no_mass.block_recall()[0], 0);
    EXPECT_EQ(no_mass.score_recall()[0], 1);
    EXPECT_EQ(no_mass.mass_kept()[0], 0.5);
}

TEST(Recall, RowsThatDoNotCountChangeNothing) {
    Problem p = last_of_32(1);
    p.batch = PackedBatch({0, 3}, p.batch.cu_seqlens_k(), {29, 30, 31});
    const auto ids = tensor<int32_t, 3>({3, 1, 1}, {0, 1, 2});
    const auto oracle = tensor<int32_t, 3>({3, 1, 1}, {3, 1, 3});
    const auto mass =
        tensor<float, 3>({3, 1, 4}, {NAN, NAN, NAN, NAN, 0.25F, 0.5F, 0, 0.25F, 1, 1, 1, 1});
    const std::vector<RowKind> kinds{RowKind::without_keys, RowKind::counted, RowKind::trivial};
    Recall recall(1, {});
    recall.add(p, kinds, ids, oracle, mass);
    EXPECT_EQ(recall.block_recall()[0], 1);
    EXPECT_EQ(recall.mass_kept()[0], 0.5);
    EXPECT_EQ(recall.oracle_mass()[0], 0.5);

    Recall none(1, {});
    none.add(p, std::vector(3, RowKind::trivial), ids, oracle, mass);
    for (const auto& values :
         {none.block_recall(), none.score_recall(), none.mass_kept(), none.oracle_mass()}) {
        ASSERT_EQ(values.size(), 1U);
        EXPECT_TRUE(std::isnan(values[0]));
    }
}

/// k blocks of each row, random but for the local one.
Tensor<int32_t, 3> random_ids(const Problem& p, int64_t k, std::mt19937_64& generator) {
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, k});
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const auto blocks = static_cast<uint64_t>(visible_blocks(i + 1, p.block_size));
            std::set<int32_t> kept{static_cast<int32_t>(blocks - 1)};
            while (kept.size() < std::min(blocks, static_cast<uint64_t>(k)))
                kept.insert(static_cast<int32_t>(generator() % blocks));
            std::fill_n(&ids(i, r, 0), k, kNoBlock);
            std::copy(kept.begin(), kept.end(), &ids(i, r, 0));
        }
    return ids;
}

TEST(Recall, BySetsOverRowsWhateverTheChunks) {
    std::mt19937_64 generator(test::seed());
    const Problem p = square_problem(150, 4, 2, 16, 0, 8);
    const int64_t k = 5;
    const Tensor<int32_t, 3> ids = random_ids(p, k, generator);
    const Tensor<int32_t, 3> oracle = random_ids(p, k, generator);
    Tensor<float, 3> mass({p.queries(), p.kv_heads, p.blocks()});
    for (int64_t n = 0; n < mass.size(); ++n)  // multiples of 2^-12 below 1: exact sums
        mass.data()[n] = static_cast<float>(generator() % 4096) / 4096;
    const std::vector<RowKind> kinds = row_kinds(p, k, false);

    Recall whole(2, {}), chunked(2, {});
    whole.add(p, kinds, ids, oracle, mass);
    for (const QueryRange& range : query_tiles(p, 37)) {
        const int64_t n = range.end - range.begin;
        chunked.add(
            p.with_queries(range),
            std::span(kinds).subspan(static_cast<size_t>(range.begin), static_cast<size_t>(n)),
            ids.view().slice(range.begin, n), oracle.view().slice(range.begin, n),
            mass.view().slice(range.begin, n));
    }
    for (int64_t r = 0; r < 2; ++r) {
        const auto group = static_cast<size_t>(r);
        double blocks = 0, scores = 0, kept = 0, best = 0, rows = 0;
        for (int64_t i = 40; i < 150; ++i, ++rows) {  // from there on, more than 5 blocks
            double hits = 0, hit_mass = 0, oracle_mass = 0;
            for (int64_t a = 0; a < k; ++a) {
                kept += mass(i, r, ids(i, r, a));
                oracle_mass += mass(i, r, oracle(i, r, a));
                for (int64_t b = 0; b < k; ++b)
                    if (ids(i, r, a) == oracle(i, r, b)) {
                        ++hits;
                        hit_mass += mass(i, r, ids(i, r, a));
                    }
            }
            best += oracle_mass;
            blocks += hits / static_cast<double>(k);
            scores += hit_mass / oracle_mass;
        }
        EXPECT_DOUBLE_EQ(whole.block_recall()[group], blocks / rows);
        EXPECT_DOUBLE_EQ(whole.score_recall()[group], scores / rows);
        EXPECT_DOUBLE_EQ(whole.mass_kept()[group], kept / rows);
        EXPECT_DOUBLE_EQ(whole.oracle_mass()[group], best / rows);
    }
    EXPECT_EQ(chunked.block_recall(), whole.block_recall());
    EXPECT_EQ(chunked.score_recall(), whole.score_recall());
    EXPECT_EQ(chunked.mass_kept(), whole.mass_kept());
    EXPECT_EQ(chunked.oracle_mass(), whole.oracle_mass());
}

TEST(MassOf, SumsTheNamedBlocks) {
    const auto mass = tensor<float, 1>({4}, {0.5F, 0.125F, 0.25F, 0.0625F});
    EXPECT_EQ(mass_of(mass, std::vector<int32_t>{0, 2, 3}), 0.8125);
    EXPECT_EQ(mass_of(mass, {}), 0);
}

}  // namespace
}  // namespace msa::analysis
