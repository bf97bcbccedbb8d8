// SPDX-License-Identifier: MIT
// Options of selectors on the command line of msa-compare.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/io/results.h"
#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class CompareOptions : public CliTest {
protected:
    /// Budgets of 2 and 4 blocks of 8 tokens, on layer 3.
    std::vector<std::string> args(const std::string& out,
                                  const std::vector<std::string>& more) const {
        std::vector<std::string> all{file_,      "--out", path(out),      "--budgets", "16,32",
                                     "--layers", "3",     "--block-size", "8"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    static double mass(const json& summary, const std::string& selector, int budget) {
        for (const json& row : selector_rows(summary))
            if (row["selector"] == selector && row["token_budget"] == budget)
                return row["mass_kept"];
        ADD_FAILURE() << selector << ", " << budget;
        return NAN;
    }

    std::string file_ = make("a.h5");
};

/// 25 and 32 tokens are 4 blocks: asked twice of the same queries, a policy that goes on from the
/// query before would go on from the last of them.
TEST_F(CompareOptions, BudgetsOfAsManyBlocksAreOneChoice) {
    const std::string file = make("one.h5", {.cu_seqlens = {0, 150}});
    const auto with = [&](const std::string& out, const std::string& budgets) {
        const Outcome outcome = kCompare({file, "--out", path(out), "--layers", "3", "--block-size",
                                          "8", "--budgets", budgets, "--selectors", "tova,oracle",
                                          "--phase", "decode", "--prompt", "40"});
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return io::ResultsReader(path(out + "/results.h5"));
    };
    const io::ResultsReader both = with("both", "25,32"), alone = with("alone", "32");
    for (const char* selector : {"tova", "oracle"}) {
        const auto ids = [&](const io::ResultsReader& of, int budget) {
            const auto all =
                of.read<int32_t, 3>(concat("/select/", selector, "@", budget, "/3/ids"));
            return std::vector<int32_t>(all.data(), all.data() + all.size());
        };
        EXPECT_EQ(ids(both, 25), ids(alone, 32)) << selector;
        EXPECT_EQ(ids(both, 32), ids(alone, 32)) << selector;
    }
}

/// Wherever the disk is full, the message says so: no object is said to be missing.
TEST_F(CompareOptions, AFullDiskIsSaidToBe) {
    for (const int kibibytes : {5, 60, 150, 199}) {
        std::string line = concat("ulimit -f ", 2 * kibibytes,  // in blocks of 512 bytes
                                  "; ASAN_OPTIONS=detect_leaks=0 ", MSA_BIN_DIR, "/msa-compare");
        for (const std::string& word : args("full", {"--overwrite"})) line += " '" + word + "'";
        const int status = std::system((line + " >/dev/null 2> " + path("err.txt")).c_str());
        const std::string said = file_text(path("err.txt"));
        EXPECT_EQ(WEXITSTATUS(status), 2) << said;
        EXPECT_NE(said.find("File too large"), std::string::npos) << kibibytes << said;
    }
}

TEST_F(CompareOptions, RopeIsAskedForWhereTheFileDoesNotSayIt) {
    const Outcome silent = kCompare(args("out", {"--selectors", "expected-attention"}));
    EXPECT_EQ(silent.code, 2);
    EXPECT_NE(silent.err.find("cannot run on layer 3: the layer has no rotary_dim and rope_theta, "
                              "nor rope_inv_freq in their place"),
              std::string::npos)
        << silent.err;
    std::set<double> kept;
    for (const int64_t rotary : {0, 8, 16}) {
        file_ = make("turned.h5", {.rotary_dim = rotary});
        const Outcome outcome = kCompare(args("turned" + std::to_string(rotary),
                                              {"--selectors", "expected-attention", "--json"}));
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        kept.insert(mass(json::parse(outcome.out), "expected-attention", 32));
    }
    EXPECT_EQ(kept.size(), 3U);
}

TEST_F(CompareOptions, WindowsStandBesideTheSelectors) {
    const Outcome outcome =
        kCompare(args("out", {"--ablation", "window", "--selectors", "oracle"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json all = report_of(path("out")), windows = rows_of_table(all, "windows");
    ASSERT_EQ(windows.size(), 2U);
    int matched = 0;
    for (const json& row : windows) {
        const json equal = row_of(
            all, "selectors", {{"setting", row["setting"].get<std::string>() + ",equal=budget"}});
        const json flops =
            row_of(all, "selectors",
                   {{"setting", concat(row["matched_budget"].get<int>(), ",equal=FLOPs")}});
        for (const std::string name : {"mass_kept", "group_output_error"}) {
            EXPECT_EQ(row["window_" + name], equal[name]);
            EXPECT_EQ(row["matched_window_" + name], flops.is_null() ? json() : flops[name]);
        }
        matched += flops.is_null() ? 0 : 1;
    }
    EXPECT_EQ(matched, 1);  // the other one holds more than half of the longest sequence
    EXPECT_NE(outcome.out.find("equal"), std::string::npos);
}

TEST_F(CompareOptions, SelectorsTakeOptions) {
    const std::vector<std::string> asked{"--selectors",
                                         "sparq,sparq:rank=16,sparq:rank=3,oracle,top-p:p=0.3,"
                                         "streaming-llm:sinks=2"};
    const Outcome outcome = kCompare(args("out", asked));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    std::set<std::string> names;
    for (const json& row : selector_rows(all)) names.insert(row["selector"]);
    EXPECT_EQ(names, (std::set<std::string>{"oracle", "sparq", "sparq:rank=16", "sparq:rank=3",
                                            "streaming-llm:sinks=2", "top-p:p=0.3"}));
    EXPECT_NEAR(mass(all, "sparq:rank=16", 16), mass(all, "oracle", 16), 1e-5) << "of all channels";
    EXPECT_LT(mass(all, "sparq:rank=3", 16), mass(all, "oracle", 16) - 0.01);
    EXPECT_EQ(mass(all, "top-p:p=0.3", 16), mass(all, "top-p:p=0.3", 32)) << "no budget";
    EXPECT_NE(file_text(path("out/compare.txt")).find("  sparq:rank=16 "), std::string::npos);
    const io::ResultsReader results(path("out/results.h5"));
    EXPECT_NE(results.text("/metrics/sparq:rank=16@16/3", "rule").find("; with rank=16"),
              std::string::npos);
    const json options = json::parse(results.run().options);
    EXPECT_EQ(options["selectors"][2], "sparq:rank=3");

    std::vector<std::string> other = asked;
    other[1] = "sparq,sparq:rank=16,sparq:rank=4,oracle,top-p:p=0.3,streaming-llm:sinks=2";
    const Outcome resumed = kCompare(args("out", other));
    EXPECT_EQ(resumed.code, 2);
    EXPECT_NE(resumed.err.find("selectors"), std::string::npos) << resumed.err;
}

TEST_F(CompareOptions, RefusesOptionsThatASelectorLacks) {
    const auto refused = [&](const std::string& selectors) {
        const Outcome outcome = kCompare(args("out", {"--selectors", selectors}));
        EXPECT_EQ(outcome.code, 2) << selectors;
        return outcome.err;
    };
    EXPECT_NE(
        refused("sparq:wide=3")
            .find(
                "--selectors: sparq has no option 'wide'; its options and their defaults: rank=0"),
        std::string::npos);
    EXPECT_NE(refused("snapkv:window=0").find("window='0', must be an integer from 1 to"),
              std::string::npos);
    EXPECT_NE(refused("sparq,sparq:rank=0").find("names 'sparq' twice"), std::string::npos);
    EXPECT_NE(refused("best:rank=3").find("best"), std::string::npos);
    const std::string help = kCompare({"--help"}).out;
    for (const char* known : {"snapkv:", "window=32,", "pool=7", "safeguard=0.2"})
        EXPECT_NE(help.find(known), std::string::npos) << known;
}

}  // namespace
}  // namespace msa::test
