// SPDX-License-Identifier: MIT
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using CostWindows = CliTest;
using CostOfTraining = CliTest;
using nlohmann::json;

TEST_F(CostWindows, OfTheModelAreCounted) {
    const auto cost = [&](const std::string& more) {
        std::ofstream(path("config.json")) << R"({"num_hidden_layers": 6, "head_dim": 64,
            "num_attention_heads": 8, "num_key_value_heads": 2)" +
                                                  more + "}";
        const Outcome outcome =
            kCost({"--preset", path("config.json"), "--context", "32K", "--json"});
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(outcome.out);
    };
    const auto pipeline = [](const json& all, const char* phase, const char* name) {
        return row_of(all, "layer", {{"phase", phase}, {"pipeline", name}});
    };
    const auto model = [](const json& all) { return row_of(all, "model"); };
    const json full = cost(""),
               off = cost(R"(, "sliding_window": 4096, "use_sliding_window": false)");
    EXPECT_EQ(full, off);
    EXPECT_EQ(model(full)["windowed_layers"], 0);
    EXPECT_TRUE(model(full)["window"].is_null());
    const json all = cost(R"(, "sliding_window": 4096)");
    const double n = 32768, w = 4096;
    const json dense = pipeline(all, "prefill", "dense");
    EXPECT_EQ(model(all)["windowed_layers"], 6);
    EXPECT_EQ(dense["kernels_flops"], 4 * 8 * 64 * (w * n - w * w / 2));
    EXPECT_EQ(dense["paper_flops"], dense["kernels_flops"]);
    EXPECT_EQ(pipeline(all, "decode", "dense")["kernels_flops"], 4 * 8 * 64 * w);
    for (const char* column : {"kernels_bytes", "kernels_seconds", "paper_seconds"})
        EXPECT_EQ(pipeline(all, "prefill", "q_outer")[column],
                  pipeline(full, "prefill", "q_outer")[column]);
    for (const char* some :
         {R"(, "sliding_window": 4096, "layer_types": ["full_attention", "sliding_attention",
              "sliding_attention", "full_attention", "sliding_attention", "full_attention"])",
          R"(, "sliding_window": 4096, "sliding_window_pattern": 2)",
          R"(, "sliding_window": 4096, "model_type": "gemma2")",
          R"(, "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 3)"}) {
        const json mixed = cost(some);
        EXPECT_EQ(model(mixed)["windowed_layers"], 3) << some;
        EXPECT_EQ(model(mixed)["window"], 4096);
        EXPECT_EQ(rows_of_table(mixed, "layer"), rows_of_table(full, "layer"));
        EXPECT_EQ(row_of(mixed, "contexts")["windowed_prefill_seconds"], dense["kernels_seconds"]);
    }
    const Outcome table = kCost({"--preset", path("config.json"), "--context", "32K"});
    EXPECT_NE(table.out.find("3 of the 6 layers attend to a window of 4096"), std::string::npos)
        << table.out;
    std::ofstream(path("bad.json")) << R"({"num_hidden_layers": 6, "head_dim": 64,
        "num_attention_heads": 8, "sliding_window": -1})";
    const Outcome bad = kCost({"--preset", path("bad.json")});
    EXPECT_EQ(bad.code, 2);
    EXPECT_NE(bad.err.find("bad.json: sliding_window is -1, must be a positive"), std::string::npos)
        << bad.err;
}

TEST_F(CostWindows, LayersThatDifferInTheirHeadsAreRefused) {
    const auto refused = [&](const std::string& more) {
        std::ofstream(path("config.json")) << R"({"num_hidden_layers": 6, "head_dim": 64,
            "num_attention_heads": 8, )" + more + "}";
        const Outcome outcome = kCost({"--preset", path("config.json")});
        EXPECT_EQ(outcome.code, 2) << outcome.out;
        return outcome.err;
    };
    const std::string of = " of layers that differ in their heads, and msa-cost knows";
    // As Nemotron-NAS has them, which was costed with a key-value head for each query head.
    EXPECT_NE(refused(R"("num_key_value_heads": null,
                  "block_configs": [{"attention": {"n_heads_in_group": 8}}])")
                  .find("config.json: block_configs is" + of),
              std::string::npos);
    // Gemma 4's layers without a window.
    EXPECT_NE(refused(R"("global_head_dim": 128)")
                  .find("config.json: global_head_dim is 128, and not head_dim: it is" + of),
              std::string::npos);
}

/// 128K tokens, of which 2048 are kept: the scores of all, the loss and gradients of 0.031 of them.
TEST_F(CostOfTraining, TeachingTheIndexBranchOnWhatItSelects) {
    const Outcome outcome = kCost({"--context", "128K", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json cost = json::parse(outcome.out),
               full = row_of(cost, "index_training", {{"support", "full"}}),
               selected = row_of(cost, "index_training", {{"support", "selected"}});
    const double scores = 2.0 * 4 * 128 * 131072 * 131072 / 2;
    EXPECT_EQ(full["scores_flops"], scores);
    EXPECT_EQ(full["gradients_flops"], 2 * scores);
    EXPECT_EQ(selected["scores_flops"], scores);
    EXPECT_NEAR(selected["gradients_flops"].get<double>() / scores, 2 * 0.031, 2e-5);
    EXPECT_NE(kCost({"--context", "128K"}).out.find("Teaching the Index Branch by the KL loss"),
              std::string::npos);
}

}  // namespace
}  // namespace msa::test
