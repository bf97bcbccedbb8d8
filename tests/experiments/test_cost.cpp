// SPDX-License-Identifier: MIT
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/cost/presets.h"
#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

using Cost = CliTest;
using nlohmann::json;

json run_json(std::vector<std::string> args) {
    args.emplace_back("--json");
    const Outcome outcome = kCost(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
}

int lines(const std::string& text) {
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

TEST_F(Cost, ThePapersNumbers) {
    const json cost = run_json({});
    EXPECT_EQ(cost["model"], "MSA paper, 109B");
    const json& contexts = cost["contexts"];
    ASSERT_EQ(contexts.size(), 4U);
    EXPECT_EQ(contexts[1]["tokens"], 131072);
    EXPECT_NEAR(contexts[1]["flop_ratio"], 16.0, 1e-9);
    EXPECT_NEAR(contexts[2]["flop_ratio"], 25.6, 1e-9);
    EXPECT_NEAR(contexts[3]["flop_ratio"], 28.44, 0.005);
    EXPECT_NEAR(contexts[3]["q_outer_intensity"], 15.9, 0.05);
    EXPECT_NEAR(contexts[3]["kv_outer_intensity"], 83.4, 0.05);
    EXPECT_NEAR(contexts[3]["decode_speedup"], 7.9, 0.05);  // all of it is memory
}

TEST_F(Cost, SecondsFollowTheHardware) {
    const json peak = run_json({"--context", "1M"});
    const json measured = run_json({"--context", "1M", "--ceilings", "measured"});
    const auto dense = [](const json& cost) {
        return cost["contexts"][0]["prefill"][0]["seconds"].get<double>();
    };
    EXPECT_NEAR(dense(measured) / dense(peak), 989.4 / 785, 1e-9);
    const json fp8 = run_json({"--context", "1M", "--index-element", "e4m3"});
    EXPECT_GT(fp8["contexts"][0]["prefill_speedup"], peak["contexts"][0]["prefill_speedup"]);
}

TEST_F(Cost, TablesAndCsvSayTheSame) {
    const Outcome table = kCost({"--context", "128K"});
    EXPECT_EQ(table.code, 0) << table.err;
    EXPECT_NE(table.out.find("2 e Hkv N dh (k, v) + 2 e Hq N k dh"), std::string::npos);
    EXPECT_NE(table.out.find("16.00"), std::string::npos);
    const Outcome csv = kCost({"--context", "32K,128K", "--csv"});
    EXPECT_EQ(csv.code, 0) << csv.err;
    EXPECT_EQ(lines(csv.out), 1 + 2 * (1 + 3 + 5 + 1 + 2));
}

TEST_F(Cost, EveryPresetAndEveryChipIsComplete) {
    ASSERT_FALSE(experiments::cost::list_models().empty());
    ASSERT_FALSE(experiments::cost::list_hardware().empty());
    for (const std::string& model : experiments::cost::list_models())
        EXPECT_EQ(kCost({"--preset", model}).code, 0) << model;
    for (const std::string& chip : experiments::cost::list_hardware()) {
        const std::string element = chip == "laptop" ? "f32" : "bf16";
        EXPECT_EQ(kCost({"--hardware", chip, "--element", element}).code, 0) << chip;
        const json file = json::parse(
            file_text(std::string(MSA_SOURCE_DIR) + "/data/hardware/" + chip + ".json"));
        for (const auto& entry : file.items()) {
            if (entry.key() == "name" || entry.key() == "sources") continue;
            EXPECT_FALSE(file["sources"].value(entry.key(), "").empty())
                << chip << " has no source of " << entry.key();
        }
    }
}

TEST_F(Cost, ReadsAConfigOfHuggingFace) {
    std::ofstream(path("config.json")) << R"({"model_type": "x", "text_config": {
        "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 512,
        "num_key_value_heads": 2,
        "sparse_attention_config": {"sparse_block_size": 64, "sparse_topk_blocks": 4}}})";
    const json cost = run_json({"--preset", path("config.json"), "--context", "4K"});
    EXPECT_EQ(cost["layers"], 2);
    EXPECT_EQ(cost["sizes"]["head_dim"], 64);
    EXPECT_EQ(cost["sizes"]["block_size"], 64);
    EXPECT_EQ(cost["sizes"]["top_k"], 4);
    EXPECT_EQ(cost["sizes"]["index_dim"], 128);
    const json other = run_json(
        {"--preset", path("config.json"), "--context", "4K", "--top-k", "8", "--index-dim", "32"});
    EXPECT_EQ(other["sizes"]["top_k"], 8);
    EXPECT_EQ(other["sizes"]["index_dim"], 32);
}

TEST_F(Cost, FindsItsDataWhereTheEnvironmentSays) {
    std::filesystem::create_directories(path("hardware"));
    std::ofstream(path("hardware/mine.json"))
        << R"({"name": "Mine", "teraflops_per_second": {"bf16": 1}, "terabytes_per_second": 1})";
    setenv("MSA_DATA_DIR", path("").c_str(), 1);
    const Outcome mine = kCost({"--hardware", "mine"}), other = kCost({"--hardware", "h100"});
    setenv("MSA_DATA_DIR", path("none").c_str(), 1);
    const Outcome help = kCost({"--help"}), none = kCost({"--hardware", "mine"});
    unsetenv("MSA_DATA_DIR");
    EXPECT_NE(other.err.find("known hardware: mine (" + path("hardware")), std::string::npos)
        << other.err;
    EXPECT_NE(none.err.find(path("none/hardware")), std::string::npos) << none.err;
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_NE(mine.err.find("none of the known models"), std::string::npos) << mine.err;
}

TEST_F(Cost, RefusesWhatIsMissing) {
    const auto refused = [](const std::vector<std::string>& args, const std::string& why) {
        const Outcome outcome = kCost(args);
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
        EXPECT_EQ(outcome.out, "");
    };
    refused({"--preset", "gpt"}, "'gpt' is no file and none of the known models: ");
    refused({"--hardware", "abacus"}, "none of the known hardware: a100, b200");
    refused({"--hardware", "a100", "--element", "e4m3"}, "has no flops_per_second for e4m3");
    refused({"--hardware", "a100", "--ceilings", "measured"}, "a100.json: has no measured");
    refused({"--context", "1K"}, "context is 1024, must hold the k Bk = 16 * 128 tokens");
    refused({"--context", "0"}, "--context is 0, must be at least 1");
    refused({"--element", "int4"}, "--element is 'int4', must be one of: bf16");
    refused({"--top-k", "-1"}, "--top-k is -1");
    refused({"--json", "--csv"}, "exclude each other");
    refused({"--layers", "3"}, "--layers picks from --results, which is not given");
    refused({"--results", "x.h5", "--context", "1K"}, "excludes --context");
    refused({"--results", path("none.h5")}, "none.h5");
    std::ofstream(path("bad.json")) << "{";
    refused({"--preset", path("bad.json")}, "is no valid JSON");
    std::ofstream(path("bad.json")) << R"({"num_hidden_layers": "two"})";
    refused({"--preset", path("bad.json")}, "num_hidden_layers is \"two\", must be positive");
    std::ofstream(path("bad.json")) << R"({"teraflops_per_second": {"bf17": 1}})";
    refused({"--hardware", path("bad.json")}, "unknown element 'bf17'");
    std::ofstream(path("bad.json")) << R"({"teraflops_per_second": {"bf16": 1}})";
    refused({"--hardware", path("bad.json")}, "bad.json: has no terabytes_per_second");
}

TEST_F(Cost, MeasuredSelectionsOfTwoSequences) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--selector", "oracle,random"})
                  .code,
              0);
    const json cost = run_json({"--results", path("out/results.h5")});
    ASSERT_EQ(cost["rows"].size(), 4U);  // two layers, two selectors
    const json row = cost["rows"][0];
    // Rows see 1, 2, 3 and then at least 4 blocks of 8 tokens, in sequences of 90 and 60.
    const int64_t pairs = int64_t{2} * (2 * 8 * (1 + 2 + 3) + (90 - 24 + 60 - 24) * 4);
    EXPECT_EQ(row["pairs"], pairs);
    EXPECT_DOUBLE_EQ(row["used_slots"], static_cast<double>(pairs) / (150 * 2 * 4));
    EXPECT_EQ(row["unions"].size(), 7U);  // 1 to 64 queries, G = 2
    EXPECT_EQ(row["unions"][0]["reads"], pairs);
    EXPECT_EQ(row["orders"].size(), 3U);
    EXPECT_EQ(kCost({"--results", path("out/results.h5")}).code, 0);
    const Outcome csv = kCost(
        {"--results", path("out/results.h5"), "--csv", "--layers", "3", "--selector", "random"});
    EXPECT_EQ(lines(csv.out), 1 + 3);
    const Outcome none = kCost({"--results", path("out/results.h5"), "--selector", "window"});
    EXPECT_EQ(none.code, 2);
    EXPECT_NE(none.err.find("--selector is 'window', must be one of: oracle, random"),
              std::string::npos);
    const Outcome chip = kCost({"--results", path("out/results.h5"), "--hardware", "gb300"});
    EXPECT_NE(chip.err.find("has no cache_bytes"), std::string::npos) << chip.err;
}

TEST_F(Cost, QueriesWithGapsAreRefusedARangeIsNot) {
    const std::string file = make("a.h5");
    const std::vector<std::string> common{file, "--block-size", "8",     "--top-k",
                                          "4",  "--selector",   "oracle"};
    const auto analyse = [&](const std::string& out, const std::vector<std::string>& more) {
        std::vector<std::string> args = common;
        args.insert(args.end(), {"--out", path(out)});
        args.insert(args.end(), more.begin(), more.end());
        return kAnalyze(args).code;
    };
    ASSERT_EQ(analyse("sampled", {"--sample-queries", "20"}), 0);
    const Outcome sampled = kCost({"--results", path("sampled/results.h5")});
    EXPECT_EQ(sampled.code, 2);
    EXPECT_NE(sampled.err.find("its analysed queries have gaps"), std::string::npos);
    ASSERT_EQ(analyse("range", {"--queries", "40:120"}), 0);
    EXPECT_EQ(run_json({"--results", path("range/results.h5")})["rows"][0]["queries"], 80);
}

}  // namespace
}  // namespace msa::test
