// SPDX-License-Identifier: MIT
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu/cuda_backend.h"
#include "tests/experiments/broken_backend.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class Bench : public CliTest {
protected:
    /// A run on sizes that take no time; every query is among the sampled rows.
    static Outcome run(const Words& more, const std::string& backend = "cpu",
                       const std::string& tokens = "32") {
        Words args{"--backend",  backend, "--tokens",      tokens, "--samples",    "2",
                   "--batch",    "2",     "--query-heads", "4",    "--kv-heads",   "2",
                   "--head-dim", "16",    "--index-dim",   "16",   "--block-size", "8",
                   "--top-k",    "2"};
        args.insert(args.end(), more.begin(), more.end());
        return kBench(args);
    }
    static json record_of(const Words& more, const std::string& backend = "cpu") {
        Words args = more;
        args.emplace_back("--json");
        const Outcome outcome = run(args, backend);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(outcome.out);
    }
};

TEST_F(Bench, RanksAnswerALayerTogether) {
    const Words sizes{"--backend",     "cpu", "--devices",    "0,1,2", "--samples",  "2",
                      "--query-heads", "4",   "--kv-heads",   "2",     "--head-dim", "16",
                      "--index-dim",   "16",  "--block-size", "8",     "--top-k",    "2"};
    Words args = sizes;
    for (const char* word : {"--tokens", "300,1K", "--json"}) args.emplace_back(word);
    const Outcome outcome = kBench(args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json record = json::parse(outcome.out);
    EXPECT_EQ(record["program"], "msa-bench");
    EXPECT_EQ(row_of(record, "benchmark")["is_complete"], true);
    EXPECT_EQ(record["run"]["options"]["devices"], json({0, 1, 2}));
    ASSERT_EQ(rows_of_table(record, "over_ranks").size(), 4U);
    for (const json& m : rows_of_table(record, "over_ranks")) {
        const bool square = m["case_kind"] == "square";
        EXPECT_EQ(m["different_ids"], 0);
        std::vector<double> medians;
        for (int rank = 0; rank < m["ranks"]; ++rank)
            medians.push_back(row_of(record, "rank_times",
                                     {{"case_kind", m["case_kind"]},
                                      {"tokens", m["tokens"]},
                                      {"rank", rank}})["rank_seconds"]);
        EXPECT_EQ(medians.size(), 3U);
        const double most = std::ranges::max(medians);
        EXPECT_NEAR(m["rank_imbalance"], 3 * most / (medians[0] + medians[1] + medians[2]) - 1,
                    1e-12);
        EXPECT_DOUBLE_EQ(m["over_one_rank"], m["one_rank_seconds"].get<double>() /
                                                 m["all_ranks_seconds"].get<double>());
        EXPECT_EQ(m["gather_seconds"].is_null(), !square);
        EXPECT_LT(m["largest_out_difference"], square ? 1e-30 : 1e-5);
    }
    args = sizes;
    args.insert(args.end(), {"--stages", "layer"});
    const Outcome stages = kBench(args);
    EXPECT_EQ(stages.code, 2);
    EXPECT_NE(stages.err.find("--devices times whole layers and excludes --stages"),
              std::string::npos)
        << stages.err;
}

TEST_F(Bench, RecordHoldsEveryCaseAndStage) {
    const Outcome outcome = run({"--out", path("record.json")});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("sparse_attention structured kv_outer"), std::string::npos);
    const json record = json::parse(file_text(path("record.json")));
    EXPECT_EQ(record["program"], "msa-bench");
    const json benchmark = row_of(record, "benchmark");
    EXPECT_EQ(benchmark["is_complete"], true);
    EXPECT_EQ(benchmark["backend"], "cpu");
    EXPECT_EQ(benchmark["block_size"], 8);
    EXPECT_TRUE(benchmark["model"].is_null());
    EXPECT_EQ(record["run"]["element"], "f32");
    EXPECT_EQ(record["run"]["options"]["tokens"], json({32}));
    EXPECT_GT(benchmark["copy_bytes_per_second"], 0);
    std::map<std::string, int> of_kind;
    for (const json& m : rows_of_table(record, "measurements")) {
        const std::string kind = row_of(record, "cases", {{"case", m["case"]}})["case_kind"];
        ++of_kind[kind];
        EXPECT_TRUE(m["skipped"].is_null()) << m;
        std::istringstream samples(m["samples_us"].get<std::string>());
        double first = 0, second = 0;
        samples >> first >> second;
        EXPECT_DOUBLE_EQ(m["median_us"], (first + second) / 2);
        EXPECT_EQ(samples.peek(), EOF);
        EXPECT_GT(m["median_us"], 0);
        EXPECT_GT(m["stage_bytes"], 0);
        EXPECT_GT(m["checked_rows"], 0);
        if (kind == "square" && m["selection"] == "random" && m["stage"] == "index_select") {
            EXPECT_EQ(m["stage_flops"], 2.0 * 2 * 16 * 32 * 33 / 2);
            EXPECT_EQ(m["checked_rows"], 32);
        }
    }
    // dense_attention, and of each of three selections: index_select, three orders, layer; on
    // squares also block_mass, dense_attention_grad, and of each selection index_scores, index_kl
    // on both supports with and without lse, index_kl_grad on both, three orders of
    // sparse_attention_grad, and layer_grad.
    const int selected = 3 * (1 + 3 + 1);
    EXPECT_EQ(of_kind,
              (std::map<std::string, int>{{"square", 1 + 2 + selected + 3 * (1 + 4 + 2 + 3 + 1)},
                                          {"chunk", 1 + selected},
                                          {"short", 1 + selected},  // 32 queries at most
                                          {"pack", 3 * (1 + selected)},
                                          {"decode", 2 * (1 + selected)},
                                          {"mixed", 2 * (1 + selected)},
                                          {"top-k", 2}}));
}

TEST_F(Bench, OnlyWhatIsAskedFor) {
    const json record = record_of({"--cases", "square", "--stages", "layer,dense_attention",
                                   "--selection", "random", "--seed", "3"});
    ASSERT_EQ(rows_of_table(record, "measurements").size(), 2U);
    EXPECT_EQ(rows_of_table(record, "measurements")[0]["stage"], "dense_attention");
    EXPECT_EQ(rows_of_table(record, "measurements")[0]["stage_flops"], 4.0 * 4 * 16 * 32 * 33 / 2);
    const json& layer = rows_of_table(record, "measurements")[1];
    EXPECT_EQ(layer["stage"], "layer");
    EXPECT_EQ(layer["index_form"], "f32");
    EXPECT_EQ(layer["answered_by"], "cpu");
    const double dense = rows_of_table(record, "measurements")[0]["median_us"];
    EXPECT_DOUBLE_EQ(layer["over_dense"], dense / layer["median_us"].get<double>());
    EXPECT_EQ(record["run"]["seed"], 3);
}

TEST_F(Bench, ALayersStepOfTrainingIsComparedWithBothDensePasses) {
    const json record =
        record_of({"--cases", "square", "--stages",
                   "dense_attention,dense_attention_grad,layer_grad", "--selection", "structured"});
    const json& all = rows_of_table(record, "measurements");
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[2]["stage"], "layer_grad");
    EXPECT_EQ(all[2]["answered_by"], "cpu, cpu, cpu, cpu");
    const auto time = [&](int n) { return all[static_cast<size_t>(n)]["median_us"].get<double>(); };
    EXPECT_DOUBLE_EQ(all[2]["over_dense"], (time(0) + time(1)) / time(2));
    // One pass of dense attention says nothing of a step of training.
    const json alone = record_of({"--cases", "square", "--stages", "dense_attention,layer_grad",
                                  "--selection", "structured"});
    EXPECT_TRUE(rows_of_table(alone, "measurements")[1]["over_dense"].is_null());
}

TEST_F(Bench, SupportsOfIndexKl) {
    const json record = record_of({"--cases", "square", "--stages", "index_kl,index_kl_grad",
                                   "--selection", "random", "--support", "full"});
    std::vector<std::string> supports;
    for (const json& m : rows_of_table(record, "measurements"))
        supports.push_back(m["stage"].get<std::string>() + " " +
                           m["loss_support"].get<std::string>());
    EXPECT_EQ(supports, (std::vector<std::string>{"index_kl full", "index_kl full, lse",
                                                  "index_kl_grad full"}));
    // (query, key, group) triples times both branches' scores and the two gradients.
    const double pairs = 2 * 32 * 33 / 2, each = 2 * (2 * 16 + 3 * 16);
    EXPECT_EQ(rows_of_table(record, "measurements")[2]["stage_flops"], pairs * each);
    EXPECT_TRUE(rows_of_table(record, "measurements")[2]["call_queries"].is_null());  // all queries
}

TEST_F(Bench, PacksFollowFromTheSeed) {
    const auto flops = [](const char* seed) {
        const json record = record_of({"--cases", "pack", "--stages", "index_select", "--selection",
                                       "random", "--seed", seed});
        return rows_of_table(record, "measurements")[0]["stage_flops"].get<double>();
    };
    EXPECT_EQ(flops("1"), flops("1"));
    EXPECT_NE(flops("1"), flops("2"));
}

TEST_F(Bench, StructuredNeighboursShareTheirBlocks) {
    const Outcome outcome = kBench({"--backend", "cpu", "--cases", "short", "--tokens", "8K",
                                    "--stages", "index_select", "--query-heads", "2", "--kv-heads",
                                    "2", "--samples", "1", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json record = json::parse(outcome.out);
    for (const json& m : rows_of_table(record, "measurements")) {
        EXPECT_TRUE(m["selection"] != "structured" || m["union_of_8"] < 24) << m;
        EXPECT_TRUE(m["selection"] != "random" || m["union_of_8"] > 50) << m;
    }
}

TEST_F(Bench, WrongResultsAreCaughtBeforeTiming) {
    const auto caught = [&](const std::string& wrong, const std::string& stage,
                            const std::string& name) {
        register_broken_backend(wrong);
        const std::string element = wrong == "sparse_attention" ? "bf16" : "f32";
        const Outcome outcome = run({"--stages", stage, "--cases", "square,top-k", "--out",
                                     path(wrong), "--element", element},
                                    "broken");
        EXPECT_EQ(outcome.code, 1) << wrong;
        EXPECT_NE(outcome.err.find("broken: " + name + " of "), std::string::npos) << outcome.err;
        EXPECT_NE(outcome.err.find("is wrong, so nothing of it is timed"), std::string::npos);
        EXPECT_FALSE(std::filesystem::exists(path(wrong)) &&
                     file_text(path(wrong)).find(R"("samples_us":")") != std::string::npos)
            << wrong;
    };
    caught("index_select", "index_select", "index_select");
    caught("index_scores", "index_scores", "index_scores");
    for (const char* output : {"kl", "d_index_q", "d_index_k"})
        caught(output, "index_kl", "index_kl");
    for (const char* output : {"d_q", "d_k", "d_v"})
        for (const char* stage : {"dense_attention_grad", "sparse_attention_grad"})
            caught(output, stage, stage);
    for (const char* output : {"d_index_q", "d_index_k"})
        for (const char* stage : {"index_kl_grad", "layer_grad"}) caught(output, stage, "index_kl");
    for (const char* output : {"d_q", "d_k", "d_v"})
        caught(output, "layer_grad", "sparse_attention_grad");
    caught("index_select", "layer_grad", "index_select");
    caught("sparse_attention", "layer_grad", "sparse_attention");
    caught("index_select", "layer", "index_select");
    caught("sparse_attention", "sparse_attention", "sparse_attention");
    caught("sparse_attention", "layer", "sparse_attention");
    caught("lse", "sparse_attention", "sparse_attention");
    caught("block_mass", "block_mass", "block_mass");
    caught("dense_attention", "dense_attention", "dense_attention");
    caught("select_blocks", "select_blocks", "select_blocks");
    register_broken_backend("nothing");
}

TEST_F(Bench, EveryIndexElementIsMeasured) {
    register_broken_backend("nothing");
    const json record = record_of({"--cases", "square", "--element", "bf16", "--index-element",
                                   "f32,bf16,e4m3", "--selection", "random"},
                                  "broken");
    std::map<std::string, int> stages;
    for (const json& m : rows_of_table(record, "measurements")) {
        EXPECT_TRUE(m["skipped"].is_null()) << m;
        ++stages[m["stage"].get<std::string>() + " " + text_in(m, "index_form")];
    }
    EXPECT_EQ(stages, (std::map<std::string, int>{{"block_mass ", 1},
                                                  {"dense_attention ", 1},
                                                  {"dense_attention_grad ", 1},
                                                  {"sparse_attention ", 3},
                                                  {"sparse_attention_grad ", 3},
                                                  {"index_scores f32", 1},
                                                  {"index_scores bf16", 1},
                                                  {"index_scores e4m3", 1},
                                                  {"index_kl ", 4},
                                                  {"index_kl_grad ", 2},
                                                  {"layer_grad bf16", 1},
                                                  {"index_select f32", 1},
                                                  {"index_select bf16", 1},
                                                  {"index_select e4m3", 1},
                                                  {"layer f32", 1},
                                                  {"layer bf16", 1},
                                                  {"layer e4m3", 1}}));
}

TEST_F(Bench, OperandsInE4m3HaveScales) {  // of the blocks of all sequences, which the check knows
    const json record = record_of({"--cases", "square,pack", "--element", "e4m3", "--selection",
                                   "random", "--stages", "dense_attention,layer"});
    for (const json& m : rows_of_table(record, "measurements")) {
        EXPECT_NE(m["skipped"].is_null(), m["stage"] == "dense_attention") << m;
        EXPECT_EQ(m["skipped"].is_null(), !m["checked_rows"].is_null()) << m;
    }
    EXPECT_EQ(rows_of_table(record, "measurements").size(), 8U);
}

TEST_F(Bench, OperandsOfAFileInEveryElement) {
    register_broken_backend("nothing");
    const Outcome outcome =
        kBench({"--backend", "broken", "--input", make("a.h5"), "--samples", "1", "--stages",
                "layer", "--element", "bf16", "--index-element", "bf16,e4m3", "--block-size", "8",
                "--top-k", "4", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::vector<std::string> layers;
    const json record = json::parse(outcome.out);
    for (const json& m : rows_of_table(record, "measurements")) {
        EXPECT_TRUE(m["skipped"].is_null()) << m;
        layers.push_back(m["case"].get<std::string>() + ", " + text_in(m, "index_form"));
    }
    EXPECT_EQ(layers, (std::vector<std::string>{"layer 0, 150, bf16", "layer 0, 150, e4m3",
                                                "layer 3, 150, bf16", "layer 3, 150, e4m3"}));
}

TEST_F(Bench, ResultsOfTheStageBeforeDoNotCount) {
    register_broken_backend("silence");  // kv_outer writes nothing, after q_outer has
    const Outcome outcome = run({"--cases", "square", "--order", "q_outer,kv_outer"}, "broken");
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find("nan, must be"), std::string::npos) << outcome.err;
}

TEST_F(Bench, WhatCannotRunIsSkippedWithTheReason) {
    register_broken_backend("memory");
    const json none = record_of({"--cases", "square"}, "broken");
    ASSERT_EQ(rows_of_table(none, "measurements").size(), 1U);
    EXPECT_EQ(rows_of_table(none, "measurements")[0]["skipped"], "there is no room");
    const json orders = record_of({"--cases", "square", "--stages", "sparse_attention",
                                   "--selection", "random", "--order", "q_outer,kv_outer"},
                                  "reference");
    const json& of_orders = rows_of_table(orders, "measurements");
    ASSERT_EQ(of_orders.size(), 2U);
    EXPECT_TRUE(of_orders[0]["skipped"].is_null());
    const std::string reason = of_orders[1]["skipped"];
    EXPECT_NE(reason.find("it has the q_outer order only"), std::string::npos) << reason;
    const Outcome huge = kBench({"--backend", "cpu", "--cases", "square", "--tokens", "1024M"});
    EXPECT_EQ(huge.code, 0);
    EXPECT_NE(huge.err.find("square 1024M: all stages: skipped: "), std::string::npos) << huge.err;
    EXPECT_NE(huge.out.find("skipped\nsquare 1024M"), std::string::npos) << huge.out;
}

TEST_F(Bench, Refusals) {
    const auto refused = [](const Outcome& outcome, const std::string& why) {
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
        EXPECT_EQ(outcome.out, "");
    };
    refused(run({"--stages", "softmax"}), "--stages is 'softmax', must be one of: select_blocks");
    refused(run({"--cases", "cube"}), "--cases is 'cube', must be one of: square");
    refused(run({"--selection", "best"}), "--selection is 'best', must be one of: structured");
    refused(run({"--support", "partial"}), "--support is 'partial', must be one of: selected");
    refused(run({"--order", "zigzag"}), "--order is 'zigzag', must be one of: automatic");
    refused(run({}, "cpu", "15"), "--tokens is 15, must be at least 16");
    refused(run({"--element", "f64"}), "--element is 'f64', must be one of: bf16, f16, f32, e4m3");
    refused(kBench({"--samples", "0"}), "--samples is 0");
    refused(kBench({"--backend", "cpu", "--query-heads", "3"}), "3");
    refused(run({"--cases", "top-k", "--stages", "index_kl", "--out", path("none.json")}),
            "--stages is index_kl: no case of top-k measures it");
    EXPECT_FALSE(std::filesystem::exists(path("none.json")));
    refused(run({}, "abacus"), "no backend is called 'abacus'");
    std::ofstream(path("there.json")) << "{}";
    refused(run({"--out", path("there.json")}), "exists; --overwrite replaces it");
    EXPECT_EQ(run({"--cases", "top-k", "--out", path("there.json"), "--overwrite"}).code, 0);
}

TEST_F(Bench, WithoutAGpuItSaysSo) {
    register_cuda_backend();
    for (const BackendInfo& info : list_backends())
        if (info.name == "cuda" && info.usable.yes) GTEST_SKIP() << "there is a GPU";
    const Outcome asked = kBench({"--cases", "square", "--backend", "cuda"});
    EXPECT_EQ(asked.code, 2);
    EXPECT_NE(asked.err.find("backend cuda cannot start here: "), std::string::npos) << asked.err;
    const Outcome unordered = kBench({"--cases", "square", "--backend", "cuda-unordered"});
    EXPECT_EQ(unordered.code, 2);
    EXPECT_NE(unordered.err.find("backend cuda-unordered cannot start here: "), std::string::npos)
        << unordered.err;
    const Outcome outcome = kBench({"--cases", "top-k", "--tokens", "256", "--samples", "1",
                                    "--query-heads", "2", "--kv-heads", "1", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(row_of(json::parse(outcome.out), "benchmark")["backend"], "cpu");
}

TEST_F(Bench, SizesOfZeroAndEmptyListsAreRefused) {
    const auto refused_with = [](const Words& args, const std::string& message) {
        const Outcome outcome = kBench(args);
        EXPECT_EQ(outcome.code, 2) << message;
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    };
    refused_with({"--backend", "cpu", "--top-k", "0"}, "--top-k is 0, must be at least 1");
    refused_with({"--backend", "cpu", "--query-heads=0"}, "--query-heads is 0, must be at least 1");
    refused_with({"--backend", "cpu", "--stages", ""}, "--stages is empty");
    refused_with({"--backend", "cpu", "--tokens", ""}, "--tokens is empty");
}

TEST_F(Bench, ARecordNeverReplacesItsInput) {
    const std::string file = make("a.h5");
    const auto size = std::filesystem::file_size(file);
    const Outcome outcome =
        kBench({"--backend", "cpu", "--input", file, "--out", path("./a.h5"), "--overwrite"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("the file that is read"), std::string::npos) << outcome.err;
    EXPECT_EQ(std::filesystem::file_size(file), size);
}

TEST_F(Bench, SharesAreOfTheMeasuredCeilings) {
    const json record = record_of({"--cases", "square", "--stages", "dense_attention"});
    const json& m = rows_of_table(record, "measurements")[0];
    const double gemm = row_of(record, "gemm", {{"element", "f32"}})["gemm_flops_per_second"];
    EXPECT_NE(row_of(record, "benchmark")["gemm_source"].get<std::string>().find("sgemm"),
              std::string::npos);
    EXPECT_DOUBLE_EQ(m["share_of_gemm"], m["stage_flops_per_second"].get<double>() / gemm);
}

}  // namespace
}  // namespace msa::test
