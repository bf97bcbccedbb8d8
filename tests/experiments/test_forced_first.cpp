// SPDX-License-Identifier: MIT
// --forced-first as an axis: selectors beside each other with the first block and without, and a
// selector that keeps it in any case once.
#include <nlohmann/json.hpp>
#include <set>

#include "core/io/results.h"
#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class ForcedFirst : public CliTest {
protected:
    json summary(const Program& program, const std::string& out,
                 const std::vector<std::string>& more) {
        std::vector<std::string> args{file_, "--out", path(out), "--block-size", "8"};
        args.insert(args.end(), more.begin(), more.end());
        const Outcome outcome = program(args);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        page_ = outcome.out;
        return json::parse(file_text(path(out + "/summary.json")));
    }
    json compare(const std::string& first, const std::string& selectors = "mean-key,window") {
        return summary(kCompare, "compare-" + first,
                       {"--budgets", "32", "--layers", "3", "--selectors", selectors,
                        "--forced-first", first});
    }
    json analyze(const std::string& first) {
        return summary(kAnalyze, "analyze-" + first,
                       {"--top-k", "4", "--layers", "3", "--selectors", "oracle,mean-key,window",
                        "--forced-first", first});
    }
    static json row_of(const json& all, const std::string& selector,
                       const std::string& setting = "") {
        for (const json& row : selector_rows(all))
            if (row["selector"] == selector && (setting.empty() || row["setting"] == setting))
                return row;
        ADD_FAILURE() << "no row of " << selector << " at " << setting;
        return {};
    }

    std::string file_ = make("a.h5", {.cu_seqlens = {0, 300, 500}});
    std::string page_;
};

TEST_F(ForcedFirst, IsASettingOfCompare) {
    const json both = compare("1,0");
    std::set<std::string> found;
    for (const json& row : selector_rows(both))
        found.insert(row["selector"].get<std::string>() + "@" + row["setting"].get<std::string>());
    EXPECT_EQ(found,
              (std::set<std::string>{"mean-key@32", "mean-key@32,first=1", "window@32,first=1"}));
    EXPECT_EQ(page_.find("not like for like"), std::string::npos) << page_;
    EXPECT_EQ(row_of(both, "window")["best_selector"],
              row_of(both, "mean-key", "32,first=1")["best_selector"])
        << "compared with each other";
    for (const std::string first : {"0", "1"}) {
        const json alone = compare(first);
        EXPECT_EQ(selector_rows(alone).size(), 2U);
        const json one = row_of(alone, "mean-key", "32"),
                   beside = row_of(both, "mean-key", first == "0" ? "32" : "32,first=1");
        for (const char* name : {"mass_kept", "forced_first", "sink_mass_sparse"})
            EXPECT_EQ(one[name], beside[name]) << name;
        EXPECT_EQ(
            page_.find("not like for like: window keeps the first block") != std::string::npos,
            first == "0")
            << page_;
    }
    const Outcome outcome =
        kCompare({file_, "--out", path("no"), "--ablation", "window", "--forced-first", "0,1"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("--forced-first is 0, 1, must be one number with --ablation window"),
              std::string::npos)
        << outcome.err;
}

TEST_F(ForcedFirst, IsAnAxisOfAnalyze) {
    const json both = analyze("0,1");
    std::set<std::string> found;
    for (const json& row : selector_rows(both)) found.insert(row["selector"]);
    EXPECT_EQ(found, (std::set<std::string>{"oracle", "oracle:first=1", "mean-key",
                                            "mean-key:first=1", "window:first=1"}));
    for (const std::string first : {"0", "1"}) {
        const json alone = analyze(first);
        for (const std::string selector : {"oracle", "mean-key"}) {
            const json one = row_of(alone, selector),
                       beside = row_of(both, selector + (first == "0" ? "" : ":first=1"));
            for (const char* name : {"mass_kept", "output_error", "sink_mass_sparse"})
                EXPECT_EQ(one[name], beside[name]) << selector << ' ' << name;
        }
    }
    const io::ResultsReader results(path("analyze-0,1/results.h5"));
    const auto ids = results.read<int32_t, 3>("/select/mean-key:first=1/3/ids");
    for (int64_t i = 0; i < ids.extent(0); ++i) EXPECT_EQ(ids(i, 0, 0), 0);
    const Outcome cached = kCache({path("analyze-0,1/results.h5"), "--out", path("cache"),
                                   "--element", "f16", "--selectors", "mean-key:first=1"});
    EXPECT_EQ(cached.code, 0) << cached.err;
}

/// The sink is of the rows that mass kept counts: where these are all but the first of a sequence,
/// a program that looks at those alone finds the same.
TEST_F(ForcedFirst, SinksAreOfTheCountedRows) {
    const std::vector<std::string> args{"--top-k", "4", "--selectors", "mean-key", "--layers", "3"};
    const json all = selector_rows(summary(kAnalyze, "all", args))[0];
    std::vector<std::string> counted = args;
    counted.insert(counted.end(), {"--positions", "32:"});  // which see more than 4 blocks of 8
    const json those = selector_rows(summary(kAnalyze, "counted", counted))[0];
    EXPECT_GT(all["rows_trivial"], 0);
    EXPECT_EQ(those["rows_trivial"], 0);
    EXPECT_EQ(all["rows_counted"], those["rows_counted"]);
    for (const char* name : {"mass_kept", "sink_mass_dense", "sink_mass_sparse"})
        EXPECT_NEAR(all[name].get<double>(), those[name].get<double>(), 1e-12) << name;
}

}  // namespace
}  // namespace msa::test
