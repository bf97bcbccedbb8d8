// SPDX-License-Identifier: MIT
// A run that is killed, at any moment, and started again gives what an uninterrupted one gives.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>

#include "core/io/results.h"
#include "tests/experiments/cli.h"
#include "tests/support/sanitized.h"

namespace msa::test {
namespace {

class Resume : public CliTest {
protected:
    std::vector<std::string> args(const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{
            file_,           "--out",  path(out),        "--backend",    "reference", "--selectors",
            "oracle,random", "--dump", "outputs,scores", "--block-size", "8"};
        if (std::ranges::find(more, "--top-k") == more.end())
            all.insert(all.end(), {"--top-k", "4"});
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    void expect_same(const std::string& left, const std::string& right) const {
        EXPECT_TRUE(same_results(path(left + "/results.h5"), path(right + "/results.h5")));
        for (const char* name : {"/summary.json", "/metrics.csv", "/analyze.txt"})
            EXPECT_EQ(file_text(path(left + name)), file_text(path(right + name)));
        std::set<std::string> files;
        for (const auto& entry : std::filesystem::directory_iterator(path(left)))
            files.insert(entry.path().filename().string());
        EXPECT_EQ(files, (std::set<std::string>{"results.h5", "summary.json", "metrics.csv",
                                                "analyze.txt", "tables", "run.json"}));
    }

    std::string file_ = make("a.h5", {.layers = {0, 1, 2, 3}});
};

TEST_F(Resume, AfterKillsAtManyMoments) {
    using std::chrono::microseconds;
    ASSERT_EQ(kAnalyze(args("whole")).code, 0);
    constexpr int64_t kTrials = repeated(6, 3);
    int64_t killed = 0;
    // Later and later, so that some kills hit every step: start, layers, assembly, small files.
    for (int64_t trial = 0; trial < kTrials; ++trial) {
        const std::string out = concat("killed", trial);
        int code = -1;
        for (int64_t delay = 4000 + 1700 * trial; code != 0; delay += delay / 4) {
            code = run_for("msa-analyze", args(out), microseconds(delay));
            ASSERT_TRUE(code == 0 || code == -1) << code;
            killed += code == -1 ? 1 : 0;
        }
        expect_same(out, "whole");
    }
    EXPECT_GT(killed, kTrials);
    std::cout << "killed " << killed << " times\n";
}

TEST_F(Resume, BetweenTheResultsAndTheSmallFiles) {
    ASSERT_EQ(kAnalyze(args("whole")).code, 0);
    ASSERT_EQ(kAnalyze(args("out")).code, 0);
    std::filesystem::remove(path("out/summary.json"));
    std::ofstream(path("out/metrics.csv.partial")) << "half a";
    std::filesystem::rename(path("out/metrics.csv.partial"), path("out/metrics.csv"));
    const Outcome outcome = kAnalyze(args("out"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same("out", "whole");
}

TEST_F(Resume, WhileTheUnitsAreRemoved) {
    ASSERT_EQ(kAnalyze(args("whole")).code, 0);
    ASSERT_EQ(kAnalyze(args("out")).code, 0);
    std::filesystem::create_directories(path("out/results.h5.partial"));
    std::ofstream(path("out/results.h5.partial/unit-layer-3.h5")) << "not removed yet";
    EXPECT_EQ(kAnalyze(args("out")).code, 0);
    expect_same("out", "whole");
}

TEST_F(Resume, RefusesAnotherRun) {
    ASSERT_EQ(kAnalyze(args("out")).code, 0);
    const Outcome options = kAnalyze(args("out", {"--top-k", "3"}));
    EXPECT_EQ(options.code, 2);
    EXPECT_NE(options.err.find("is of another run, options.top_k was 4, is 3 now"),
              std::string::npos);
    const std::vector<std::vector<std::string>> others{{"--all-rows"},
                                                       {"--sink-tokens", "2"},
                                                       {"--oracle", "max-logit"},
                                                       {"--oracle-local", "excluded"},
                                                       {"--queries", "0:100"},
                                                       {"--sample-queries", "9"},
                                                       {"--forced-first", "1"},
                                                       {"--forced-local", "2"},
                                                       {"--layers", "0"}};
    for (const std::vector<std::string>& other : others) {
        const std::string name = other[0];
        const Outcome outcome = kAnalyze(args("out", other));
        EXPECT_EQ(outcome.code, 2) << name;
        EXPECT_NE(outcome.err.find("is of another run, options."), std::string::npos) << name;
    }
    const Outcome seed = kAnalyze(args("out", {"--seed", "3"}));
    EXPECT_NE(seed.err.find("is of another run, seed was 0, is 3 now"), std::string::npos);
    file_ = make("a.h5", {.layers = {0, 1, 2, 3}, .query_heads = 2});
    const Outcome input = kAnalyze(args("out"));
    EXPECT_NE(input.err.find("is of another run, inputs.a.h5 was "), std::string::npos);
}

TEST_F(Resume, SeedsAreComparedToTheLastBit) {
    const std::string seed = "9007199254740993";  // 2^53 + 1: no double
    ASSERT_EQ(kAnalyze(args("out", {"--seed", seed})).code, 0);
    EXPECT_EQ(kAnalyze(args("out", {"--seed", seed})).code, 0);
    EXPECT_EQ(kAnalyze(args("out", {"--seed", "9007199254740992"})).code, 2);
}

TEST_F(Resume, StartsAfreshWhereThereIsNothing) { EXPECT_EQ(kAnalyze(args("out")).code, 0); }

TEST_F(Resume, OverwriteKeepsTheOldResultsUntilTheEnd) {
    ASSERT_EQ(kAnalyze(args("out", {"--top-k", "3"})).code, 0);
    const std::string before = file_text(path("out/results.h5"));
    for (int64_t delay = 4000; run_for("msa-analyze", args("out", {"--overwrite"}),
                                       std::chrono::microseconds(delay)) != 0;
         delay += delay / 4) {
        const std::string now = file_text(path("out/results.h5"));
        if (now != before) break;  // killed after the rename
    }
    EXPECT_EQ(kAnalyze(args("out")).code, 0);
    ASSERT_EQ(kAnalyze(args("whole")).code, 0);
    expect_same("out", "whole");
}

TEST_F(Resume, AfterInterrupts) {
    ASSERT_EQ(kAnalyze(args("whole")).code, 0);
    int interrupted = 0;
    for (int64_t delay = 10000;; delay += delay / 4) {
        const int code =
            run_for("msa-analyze", args("out"), std::chrono::microseconds(delay), SIGINT);
        if (code == 0) break;
        ASSERT_TRUE(code == 130 || code == -1) << code;  // -1: before the program could listen
        interrupted += code == 130 ? 1 : 0;
    }
    EXPECT_GT(interrupted, 0);
    expect_same("out", "whole");
}

TEST_F(Resume, AFullDiskLeavesNoResults) {
    std::string command = "ulimit -f 16; exec " + std::string(MSA_BIN_DIR) + "/msa-analyze";
    for (const std::string& arg : args("out")) command += " '" + arg + "'";
    const int status = std::system((command + " >/dev/null 2>'" + path("err") + "'").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2);
    EXPECT_NE(file_text(path("err")).find("cannot write " + path("out/results.h5")),
              std::string::npos)
        << file_text(path("err"));
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5")));
    EXPECT_EQ(kAnalyze(args("out")).code, 0);
}

TEST_F(Resume, AnInterruptIsAnsweredWithTheWayOn) {
    const Program interrupted{
        "msa-analyze", [](std::span<const std::string>, std::ostream&, std::ostream&) -> int {
            throw experiments::Interrupted("stopped; --resume continues");
        }};
    const Outcome outcome = interrupted({});
    EXPECT_EQ(outcome.code, 130);
    EXPECT_EQ(outcome.err, "msa-analyze: stopped; --resume continues\n");
}

}  // namespace
}  // namespace msa::test
