// SPDX-License-Identifier: MIT
// Ties in msa-compare: the same shares as in msa-analyze.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class CompareTies : public CliTest {
protected:
    /// Budgets of 2 and 4 blocks of 8 tokens, on sequences of 90 and 60, unless `more` says others.
    Outcome run(const std::string& file, const std::string& out,
                const std::vector<std::string>& more) const {
        std::vector<std::string> all{file, "--out", path(out), "--block-size", "8"};
        if (std::find(more.begin(), more.end(), "--budgets") == more.end())
            all.insert(all.end(), {"--budgets", "16,32"});
        all.insert(all.end(), more.begin(), more.end());
        return kCompare(all);
    }
    json ties_of(const std::string& file, const std::string& out,
                 const std::vector<std::string>& more) const {
        const Outcome outcome = run(file, out, more);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return selector_rows(report_of(path(out)));
    }
};

/// An indexer that says nothing to the queries of the first sequence: 58 of the 86 counted ones.
/// The same shares as in msa-analyze, at every budget and in any company.
TEST_F(CompareTies, SaysWhereBlockIdsDecideInPlaceOfScores) {
    const std::string file = make("a.h5");
    poke(file, "/layers/0/index_q", {0, 0, 0}, 0, {90, 2, 16});
    const Outcome outcome = run(file, "out", {"--selectors", "index,random,top-p,oracle"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json ties = selector_rows(report_of(path("out")));
    ASSERT_EQ(ties.size(), 2U * 4 * 2);  // layers, selectors, budgets
    for (const json& row : ties) {
        const bool all_tied = row["layer"] == 0 && row["selector"] == "index";
        if (row["selector"] == "index" || row["selector"] == "random") {
            EXPECT_NEAR(row["all_tied"].get<double>(), all_tied ? 58.0 / 86 : 0, 1e-12) << row;
            EXPECT_NEAR(row["tied"].get<double>(), all_tied ? 58.0 / 86 : 0, 1e-12) << row;
        }
        // Behind what top-p keeps no block is left to choose.
        EXPECT_EQ(row["tied"].is_null(), row["selector"] == "top-p") << row;
        EXPECT_GE(row["tied_by_rounding"], row["tied"]);
    }
    for (const char* budget : {"16", "32"})
        EXPECT_NE(outcome.out.find(
                      concat("index@", budget, " says nothing of the queries in layer 0 (67.4 %)")),
                  std::string::npos)
            << outcome.out;
    EXPECT_EQ(outcome.out.find("random@16 says nothing"), std::string::npos);

    // The scores of one budget alone are those of two, and of msa-analyze.
    const json one = ties_of(file, "one", {"--selectors", "index", "--budgets", "32"});
    const json two = ties_of(file, "two", {"--selectors", "index"});
    const Outcome analyzed = kAnalyze({file, "--out", path("a"), "--selectors", "index",
                                       "--block-size", "8", "--top-k", "4", "--threads", "2"});
    ASSERT_EQ(analyzed.code, 0) << analyzed.err;
    const json of_analyze = selector_rows(report_of(path("a")));
    for (const char* name : {"tied", "tied_by_rounding", "all_tied"}) {
        EXPECT_EQ(one[1][name], two[3][name]);
        EXPECT_EQ(of_analyze[1][name], one[1][name]);
    }
}

}  // namespace
}  // namespace msa::test
