// SPDX-License-Identifier: MIT
// msa-bench on activations of a file.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "analysis/cost_model.h"
#include "analysis/selection_cost.h"
#include "core/io/results.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

/// Layers 3 and 5 of 192 tokens, in two sequences, and an Index Branch fitted to them.
class BenchCaptured : public Fit {
protected:
    static Outcome run(const Words& more) {
        Words args{"--backend", "cpu", "--samples", "1"};
        args.insert(args.end(), more.begin(), more.end());
        return kBench(args);
    }
    static json record_of(Words args) {
        args.emplace_back("--json");
        const Outcome outcome = run(args);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(outcome.out);
    }
    static void refused(const Words& args, const std::string& why) {
        const Outcome outcome = run(args);
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
    }
    std::string fit(const std::string& file, const Words& more = {}) const {
        const Outcome outcome = Fit::run({file}, "fit", more);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return path("fit/results.h5");
    }
    const std::string file_ = write("a.h5", {.cu_seqlens = {0, 80, 192}, .layers = {3, 5}});
};

TEST_F(BenchCaptured, FileAndIndexerBringOperandsAndSizes) {
    const json record = record_of({"--input", file_, "--indexer", fit(file_)});
    EXPECT_FALSE(row_of(record, "benchmark",
                        {{"model", "test"},
                         {"query_heads", 4},
                         {"kv_heads", 2},
                         {"head_dim", 16},
                         {"index_dim", 16},
                         {"block_size", 8},
                         {"top_k", 4}})
                     .is_null());
    const json& ran = record["run"];
    EXPECT_EQ(ran["element"], "f32");
    EXPECT_EQ(ran["options"]["layers"], json({3, 5}));
    EXPECT_EQ(ran["inputs"].size(), 2U);
    EXPECT_TRUE(ran["inputs"].contains("a.h5"));
    EXPECT_TRUE(ran["inputs"].contains("results.h5"));
    for (const json& of : rows_of_table(record, "cases")) {
        EXPECT_EQ(of["case_kind"], "captured");
        EXPECT_EQ(of["case_sequences"], 2);
    }
    std::map<std::string, int> stages;
    for (const json& m : rows_of_table(record, "measurements")) {
        EXPECT_TRUE(m["skipped"].is_null()) << m;
        EXPECT_GT(m["checked_rows"], 0);
        const std::string name = m["stage"];
        ++stages[m["case"].get<std::string>() + " " + name];
        const bool dense = name.starts_with("dense_attention") || name == "block_mass";
        EXPECT_EQ(text_in(m, "selection"), dense ? "" : "fitted");
        const double pairs = 80.0 * 81 / 2 + 112.0 * 113 / 2;
        if (name == "dense_attention") {
            EXPECT_EQ(m["stage_flops"], 4 * 4 * 16 * pairs);
        }
        if (name == "index_select") {
            EXPECT_EQ(m["stage_flops"], 2 * 2 * 16 * pairs);
        }
    }
    EXPECT_EQ(stages, (std::map<std::string, int>{{"layer 3, 192 block_mass", 1},
                                                  {"layer 3, 192 dense_attention", 1},
                                                  {"layer 3, 192 dense_attention_grad", 1},
                                                  {"layer 3, 192 index_scores", 1},
                                                  {"layer 3, 192 index_kl", 4},
                                                  {"layer 3, 192 index_kl_grad", 2},
                                                  {"layer 3, 192 index_select", 1},
                                                  {"layer 3, 192 sparse_attention", 3},
                                                  {"layer 3, 192 sparse_attention_grad", 3},
                                                  {"layer 3, 192 layer", 1},
                                                  {"layer 3, 192 layer_grad", 1},
                                                  {"layer 5, 192 block_mass", 1},
                                                  {"layer 5, 192 dense_attention", 1},
                                                  {"layer 5, 192 dense_attention_grad", 1},
                                                  {"layer 5, 192 index_scores", 1},
                                                  {"layer 5, 192 index_kl", 4},
                                                  {"layer 5, 192 index_kl_grad", 2},
                                                  {"layer 5, 192 index_select", 1},
                                                  {"layer 5, 192 sparse_attention", 3},
                                                  {"layer 5, 192 sparse_attention_grad", 3},
                                                  {"layer 5, 192 layer", 1},
                                                  {"layer 5, 192 layer_grad", 1}}));
}

TEST_F(BenchCaptured, SelectsWhatMsaAnalyzeSelects) {
    // indexer.h5 holds index_q and index_k of the weights in results.h5.
    const std::string results = fit(file_), indexer = path("fit/indexer.h5");
    const auto sparse = [](const Words& more) {
        Words args{"--stages", "sparse_attention", "--order", "automatic", "--layers",
                   "5",        "--block-size",     "8",       "--top-k",   "3"};
        args.insert(args.end(), more.begin(), more.end());
        const json record = record_of(args);
        EXPECT_EQ(rows_of_table(record, "cases")[0]["top_k"], 3);
        EXPECT_EQ(rows_of_table(record, "measurements").size(), 1U);
        return rows_of_table(record, "measurements")[0];
    };
    const Outcome analyzed = kAnalyze({indexer, "--out", path("analyzed"), "--selectors", "index",
                                       "--layers", "5", "--block-size", "8", "--top-k", "3"});
    ASSERT_EQ(analyzed.code, 0) << analyzed.err;
    const Tensor<int32_t, 3> ids =
        io::ResultsReader(path("analyzed/results.h5")).read<int32_t, 3>("/select/index/5/ids");
    const io::ActivationsReader file(indexer);
    const Problem p = io::layer_problem(file.info(), file.layer(5), 8);
    const double united = analysis::tile_reads(p, ids, 8, 0).union_blocks();
    for (const Words& operands :
         {Words{"--input", file_, "--indexer", results}, Words{"--input", indexer}}) {
        const json measured = sparse(operands);
        EXPECT_EQ(measured["union_of_8"], united);
        EXPECT_EQ(measured["stage_flops"], analysis::sparse_attention_flops(p, ids));
    }
    const std::string random = make("random.h5", {.cu_seqlens = {0, 80, 192}, .layers = {5}});
    EXPECT_NE(sparse({"--input", random})["union_of_8"], united);
}

TEST_F(BenchCaptured, AttentionReadsTheFile) {
    for (const std::string field : {"q", "k", "v"}) {
        const std::string file = make(field + ".h5");
        poke(file, "/layers/3/" + field, {120, 1, 5}, NAN);
        refused({"--input", file, "--stages", "dense_attention"}, "/layers/3/" + field);
    }
}

TEST_F(BenchCaptured, SampleOfTheRepository) {
    const std::string sample = std::string(MSA_SOURCE_DIR) + "/data/sample.h5";
    refused({"--input", sample}, "has no index_q and index_k; msa-fit-indexer " + sample);
    const std::string results =
        fit(sample, {"--block-size", "32", "--steps", "1", "--warmup-steps", "1", "--eval-queries",
                     "1", "--queries-per-step", "1", "--threads", "2"});
    const json record = record_of({"--input", sample, "--indexer", results, "--stages",
                                   "index_select,layer,dense_attention"});
    ASSERT_EQ(rows_of_table(record, "measurements").size(), 6U);
    EXPECT_EQ(rows_of_table(record, "measurements")[2]["case"], "layer 10, 1792");
    EXPECT_FALSE(rows_of_table(record, "measurements")[2]["over_dense"].is_null());
}

TEST_F(BenchCaptured, Refusals) {
    const std::string results = fit(file_);
    refused({"--input", path("none.h5"), "--indexer", results}, "none.h5: there is no such file");
    refused({"--input", file_, "--indexer", path("none.h5")}, "none.h5: there is no such file");
    refused({"--input", file_, "--indexer", file_}, "must be 'msa-results'");
    refused({"--input", file_, "--indexer", results, "--layers", "4"},
            "results.h5: has no layer 4, must be one of: 3, 5");
    const std::string stored = make("stored.h5");
    ASSERT_EQ(
        kAnalyze({stored, "--out", path("analyzed"), "--block-size", "8", "--top-k", "2"}).code, 0);
    refused({"--input", stored, "--indexer", path("analyzed/results.h5")},
            "has no /fit, must be the results.h5 of msa-fit-indexer");
    refused({"--input", make("odd.h5", {.layers = {0}, .index_dim = 0}), "--layers", "0"},
            "odd.h5: /layers/0 has no index_q and index_k");
    refused({"--input", write("one.h5"), "--indexer", results}, "one.h5: has no layer 5");
    refused(
        {"--input", write("wide.h5", {.layers = {3, 5}, .model_dim = 32}), "--indexer", results},
        "wide.h5: /layers/3 has d_model 32, " + results + " is for 24");
    refused({"--input", write("heads.h5", {.layers = {3, 5}, .kv_heads = 4}), "--indexer", results},
            "heads.h5: /layers/3 has key-value heads 4, " + results + " is for 2");
    refused(
        {"--input", write("bare.h5", {.layers = {3, 5}, .with_x = false}), "--indexer", results},
        "bare.h5: /layers/3 has no x");
    refused({"--input", write("pre.h5", {.layers = {3, 5}, .state = io::RopeState::pre_rope}),
             "--indexer", results},
            "q_state is pre_rope");
    refused({"--input", file_}, "a.h5: has no index_q and index_k; msa-fit-indexer " + file_ +
                                    " --out DIR fits them, and --indexer DIR/results.h5");
    refused({"--input", file_, "--layers", "5"}, "a.h5: /layers/5 has no index_q and index_k");
    refused({"--input", file_, "--cases", "square"},
            "--cases is 'square', must be captured with --input");
    refused({"--input", file_, "--selection", "random"},
            "--selection is 'random', must be fitted with --input");
    refused({"--input", file_, "--tokens", "64"}, "excludes --tokens");
    refused({"--input", file_, "--kv-heads=2"}, "excludes --kv-heads");
    refused({"--indexer", results}, "--indexer needs --input");
    refused({"--cases", "captured"}, "--cases is 'captured', must be one of: square");
}

/// Scales are those of the blocks of all sequences; the check of int8 has no tolerance.
TEST_F(BenchCaptured, IndexOperandsInInt8HaveScales) {
    const Words stages{"--index-element", "int8", "--stages", "index_select,index_scores,layer"};
    Words captured{"--input", file_, "--indexer", fit(file_)};
    Words made{"--tokens",     "32", "--batch",    "2",  "--query-heads", "4",
               "--kv-heads",   "2",  "--head-dim", "16", "--index-dim",   "16",
               "--block-size", "8",  "--top-k",    "2",  "--cases",       "square,pack"};
    for (Words* args : {&captured, &made}) {
        args->insert(args->end(), stages.begin(), stages.end());
        std::map<std::string, int> checked;
        const json record = record_of(*args);
        for (const json& m : rows_of_table(record, "measurements")) {
            if (m["checked_rows"] > 0)
                ++checked[m["stage"].get<std::string>() + text_in(m, "index_form")];
        }
        EXPECT_EQ(checked.size(), 3U);
    }
}

}  // namespace
}  // namespace msa::test
