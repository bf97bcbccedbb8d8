// SPDX-License-Identifier: MIT
// How sure the averages of msa-compare are.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "tests/experiments/cli.h"

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
        return json::parse(file_text(path("out/summary.json")))["rows"];
    }

    /// Packed sequences of 700 and 300 tokens: blocks of 128 positions, some of them cut short.
    std::string file_ = make("a.h5", {.cu_seqlens = {0, 700, 1000}});
    mutable std::string table_;
};

/// The blocks' numbers are those that the averages are made of.
TEST_F(CompareIntervals, BlocksAddUpToTheAverages) {
    for (const char* share : {"group", "head", "layer"}) {
        const json all = rows({"--share", share, "--selectors", "quest,window-tokens,mean-key"});
        const io::ResultsReader results(path("out/results.h5"));
        for (const json& row : all) {
            const std::string layer = std::to_string(row["layer"].get<int>());
            const std::string config =
                row["selector"].get<std::string>() + "@" + row["setting"].get<std::string>();
            const auto kept = results.read<double, 3>("/blocks/" + config + "/" + layer);
            const auto counted = results.read<int64_t, 1>("/query_blocks/" + layer + "/rows");
            const auto norm = results.read<double, 2>("/query_blocks/" + layer + "/norm");
            ASSERT_EQ(kept.extent(0), 6 + 3);
            double mass = 0, error = 0, queries = 0;
            for (int64_t r = 0; r < kept.extent(1); ++r) {
                double off = 0, all_of_it = 0;
                for (int64_t m = 0; m < kept.extent(0); ++m) {
                    mass += static_cast<double>(counted(m)) * kept(m, r, 0);
                    queries += static_cast<double>(counted(m));
                    off += kept(m, r, 1);
                    all_of_it += norm(m, r);
                }
                error += std::sqrt(off / all_of_it) / static_cast<double>(kept.extent(1));
            }
            EXPECT_EQ(queries, 2 * (700 - 32 + 300 - 32)) << "of two groups";
            EXPECT_NEAR(row["mass_kept"], mass / queries, 1e-12) << config << ' ' << share;
            EXPECT_NEAR(row["output_error"], error, 1e-12) << config << ' ' << share;
        }
    }
}

TEST_F(CompareIntervals, HoldTheAveragesAndAreNarrow) {
    for (const json& row : rows({"--selectors", "quest,window-tokens,oracle"}))
        for (const char* name : {"mass_kept", "output_error"}) {
            const double value = row[name], low = row["intervals"][name]["low"],
                         high = row["intervals"][name]["high"];
            EXPECT_LT(low, value) << row;
            EXPECT_GT(high, value) << row;
            EXPECT_LT(high - low, 0.3 * value) << row;
        }
}

/// Differences are paired: what keeps less of every block is behind for sure, however far the
/// blocks are from each other.
TEST_F(CompareIntervals, DifferencesArePaired) {
    const json all = rows({"--selectors", "quest,random,oracle,top-p"});
    for (const json& row : all) {
        const json& behind = row["behind"];
        EXPECT_EQ(behind["selector"], "quest");
        if (row["selector"] == "quest") {
            EXPECT_EQ(behind["low"], 0);
            EXPECT_EQ(behind["high"], 0);
        } else if (row["selector"] == "random") {
            EXPECT_GT(behind["low"], 0);
            EXPECT_LT(behind["high"], 1);
        } else {
            EXPECT_LT(behind["high"], 0) << "an oracle keeps more";
        }
    }
    EXPECT_NE(table_.find("best"), table_.npos);
    EXPECT_NE(table_.find("9 blocks of 2 sequences"), table_.npos);
}

TEST_F(CompareIntervals, OfTheSameChoiceAreNotDistinguishable) {
    const json all = rows({"--selectors", "minference-vs,minference-bs,minference"});
    int same = 0;
    for (const json& row : all) same += row["behind"]["low"] <= 0 && row["behind"]["high"] >= 0;
    EXPECT_GT(same, static_cast<int>(all.size()) / 3) << "each best one, and those like it";
}

TEST_F(CompareIntervals, NoCountedQueryHasNone) {
    const json all = rows({"--budgets", "1024", "--selectors", "quest"});
    EXPECT_TRUE(all[0]["intervals"]["mass_kept"]["low"].is_null());
    EXPECT_TRUE(all[0]["behind"]["high"].is_null());
    EXPECT_EQ(table_.find("blocks of"), table_.npos);
}

}  // namespace
}  // namespace msa::test
