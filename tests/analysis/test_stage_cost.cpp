// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "analysis/stage_cost.h"
#include "core/error.h"

namespace msa::analysis {
namespace {

/// The paper's shape.
LayerSizes paper(int64_t tokens) { return {tokens, 64, 4, 128, 128}; }

constexpr int64_t kOneM = 1 << 20;

TEST(StageCost, ThePapersFlopRatios) {
    EXPECT_NEAR(flop_ratio(paper(kOneM / 8)), 16.0, 1e-9);
    EXPECT_NEAR(flop_ratio(paper(kOneM / 2)), 25.6, 1e-9);
    EXPECT_NEAR(flop_ratio(paper(kOneM)), 28.44, 0.005);
}

TEST(StageCost, ThePapersIntensities) {
    EXPECT_NEAR(q_outer_cost(paper(kOneM)).intensity(), 15.9, 0.05);   // about G
    EXPECT_NEAR(kv_outer_cost(paper(kOneM)).intensity(), 83.4, 0.05);  // about 2/3 Bk
}

TEST(StageCost, OneByteElementsHalveTheBytesOfTheMainBranch) {
    LayerSizes s = paper(kOneM);
    const Cost q_outer = q_outer_cost(s), kv_outer = kv_outer_cost(s);
    s.element = Element::e4m3;
    EXPECT_EQ(q_outer_cost(s).bytes, q_outer.bytes / 2);
    EXPECT_EQ(kv_outer_cost(s).bytes, kv_outer.bytes / 2);
    EXPECT_EQ(kv_outer_cost(s).flops, kv_outer.flops);
}

TEST(StageCost, DecodeBytesAtOneMillionKeys) {
    const std::vector<Pipeline> decode = decode_pipelines(paper(kOneM));
    ASSERT_EQ(decode[1].stages.size(), 2U);
    EXPECT_EQ(decode[0].total().bytes, 2.0 * 2 * 4 * 128 * kOneM);  // k, v
    EXPECT_EQ(decode[1].stages[0].cost.bytes, 2.0 * 128 * kOneM);   // index_k, shared
    EXPECT_EQ(decode[1].stages[1].cost.bytes, 2.0 * 2 * 4 * 128 * 2048);
    EXPECT_NEAR(decode[0].total().bytes / decode[1].total().bytes, 7.9, 0.05);
}

TEST(StageCost, BytesOfTheStagesAtThePapersShape) {
    const LayerSizes s = paper(kOneM / 8);
    const std::vector<Stage> kv_outer = prefill_pipelines(s)[2].stages;
    ASSERT_EQ(kv_outer.size(), 5U);
    const auto n = static_cast<double>(s.tokens);
    // Scores of half of N x B, as floats, for four groups: 1.07 GB.
    EXPECT_EQ(kv_outer[0].cost.bytes, 2 * 5 * n * 128 + 4 * 4 * n * 1024 / 2);
    EXPECT_EQ(kv_outer[1].cost.bytes, 4 * 4 * n * 1024 / 2 + 4 * 4 * n * 16);
    EXPECT_EQ(kv_outer[2].cost.bytes, 12 * 4 * n * 16);
    EXPECT_EQ(kv_outer[4].cost.bytes, 2 * 64 * n * 17 * 128);
    // 256 KiB of partial outputs per query, and 4 bytes per head and slot.
    EXPECT_EQ(slot_buffer_bytes(s), n * (262144 + 16 * 64 * 4));
}

TEST(StageCost, SecondsAddUpOverTheStages) {
    const Hardware chip{"chip", {{Element::bf16, 1e12}, {Element::e4m3, 2e12}}, 1e10, {}, {}};
    LayerSizes s = paper(kOneM);
    s.index_element = Element::e4m3;
    const std::vector<Pipeline> all = prefill_pipelines(s);
    const std::vector<Stage>& q_outer = all[1].stages;
    // Scores run at the fp8 peak, top-k at the bandwidth, attention below the ridge of 100.
    EXPECT_DOUBLE_EQ(
        all[1].seconds(chip),
        q_outer[0].cost.flops / 2e12 + q_outer[1].cost.bytes / 1e10 + q_outer[2].cost.bytes / 1e10);
    EXPECT_DOUBLE_EQ(all[0].seconds(chip), all[0].total().flops / 1e12);
}

TEST(StageCost, EveryStageHasItsFormulas) {
    for (const auto& pipelines : {prefill_pipelines(paper(4096)), decode_pipelines(paper(4096))})
        for (const Pipeline& pipeline : pipelines)
            for (const Stage& stage : pipeline.stages) {
                EXPECT_EQ(stage.flops_formula == "0", stage.cost.flops == 0) << stage.name;
                EXPECT_NE(stage.bytes_formula, "") << stage.name;
            }
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
}

}  // namespace
}  // namespace msa::analysis
