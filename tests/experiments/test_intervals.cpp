// SPDX-License-Identifier: MIT
// How sure the averages of msa-analyze and msa-fit-indexer are.
#include <nlohmann/json.hpp>

#include "analysis/bootstrap.h"
#include "core/io/results.h"
#include "experiments/measure/drawn.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class Intervals : public Fit {
protected:
    /// The averages of `columns` and their intervals, written out from the sums of the blocks, are
    /// those of the row. `at`: the group of the blocks; `of`: that of the sums.
    static void expect_of_blocks(const json& row, const io::ResultsReader& results,
                                 const std::string& at, const std::string& of,
                                 const std::vector<std::string>& columns, int64_t blocks,
                                 uint64_t seed) {
        const auto sums = results.read<double, 2>(of + "/sums");
        const auto rows = results.read<int64_t, 1>(at + "/rows");
        const auto sequence = results.read<int64_t, 1>(at + "/sequence");
        ASSERT_EQ(sums.shape(), (Shape<2>{blocks, 2 * std::ssize(columns)}));
        const Tensor<int32_t, 2> times = analysis::bootstrap_draws(
            {sequence.data(), static_cast<size_t>(blocks)}, experiments::measure::kDraws, seed);
        for (int64_t c = 0; c < std::ssize(columns); ++c) {
            const auto average = [&](const auto& weight) {
                double sum = 0, all = 0;
                for (int64_t m = 0; m < blocks; ++m)
                    for (int64_t r = 0; r < 2; ++r) {
                        sum += weight(m) * sums(m, 2 * c + r);
                        all += weight(m) * double(rows(m));
                    }
                return sum / all;
            };
            const std::string& name = columns[static_cast<size_t>(c)];
            EXPECT_NEAR(row[name], average([](int64_t) { return 1.0; }), 1e-12) << name;
            std::vector<double> draws;
            for (int64_t n = 0; n < experiments::measure::kDraws; ++n)
                draws.push_back(average([&](int64_t m) { return double(times(n, m)); }));
            const analysis::Estimate want = analysis::with_interval(row[name], draws);
            EXPECT_NEAR(end_of(row, name, "low"), want.low, 1e-12) << name;
            EXPECT_NEAR(end_of(row, name, "high"), want.high, 1e-12) << name;
            EXPECT_LT(want.low, want.high) << name;
        }
    }
    static json end_of(const json& row, const std::string& name, const std::string& end) {
        return row[name + "_" + end];
    }
    static json rows_of(const std::string& summary) {
        return selector_rows(json::parse(file_text(summary)));
    }

    const std::vector<std::string> recalls_{"block_recall", "score_recall", "mass_kept",
                                            "oracle_mass"};
};

TEST_F(Intervals, OfAnalyzeAreThoseOfItsBlocks) {
    const std::string file = make("a.h5", {.cu_seqlens = {0, 700, 1000}});
    const Outcome outcome =
        kAnalyze({file, "--out", path("out"), "--block-size", "8", "--top-k", "4", "--selectors",
                  "mean-key,random", "--seed", "5", "--layers", "0,3"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const io::ResultsReader results(path("out/results.h5"));
    const json rows = rows_of(path("out/summary.json"));
    ASSERT_EQ(rows.size(), 4U);
    for (const json& row : rows) {
        const std::string layer = std::to_string(row["layer"].get<int>());
        expect_of_blocks(row, results, "/query_blocks/" + layer,
                         "/sums/" + layer + "/" + row["selector"].get<std::string>() + "/recall",
                         recalls_, 6 + 3, 5);
    }
    EXPECT_NE(outcome.out.find("9 blocks of 2 sequences, seed 5."), std::string::npos);
    EXPECT_NE(outcome.out.find("95 % bootstrap interval"), std::string::npos);
}

/// Below six there is no interval, and the reason; counts stand beside it in any case.
TEST_F(Intervals, OfFewBlocksThereAreNone) {
    const std::string file = make("a.h5", {.cu_seqlens = {0, 128 * 5}});
    const Outcome outcome = kAnalyze({file, "--out", path("out"), "--block-size", "8", "--top-k",
                                      "4", "--selectors", "mean-key"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json rows = rows_of(path("out/summary.json"));
    for (const json& row : rows) {
        EXPECT_TRUE(row["mass_kept_low"].is_null() && row["mass_kept_high"].is_null());
        EXPECT_EQ(row["blocks_of_queries"], 5);
        EXPECT_EQ(row["sequences"], 1);
    }
    EXPECT_EQ(outcome.out.find("Interval:"), std::string::npos);
    EXPECT_NE(outcome.out.find("No interval: the counted queries lie in 5 blocks of 1 sequence"),
              std::string::npos)
        << outcome.out;
    const Outcome compared = kCompare({file, "--out", path("compared"), "--block-size", "8",
                                       "--budgets", "32", "--selectors", "mean-key"});
    ASSERT_EQ(compared.code, 0) << compared.err;
    EXPECT_NE(compared.out.find("No interval: the counted queries lie in 5 blocks"),
              std::string::npos)
        << compared.out;
    const Outcome fitted = run({write("b.h5")}, "fitted");
    EXPECT_NE(fitted.out.find("No interval: the counted queries lie in 1 block of 1 sequence"),
              std::string::npos)
        << fitted.out;
}

/// Without a step nothing is gained, in no draw: start and end are drawn together.
TEST_F(Intervals, OfAGainAreOfTheSameDraws) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 3072}});
    const Outcome still = run({file}, "still", {"--lr", "0", "--weight-decay", "0"});
    ASSERT_EQ(still.code, 0) << still.err;
    const std::vector<std::string> names{"kl", "kl_selected", "block_recall", "score_recall",
                                         "mass_kept"};
    const json report = report_of(path("still"));
    for (const std::string& name : names) {
        const json row = row_of(report, "gains", {{"measure", name}});
        for (const char* key : {"gain", "gain_low", "gain_high"}) EXPECT_EQ(row[key], 0.0) << key;
        EXPECT_LT(row["at_kept_low"], row["at_kept_high"]) << name;
        EXPECT_EQ(row["is_distinguishable"], false) << name;
        EXPECT_EQ(row["blocks_of_queries"], 6);
    }
    const json oracle = row_of(report, "gains", {{"measure", "oracle_mass"}});
    EXPECT_TRUE(oracle["gain"].is_null() && oracle["is_distinguishable"].is_null());
    EXPECT_NE(still.out.find("0.0000 [0.0000, 0.0000]  no"), std::string::npos) << still.out;
}

TEST_F(Intervals, OfAGainAreThoseOfTheDifferences) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 3072}});
    const Outcome outcome = run({file}, "out", {"--init", "normal", "--lr", "3e-2"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const io::ResultsReader results(path("out/results.h5"));
    const json row = row_of(report_of(path("out")), "gains", {{"measure", "kl"}});
    const auto start = results.read<double, 2>("/fit/3/blocks/kl/start/sums"),
               end = results.read<double, 2>("/fit/3/blocks/kl/best/sums");
    const auto rows = results.read<int64_t, 1>("/fit/3/blocks/kl/rows");
    const auto sequence = results.read<int64_t, 1>("/fit/3/blocks/kl/sequence");
    const Tensor<int32_t, 2> times =
        analysis::bootstrap_draws({sequence.data(), static_cast<size_t>(sequence.size())},
                                  experiments::measure::kDraws, results.run().seed);
    std::vector<double> gains;
    for (int64_t n = 0; n < experiments::measure::kDraws; ++n) {
        double gain = 0, queries = 0;
        for (int64_t m = 0; m < rows.size(); ++m) {
            const auto drawn = double(times(n, m));
            gain += drawn * (end(m, 0) + end(m, 1) - start(m, 0) - start(m, 1)) / 2;
            queries += drawn * double(rows(m));
        }
        gains.push_back(gain / queries);
    }
    const std::vector<double> kl = curve("out", "held_out/kl");
    const analysis::Estimate want = analysis::with_interval(kl.back() - kl.front(), gains);
    EXPECT_NEAR(row["gain"], want.value, 1e-12);
    EXPECT_NEAR(row["gain_low"], want.low, 1e-12);
    EXPECT_NEAR(row["gain_high"], want.high, 1e-12);
    EXPECT_LT(want.high, 0);  // the KL falls
}

TEST_F(Intervals, OfAFitAreThoseOfItsLastEvaluation) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 3072}});
    const Outcome outcome = run({file}, "out");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const io::ResultsReader results(path("out/results.h5"));
    const json kept = row("out");
    expect_of_blocks(kept, results, "/fit/3/blocks/recall", "/fit/3/blocks/recall/best", recalls_,
                     6, results.run().seed);
    expect_of_blocks(kept, results, "/fit/3/blocks/kl", "/fit/3/blocks/kl/best",
                     {"kl", "kl_selected"}, 6, results.run().seed);
    EXPECT_NE(outcome.out.find("6 blocks of 1 sequence, seed"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace msa::test
