// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/stage_cost.h"
#include "core/error.h"

namespace msa::analysis {
namespace {

/// The paper's shape.
LayerSizes paper(int64_t tokens) { return {tokens, 64, 4, 128, 128}; }

constexpr int64_t kOneM = 1 << 20;

TEST(StageCost, ThePapersFlopRatios) {
    EXPECT_NEAR(paper_flop_ratio(paper(kOneM / 8)), 16.0, 1e-9);
    EXPECT_NEAR(paper_flop_ratio(paper(kOneM / 2)), 25.6, 1e-9);
    EXPECT_NEAR(paper_flop_ratio(paper(kOneM)), 28.44, 0.005);
}

/// N 64 in blocks of 8, k 2: 64 * 16 - 128 = 896 of 2048 keys. Hq 4, Hkv 2, dh 32, didx 16.
TEST(StageCost, TeachingTheIndexBranchByHand) {
    LayerSizes s{64, 4, 2, 32, 16};
    s.block_size = 8;
    s.top_k = 2;
    const IndexTraining full = index_training(s, false), selected = index_training(s, true);
    EXPECT_EQ(full.scores, 2 * 2 * 16 * 2048);
    EXPECT_EQ(selected.scores, full.scores) << "a selection needs all scores";
    EXPECT_EQ(full.loss, 2 * 2 * (2 * 32 + 16) * 2048);
    EXPECT_EQ(selected.loss, 2 * 2 * (2 * 32 + 16) * 896);
    EXPECT_EQ(full.gradients, 4 * 2 * 16 * 2048);
    EXPECT_EQ(selected.gradients, 4 * 2 * 16 * 896);
    EXPECT_EQ(selected.total(), selected.scores + selected.loss + selected.gradients);
    s.top_k = 8;  // all blocks
    EXPECT_EQ(index_training(s, true).total(), full.total());
}

/// NVIDIA/Megatron-LM pull request 7157: 128K tokens, 2048 kept, gradients of 2 * 0.031 of the
/// scores where 2 were charged.
TEST(StageCost, GradientsOfTheSparseLossAreNotThoseOfAllKeys) {
    const LayerSizes s = paper(kOneM / 8);
    const IndexTraining full = index_training(s, false), selected = index_training(s, true);
    EXPECT_EQ(full.gradients / full.scores, 2);
    EXPECT_NEAR(selected.gradients / selected.scores, 2 * 0.031, 2e-5);
}

TEST(StageCost, ThePapersIntensities) {
    EXPECT_NEAR(paper_q_outer_cost(paper(kOneM)).intensity(), 15.9, 0.05);   // about G
    EXPECT_NEAR(paper_kv_outer_cost(paper(kOneM)).intensity(), 83.4, 0.05);  // about 2/3 Bk
}

TEST(StageCost, OneByteElementsHalveTheBytesOfTheMainBranch) {
    LayerSizes s = paper(kOneM);
    const Cost q_outer = paper_q_outer_cost(s), kv_outer = paper_kv_outer_cost(s);
    s.element = Element::e4m3;
    EXPECT_EQ(paper_q_outer_cost(s).bytes, q_outer.bytes / 2);
    EXPECT_EQ(paper_kv_outer_cost(s).bytes, kv_outer.bytes / 2);
    EXPECT_EQ(paper_kv_outer_cost(s).flops, kv_outer.flops);
}

TEST(StageCost, DecodeBytesAtOneMillionKeys) {
    const Hardware chip{"chip", {{Element::bf16, 1e12}}, 1e10, {}, {}};
    const std::vector<Pipeline> decode = paper_decode_pipelines(paper(kOneM));
    ASSERT_EQ(decode[1].stages.size(), 2U);
    EXPECT_EQ(decode[0].total(chip).bytes, 2.0 * 2 * 4 * 128 * kOneM);  // k, v
    EXPECT_EQ(decode[1].stages[0].cost.bytes, 2.0 * 128 * kOneM);       // index_k, shared
    EXPECT_EQ(decode[1].stages[1].cost.bytes, 2.0 * 2 * 4 * 128 * 2048);
    EXPECT_NEAR(decode[0].total(chip).bytes / decode[1].total(chip).bytes, 7.9, 0.05);
}

TEST(StageCost, BytesOfThePapersStages) {
    const LayerSizes s = paper(kOneM / 8);
    const std::vector<Stage> kv_outer = paper_prefill_pipelines(s)[2].stages;
    ASSERT_EQ(kv_outer.size(), 5U);
    const auto n = static_cast<double>(s.tokens);
    // Scores of half of N x B, as floats, for four groups: 1.07 GB.
    EXPECT_EQ(kv_outer[0].cost.bytes, 2 * 5 * n * 128 + 4 * 4 * n * 1024 / 2);
    EXPECT_EQ(kv_outer[1].cost.bytes, 4 * 4 * n * 1024 / 2 + 4 * 4 * n * 16);
    EXPECT_EQ(kv_outer[2].cost.bytes, (4 + 4) * 4 * n * 16);  // ids, 32-bit handles
    EXPECT_EQ(kv_outer[4].cost.bytes, 2 * 64 * n * 17 * 128);
    // 256 KiB of partial outputs per query, and 4 bytes per head and slot.
    EXPECT_EQ(paper_slot_buffer_bytes(s), n * (262144 + 16 * 64 * 4));
}

TEST(StageCost, SecondsAddUpOverTheStages) {
    const Hardware chip{"chip", {{Element::bf16, 1e12}, {Element::e4m3, 2e12}}, 1e10, {}, {}};
    LayerSizes s = paper(kOneM);
    s.index_element = Element::e4m3;
    const std::vector<Pipeline> all = paper_prefill_pipelines(s);
    const std::vector<Stage>& q_outer = all[1].stages;
    // Scores run at the fp8 peak, top-k at the bandwidth, attention below the ridge of 100.
    EXPECT_DOUBLE_EQ(
        all[1].seconds(chip),
        q_outer[0].cost.flops / 2e12 + q_outer[1].cost.bytes / 1e10 + q_outer[2].cost.bytes / 1e10);
    EXPECT_DOUBLE_EQ(all[0].seconds(chip), all[0].total(chip).flops / 1e12);
}

TEST(StageCost, EveryStageHasItsFormulas) {
    for (const auto& pipelines :
         {prefill_pipelines(paper(4096)), decode_pipelines(paper(4096)),
          paper_prefill_pipelines(paper(4096)), paper_decode_pipelines(paper(4096))})
        for (const Pipeline& pipeline : pipelines)
            for (const Stage& stage : pipeline.stages) {
                EXPECT_EQ(stage.flops_formula == "0", stage.cost.flops == 0) << stage.name;
                EXPECT_NE(stage.bytes_formula, "") << stage.name;
            }
}

/// 64 tokens, 4 heads in 2 groups of 2 heads, dh 8, didx 4, blocks of 4, k 2: a tile is 32 queries
/// and 64 of its 128 rows, a pass 32 queries and 64 rows.
LayerSizes tiny() {
    LayerSizes s{64, 4, 2, 8, 4, 4, 2};
    s.given_union_blocks = 10;
    return s;
}
const Hardware kNoCache{"chip", {{Element::bf16, 1e12}}, 1e10, {}, {}};

/// FLOPs and bytes of every stage.
using Costs = std::vector<std::pair<double, double>>;
Costs costs(const Pipeline& pipeline, const Hardware& on) {
    Costs found;
    for (const Stage& stage : pipeline.stages)
        found.emplace_back(stage.cost.flops, stage.memory_bytes(on));
    return found;
}

TEST(StageCost, ThePrefillKernelsByHand) {
    const std::vector<Pipeline> all = prefill_pipelines(tiny());
    const auto stages = [&](size_t at) { return costs(all[at], kNoCache); };
    const double q = 2 * 4 * 64 * 8, lse = 4 * 4 * 64,
                 ids = 4 * 2 * 64 * 2;  // q is as large as out
    const double block = 2 * 2 * 4 * 8, mask = 4 * 2 * 64;
    const std::pair<double, double> select{2 * 2 * 4 * 2048, 2 * (2 + 1) * 64 * 4 + ids};
    ASSERT_EQ(all.size(), 5U);
    EXPECT_EQ(all[0].name, "dense");
    EXPECT_EQ(stages(0), (Costs{{4 * 4 * 8 * 2048, 2 * q + 2 * 2 * 2 * 64 * 8 + lse}}));
    // One query at a time: the 2 heads fill 16 rows, 64 * 2 block reads for each of 2 groups.
    EXPECT_EQ(all[1].name, "q_outer");
    EXPECT_EQ(stages(1),
              (Costs{select, {4 * 2 * 64 * 16 * 8 * 2 * 4, 2 * q + lse + ids + 256 * block}}));
    // Two tiles for each of 2 groups, with unions of 10 blocks.
    EXPECT_EQ(all[2].name, "union");
    EXPECT_EQ(stages(2), (Costs{select,
                                {0, ids + 40 * 8},
                                {4 * 40 * 128 * 8 * 4, 2 * q + lse + 40 * 8 + 40 * block}}));
    // 256 (query, group, block) triples with 16-byte handles, 2 heads each; 16 blocks, once.
    EXPECT_EQ(all[3].name, "kv_outer");
    const double triples = 256, partial = triples * 2 * (2 * 8 + 4);
    EXPECT_EQ(stages(3), (Costs{select,
                                {0, 2 * ids + 16 * triples + mask},
                                {4 * triples * 2 * 8 * 4,
                                 16 * triples + triples * 2 * 2 * 8 + partial + 2 * 16 * block},
                                {0, q + lse + partial + mask}}));
    EXPECT_EQ(all[4].name, "automatic");
}

TEST(StageCost, ReadsAgainComeFromTheCacheAsFarAsItGoes) {
    Hardware half = kNoCache;
    half.cache_bytes = 64 * 8 * 2 * 2 / 2;  // of a group's keys and values
    const Stage none = prefill_pipelines(tiny())[1].stages[1];
    const double once = 2 * 2 * 2 * 64 * 8, all = 256 * 2 * 2 * 4 * 8;
    EXPECT_EQ(none.memory_bytes(kNoCache) - none.memory_bytes(half), (all - once) / 2);
    EXPECT_EQ(none.cache_bytes(), none.memory_bytes(kNoCache));
    half.cache_bytes = 1e9;
    EXPECT_EQ(none.memory_bytes(half), none.memory_bytes(kNoCache) - (all - once));
    EXPECT_STREQ(none.limit(half), "memory");
    half.cache_bytes_per_second = 1e9;
    EXPECT_EQ(none.seconds(half), none.cache_bytes() / 1e9);
    EXPECT_STREQ(none.limit(half), "cache");
}

TEST(StageCost, AutomaticSplitsATileByHowManyShareABlock) {
    LayerSizes s = paper(kOneM);  // T 8, L 3
    s.given_union_blocks = 16;    // all alike: nothing is left to slots
    EXPECT_NEAR(s.sharing().shared_blocks, 16, 1e-9);
    EXPECT_NEAR(s.sharing().slot_blocks, 0, 1e-9);
    s.given_union_blocks = 128;  // none shared
    EXPECT_NEAR(s.sharing().shared_blocks, 0, 1e-9);
    EXPECT_NEAR(s.sharing().slot_blocks, 16, 1e-9);
    // A chance of one half among 32 blocks: unions of 32 * 255 / 256; of 2^8 ways to be chosen, 219
    // are of three queries or more; of the others' 2^7 ways, 8 are of at most one.
    s.given_union_blocks = 32 * 255.0 / 256;
    EXPECT_NEAR(s.sharing().shared_blocks, 32 * 219.0 / 256, 1e-9);
    EXPECT_NEAR(s.sharing().slot_blocks, 16 * 8.0 / 128, 1e-9);
    // By chance among all 128 blocks: p is 1 / 8.
    const LayerSizes chance = paper(16384);
    EXPECT_NEAR(chance.union_blocks(), 128 * (1 - std::pow(0.875, 8)), 1e-9);
    EXPECT_NEAR(chance.sharing().slot_blocks,
                16 * (std::pow(0.875, 7) + 7 * 0.125 * std::pow(0.875, 6)), 1e-9);
    // Among 64, all are walked.
    EXPECT_EQ(paper(8192).sharing().slot_blocks, 0);
    EXPECT_NEAR(paper(8192).sharing().shared_blocks, 64 * (1 - std::pow(0.75, 8)), 1e-9);
}

TEST(StageCost, TheDecodeKernelsByHand) {
    const std::vector<Pipeline> all = decode_pipelines(tiny());
    const auto stages = [&](size_t at) { return costs(all[at], kNoCache); };
    const double q = 2 * 4 * 8, lse = 4 * 4, ids = 4 * 2 * 2, block = 2 * 2 * 4 * 8, mask = 4 * 2;
    const std::pair<double, double> select{2 * 2 * 4 * 64, 2 * (2 + 64) * 4 + ids};
    EXPECT_EQ(stages(0), (Costs{{4 * 4 * 8 * 64, 2 * q + 2 * 2 * 2 * 64 * 8 + lse}}));
    const Costs one{select, {4 * 2 * 16 * 8 * 2 * 4, 2 * q + lse + ids + 4 * block}};
    EXPECT_EQ(stages(1), one);
    // The tile of one query has 128 rows all the same, a pass of one 64.
    EXPECT_EQ(
        stages(2),
        (Costs{select, {0, ids + 4 * 8}, {4 * 4 * 128 * 8 * 4, 2 * q + lse + 4 * 8 + 4 * block}}));
    const double partial = 4 * 2 * (2 * 8 + 4);
    EXPECT_EQ(stages(3), (Costs{select,
                                {0, 2 * ids + 16 * 4 + mask},
                                {4 * 4 * 64 * 8 * 4, 16 * 4 + 4 * 2 * 2 * 8 + partial + 4 * block},
                                {0, q + lse + partial + mask}}));
    EXPECT_EQ(all[4].name, "automatic");
    EXPECT_EQ(stages(4), one);
}

TEST(StageCost, SlotsOfTwoGigabytesCutAPrefillIntoChunks) {
    // 8192 queries to a chunk, 16 chunks at 128K: each reads half of the keys and values on
    // average.
    const Stage stage = prefill_pipelines(paper(kOneM / 8))[3].stages[2];
    const double n = kOneM / 8.0, triples = 4 * n * 16;
    EXPECT_EQ(stage.cost.bytes,
              16 * triples + triples * 16 * (2 * 128 + 2 * 128 + 4) + 2 * 2 * 4 * n * 128 * 17 / 2);
}

TEST(StageCost, RefusesWhatTheFormulasDoNotCover) {
    EXPECT_NO_THROW(paper(2048).validate());
    EXPECT_THROW(paper(2047).validate(), InputError);
    LayerSizes s = paper(4096);
    s.kv_heads = 5;
    EXPECT_THROW(s.validate(), InputError);
    s = paper(4096);
    s.index_dim = 0;
    EXPECT_THROW(s.validate(), InputError);
    s = paper(4096);
    s.given_union_blocks = 15.9;
    EXPECT_THROW(s.validate(), InputError);
    s.given_union_blocks = 128.1;
    EXPECT_THROW(s.validate(), InputError);
    s.given_union_blocks = 128;
    EXPECT_NO_THROW(s.validate());
}

}  // namespace
}  // namespace msa::analysis
