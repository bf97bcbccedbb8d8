// SPDX-License-Identifier: MIT
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/driver/presets.h"
#include "tests/experiments/cost_test.h"

namespace msa::test {
namespace {

using nlohmann::json;

TEST_F(Cost, ThePapersNumbers) {
    const json cost = run_json({});
    EXPECT_EQ(model_of(cost)["model"], "MSA paper, 109B");
    EXPECT_EQ(cost["run"]["options"]["element"], "bf16");
    EXPECT_EQ(cost["run"]["options"]["index_element"], "bf16");
    const json& contexts = rows_of_table(cost, "contexts");
    ASSERT_EQ(contexts.size(), 4U);
    EXPECT_EQ(contexts[1]["tokens"], 131072);
    EXPECT_NEAR(contexts[1]["paper_flop_ratio"], 16.0, 1e-9);
    EXPECT_NEAR(contexts[2]["paper_flop_ratio"], 25.6, 1e-9);
    EXPECT_NEAR(contexts[3]["paper_flop_ratio"], 28.44, 0.005);
    EXPECT_NEAR(contexts[3]["paper_q_outer_intensity"], 15.9, 0.05);
    EXPECT_NEAR(contexts[3]["paper_kv_outer_intensity"], 83.4, 0.05);
    EXPECT_NEAR(contexts[3]["paper_decode_speedup"], 7.9, 0.05);  // all of it is memory
    EXPECT_NEAR(contexts[3]["decode_speedup"], 7.9, 0.05);
    EXPECT_EQ(model_of(cost)["assumed"], "");
}

/// The table that comes first on the page: context and loop order, by both accountings.
TEST_F(Cost, BeginsWithContextsAndLoopOrders) {
    const json cost = run_json({"--context", "128K,1M"});
    const json kv_outer = row_of(
        cost, "layer", {{"phase", "prefill"}, {"tokens", 1048576}, {"pipeline", "kv_outer"}});
    EXPECT_NEAR(kv_outer["paper_seconds"], 0.8417, 5e-5);
    for (const std::string of : {"kernels", "paper"})
        EXPECT_EQ(kv_outer[of + "_intensity"],
                  kv_outer[of + "_flops"].get<double>() / kv_outer[of + "_bytes"].get<double>());
    EXPECT_EQ(kv_outer["speedup"], rows_of_table(cost, "contexts")[1]["prefill_speedup"]);
    const json automatic = row_of(cost, "layer", {{"pipeline", "automatic"}});
    EXPECT_TRUE(automatic["paper_seconds"].is_null());
    EXPECT_TRUE(row_of(cost, "layer", {{"pipeline", "msa"}})["kernels_seconds"].is_null());
    const std::string page = kCost({"--context", "128K"}).out;
    EXPECT_LT(page.find("prefill  128K     kv_outer"), page.find("decode   128K"));
    EXPECT_LT(page.find("decode   128K"), page.find("Teaching the Index Branch"));
}

TEST_F(Cost, SecondsFollowTheHardware) {
    const json peak = run_json({"--context", "1M"});
    const json measured = run_json({"--context", "1M", "--ceilings", "measured"});
    const auto dense = [](const json& cost) {
        return row_of(cost, "layer", {{"pipeline", "dense"}})["kernels_seconds"].get<double>();
    };
    EXPECT_NEAR(dense(measured) / dense(peak), 989.4 / 785, 1e-9);
    const json fp8 = run_json({"--context", "1M", "--index-element", "e4m3"});
    EXPECT_EQ(fp8["run"]["options"]["index_element"], "e4m3");
    EXPECT_GT(context_of(fp8)["prefill_speedup"], context_of(peak)["prefill_speedup"]);
}

TEST_F(Cost, TablesHaveTheFormulas) {
    const std::string formula = "2 e Hkv N dh (k, v) + 2 e Hq N k dh";
    EXPECT_EQ(kCost({"--context", "128K"}).out.find(formula), std::string::npos);
    const Outcome table = kCost({"--context", "128K", "--stages"});
    EXPECT_EQ(table.code, 0) << table.err;
    EXPECT_NE(table.out.find(formula), std::string::npos);
    EXPECT_NE(table.out.find("16.00"), std::string::npos);
    EXPECT_NE(table.out.find("16 Hkv Nq s (handles) + e Hq Nq s dh"), std::string::npos);
}

TEST_F(Cost, EveryPresetAndEveryChipIsComplete) {
    ASSERT_FALSE(experiments::list_models().empty());
    ASSERT_FALSE(experiments::list_hardware().empty());
    for (const std::string& model : experiments::list_models())
        EXPECT_EQ(kCost({"--preset", model}).code, 0) << model;
    for (const std::string& chip : experiments::list_hardware()) {
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
    const json model = model_of(cost);
    EXPECT_EQ(model["layers_of_model"], 2);
    EXPECT_EQ(model["head_dim"], 64);
    EXPECT_EQ(model["block_size"], 64);
    EXPECT_EQ(model["top_k"], 4);
    EXPECT_EQ(model["index_dim"], 64);
    const json other = run_json(
        {"--preset", path("config.json"), "--context", "4K", "--top-k", "8", "--index-dim", "32"});
    EXPECT_EQ(model_of(other)["top_k"], 8);
    EXPECT_EQ(model_of(other)["index_dim"], 32);
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

TEST_F(Cost, OverGpus) {
    const json cost = run_json({"--context", "512K,1M", "--gpus", "2,8,64", "--hardware", "h200"});
    EXPECT_EQ(row_of(cost, "chip")["link_bytes_per_second"], 450e9);
    ASSERT_EQ(rows_of_table(cost, "prefill_over_gpus").size(), 6U);
    EXPECT_EQ(rows_of_table(cost, "ranks").size(), 2U * (2 + 8 + 64));
    for (const json& row : rows_of_table(cost, "prefill_over_gpus")) {
        const auto gpus = row["gpus"].get<double>();
        // Chunks whose keys fit into the cache gain a little; 8 GPUs wait for keys, as they share
        // the link of whoever has them; 64 for the network, and their first chunks go by unions
        // alone.
        EXPECT_LT(row["divided_speedup"], 1.02 * gpus);
        EXPECT_GT(row["divided_speedup"], (gpus > 8   ? 0.6
                                           : gpus > 2 ? 0.85
                                                      : 0.95) *
                                              gpus)
            << row["gpus"];
        EXPECT_LT(row["imbalance"], gpus > 8 ? 0.08 : 0.03);
    }
    for (const json& row : rows_of_table(cost, "decode_over_gpus"))
        EXPECT_LT(row["worst_speedup"], row["divided_speedup"]);
    const Outcome table = kCost({"--context", "1M", "--gpus", "8"});
    EXPECT_EQ(table.code, 0) << table.err;
    EXPECT_NE(table.out.find("links 450 GB/s, 0.6 us; network 50 GB/s, 2.7 us; 8 to a host"),
              std::string::npos)
        << table.out;
}

/// Predictions within a third of what was measured, on the records' own unions; what is known to be
/// further off stands here by name.
TEST_F(Cost, PredictsWhatWasMeasuredOnAnH100) {
    const json record =
        json::parse(file_text(std::string(MSA_SOURCE_DIR) + "/data/bench/cuda-h100.json"));
    int compared = 0;
    for (const json& measured : rows_of_table(record, "measurements")) {
        const json shape = row_of(record, "cases", {{"case", measured["case"]}});
        if (measured["stage"] != "sparse_attention" || shape["case_kind"] != "square") continue;
        const double united = std::max(16.0, measured["union_of_8"].get<double>());
        const json cost = run_json({"--context", shape["case_keys"].dump(), "--union-blocks",
                                    concat(united), "--ceilings", "measured"});
        const std::string order = measured["order"];
        double seconds = 0;
        for (const json& stage : rows_of_table(cost, "stages"))
            if (stage["phase"] == "prefill" && stage["accounting"] == "kernels" &&
                stage["pipeline"] == order && stage["stage"] != "index select")
                seconds += stage["stage_seconds"].get<double>();
        const double ratio = seconds / (measured["median_us"].get<double>() * 1e-6);
        // Of structured selections at 1M tokens other tiles read the same blocks soon after, which
        // sizes alone do not tell.
        const bool far = shape["case_keys"] == 1048576 && measured["selection"] == "structured";
        EXPECT_GT(ratio, 2.0 / 3) << measured["case"] << ' ' << order;
        EXPECT_LT(ratio, far ? 1.6 : 4.0 / 3) << measured["case"] << ' ' << order;
        ++compared;
    }
    EXPECT_EQ(compared, 24);
}

TEST_F(Cost, ReadsTheSparseSizesOfMiniMaxM3) {
    const std::string common = R"("num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 64)";
    const auto sizes = [&](const std::string& config) {
        std::ofstream(path("config.json")) << config;
        return run_json({"--preset", path("config.json"), "--context", "4K"});
    };
    const std::string flat = R"(, "index_n_heads": 2, "index_head_dim": 32, "index_block_size": 64,
        "index_topk_blocks": 4)";
    for (const std::string& config :
         {"{" + common + flat + "}", "{\"text_config\": {" + common + flat + "}}",
          "{" + common + flat + R"(, "sparse_attention_config": null})",
          "{" + common + R"(, "index_block_size": 32, "sparse_attention_config": {
              "sparse_block_size": 64, "sparse_topk_blocks": 4, "sparse_index_dim": 32}})",
          R"({"sparse_attention_config": {"index_block_size": 64, "index_topk_blocks": 4,
              "index_head_dim": 32}, "text_config": {)" +
              common + "}}"}) {
        const json cost = sizes(config);
        const json model = model_of(cost);
        EXPECT_EQ(model["block_size"], 64) << config;
        EXPECT_EQ(model["top_k"], 4) << config;
        EXPECT_EQ(model["index_dim"], 32) << config;
        EXPECT_EQ(model["assumed"], "") << config;
    }
    const auto bad = [&](const std::string& more, const std::string& why) {
        std::ofstream(path("config.json")) << "{" + common + more + "}";
        refused({"--preset", path("config.json")}, why);
    };
    bad(R"(, "index_n_heads": 8)",
        "config.json: has 8 index heads, must be one for each of the 2 key-value heads");
    bad(R"(, "index_topk_blocks": 0)", "config.json: index_topk_blocks is 0, must be a positive");
    bad(R"(, "index_block_size": 1.5)", "index_block_size is 1.5, must be an integer");
    bad(R"(, "index_topk": 2048)", "index_topk is 2048, but MSA selects blocks, not tokens");
    bad(R"(, "sparse_attention_config": {"kernel_size": 32})",
        "config.json: sparse_attention_config: has no sparse_block_size, index_block_size");
}

TEST_F(Cost, ReadsFalconsHeadsAndRefusesLatentAttention) {
    const auto kv_heads = [&](const std::string& more) {
        std::ofstream(path("config.json")) << R"({"model_type": "falcon", "num_hidden_layers": 2,
            "num_attention_heads": 8, "hidden_size": 512)" +
                                                  more + "}";
        return model_of(run_json({"--preset", path("config.json")}))["kv_heads"].get<int>();
    };
    EXPECT_EQ(kv_heads(""), 1);
    EXPECT_EQ(kv_heads(R"(, "num_kv_heads": 8, "multi_query": true)"), 1);
    EXPECT_EQ(kv_heads(R"(, "num_kv_heads": 8, "multi_query": false)"), 8);
    EXPECT_EQ(kv_heads(R"(, "multi_query": false)"), 8);
    EXPECT_EQ(kv_heads(R"(, "num_kv_heads": 2, "new_decoder_architecture": true)"), 2);
    const auto bad = [&](const std::string& more, const std::string& why) {
        std::ofstream(path("config.json")) << R"({"num_hidden_layers": 2,
            "num_attention_heads": 8, "hidden_size": 512)" +
                                                  more + "}";
        refused({"--preset", path("config.json")}, why);
    };
    bad(R"(, "multi_query": 1)", "config.json: multi_query is 1, must be true or false");
    bad(R"(, "kv_lora_rank": 512, "num_key_value_heads": 8)",
        "config.json: kv_lora_rank is 512, but latent attention (MLA) is no GQA");
    bad(R"(, "qk_rope_head_dim": 64)", "qk_rope_head_dim is 64, but latent attention");
    bad(R"(, "head_dim": 192, "v_head_dim": 128)", "v_head_dim is 128, must be head_dim = 192");
    bad(R"(, "num_key_value_heads": 3)", "num_attention_heads is 8, must be a multiple of the 3");
}

TEST_F(Cost, SaysWhichSizesTheSourceDoesNotGive) {
    const json pilot = run_json({"--preset", "paper-pilot"});
    EXPECT_EQ(model_of(pilot)["assumed"], "block_size top_k index_dim");
    EXPECT_EQ(model_of(run_json({"--preset", "paper-pilot", "--top-k", "8"}))["assumed"],
              "block_size index_dim");
    EXPECT_EQ(model_of(run_json({"--preset", "qwen3-8b"}))["assumed"],
              "block_size top_k index_dim");
    EXPECT_NE(kCost({"--preset", "paper-pilot"})
                  .out.find("assumed, not given by the source: block_size, top_k, index_dim"),
              std::string::npos);
    std::ofstream(path("bad.json")) << R"({"num_hidden_layers": 2, "num_attention_heads": 8,
        "hidden_size": 512, "assumed": ["blocks"]})";
    refused({"--preset", path("bad.json")},
            "bad.json: assumed is [\"blocks\"], must be a list of names out of: block_size");
}

TEST_F(Cost, AUnionOfATileIsAskedForOrByChance) {
    const json chance = run_json({"--context", "8K"});
    EXPECT_TRUE(chance["run"]["options"]["union_blocks"].is_null());
    EXPECT_NEAR(context_of(chance)["tile_union_blocks"], 64 * (1 - std::pow(0.75, 8)), 1e-9);
    const json given = run_json({"--context", "8K", "--union-blocks", "20.5"});
    EXPECT_EQ(given["run"]["options"]["union_blocks"], 20.5);
    EXPECT_EQ(context_of(given)["tile_union_blocks"], 20.5);
    refused({"--union-blocks", "15"},
            "union of a tile is 15, must be from k = 16 to the 128 blocks");
    refused({"--union-blocks", "nan"}, "--union-blocks is nan, must be a number");
}

TEST_F(Cost, NoSizeMeansItsDefault) {
    for (const char* option : {"--block-size", "--top-k", "--index-dim"})
        for (const char* value : {"0", "-1"})
            refused({option, value}, std::string(option) + " is " + value + ", must be from 1");
    refused({"--context", ""}, "context");
    refused({"--context", "-1"}, "--context is -1, must be from 1");
    refused({"--context=1K,"}, "--context is '1K,', it has an empty item");
    refused({"--preset", ""}, "--preset is empty, must be MODEL");
    refused({"--results", ""}, "results");
    refused({"--results", "x.h5", "--layers", ""}, "layers");
    refused({"--results", "x.h5", "--index-dim", "0"}, "excludes --index-dim");
}

TEST_F(Cost, ANameIsAString) {
    std::ofstream(path("chip.json")) << R"({"name": 5, "terabytes_per_second": 1,
        "teraflops_per_second": {"bf16": 1}})";
    refused({"--hardware", path("chip.json")}, "chip.json: name is 5, must be a string");
    std::ofstream(path("model.json")) << R"({"name": [1]})";
    refused({"--preset", path("model.json")}, "model.json: name is [1], must be a string");
    std::ofstream(path("model.json")) << R"({"text_config": 3})";
    refused({"--preset", path("model.json")}, "model.json: text_config: is no JSON object");
}

TEST_F(Cost, RefusesWhatIsMissing) {
    refused({"--preset", "gpt"}, "'gpt' is no file and none of the known models: ");
    refused({"--hardware", "abacus"}, "none of the known hardware: a100, b200");
    refused({"--hardware", "a100", "--element", "e4m3"}, "teraflops_per_second has no e4m3");
    refused({"--hardware", "a100", "--ceilings", "measured"}, "a100.json: has no measured");
    refused({"--context", "1K"}, "context is 1024, must hold the k Bk = 16 * 128 tokens");
    refused({"--context", "0"}, "--context is 0, must be from 1 to ");
    refused({"--element", "int4"}, "--element is 'int4', must be one of: bf16");
    refused({"--top-k", "-1"}, "--top-k is -1");
    refused({"--layers", "3"}, "--layers picks from --results, which is not given");
    refused({"--results", "x.h5", "--context", "1K"}, "excludes --context");
    refused({"--results", path("none.h5")}, "none.h5");
    std::ofstream(path("bad.json")) << "{";
    refused({"--preset", path("bad.json")}, "is no valid JSON");
    std::ofstream(path("bad.json")) << R"({"num_hidden_layers": "two"})";
    refused({"--preset", path("bad.json")},
            "num_hidden_layers is \"two\", must be a positive number");
    std::ofstream(path("bad.json")) << R"({"teraflops_per_second": {"bf17": 1}})";
    refused({"--hardware", path("bad.json")},
            "bad.json: teraflops_per_second: has an unknown element 'bf17'");
    std::ofstream(path("bad.json")) << R"({"teraflops_per_second": {"bf16": 1}})";
    refused({"--hardware", path("bad.json")}, "bad.json: has no terabytes_per_second");
}

}  // namespace
}  // namespace msa::test
