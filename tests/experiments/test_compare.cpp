// SPDX-License-Identifier: MIT
// msa-compare on small files: what it writes, what must hold in it, and resume.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/io/results.h"
#include "core/select/token_selector.h"
#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

using nlohmann::json;

class Compare : public CliTest {
protected:
    /// Budgets of 2 and 4 blocks of 8 tokens, on sequences of 90 and 60.
    std::vector<std::string> args(const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{file_,   "--out",     path(out), "--budgets",
                                     "16,32", "--threads", "2"};
        if (std::find(more.begin(), more.end(), "--block-size") == more.end())
            all.insert(all.end(), {"--block-size", "8"});
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    json summary(const std::string& out, const std::vector<std::string>& more = {}) const {
        const Outcome outcome = kCompare(args(out, more));
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(file_text(path(out + "/summary.json")));
    }
    static double mass(const json& summary, const std::string& selector, int budget, int layer) {
        for (const json& row : summary["rows"])
            if (row["selector"] == selector && row["budget"] == budget && row["layer"] == layer)
                return row["mass_kept"];
        ADD_FAILURE() << selector << ", " << budget;
        return NAN;
    }

    std::string file_ = make("a.h5");  // layers 0 and 3
};

TEST_F(Compare, HasARowForEverySelectorBudgetAndLayer) {
    const json all = summary("out");
    std::set<std::tuple<int, std::string, int>> rows, wanted;
    for (const json& row : all["rows"]) {
        rows.emplace(row["layer"], row["selector"], row["budget"]);
        EXPECT_EQ(row["rows_counted"], 90 - 32 + 60 - 32);
        EXPECT_EQ(row["block_size"], 8);
        const bool of_tokens = find_token_selector(row["selector"].get<std::string>()) != nullptr;
        EXPECT_EQ(row["score_recall"].is_null(), of_tokens);
        EXPECT_EQ(row["oracle_mass"].is_null(), of_tokens);
        EXPECT_GT(row["mass_kept"], 0.0);
        EXPECT_GT(row["output_error"], 0.0);
        EXPECT_GT(row["attention_flops"], 0.0);
    }
    for (int layer : {0, 3})
        for (const std::string& name : list_selectors())
            for (int budget : {16, 32})
                if (layer == 3 || !make_selector(name)->needs().previous_mass)
                    wanted.emplace(layer, name, budget);
    for (int layer : {0, 3})
        for (const std::string& name : list_token_selectors())
            for (int budget : {16, 32}) wanted.emplace(layer, name, budget);
    EXPECT_EQ(rows, wanted);
}

TEST_F(Compare, TokensTouchMoreBlocksThanTheyFill) {
    const json all = summary("out", {"--selectors", "streaming-llm,dsa-tokens,window"});
    for (const json& row : all["rows"]) {
        const double blocks = row["blocks_kept"], full = row["budget"].get<double>() / 8;
        const std::string selector = row["selector"];
        const double most = selector == "window"          ? full
                            : selector == "streaming-llm" ? full + 2
                                                          : 99;
        EXPECT_LE(blocks, most) << selector;
        EXPECT_GE(blocks, selector == "dsa-tokens" ? full + 1 : full) << selector;
    }
}

TEST_F(Compare, MoreBudgetKeepsMoreAndTheOracleMost) {
    const json all = summary("out");
    for (const json& row : all["rows"]) {
        const std::string selector = row["selector"];
        if (find_token_selector(selector)) continue;
        const bool uneven = make_selector(selector)->adjust({}).top_k == kUneven;
        const int layer = row["layer"], budget = row["budget"];
        EXPECT_LT(mass(all, selector, 16, layer), mass(all, selector, 32, layer)) << selector;
        if (uneven) continue;
        EXPECT_LE(row["mass_kept"], mass(all, "oracle", budget, layer)) << selector;
        EXPECT_EQ(row["blocks_kept"], budget / 8) << selector;
    }
}

TEST_F(Compare, EveryRunIsChecked) {
    const json all = summary("out", {"--selectors", "oracle,random"});
    ASSERT_EQ(all["checks"].size(), 2U);
    for (const json& layer : all["checks"]) {
        EXPECT_GE(layer["rows"], 150 * 2 * 4);
        EXPECT_GE(layer["rows_with_all_blocks"], 2 * 64 + 2 * 2 * (16 + 32) * 2);
        EXPECT_LT(layer["largest_difference_from_dense"], 1e-5);
    }
}

TEST_F(Compare, ABudgetThatCoversEverythingIsDense) {
    const std::vector<std::string> only{"--selectors", "random", "--budgets", "1.0"};
    std::vector<std::string> all{file_, "--out", path("out"), "--block-size", "8"};
    all.insert(all.end(), only.begin(), only.end());
    const Outcome outcome = kCompare(all);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json read = json::parse(file_text(path("out/summary.json")));
    for (const json& layer : read["checks"])
        EXPECT_EQ(layer["rows_with_all_blocks"], 64 * 2 + 150 * 2);
    for (const json& row : read["rows"]) EXPECT_EQ(row["budget"], 90);
}

TEST_F(Compare, SharingByHeadKeepsMoreThanByGroupThanByLayer) {
    const auto oracle = [&](const std::string& share) {
        return mass(summary(share, {"--selectors", "oracle", "--share", share}), "oracle", 16, 3);
    };
    const double head = oracle("head"), group = oracle("group"), layer = oracle("layer");
    EXPECT_GT(head, group);
    EXPECT_GT(group, layer);
}

TEST_F(Compare, ForcedBlocksOutsideTheBudgetComeOnTop) {
    const json all =
        summary("out", {"--selectors", "oracle", "--forced", "outside", "--forced-first", "1"});
    ASSERT_EQ(all["rows"].size(), 4U);
    for (const json& row : all["rows"])
        EXPECT_EQ(row["blocks_kept"], row["budget"].get<int>() / 8 + 2);
}

TEST_F(Compare, DecodeComparesTheQueriesBehindThePrompt) {
    const json all =
        summary("out", {"--phase", "decode", "--prompt", "70", "--selectors", "oracle,snapkv"});
    for (const json& row : all["rows"]) EXPECT_EQ(row["rows_counted"], 20);
}

TEST_F(Compare, BlockSizesAreComparedAtEqualBudget) {
    std::set<std::pair<std::string, int>> settings;
    const Outcome outcome = kCompare({file_, "--out", path("out"), "--ablation", "block-size",
                                      "--selectors", "oracle", "--budgets", "64"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    for (const json& row : all["rows"]) settings.emplace(row["setting"], row["top_k"]);
    EXPECT_EQ(settings, (std::set<std::pair<std::string, int>>{
                            {"64,block=32", 2}, {"64,block=64", 1}, {"64,block=128", 1}}));
}

TEST_F(Compare, ForcedBlocksAreVariedWhereTheyFit) {
    std::set<std::string> settings;
    const json all = summary("out", {"--ablation", "forced", "--selectors", "oracle"});
    for (const json& row : all["rows"]) settings.insert(row["setting"]);
    EXPECT_EQ(settings, (std::set<std::string>{"16,first=0,local=1", "16,first=0,local=2",
                                               "16,first=1,local=1", "32,first=0,local=1",
                                               "32,first=0,local=2", "32,first=1,local=1",
                                               "32,first=1,local=2"}));
}

TEST_F(Compare, WindowsMatchBudgetAndFlops) {
    const json all = summary("out", {"--ablation", "window", "--selectors", "oracle"});
    std::set<int> windows, matched;
    for (const json& row : all["rows"])
        (row["selector"] == "window" ? windows : matched)
            .insert(
                (row["selector"] == "window" ? row["budget"] : row["matched_budget"]).get<int>());
    // Scores of 2 Hq dh FLOPs for each of 39.5 keys on average pay for half as many tokens.
    const int extra = 20;
    EXPECT_EQ(matched, (std::set<int>{(16 + extra + 4) / 8 * 8, (32 + extra + 4) / 8 * 8}));
    windows.erase(16);
    windows.erase(32);
    EXPECT_EQ(windows, matched);
}

TEST_F(Compare, LayersAndGroupsOverlap) {
    const json all = summary("out", {"--selectors", "window,random"});
    ASSERT_EQ(all["layer_overlap"].size(), 4U);
    for (const json& arm : all["layer_overlap"]) {
        EXPECT_EQ(arm["layers"], (json{0, 3}));
        EXPECT_EQ(arm["overlap"][0][0], 1);
        // random is a function of seed, token, group and block: the same in every layer.
        EXPECT_EQ(arm["overlap"][0][1], 1) << arm["arm"];
    }
    const io::ResultsReader file(path("out/results.h5"));
    const auto groups = file.read<double, 2>("/overlap/window@16/3");
    EXPECT_EQ(groups(0, 1), 1);
    EXPECT_LT((file.read<double, 2>("/overlap/random@16/3")(0, 1)), 1);
    const auto distance = file.read<int64_t, 1>("/distance/random@32/0");
    EXPECT_EQ(distance(0), (90 - 32 + 60 - 32) * 2);  // the local block is always in
}

TEST_F(Compare, ResumesToTheSameResults) {
    ASSERT_EQ(kCompare(args("whole")).code, 0);
    int killed = 0;
    for (int64_t delay = 20000;; delay += 20000) {
        const int code = run_for("msa-compare", args("out", {"--resume"}),
                                 std::chrono::microseconds(delay), SIGKILL);
        if (code == 0) break;
        ASSERT_EQ(code, -1);
        ++killed;
    }
    EXPECT_GT(killed, 1);
    EXPECT_TRUE(same_results(path("out/results.h5"), path("whole/results.h5")));
    for (const char* name : {"/summary.json", "/metrics.csv", "/tables.txt"})
        EXPECT_EQ(file_text(path("out") + name), file_text(path("whole") + name));
}

TEST_F(Compare, RefusesWithTheRule) {
    struct Case {
        std::vector<std::string> args;
        std::string says;
    };
    const Case refusals[] = {
        {{"--selectors", "best"}, "no selector is called 'best'"},
        {{"--selectors", "moba,mean-key"}, "--selectors names 'mean-key' twice"},
        {{"--selectors", "previous-layer"}, "cannot run on layer 0: the file has no layer"},
        {{"--prompt", "9"}, "--prompt needs --phase decode"},
        {{"--phase", "decode"}, "--phase decode needs --prompt"},
        {{"--phase", "decode", "--prompt", "90"}, "--prompt is 90, no sequence is longer"},
        {{"--share", "token"}, "--share is 'token', must be one of: head, group, layer"},
        {{"--forced-first", "3"}, "must not exceed top_k = 2"},
    };
    for (const Case& refusal : refusals) {
        const Outcome outcome = kCompare(args("out", refusal.args));
        EXPECT_EQ(outcome.code, 2) << refusal.says;
        EXPECT_NE(outcome.err.find(refusal.says), std::string::npos) << outcome.err;
    }
    for (const char* budgets : {"0", "-5", "1.5", "0.x", ""}) {
        const Outcome outcome =
            kCompare({file_, "--out", path("out"), std::string("--budgets=") + budgets});
        EXPECT_EQ(outcome.code, 2) << budgets;
        EXPECT_NE(outcome.err.find("budgets"), std::string::npos) << outcome.err;
    }
}

}  // namespace
}  // namespace msa::test
