// SPDX-License-Identifier: MIT
// What a setting of msa-advise costs.
#include <gtest/gtest.h>

#include <algorithm>

#include "analysis/stage_cost.h"
#include "experiments/driver/price.h"

namespace msa::test {
namespace {

// The price of the Index Branch is that of msa-cost; any other selector has its own scores instead.
TEST(AdvisePrice, IsTheFastestPipelineOfTheCostModel) {
    io::LayerInfo layer;
    layer.query_heads = 16;
    layer.kv_heads = 2;
    layer.head_dim = layer.index_dim = 64;
    analysis::Hardware chip{"chip", {{Element::bf16, 1e14}}, 1e12, {}, {}};
    analysis::LayerSizes sizes{.tokens = 32768,
                               .query_heads = 16,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .index_dim = 64,
                               .block_size = 64,
                               .top_k = 8,
                               .given_union_blocks = 20};
    for (const bool decode : {false, true}) {
        const auto pipelines = decode ? decode_pipelines(sizes) : prefill_pipelines(sizes);
        const experiments::Pricer price(layer, 32768, decode, chip);
        EXPECT_DOUBLE_EQ(price.dense().seconds, pipelines[0].seconds(chip));
        double fastest = pipelines[1].seconds(chip);
        for (size_t n = 2; n < pipelines.size(); ++n)
            fastest = std::min(fastest, pipelines[n].seconds(chip));
        const auto at = [&](const char* selector) {
            return price({selector, 64, {8, 1, 0}}, 20.0);
        };
        EXPECT_DOUBLE_EQ(at("index").seconds, fastest);
        EXPECT_LT(at("window").seconds, at("mean-key").seconds);
        EXPECT_LT(at("mean-key").seconds, at("quest").seconds);
        EXPECT_LT(at("quest").seconds, at("oracle").seconds);
        // Dense products q . k: half of dense attention's arithmetic.
        const double products = at("oracle").work.flops - at("window").work.flops;
        EXPECT_NEAR(products / price.dense().work.flops, 0.5, 1e-4);
    }
}

// Beside the ids, which all write alike, a selector reads what it knows of the keys, once, and of
// each query what its scores are made of. All of it in 2 bytes.
TEST(AdvisePrice, ReadsTheQueriesOfTheSelectorsOwnIndexer) {
    io::LayerInfo layer;
    layer.query_heads = 16;
    layer.kv_heads = 2;
    layer.head_dim = layer.index_dim = 64;
    const analysis::Hardware chip{"chip", {{Element::bf16, 1e14}}, 1e12, {}, {}};
    constexpr double kTokens = 32768, kBlocks = kTokens / 64;
    for (const bool decode : {false, true}) {
        const double queries = decode ? 1 : kTokens;
        const auto read_by = [&](const char* selector) {
            const experiments::Pricer price(layer, 32768, decode, chip);
            const auto bytes = [&](const char* name) {
                return price({name, 64, {8, 1, 0}}, 20.0).work.bytes;
            };
            return bytes(selector) - bytes("window");
        };
        layer.learned.dsa_heads = 3;
        layer.learned.dsa_dim = 32;  // and a weight for each head
        EXPECT_DOUBLE_EQ(read_by("dsa"), 2 * (32 * kTokens + 3 * (32 + 1) * queries));
        layer.learned.dsa_heads = layer.learned.dsa_dim = 0;  // index_q and index_k in their place
        EXPECT_DOUBLE_EQ(read_by("dsa"), 2 * (64 * kTokens + 2 * 64 * queries));
        EXPECT_DOUBLE_EQ(read_by("mean-key"), 2 * (2 * 64 * kBlocks + 16 * 64 * queries));
    }
}

}  // namespace
}  // namespace msa::test
