// SPDX-License-Identifier: MIT
// Sizes that nobody named leave something to choose; where those that were named leave nothing, a
// program says so in place of a table without numbers.
#include <nlohmann/json.hpp>

#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class DefaultSizes : public CliTest {
protected:
    const std::string sample_ = std::string(MSA_SOURCE_DIR) + "/data/sample.h5";  // 1792 tokens

    Outcome run(const Program& program, std::vector<std::string> args) const {
        std::filesystem::remove_all(path("out"));
        args.insert(args.end(), {"--out", path("out")});
        return program(args);
    }
    json summary() const { return json::parse(file_text(path("out/summary.json"))); }
    void expect_refusal(const Outcome& outcome, const std::string& why) const {
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
        EXPECT_FALSE(std::filesystem::exists(path("out/results.h5")));
    }
    static constexpr const char* kNote =
        "note: --block-size is 16 for a longest sequence of 1792 tokens, 112 blocks\n";
};

TEST_F(DefaultSizes, LeaveFourTimesAsManyBlocksAsAreKept) {
    const Outcome analyzed =
        run(kAnalyze, {sample_, "--selectors", "oracle,window", "--sample-queries", "64"});
    ASSERT_EQ(analyzed.code, 0) << analyzed.err;
    EXPECT_EQ(analyzed.err.rfind(kNote, 0), 0U) << analyzed.err;
    EXPECT_EQ(options_of_run(summary())["block_size"], 16);
    EXPECT_EQ(options_of_run(summary())["top_k"], 16);
    const json rows = selector_rows(summary());
    for (const json& row : rows) EXPECT_FALSE(row["mass_kept"].is_null()) << row;
    for (const auto& [program, more] :
         {std::pair<Program, std::vector<std::string>>{
              kFit, {"--layers", "10", "--steps", "0", "--index-dim", "16"}},
          {kPrecision,
           {"--formats", "int8", "--scales", "token", "--error", "0.5", "--sample-queries", "256"}},
          {kReuse,
           {"--selectors", "mean-key", "--lose", "0.9", "--layers", "10,20", "--sample-queries",
            "256"}}}) {
        std::vector<std::string> args{sample_};
        args.insert(args.end(), more.begin(), more.end());
        const Outcome outcome = run(program, args);
        EXPECT_NE(outcome.err.find(kNote), std::string::npos) << program.name << outcome.err;
        EXPECT_EQ(outcome.code, 0) << program.name << outcome.err;
    }
    // Of 90 tokens even blocks of 8 are fewer than 4 times 16.
    const Outcome small = run(kAnalyze, {make("a.h5"), "--selectors", "oracle"});
    ASSERT_EQ(small.code, 0) << small.err;
    EXPECT_EQ(options_of_run(summary())["block_size"], 8);
    EXPECT_EQ(options_of_run(summary())["top_k"], 3);
    EXPECT_NE(small.err.find("note: --top-k is 3 for a longest sequence of 90 tokens, 12 blocks"),
              std::string::npos)
        << small.err;
}

TEST_F(DefaultSizes, GiveWayToWhatIsNamed) {
    for (const std::vector<std::string>& named :
         {std::vector<std::string>{"--block-size", "128"}, {"--block-size=64", "--top-k=40"}}) {
        std::vector<std::string> args{sample_, "--layers", "10", "--selectors", "oracle"};
        args.insert(args.end(), named.begin(), named.end());
        expect_refusal(run(kAnalyze, args),
                       "all of which --top-k keeps: there is nothing to choose");
        args.emplace_back("--all-rows");
        EXPECT_EQ(run(kAnalyze, args).code, 0) << named.front();
    }
}

TEST_F(DefaultSizes, BudgetsOfCompareAreOfHalfTheSequence) {
    const std::vector<std::string> args{sample_,         "--layers",         "10", "--selectors",
                                        "oracle,window", "--sample-queries", "64"};
    const Outcome outcome = run(kCompare, args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(
        outcome.err.find("note: --budgets is 256,512 for a longest sequence of 1792 tokens\n"),
        std::string::npos)
        << outcome.err;
    EXPECT_EQ(selector_rows(summary()).size(), 4U);
    const json rows = selector_rows(summary());
    for (const json& row : rows) EXPECT_FALSE(row["mass_kept"].is_null()) << row;
    std::vector<std::string> named = args;
    named.insert(named.end(), {"--budgets", "512,1792"});
    expect_refusal(run(kCompare, named),
                   "layer 10: the largest of --budgets is 1792 tokens in whole "
                   "blocks, and no sequence is longer");
}

}  // namespace
}  // namespace msa::test
