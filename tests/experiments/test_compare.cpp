// SPDX-License-Identifier: MIT
// msa-compare on small files: what it writes, what must hold in it, and resume.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/io/results.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"
#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

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
        return row_of(summary, "selectors",
                      {{"selector", selector}, {"token_budget", budget}, {"layer", layer}})
            .at("mass_kept");
    }

    std::string file_ = make("a.h5", {.rotary_dim = 8});  // layers 0 and 3
};

TEST_F(Compare, HasARowForEverySelectorBudgetAndLayer) {
    const json all = summary("out");
    std::set<std::tuple<int, std::string, int>> rows, wanted;
    for (const json& row : selector_rows(all)) {
        rows.emplace(row["layer"], row["selector"], row["token_budget"]);
        EXPECT_EQ(row["rows_counted"], 90 - 32 + 60 - 32);
        EXPECT_EQ(row["block_size"], 8);
        const bool of_tokens = find_token_selector(row["selector"].get<std::string>()) != nullptr;
        EXPECT_EQ(row["score_recall"].is_null(), of_tokens);
        EXPECT_EQ(row["oracle_mass"].is_null(), of_tokens);
        EXPECT_GT(row["mass_kept"], 0.0);
        EXPECT_GT(row["group_output_error"], 0.0);
        EXPECT_GT(row["attention_flops"], 0.0);
    }
    for (int layer : {0, 3})
        for (const std::string& name : list_selectors())
            if (const PolicyNeeds needs = make_selector(name)->needs();
                (layer == 3 || !needs.previous_layer) && needs.phases != Phases::decode &&
                !needs.gate)
                for (int budget : {16, 32}) wanted.emplace(layer, name, budget);
    for (int layer : {0, 3})
        for (const std::string& name : list_token_selectors())
            for (int budget : {16, 32}) wanted.emplace(layer, name, budget);
    EXPECT_EQ(rows, wanted);
}

TEST_F(Compare, TokensTouchMoreBlocksThanTheyFill) {
    const json all = summary("out", {"--selectors", "streaming-llm,dsa-tokens,window-tokens"});
    for (const json& row : selector_rows(all)) {
        const double blocks = row["blocks_kept"], full = row["tokens_read"].get<double>() / 8;
        const std::string selector = row["selector"];
        EXPECT_GE(blocks, full) << selector;
        EXPECT_LE(blocks, selector == "dsa-tokens" ? 99 : full + 2) << selector;
    }
}

TEST_F(Compare, MoreBudgetKeepsMoreAndTheOracleMost) {
    const json all = summary("out");
    for (const json& row : selector_rows(all)) {
        const std::string selector = row["selector"];
        if (find_token_selector(selector)) continue;
        const bool uneven = make_selector(selector)->adjust({}, 0).top_k == kUneven;
        const int layer = row["layer"], budget = row["token_budget"];
        EXPECT_LT(mass(all, selector, 16, layer), mass(all, selector, 32, layer)) << selector;
        if (uneven) continue;
        EXPECT_LE(row["mass_kept"], mass(all, "oracle", budget, layer)) << selector;
        EXPECT_EQ(row["blocks_kept"], budget / 8) << selector;
        EXPECT_GE(mass(all, "minference", budget, layer),
                  mass(all, "minference-vs", budget, layer));
        EXPECT_GE(mass(all, "minference", budget, layer),
                  mass(all, "minference-bs", budget, layer));
        EXPECT_GE(mass(all, "minference", budget, layer), mass(all, "window", budget, layer));
    }
}

/// On the rows that averages count, no policy reads more than the budget, and policies of tokens
/// read what policies of blocks read.
TEST_F(Compare, EqualBudgetsAreEqual) {
    const json all = summary("out");
    std::map<int, double> read;
    for (const json& row : selector_rows(all))
        if (row["selector"] == "oracle") read[row["token_budget"]] = row["tokens_read"];
    for (const json& row : selector_rows(all)) {
        const std::string selector = row["selector"];
        const int budget = row["token_budget"];
        const bool of_tokens = find_token_selector(selector) != nullptr;
        EXPECT_EQ(row["kind"], of_tokens ? "tokens" : "blocks");
        if (!of_tokens) {
            EXPECT_LE(row["blocks_kept"].get<double>(), budget / 8) << selector;
        }
        const bool uneven = !of_tokens && make_selector(selector)->adjust({}, 0).top_k == kUneven;
        const double tokens = row["tokens_read"];
        if (of_tokens) {
            const double left = selector == "qsa-tokens" ? 3 : 0;  // whole fours
            EXPECT_LE(tokens, std::floor(read[budget])) << selector;
            EXPECT_GE(tokens, std::floor(read[budget]) - left) << selector;
        } else if (!uneven) {
            EXPECT_DOUBLE_EQ(tokens, read[budget]) << selector;
        }
    }
    EXPECT_LT(read[16], 16);
    EXPECT_GT(read[16], 16 - 8);
    const std::string tables = file_text(path("out/compare.txt"));
    for (const char* column : {"blocks  tokens", "window-tokens: every", "previous-layer: layer 2"})
        EXPECT_NE(tables.find(column), std::string::npos) << column;
    const std::string csv = file_text(path("out/metrics.csv"));
    EXPECT_NE(csv.find("tokens_read"), csv.npos);
    EXPECT_EQ(csv.find("nan"), csv.npos) << "what a selector does not have is empty";
}

TEST_F(Compare, CostsAreThePhasesWhicheverQueriesAreSampled) {
    std::map<std::pair<std::string, int>, json> whole;
    const json all = summary("all");
    for (const json& row : selector_rows(all))
        if (row["layer"] == 3) whole[{row["selector"], row["token_budget"]}] = row;
    const json some = summary("some", {"--sample-queries", "30"});
    for (const json& row : selector_rows(some)) {
        if (row["layer"] != 3) continue;
        const json& other = whole.at({row["selector"], row["token_budget"]});
        for (const char* cost : {"index_flops", "index_bytes"})
            EXPECT_EQ(row[cost], other[cost]) << row["selector"];
    }
    const auto matched = [&](const std::string& out, const std::vector<std::string>& more) {
        std::vector<std::string> args{"--ablation", "window", "--selectors", "minference-vs"};
        args.insert(args.end(), more.begin(), more.end());
        return selector_rows(summary(out, args))[0]["matched_budget"].get<int>();
    };
    EXPECT_EQ(matched("w", {}), matched("v", {"--sample-queries", "30"}));
}

/// Four heads that each choose for themselves cost what the layer costs, not a quarter of it.
TEST_F(Compare, SharingByHeadPricesTheLayer) {
    const std::vector<std::string> oracle{"--selectors", "oracle"};
    const json group = selector_rows(summary("group", oracle))[0];
    const json head =
        selector_rows(summary("head", {"--selectors", "oracle", "--share", "head"}))[0];
    EXPECT_EQ(head["rows_counted"], group["rows_counted"]);
    EXPECT_EQ(head["index_flops"], group["index_flops"]);
    EXPECT_EQ(head["attention_flops"], group["attention_flops"]);
    EXPECT_EQ(head["attention_bytes"], 2 * group["attention_bytes"].get<double>());
}

/// A bias on a key channel that all queries share shifts every logit by 100: nothing that is kept
/// changes, and rounding, which does, is no failure.
TEST_F(Compare, LargeConstantLogitsAreNoError) {
    Activations sizes;
    sizes.layers = {0};
    const std::string biased = make("biased.h5", sizes);
    poke(biased, "/layers/0/q", {0, 0, 0}, 20, {150, 4, 1});
    poke(biased, "/layers/0/k", {0, 0, 0}, 10.3F, {150, 2, 1});
    const Outcome outcome = kCompare({biased, "--out", path("out"), "--budgets", "16,32",
                                      "--block-size", "8", "--threads", "2"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    EXPECT_GT(rows_of_table(all, "layers")[0]["largest_mass_bound"], 1e-5);
    EXPECT_LT(rows_of_table(all, "layers")[0]["largest_mass_bound"], 1e-2);
}

TEST_F(Compare, ReadsOnlyTheQueriesThatAreLookedAt) {
    const std::string file = make("part.h5");
    poke(file, "/layers/3/q", {0, 0, 0}, NAN);
    for (const auto& [queries, code] : {std::pair{"100:150", 0}, {"0:150", 2}})
        EXPECT_EQ(kCompare({file, "--out", path(queries), "--selectors", "oracle", "--budgets",
                            "16", "--block-size", "8", "--queries", queries})
                      .code,
                  code);
}

TEST_F(Compare, UndefinedAttentionIsNamedAndStaysUndefined) {
    Activations sizes;
    sizes.layers = {0};
    const std::string huge = make("huge.h5", sizes);
    poke(huge, "/layers/0/q", {140, 0, 0}, 1e30F, {1, 4, 1});
    poke(huge, "/layers/0/k", {100, 0, 0}, 1e30F, {1, 2, 1});
    const Outcome outcome = kCompare(
        {huge, "--out", path("out"), "--budgets", "16", "--block-size", "8", "--threads", "2"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("warning: layer 0: attention is undefined, NaN or an overflow in "
                               "its logits, in 2 rows; the first is token 140, group 0"),
              std::string::npos)
        << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    EXPECT_EQ(rows_of_table(all, "layers")[0]["rows_undefined"], 2);
    for (const json& row : selector_rows(all))
        for (const char* metric :
             {"mass_kept", "score_recall", "block_recall", "group_output_error"})
            EXPECT_TRUE(row[metric].is_null()) << row["selector"] << " " << metric;
}

TEST_F(Compare, DeadGroupsAreLeftOutAndCounted) {
    Activations sizes;
    sizes.layers = {0};
    const std::string dead = make("dead.h5", sizes);
    poke(dead, "/layers/0/v", {0, 1, 0}, 0, {150, 1, 16});
    const Outcome outcome = kCompare({dead, "--out", path("out"), "--budgets", "16", "--selectors",
                                      "window,streaming-llm", "--block-size", "8"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    for (const json& row : selector_rows(all)) {
        EXPECT_EQ(row["dead_groups"], 1);
        EXPECT_GT(row["group_output_error"], 0.0);
    }
}

TEST_F(Compare, EveryRunIsChecked) {
    const json all = summary("out", {"--selectors", "oracle,random"});
    ASSERT_EQ(rows_of_table(all, "layers").size(), 2U);
    for (const json& layer : rows_of_table(all, "layers")) {
        EXPECT_GE(layer["rows_checked"], 150 * 2 * 4);
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
    for (const json& layer : rows_of_table(read, "layers"))
        EXPECT_EQ(layer["rows_with_all_blocks"], 64 * 2 + 150 * 2);
    for (const json& row : selector_rows(read)) EXPECT_EQ(row["token_budget"], 90);
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
    ASSERT_EQ(selector_rows(all).size(), 4U);
    for (const json& row : selector_rows(all))
        EXPECT_EQ(row["blocks_kept"], row["token_budget"].get<int>() / 8 + 2);
}

TEST_F(Compare, DecodeComparesTheQueriesBehindThePrompt) {
    const json all =
        summary("out", {"--phase", "decode", "--prompt", "70", "--selectors", "oracle,snapkv"});
    for (const json& row : selector_rows(all)) EXPECT_EQ(row["rows_counted"], 20);
    // New tokens come on top of snapkv's budget: the summary and the table tell.
    for (const json& row : selector_rows(all))
        EXPECT_EQ(row["tokens_read"] > row["tokens_allowed"], row["selector"] == "snapkv") << row;
    EXPECT_NE(file_text(path("out/compare.txt")).find("snapkv: reads more tokens than its"),
              std::string::npos);
}

TEST_F(Compare, BlockSizesAreComparedAtEqualBudget) {
    std::set<std::pair<std::string, int>> settings;
    const Outcome outcome = kCompare({file_, "--out", path("out"), "--ablation", "block-size",
                                      "--selectors", "oracle", "--budgets", "64"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    for (const json& row : selector_rows(all)) settings.emplace(row["setting"], row["top_k"]);
    EXPECT_EQ(settings, (std::set<std::pair<std::string, int>>{
                            {"64,block=32", 2}, {"64,block=64", 1}, {"64,block=128", 1}}));
}

TEST_F(Compare, ForcedBlocksAreVariedWhereTheyFit) {
    std::set<std::string> settings;
    const json all = summary("out", {"--ablation", "forced", "--selectors", "oracle"});
    for (const json& row : selector_rows(all)) settings.insert(row["setting"]);
    EXPECT_EQ(settings, (std::set<std::string>{"16,first=0,local=1", "16,first=0,local=2",
                                               "16,first=1,local=1", "32,first=0,local=1",
                                               "32,first=0,local=2", "32,first=1,local=1",
                                               "32,first=1,local=2"}));
}

/// A policy that forces blocks itself is called by what it ran with, and runs no more often.
TEST_F(Compare, ForcedConfigsAreNamedByWhatRan) {
    std::multiset<std::string> settings;
    const json all =
        summary("out", {"--ablation", "forced", "--selectors", "window,streaming-llm"});
    for (const json& row : selector_rows(all))
        if (row["layer"] == 0 && row["token_budget"] == 32)
            settings.insert(row["selector"].get<std::string>() + "@" +
                            row["setting"].get<std::string>());
    EXPECT_EQ(settings, (std::multiset<std::string>{"streaming-llm@32", "window@32,first=1,local=1",
                                                    "window@32,first=1,local=2"}));
}

TEST_F(Compare, WindowsMatchBudgetAndFlops) {
    const json all = summary("out", {"--ablation", "window", "--selectors", "oracle"});
    std::set<int> windows, matched;
    for (const json& row : selector_rows(all)) {
        const bool window = row["selector"] == "window-tokens";
        if (!window) matched.insert(row["matched_budget"].get<int>());
        if (!window) continue;
        windows.insert(row["token_budget"].get<int>());
        const bool equal_budget = row["token_budget"] == 16 || row["token_budget"] == 32;
        EXPECT_EQ(row["setting"], std::to_string(row["token_budget"].get<int>()) +
                                      (equal_budget ? ",equal=budget" : ",equal=FLOPs"));
    }
    // Scores of 2 Hq dh FLOPs for each of 39.5 keys on average pay for half as many tokens.
    const int extra = 20;
    EXPECT_EQ(matched, (std::set<int>{(16 + extra + 4) / 8 * 8, (32 + extra + 4) / 8 * 8}));
    // The longest sequence has 90 tokens: the window of 56 would leave too few rows.
    EXPECT_EQ(windows, (std::set<int>{16, 32, 40}));
    // Every mean counts the rows on which the largest of them drops something.
    const io::ResultsReader file(path("out/results.h5"));
    EXPECT_EQ(file.number("/layers/0", "largest_budget"), 40);
}

TEST_F(Compare, LayersAndGroupsOverlap) {
    const json all = summary("out", {"--selectors", "window,random"});
    ASSERT_EQ(rows_of_table(all, "layer_overlaps").size(), 4U);
    for (const json& row : rows_of_table(all, "layer_overlaps")) {
        EXPECT_EQ(row["layer"], 0);
        EXPECT_EQ(row["other_layer"], 3);  // where random draws anew
        EXPECT_EQ(row["layer_overlap"] == 1, row["selector"] != "random") << row;
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
    for (int64_t delay = 20000;; delay += delay / 2) {
        const int code =
            run_for("msa-compare", args("out"), std::chrono::microseconds(delay), SIGKILL);
        if (code == 0) break;
        ASSERT_EQ(code, -1);
        ++killed;
    }
    EXPECT_GT(killed, 1);
    EXPECT_TRUE(same_results(path("out/results.h5"), path("whole/results.h5")));
    for (const char* name : {"/summary.json", "/metrics.csv", "/compare.txt"})
        EXPECT_EQ(file_text(path("out") + name), file_text(path("whole") + name));
}

/// Options that exclude each other, and what is said of them.
struct RefusedOptions {
    std::vector<std::string> args;
    std::string says;
};

TEST_F(Compare, RefusesWithTheRule) {
    const RefusedOptions refusals[] = {
        {{"--selectors", "best"}, "--selectors is 'best', must be one of: index, oracle,"},
        {{"--selectors", "all,oracle"}, "--selectors has all beside others"},
        {{"--selectors", "moba,mean-key"}, "--selectors names 'mean-key' twice"},
        {{"--selectors", "previous-layer"}, "cannot run on layer 0: the file has no layer"},
        {{"--prompt", "9"}, "--prompt needs --phase decode"},
        {{"--phase", "decode"}, "--phase decode needs --prompt"},
        {{"--phase", "decode", "--prompt", "90"}, "--prompt is 90, no sequence is longer"},
        {{"--share", "token"}, "--share is 'token', must be one of: head, group, layer"},
        {{"--forced-first", "3"}, "must not exceed top_k = 2"},
    };
    for (const RefusedOptions& refusal : refusals) {
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
