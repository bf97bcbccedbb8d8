// SPDX-License-Identifier: MIT
#include <algorithm>
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

/// Of eight layers two attend, however the configuration says so, and the price of one is that of a
/// model of two layers.
TEST_F(CostWindows, LayersWithoutAttentionAreNamedAndCostNothing) {
    const auto cost = [&](const std::string& more) {
        std::ofstream(path("config.json")) << R"({"head_dim": 64, "num_attention_heads": 8,
            "num_key_value_heads": 2, )" + more + "}";
        const Outcome outcome = kCost({"--preset", path("config.json"), "--context", "32K"});
        EXPECT_EQ(outcome.code, 0) << more << outcome.err;
        const Outcome as_json =
            kCost({"--preset", path("config.json"), "--context", "32K", "--json"});
        return std::pair{outcome.out, json::parse(as_json.out)};
    };
    const auto [plain, two] = cost(R"("num_hidden_layers": 2)");
    EXPECT_EQ(plain.find("softmax"), plain.npos);
    EXPECT_EQ(row_of(two, "model")["layers_without_attention"], 0);
    const std::string of_eight = R"(, "num_hidden_layers": 8)";
    for (const auto& [said, kind] : std::vector<std::pair<std::string, std::string>>{
             {R"("layer_types": ["conv", "conv", "conv", "full_attention", "conv", "conv", "conv",
                 "full_attention"])" +
                  of_eight,
              "6 conv"},
             {R"("full_attn_idxs": [2, 5])" + of_eight, "6 conv"},
             {R"("attn_layer_indices": [2, 5])" + of_eight, "6 linear_attention"},
             {R"("attn_layer_period": 4, "attn_layer_offset": 1)" + of_eight, "6 linear_attention"},
             {R"("full_attention_interval": 4)" + of_eight, "6 linear_attention"},
             {R"("attn_type_list": [0, 0, 0, 1, 0, 0, 0, 1])" + of_eight, "6 linear_attention"},
             {R"("layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid",
                 "mamba", "mamba"])" +
                  of_eight,
              "6 mamba"},
             {R"("hybrid_override_pattern": "M-M*M-M*")", "4 linear_attention, 2 mlp"}}) {
        const auto [page, mixed] = cost(said);
        const json model = row_of(mixed, "model");
        EXPECT_EQ(model["layers_of_model"], 2) << said;
        EXPECT_EQ(model["layers_without_attention"], 6) << said;
        EXPECT_EQ(model["windowed_layers"], 0) << said;
        EXPECT_EQ(rows_of_table(mixed, "layer"), rows_of_table(two, "layer")) << said;
        std::string words = page;
        std::ranges::replace(words, '\n', ' ');
        EXPECT_NE(words.find("one of 2 layers with attention"), words.npos) << page;
        EXPECT_NE(words.find("have no softmax attention: " + kind + ". msalab leaves"), words.npos)
            << page;
    }
    // RecurrentGemma's: each layer that attends has a window.
    const json recurrent = cost(R"("attention_window_size": 2048, "num_hidden_layers": 8,
        "block_types": ["recurrent", "recurrent", "attention"])")
                               .second;
    EXPECT_EQ(row_of(recurrent, "model")["layers_of_model"], 2);
    EXPECT_EQ(row_of(recurrent, "model")["windowed_layers"], 2);
    EXPECT_EQ(row_of(recurrent, "model")["window"], 2048);
    std::ofstream(path("none.json")) << R"({"head_dim": 64, "num_attention_heads": 8,
        "num_hidden_layers": 2, "layer_types": ["conv", "conv"]})";
    const Outcome none = kCost({"--preset", path("none.json")});
    EXPECT_EQ(none.code, 2);
    EXPECT_NE(none.err.find("none.json: no layer has attention"), std::string::npos) << none.err;
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
