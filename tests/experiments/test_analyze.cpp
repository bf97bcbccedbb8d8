// SPDX-License-Identifier: MIT
// msa-analyze on small files: what it writes, and that nothing but the question decides it.
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/io/h5.h"
#include "core/io/results.h"
#include "core/select/selector.h"
#include "experiments/analyze/layer.h"
#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

/// Those that the files of these tests have operands for: there is no gate in them.
std::vector<std::string> selectors_of_files() {
    std::vector<std::string> names = list_pointwise_selectors();
    std::erase_if(names, [](const std::string& name) { return make_selector(name)->needs().gate; });
    return names;
}

class Analyze : public CliTest {
protected:
    /// Blocks of 8 tokens, k = 4: most of the 150 queries have more than they may keep.
    Outcome run(const std::string& file, const std::string& out,
                const std::vector<std::string>& more = {}, const std::string& top_k = "4") const {
        std::vector<std::string> args{file,  "--out",     path(out), "--block-size", "8", "--top-k",
                                      top_k, "--threads", "2"};
        args.insert(args.end(), more.begin(), more.end());
        return kAnalyze(args);
    }
    std::string results(const std::string& out) const { return path(out + "/results.h5"); }
};

/// The output of a head whose values are all 0 has no relative error: it makes no average
/// undefined.
TEST_F(Analyze, DeadHeadsAreLeftOutAndCounted) {
    const std::string dead = make("dead.h5", {.layers = {0}});
    poke(dead, "/layers/0/v", {0, 1, 0}, 0, {150, 1, 16});
    const Outcome outcome = run(dead, "out", {"--json", "--selectors", "window,mean-key"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json summary = json::parse(outcome.out);
    for (const json& row : selector_rows(summary)) {
        EXPECT_EQ(row["dead_heads"], 2) << "the two query heads of group 1";
        EXPECT_GT(row["output_error"], 0.0);
    }
}

TEST_F(Analyze, WritesARowPerLayerAndSelector) {
    const Outcome outcome = run(make("a.h5"), "out", {"--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, file_text(path("out/summary.json")));
    const json summary = json::parse(outcome.out);
    // Of the numbers, three entries for each.
    const std::set<std::string> estimates{
        "block_recall",     "score_recall",     "mass_kept",     "oracle_mass",    "output_error",
        "sink_mass_dense",  "sink_mass_sparse", "entropy_dense", "entropy_sparse", "tied",
        "tied_by_rounding", "all_tied"};
    std::set<std::string> keys{
        "layer",      "selector",          "window",   "rows_counted", "rows_trivial",
        "dead_heads", "blocks_of_queries", "sequences"};
    for (const std::string& key : estimates)
        for (const char* end : {"", "_low", "_high"}) keys.insert(key + end);
    std::set<std::pair<int, std::string>> rows;
    for (const json& row : selector_rows(summary)) {
        std::set<std::string> found;
        for (const auto& [key, value] : row.items()) found.insert(key);
        EXPECT_EQ(found, keys);
        rows.emplace(row["layer"].get<int>(), row["selector"].get<std::string>());
        // Sequences of 90 and 60 tokens: the first 4 * 8 of each see at most 4 blocks.
        EXPECT_EQ(row["rows_counted"], 150 - 64);
        EXPECT_EQ(row["rows_trivial"], 64);
        EXPECT_LE(row["mass_kept"], row["oracle_mass"]);
        EXPECT_LE(row["oracle_mass"], 1.0);
        EXPECT_GT(row["mass_kept"], 0.0);
        EXPECT_LT(row["entropy_sparse"], row["entropy_dense"]);
        for (const std::string& key : estimates) EXPECT_TRUE(summary["columns"].contains(key));
    }
    std::set<std::pair<int, std::string>> wanted;
    for (int layer : {0, 3})
        for (const std::string& selector : selectors_of_files()) wanted.insert({layer, selector});
    EXPECT_EQ(rows, wanted);
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5.partial")));
}

TEST_F(Analyze, OracleIsItsOwnMeasure) {
    const json summary =
        json::parse(run(make("a.h5"), "out", {"--selectors", "oracle,random", "--json"}).out);
    for (const json& row : selector_rows(summary)) {
        if (row["selector"] != "oracle") {
            EXPECT_LT(row["mass_kept"], row["oracle_mass"]);
            EXPECT_LT(row["block_recall"], 1.0);
            continue;
        }
        EXPECT_EQ(row["block_recall"], 1.0);
        EXPECT_EQ(row["score_recall"], 1.0);
        EXPECT_EQ(row["mass_kept"], row["oracle_mass"]);
    }
}

TEST_F(Analyze, AllBlocksLoseNothing) {
    const json summary = json::parse(
        run(make("a.h5"), "out", {"--all-rows", "--json", "--selectors", "random"}, "12").out);
    for (const json& row : selector_rows(summary)) {
        EXPECT_NEAR(row["mass_kept"].get<double>(), 1, 1e-6);
        EXPECT_NEAR(row["output_error"].get<double>(), 0, 1e-6);
        EXPECT_NEAR(row["entropy_sparse"].get<double>(), row["entropy_dense"].get<double>(), 1e-6);
        EXPECT_NEAR(row["sink_mass_sparse"].get<double>(), row["sink_mass_dense"].get<double>(),
                    1e-6);
        EXPECT_EQ(row["rows_counted"], 150);
    }
}

TEST_F(Analyze, WhereEveryRowIsTrivialThereAreNoNumbers) {
    const Outcome outcome = run(make("a.h5"), "out", {"--positions", ":32"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("No query has more visible blocks than k"), std::string::npos);
    const json row = row_of(report_of(path("out")), "selectors");
    EXPECT_TRUE(row["mass_kept"].is_null());
    EXPECT_EQ(row["rows_counted"], 0);
}

TEST_F(Analyze, DatasetsAreThoseOfTheFormat) {
    ASSERT_EQ(run(make("a.h5"), "out",
                  {"--layers", "3", "--selectors", "index,window", "--dump", "outputs,mass,scores"})
                  .code,
              0);
    const io::ResultsReader file(results("out"));
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const io::DatasetInfo& dataset : file.datasets("/")) shapes[dataset.path] = dataset.shape;
    const auto has = [&](const std::string& name, const std::vector<int64_t>& shape) {
        EXPECT_EQ(shapes[name], shape) << name;
    };
    const int64_t blocks = 12;  // of the longest sequence
    for (const std::string s : {"index", "window"}) {
        has("/select/" + s + "/3/ids", {150, 2, 4});
        has("/scores/" + s + "/3", {150, 2, blocks});
        has("/outputs/" + s + "/3/out", {150, 4, 16});
        has("/outputs/" + s + "/3/lse", {150, 4});
        has("/popularity/" + s + "/3/queries_per_block", {2, 12 + 8});
        for (const char* name : {"block_recall", "score_recall", "mass_kept", "oracle_mass"})
            has("/metrics/" + s + "/3/" + name, {2});
        for (const char* name : {"output_error", "sink_mass_sparse", "entropy_sparse"})
            has("/metrics/" + s + "/3/" + name, {4});
    }
    has("/outputs/dense/3/out", {150, 4, 16});
    has("/mass/3", {150, 2, blocks});
    has("/queries/3/token", {150});
    has("/curves/oracle/3/k", {5});  // 1, 2, 4, 8, 12
    has("/curves/index/3/k", {5});
    has("/curves/window/3/k", {4});  // its first block and the local one are always in
    EXPECT_EQ(file.number("/layers/3", "tokens"), 150);
    EXPECT_EQ(file.number("/layers/3", "softmax_scale"), 0.5);
    EXPECT_FALSE(file.has("/layers/0"));
}

TEST_F(Analyze, MassAndCurvesAreConsistent) {
    ASSERT_EQ(run(make("a.h5"), "out", {"--dump", "mass", "--all-rows"}).code, 0);
    const io::ResultsReader file(results("out"));
    const Tensor<float, 3> mass = file.read<float, 3>("/mass/0");
    for (int64_t i = 0; i < mass.extent(0); ++i)
        for (int64_t r = 0; r < mass.extent(1); ++r) {
            double sum = 0;
            for (int64_t b = 0; b < mass.extent(2); ++b) sum += mass(i, r, b);
            ASSERT_NEAR(sum, 1, 1e-6);
        }
    for (const std::string& selector : selectors_of_files()) {
        const Tensor<int64_t, 1> k = file.read<int64_t, 1>("/curves/" + selector + "/0/k");
        const auto kept = file.read<double, 1>("/curves/" + selector + "/0/mass_kept");
        for (int64_t n = 0; n < k.size(); ++n) {
            EXPECT_GE(kept(n), n > 0 ? kept(n - 1) : 0) << selector;
            const double at_k = file.number("/metrics/" + selector + "/0", "mass_kept");
            EXPECT_TRUE(k(n) != 4 || std::fabs(kept(n) - at_k) < 1e-12) << selector;
        }
        EXPECT_NEAR(kept(kept.size() - 1), 1, 1e-6);
    }
}

TEST_F(Analyze, MetricsTableIsTidy) {
    ASSERT_EQ(run(make("a.h5"), "out", {"--selectors", "oracle", "--layers", "0"}).code, 0);
    std::istringstream csv(file_text(path("out/metrics.csv")));
    std::string line;
    std::getline(csv, line);
    EXPECT_EQ(line, "layer,selector,metric,axis,index,value");
    int rows = 0;
    while (std::getline(csv, line)) {
        ++rows;
        EXPECT_EQ(std::count(line.begin(), line.end(), ','), 5) << line;
    }
    // dense: 3 per head and 1 per group; oracle: 7 per group and 3 per head.
    EXPECT_EQ(rows, 3 * 4 + 2 + 7 * 2 + 3 * 4);
}

TEST_F(Analyze, SampledQueriesAreRowsOfTheFullRun) {
    const std::string file = make("a.h5");
    const std::vector<std::string> dumps{"--dump", "outputs,mass,scores"};
    std::vector<std::string> sampled = dumps;
    sampled.insert(sampled.end(), {"--sample-queries", "20"});
    ASSERT_EQ(run(file, "full", dumps).code, 0);
    ASSERT_EQ(run(file, "sample", sampled).code, 0);
    const io::ResultsReader full(results("full")), sample(results("sample"));
    const Tensor<int64_t, 1> tokens = sample.read<int64_t, 1>("/queries/0/token");
    ASSERT_EQ(tokens.size(), 20);
    for (int64_t n = 0; n < 20; ++n) {
        const int64_t t = tokens(n);
        EXPECT_TRUE(150 * n / 20 <= t && t < 150 * (n + 1) / 20) << t;  // one in each part
        for (const std::string& selector : selectors_of_files()) {
            const auto same_row = [&](const std::string& name, auto type) {
                const auto a = full.read_rows<decltype(type), 3>(name, t, 1);
                const auto b = sample.read_rows<decltype(type), 3>(name, n, 1);
                EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data())) << name << t;
            };
            same_row("/select/" + selector + "/0/ids", int32_t{});
            same_row("/outputs/" + selector + "/0/out", float{});
            same_row("/mass/0", float{});
        }
    }
    ASSERT_EQ(run(file, "seed", {"--sample-queries", "20", "--seed", "1"}).code, 0);
    const auto other = io::ResultsReader(results("seed")).read<int64_t, 1>("/queries/0/token");
    EXPECT_FALSE(std::equal(other.data(), other.data() + 20, tokens.data()));
    ASSERT_EQ(run(file, "range", {"--queries", "100:110", "--selectors", "oracle"}).code, 0);
    const auto range = io::ResultsReader(results("range")).read<int64_t, 1>("/queries/3/position");
    ASSERT_EQ(range.size(), 10);
    EXPECT_EQ(range(0), 10);  // token 100 of the packed axis, in the second sequence
}

constexpr int64_t kTokens = 450;

/// Results of one layer cut into chunks of `chunk` queries.
std::string in_chunks(const std::string& file, const std::string& to, int64_t chunk, int threads) {
    experiments::analyze::AnalyzeOptions o;
    o.block_size = 8;
    o.rule.top_k = 4;
    o.selectors = selectors_of_files();
    o.dump = {"outputs", "mass", "scores"};
    const io::ActivationsReader reader(file);
    const auto backend = make_backend(threads == 0 ? "reference" : "cpu", {.threads = threads});
    io::ResultsWriter writer(to, {}, io::IfExists::refuse);
    std::ostringstream err;
    io::UnitWriter unit = writer.begin("layer 3");
    experiments::analyze::analyze_part(o, reader, {reader.layer(3), {0, kTokens}, true},
                                       {*backend, err, err, threads}, unit, chunk);
    unit.finish();
    writer.finish();
    return to;
}

/// Chunks are whole blocks of queries: 128, 128, 44, 128 and 22.
TEST_F(Analyze, ChunksDoNotMatter) {
    const std::string file = make("a.h5", {.cu_seqlens = {0, 300, kTokens}});
    const std::string whole = in_chunks(file, path("whole.h5"), kTokens, 0);
    for (int64_t chunk : {1, 172, 300, 0})
        EXPECT_TRUE(same_results(in_chunks(file, path(concat(chunk, ".h5")), chunk, 0), whole))
            << chunk;
}

TEST_F(Analyze, ThreadsAndChunksDoNotMatterOnTheCpu) {
    const std::string file = make("a.h5", {.cu_seqlens = {0, 300, kTokens}});
    const std::string whole = in_chunks(file, path("whole.h5"), kTokens, 1);
    EXPECT_TRUE(same_results(in_chunks(file, path("threads.h5"), kTokens, 3), whole));
    EXPECT_TRUE(same_results(in_chunks(file, path("chunks.h5"), 200, 2), whole));
}

TEST_F(Analyze, ASelectorBetterThanTheOracleIsABug) {
    const std::string file = make("a.h5");
    ASSERT_EQ(run(file, "out").code, 0);
    {
        const hid_t opened = H5Fopen(results("out").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
        const hid_t group = H5Gopen2(opened, "/metrics/window/3", H5P_DEFAULT);
        io::h5::set_attribute(group, "mass_kept", 0.999);
        H5Gclose(group);
        H5Fclose(opened);
    }
    std::filesystem::remove(path("out/summary.json"));  // so that the answer is made again
    const Outcome outcome = run(file, "out");
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find("layer 3: window keeps 0.999 of the mass, the oracle 0."),
              std::string::npos)
        << outcome.err;
}

/// Where the run is finished. An answer that cannot be read is made again.
TEST_F(Analyze, AnAnswerThatIsThereIsPrintedAsItIs) {
    const std::string file = make("a.h5");
    const std::string page = run(file, "out").out;
    std::ofstream(path("out/analyze.txt")) << "what another process wrote\n";
    EXPECT_EQ(run(file, "out").out, "what another process wrote\n");
    for (const char* summary : {"", "{", "{}"}) {
        std::ofstream(path("out/summary.json")) << summary;
        EXPECT_EQ(run(file, "out").out, page) << summary;
        EXPECT_EQ(run(file, "out").out, page) << summary;
    }
}

/// An indexer that says nothing to the queries of the first sequence: 58 of the 86 counted ones.
TEST_F(Analyze, SaysWhereBlockIdsDecideInPlaceOfScores) {
    const std::string file = make("a.h5");
    poke(file, "/layers/0/index_q", {0, 0, 0}, 0, {90, 2, 16});
    const Outcome outcome = run(file, "out", {"--selectors", "index,random"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json ties = selector_rows(report_of(path("out")));
    ASSERT_EQ(ties.size(), 4U);
    for (const json& row : ties) {
        const bool all_tied = row["layer"] == 0 && row["selector"] == "index";
        for (const char* name : {"tied", "all_tied"})
            EXPECT_NEAR(row[name].get<double>(), all_tied ? 58.0 / 86 : 0, 1e-12) << row;
        EXPECT_GE(row["tied_by_rounding"], row["tied"]);
    }
    EXPECT_NE(outcome.out.find("index says nothing of the queries in layer 0 (67.4 %):"),
              std::string::npos)
        << outcome.out;
    EXPECT_EQ(outcome.out.find("random says nothing"), std::string::npos);

    // Operands of few bits: what is rounded is not their product but its sum.
    ASSERT_EQ(run(file, "e4m3", {"--selectors", "index", "--index-element", "e4m3"}).code, 0);
    const json coarse = row_of(report_of(path("e4m3")), "selectors", {{"layer", 3}});
    EXPECT_LT(coarse["tied_by_rounding"], 0.2);
}

TEST_F(Analyze, WithoutAnIndexTheDefaultLeavesItOut) {
    const std::string file = make("a.h5", {.index_dim = 0});
    const json summary = json::parse(run(file, "out", {"--json"}).out);
    std::vector<std::string> names = selectors_of_files();
    EXPECT_GT(std::erase_if(names,
                            [](const std::string& name) {
                                const PolicyNeeds needs = make_selector(name)->needs();
                                return needs.index || needs.lightning || needs.qsa;
                            }),
              0U);
    EXPECT_EQ(selector_rows(summary).size(), 2 * names.size());
    const Outcome asked = run(file, "asked", {"--selectors", "index"});
    EXPECT_EQ(asked.code, 2);
    EXPECT_NE(asked.err.find("has no index_q and index_k"), std::string::npos);
}

}  // namespace
}  // namespace msa::test
