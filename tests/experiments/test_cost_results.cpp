// SPDX-License-Identifier: MIT
// msa-cost on selected blocks.
#include <filesystem>

#include "tests/experiments/cost_test.h"

namespace msa::test {
namespace {

using CostOfResults = Cost;
using nlohmann::json;

TEST_F(CostOfResults, MeasuredSelectionsOfTwoSequences) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--selectors", "oracle,random"})
                  .code,
              0);
    const json cost = run_json({"--results", path("out/results.h5")});
    ASSERT_EQ(rows_of_table(cost, "selections").size(), 4U);  // two layers, two selectors
    EXPECT_EQ(cost["run"]["options"]["results"], "results.h5");
    EXPECT_EQ(cost["run"]["inputs"]["results.h5"].get<std::string>().size(), 64U);
    const json row = rows_of_table(cost, "selections")[0];
    // Rows see 1, 2, 3 and then at least 4 blocks of 8 tokens, in sequences of 90 and 60.
    const int64_t pairs = int64_t{2} * (2 * 8 * (1 + 2 + 3) + (90 - 24 + 60 - 24) * 4);
    EXPECT_EQ(row["selected_pairs"], pairs);
    EXPECT_DOUBLE_EQ(row["used_slots"], static_cast<double>(pairs) / (150 * 2 * 4));
    EXPECT_EQ(rows_of_table(cost, "unions").size(), 4 * 6U);  // 1 to 32 queries, G = 2
    EXPECT_EQ(rows_of_table(cost, "unions")[0]["union_reads"], pairs);
    std::vector<std::string> orders;
    int fastest = 0;
    for (const json& order : rows_of_table(cost, "orders")) {
        if (order["layer"] != row["layer"] || order["selector"] != row["selector"]) continue;
        orders.push_back(order["accounting"].get<std::string>() + " " +
                         order["order"].get<std::string>());
        fastest += order["is_fastest"].get<bool>() ? 1 : 0;
    }
    EXPECT_EQ(orders,
              (std::vector<std::string>{"kernels q_outer", "kernels union", "kernels kv_outer",
                                        "kernels automatic", "paper q_outer", "paper kv_outer"}));
    EXPECT_EQ(fastest, 1);
    EXPECT_EQ(kCost({"--results", path("out/results.h5")}).code, 0);
    const Outcome one = kCost(
        {"--results", path("out/results.h5"), "--json", "--layers", "3", "--selectors", "random"});
    ASSERT_EQ(one.code, 0) << one.err;
    const json selections = rows_of_table(json::parse(one.out), "selections");
    ASSERT_EQ(selections.size(), 1U);
    EXPECT_EQ(selections[0]["selector"], "random");
    const Outcome none = kCost({"--results", path("out/results.h5"), "--selectors", "window"});
    EXPECT_EQ(none.code, 2);
    EXPECT_NE(none.err.find("--selectors is 'window', must be one of: oracle, random"),
              std::string::npos);
    const Outcome chip = kCost({"--results", path("out/results.h5"), "--hardware", "gb300"});
    EXPECT_NE(chip.err.find("has no cache_mebibytes"), std::string::npos) << chip.err;
}

TEST_F(CostOfResults, BrokenResultsAreNamedWithFileDatasetValueAndRule) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--selectors", "random"})
                  .code,
              0);
    const std::string whole = path("out/results.h5"), broken = path("broken.h5");
    const auto refused_with = [&](const std::string& dataset, const Shape<3>& at, float value,
                                  const std::string& why) {
        std::filesystem::copy_file(whole, broken,
                                   std::filesystem::copy_options::overwrite_existing);
        poke(broken, dataset, at, value);
        refused({"--results", broken}, why);
    };
    const std::string ids = "/select/random/3/ids";
    refused_with(ids, {80, 1, 0}, -5, broken + ": " + ids + ": ids[80, 1, 0] is -5, must be a");
    refused_with(ids, {80, 1, 3}, 999, broken + ": " + ids + ": ids[80, 1, 3] is 999, must be a");
    refused_with(ids, {89, 0, 0}, 11, broken + ": " + ids + ": ids[89, 0, 1] is ");
    refused_with(ids, {0, 0, 3}, 0, "ids[0, 0, 3] is 0, but -1 may only be followed by -1");
    const std::string layer = broken + ": layer 3: ";
    refused_with("/queries/3/position", {4, 0, 0}, -1, layer + "position[4] is -1, must be");
    refused_with("/queries/3/position", {4, 0, 0}, 3, layer + "position[4] is 3, must be above");
    refused_with("/queries/3/sequence", {149, 0, 0}, 0, layer + "sequence[149] is 0, must not be");
    refused_with("/queries/3/token", {4, 0, 0}, 77, layer + "its analysed queries have gaps");
}

TEST_F(CostOfResults, ResultsOfAnotherProgramAreRefusedByItsName) {
    ASSERT_EQ(kCompare({make("a.h5"), "--out", path("compared"), "--block-size", "8", "--budgets",
                        "16", "--selectors", "window"})
                  .code,
              0);
    const std::string results = path("compared/results.h5");
    refused({"--results", results},
            results + ": was written by msa-compare, must be results of msa-analyze");
}

TEST_F(CostOfResults, QueriesWithGapsAreRefusedARangeIsNot) {
    const std::string file = make("a.h5");
    const std::vector<std::string> common{file, "--block-size", "8",     "--top-k",
                                          "4",  "--selectors",  "oracle"};
    const auto analyse = [&](const std::string& out, const std::vector<std::string>& more) {
        std::vector<std::string> args = common;
        args.insert(args.end(), {"--out", path(out)});
        args.insert(args.end(), more.begin(), more.end());
        return kAnalyze(args).code;
    };
    ASSERT_EQ(analyse("sampled", {"--sample-queries", "20"}), 0);
    const Outcome sampled = kCost({"--results", path("sampled/results.h5")});
    EXPECT_EQ(sampled.code, 2);
    EXPECT_NE(sampled.err.find("its analysed queries have gaps"), std::string::npos);
    ASSERT_EQ(analyse("range", {"--queries", "40:120"}), 0);
    EXPECT_EQ(row_of(run_json({"--results", path("range/results.h5")}), "selections")["queries"],
              80);
}

}  // namespace
}  // namespace msa::test
