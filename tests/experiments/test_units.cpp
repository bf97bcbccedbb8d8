// SPDX-License-Identifier: MIT
// A layer that is cut into units of some queries: the same bytes for any number of workers, and the
// numbers of the layer.
#include "core/io/results.h"
#include "tests/experiments/shards_test.h"

namespace msa::test {
namespace {

/// One layer, whose 150 analysed queries are units of 16.
class Units : public Shards {
protected:
    Units() {
        file_ = make(
            "a.h5",
            {.layers = {3}, .own_attention = {{"sliding_window", {40}}, {"sinks", {0, 1, -1, 2}}}});
    }
    std::vector<std::string> cut(const std::string& out, std::vector<std::string> more = {}) const {
        more.insert(more.end(), {"--unit-queries", "16", "--dump", "outputs,scores,mass"});
        return analyze(out, more);
    }
};

TEST_F(Units, AnyNumberOfWorkersGivesTheBytesOfOne) {
    const Outcome whole = kAnalyze(cut("whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    const auto units = nlohmann::json::parse(file_text(path("whole/run.json")))["units"];
    ASSERT_EQ(units.size(), 10U);
    EXPECT_EQ(units[9]["unit"], "layer 3, queries 144:150");
    EXPECT_EQ(io::ResultsReader(path("whole/results.h5")).done(),
              (std::vector<std::string>{"layer 3"}));
    for (int64_t count : {1, 2, 3, 7}) {
        std::vector<std::string> folders;
        for (int64_t n = 0; n < count; ++n) {
            const std::string out = text("part", count, "-", n);
            const Outcome shard = kAnalyze(cut(out, {"--shard", part(n, count), "--jobs", "2"}));
            ASSERT_EQ(shard.code, 0) << shard.err;
            folders.push_back(path(out));
        }
        const Outcome merged = merge(folders, text("merged", count));
        ASSERT_EQ(merged.code, 0) << merged.err;
        EXPECT_EQ(merged.out, whole.out);
        expect_same(text("merged", count), "whole", files_);
    }
    for (const std::string jobs : {"2", "5"}) {
        const Outcome outcome = kAnalyze(cut(jobs, {"--jobs", jobs, "--devices", "0,1"}));
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        expect_same(jobs, "whole", files_);
    }
}

TEST_F(Units, OfSeveralLayersStayApart) {
    file_ = make("two.h5", {.layers = {2, 10}});
    ASSERT_EQ(kAnalyze(cut("whole")).code, 0);
    EXPECT_EQ(io::ResultsReader(path("whole/results.h5")).done(),
              (std::vector<std::string>{"layer 2", "layer 10"}));
    std::vector<std::string> folders;
    for (int64_t n = 0; n < 3; ++n) {
        ASSERT_EQ(kAnalyze(cut(text("part", n), {"--shard", part(n, 3)})).code, 0);
        folders.push_back(path(text("part", n)));
    }
    const Outcome merged = merge(folders, "merged");
    ASSERT_EQ(merged.code, 0) << merged.err;
    expect_same("merged", "whole", files_);
}

/// What is of one query, and every count, is the same to the bit; a mean of at most 150 rows of 16
/// channels, of which none is negative, is off by two orders of its additions.
TEST_F(Units, AreTheLayerButForTheOrderOfSums) {
    ASSERT_EQ(kAnalyze(analyze("layer", {"--dump", "outputs,scores,mass"})).code, 0);
    ASSERT_EQ(kAnalyze(cut("cut")).code, 0);
    const auto is_mean = [](const std::string& dataset) {
        return dataset.starts_with("/metrics") || dataset.starts_with("/blocks") ||
               dataset.ends_with("/mass_kept");
    };
    const std::string layer = path("layer/results.h5"), cut = path("cut/results.h5");
    EXPECT_TRUE(same_data(layer, cut, is_mean));
    const io::ResultsReader a(layer), b(cut);
    int64_t means = 0;
    for (const io::DatasetInfo& dataset : a.datasets("/")) {
        if (!is_mean(dataset.path)) continue;
        std::vector<double> left, right;
        for (const auto& [file, to] : {std::pair{&a, &left}, std::pair{&b, &right}})
            file->visit(dataset, [to = to](std::span<const double> values) {
                to->insert(to->end(), values.begin(), values.end());
            });
        for (size_t n = 0; n < left.size(); ++n, ++means)
            EXPECT_NEAR(left[n], right[n], 2 * 150 * 16 * 0x1p-53 * left[n]) << dataset.path;
    }
    EXPECT_GT(means, 90);
    for (const char* name : {"mass_bound", "window", "tokens", "softmax_scale"})
        EXPECT_EQ(a.number("/layers/3", name), b.number("/layers/3", name)) << name;
}

TEST_F(Units, OfAllQueriesAreTheLayerToTheBit) {
    ASSERT_EQ(kAnalyze(analyze("layer")).code, 0);
    for (const std::string queries : {"150", "1000"}) {
        ASSERT_EQ(kAnalyze(analyze(queries, {"--unit-queries", queries})).code, 0);
        EXPECT_TRUE(same_data(path("layer/results.h5"), path(queries + "/results.h5")));
        EXPECT_EQ(file_text(path("layer/metrics.csv")), file_text(path(queries + "/metrics.csv")));
    }
}

TEST_F(Units, WhatIsMissingOrOfAnotherCutIsNamed) {
    ASSERT_EQ(kAnalyze(cut("part0", {"--shard", "0/5"})).code, 0);
    ASSERT_EQ(kAnalyze(cut("part1", {"--shard", "1/5"})).code, 0);
    refuses({path("part0"), path("part1")},
            "not finished in any of them: layer 3, queries 32:48 (of --shard 2/5), "
            "layer 3, queries 48:64 (of --shard 3/5), ");
    ASSERT_EQ(kAnalyze(analyze("other", {"--shard", "1/5", "--unit-queries", "17"})).code, 0);
    refuses({path("part0"), path("other")}, "is of another run, options.");
    const Outcome other = kAnalyze(analyze("part0", {"--resume"}));
    EXPECT_EQ(other.code, 2);
    EXPECT_NE(other.err.find("cannot resume, options."), std::string::npos) << other.err;
    // A whole run in the folder of a shard does what is missing, and nothing twice.
    const Outcome rest = kAnalyze(cut("part0", {"--resume"}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(rest.err.substr(0, rest.err.rfind("done before")),
              "layer 3, queries 0:16: done before\nlayer 3, queries 80:96: ");
    ASSERT_EQ(kAnalyze(cut("whole")).code, 0);
    expect_same("part0", "whole", files_);
}

TEST_F(Units, AKilledWorkerGoesOnWithItsUnit) {
    using std::chrono::microseconds;
    const auto args = [&](const std::string& out) {
        return cut(out, {"--backend", "reference", "--resume"});
    };
    ASSERT_EQ(kAnalyze(args("whole")).code, 0);
    int code = -1, killed = 0;
    for (int64_t delay = 15000; code != 0; delay += 4000) {
        code = run_for("msa-analyze", args("killed"), microseconds(delay));
        ASSERT_TRUE(code == 0 || code == -1) << code;
        killed += code == -1 ? 1 : 0;
    }
    EXPECT_GT(killed, 0);
    expect_same("killed", "whole", files_);
}

#ifdef MSA_MPIRUN
TEST_F(Mpi, RanksShareALayer) {
    file_ = make("a.h5", {.layers = {3}});
    const std::vector<std::string> cut{"--unit-queries", "16"};
    const Outcome whole = kAnalyze(analyze("whole", cut));
    for (int ranks : {2, 7}) {
        ASSERT_EQ(start(ranks, analyze(text(ranks), cut)), 0) << said();
        expect_same(text(ranks), "whole", files_);
        EXPECT_EQ(file_text(path("out.txt")), whole.out);
    }
}
#endif

}  // namespace
}  // namespace msa::test
