// SPDX-License-Identifier: MIT
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/experiments/cli.h"

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
    const auto dense = [](const json& all, const char* phase) {
        return all["contexts"][0][phase][0]["flops"].get<double>();
    };
    const json full = cost(""),
               off = cost(R"(, "sliding_window": 4096, "use_sliding_window": false)");
    EXPECT_EQ(full, off);
    EXPECT_EQ(full["windowed_layers"], 0);
    const json all = cost(R"(, "sliding_window": 4096)");
    const double n = 32768, w = 4096;
    EXPECT_EQ(all["windowed_layers"], 6);
    EXPECT_EQ(dense(all, "prefill"), 4 * 8 * 64 * (w * n - w * w / 2));
    EXPECT_EQ(dense(all, "decode"), 4 * 8 * 64 * w);
    EXPECT_EQ(all["contexts"][0]["prefill"][1], full["contexts"][0]["prefill"][1]);
    EXPECT_EQ(all["contexts"][0]["paper"]["prefill"][0]["flops"], dense(all, "prefill"));
    for (const char* some :
         {R"(, "sliding_window": 4096, "layer_types": ["full_attention", "sliding_attention",
              "sliding_attention", "full_attention", "sliding_attention", "full_attention"])",
          R"(, "sliding_window": 4096, "sliding_window_pattern": 2)",
          R"(, "sliding_window": 4096, "model_type": "gemma2")",
          R"(, "sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 3)"}) {
        const json mixed = cost(some);
        EXPECT_EQ(mixed["windowed_layers"], 3) << some;
        EXPECT_EQ(mixed["window"], 4096);
        EXPECT_EQ(mixed["contexts"][0]["prefill"], full["contexts"][0]["prefill"]);
        EXPECT_EQ(mixed["contexts"][0]["windowed_layer"]["prefill_seconds"],
                  all["contexts"][0]["prefill"][0]["seconds"]);
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
    const json training = json::parse(outcome.out)["contexts"][0]["paper"]["index_training_flops"];
    const double scores = 2.0 * 4 * 128 * 131072 * 131072 / 2;
    EXPECT_EQ(training["full"]["scores"], scores);
    EXPECT_EQ(training["full"]["gradients"], 2 * scores);
    EXPECT_EQ(training["selected"]["scores"], scores);
    EXPECT_NEAR(training["selected"]["gradients"].get<double>() / scores, 2 * 0.031, 2e-5);
    EXPECT_NE(kCost({"--context", "128K"}).out.find("Teaching the Index Branch by the KL loss"),
              std::string::npos);
}

}  // namespace
}  // namespace msa::test
