// SPDX-License-Identifier: MIT
// How sure the averages of msa-compare are.
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "analysis/bootstrap.h"
#include "core/io/results.h"
#include "experiments/measure/drawn.h"
#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class CompareIntervals : public CliTest {
protected:
    json rows(const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{file_, "--out",     path("out"), "--block-size",
                                     "8",   "--budgets", "16,32",     "--overwrite"};
        all.insert(all.end(), more.begin(), more.end());
        const Outcome outcome = kCompare(all);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        table_ = outcome.out;
        return selector_rows(report_of(path("out")));
    }

    /// What the table says of a selector beside the best: "best", "=", or nothing.
    std::string mark(const std::string& selector, const std::string& budget) const {
        std::istringstream lines(table_);
        for (std::string line; std::getline(lines, line);) {
            std::istringstream in(line);
            const std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
            if (words.size() < 11 || words[1] != selector || words[2] != budget) continue;
            // layer, selector, setting, blocks, tokens, over, mass, "[low,", "high]", error, mark
            return words[10] == "-" ? "" : words[10];
        }
        ADD_FAILURE() << "no line of " << selector << " in\n" << table_;
        return "";
    }

    /// Packed sequences of 700 and 300 tokens: blocks of 128 positions, some of them cut short.
    std::string file_ = make("a.h5", {.cu_seqlens = {0, 700, 1000}});
    mutable std::string table_;
};

/// The blocks' numbers are those that the averages are made of.
TEST_F(CompareIntervals, BlocksAddUpToTheAverages) {
    for (const char* share : {"group", "head", "layer"}) {
        const json all = rows(
            {"--share", share, "--layers", "3", "--selectors", "quest,window-tokens,mean-key"});
        const io::ResultsReader results(path("out/results.h5"));
        for (const json& row : all) {
            const std::string layer = std::to_string(row["layer"].get<int>());
            const std::string config =
                row["selector"].get<std::string>() + "@" + row["setting"].get<std::string>();
            const std::string sums = "/sums/" + layer + "/" + config;
            const bool of_tokens = row["selector"] == "window-tokens";
            const auto kept =
                results.read<double, 2>(sums + (of_tokens ? "/mass/sums" : "/recall/sums"));
            const auto errors = results.read<double, 2>(sums + "/group_output_error/sums");
            const auto counted = results.read<int64_t, 1>("/query_blocks/" + layer + "/rows");
            const int64_t groups = errors.extent(1) / 2, first = of_tokens ? 0 : 2 * groups;
            const double views = share == std::string("head") ? 2 : 1;
            ASSERT_EQ(kept.extent(0), 6 + 3);
            double mass = 0, error = 0, queries = 0;
            for (int64_t r = 0; r < groups; ++r) {
                double off = 0, all_of_it = 0;
                for (int64_t m = 0; m < kept.extent(0); ++m) {
                    mass += kept(m, first + r) / views;
                    queries += static_cast<double>(counted(m));
                    off += errors(m, r);
                    all_of_it += errors(m, groups + r);
                }
                error += std::sqrt(off / all_of_it) / static_cast<double>(groups);
            }
            EXPECT_EQ(queries, 2 * (700 - 32 + 300 - 32)) << "of two groups";
            EXPECT_NEAR(row["mass_kept"], mass / queries, 1e-12) << config << ' ' << share;
            EXPECT_NEAR(row["group_output_error"], error, 1e-12) << config << ' ' << share;
        }
    }
}

/// Points of the mass over the draws, written out.
TEST_F(CompareIntervals, ArePointsOfTheDraws) {
    const json all = rows({"--selectors", "quest", "--seed", "5", "--layers", "3"});
    const io::ResultsReader results(path("out/results.h5"));
    const auto sequence = results.read<int64_t, 1>("/query_blocks/3/sequence");
    const auto counted = results.read<int64_t, 1>("/query_blocks/3/rows");
    const Tensor<int32_t, 2> times =
        analysis::bootstrap_draws({sequence.data(), 9}, experiments::measure::kDraws, 5);
    for (const json& row : all) {
        const auto kept = results.read<double, 2>(
            "/sums/3/quest@" + row["setting"].get<std::string>() + "/recall/sums");
        std::vector<double> draws;
        for (int64_t n = 0; n < experiments::measure::kDraws; ++n) {
            double mass = 0, queries = 0;
            for (int64_t m = 0; m < 9; ++m) {
                const double drawn = static_cast<double>(times(n, m));
                mass += drawn * (kept(m, 4) + kept(m, 5)) / 2;
                queries += drawn * static_cast<double>(counted(m));
            }
            draws.push_back(mass / queries);
        }
        const analysis::Estimate want = analysis::with_interval(row["mass_kept"], draws);
        EXPECT_NEAR(row["mass_kept_low"], want.low, 1e-12);
        EXPECT_NEAR(row["mass_kept_high"], want.high, 1e-12);
        for (const std::string name : {"mass_kept", "group_output_error"}) {
            EXPECT_LT(row[name + "_low"], row[name]);
            EXPECT_GT(row[name + "_high"], row[name]);
        }
    }
}

/// Differences are paired: what keeps less of every block is behind for sure, however far the
/// blocks are from each other.
TEST_F(CompareIntervals, DifferencesArePaired) {
    const json all = rows({"--selectors", "quest,random,oracle"});
    for (const json& row : all) {
        EXPECT_EQ(row["best_selector"], "quest");
        if (row["selector"] == "quest") {
            EXPECT_EQ(row["behind_low"], 0);
            EXPECT_EQ(row["behind_high"], 0);
        } else if (row["selector"] == "random") {
            EXPECT_GT(row["behind_low"], 0);
            EXPECT_LT(row["behind_high"], 1);
        } else {
            EXPECT_LT(row["behind_high"], 0) << "an oracle keeps more";
        }
    }
    EXPECT_NE(table_.find("best"), table_.npos);
    EXPECT_NE(table_.find("9 blocks of 2 sequences"), table_.npos);
}

/// All blocks of the smaller budget are forced, so that every selector keeps the same ones.
TEST_F(CompareIntervals, OraclesAreNeitherTheBestNorLikeIt) {
    const json all = rows({"--forced-first", "1", "--forced-local", "1", "--layers", "3",
                           "--selectors", "oracle,oracle-logit,oracle-value,quest,mean-key"});
    std::multiset<std::string> marks;
    for (const json& row : all) {
        if (row["token_budget"] != 16) continue;
        EXPECT_EQ(row["behind_low"], 0) << row["selector"];
        EXPECT_EQ(row["behind_high"], 0) << row["selector"];
        marks.insert(mark(row["selector"], "16"));
    }
    EXPECT_EQ(marks, (std::multiset<std::string>{"", "", "", "=", "best"}));
}

TEST_F(CompareIntervals, WhatExceedsItsBudgetIsNeitherTheBestNorLikeIt) {
    const json all = rows(
        {"--phase", "decode", "--prompt", "80", "--layers", "3", "--selectors", "snapkv,random"});
    std::map<std::string, json> of;
    for (const json& row : all)
        if (row["token_budget"] == 32) of[row["selector"]] = row;
    ASSERT_GT(of["snapkv"]["tokens_read"], of["snapkv"]["tokens_allowed"]);
    ASSERT_GT(of["snapkv"]["mass_kept"], of["random"]["mass_kept"]) << "else it loses anyway";
    EXPECT_EQ(of["snapkv"]["best_selector"], "random");
    EXPECT_EQ(mark("random", "32"), "best");
    EXPECT_EQ(mark("snapkv", "32"), "");
}

TEST_F(CompareIntervals, NoCountedQueryHasNone) {
    const json all = rows({"--budgets", "1.0", "--selectors", "quest"});
    EXPECT_TRUE(all[0]["mass_kept_low"].is_null());
    EXPECT_TRUE(all[0]["behind_high"].is_null());
    EXPECT_EQ(table_.find("sequences, seed"), table_.npos);
    std::istringstream lines(table_);
    for (std::string line; std::getline(lines, line);)
        EXPECT_TRUE(line.find(" quest ") == line.npos || line.find("best") == line.npos) << line;
}

/// In the ablation of the window, the window of equal budget stands beside the selector, and that
/// of equal FLOPs, which has a budget of its own, beside nothing.
TEST_F(CompareIntervals, TheWindowOfEqualBudgetCompetes) {
    const json all = rows({"--ablation", "window", "--selectors", "mean-key", "--layers", "3"});
    std::set<std::string> best;
    for (const json& row : all) {
        const std::string setting = row["setting"];
        if (setting == "32" || setting == "32,equal=budget")
            best.insert(row["best_selector"].get<std::string>());
        if (setting == "32,equal=FLOPs") {
            EXPECT_EQ(row["best_selector"], nullptr);
        }
    }
    EXPECT_EQ(best.size(), 1U);
    EXPECT_FALSE(best.contains(""));
}

}  // namespace
}  // namespace msa::test
