// SPDX-License-Identifier: MIT
// Programs that measure layers name the sinks that their selectors drop.
#include <nlohmann/json.hpp>
#include <tuple>

#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class Sinks : public CliTest {};

/// Half of the attention of planted heads lies on token 0, whose block the mean key hides.
TEST_F(Sinks, OfCompareAreNamed) {
    const std::string file = path("planted.h5");
    ASSERT_EQ(kSynth({"--out", file, "--tokens", "1K", "--model-layers", "1", "--query-heads", "4",
                      "--kv-heads", "2", "--head-dim", "32", "--index-dim", "32"})
                  .code,
              0);
    const auto run = [&](const std::string& out, const std::string& share,
                         const std::string& first) {
        const Outcome outcome = kCompare(
            {file, "--out", path(out), "--block-size", "32", "--budgets", "128", "--selectors",
             "oracle,mean-key,window-tokens", "--share", share, "--forced-first", first});
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(file_text(path(out + "/summary.json")));
    };
    for (const std::string share : {"group", "head"}) {
        const json dropped = rows_of_table(run(share, share, "0"), "dropped_sinks");
        ASSERT_EQ(dropped.size(), 1U) << dropped;
        EXPECT_EQ(dropped[0]["layer"], 0);
        EXPECT_EQ(dropped[0]["selector"], "mean-key");
        EXPECT_EQ(dropped[0]["setting"], "128");
        EXPECT_EQ(dropped[0]["remedy"], "--forced-first 1");
        EXPECT_GT(dropped[0]["sink_mass_dense"], 0.4);
        EXPECT_NE(file_text(path(share + "/compare.txt")).find("mean-key@128 in layer 0 (0."),
                  std::string::npos);
    }
    const json kept = run("kept", "group", "1");
    EXPECT_TRUE(rows_of_table(kept, "dropped_sinks").empty());
    for (const json& row : selector_rows(kept))
        EXPECT_EQ(row["sink_mass_sparse"].is_null(), row["kind"] == "tokens") << row;
    EXPECT_EQ(file_text(path("kept/compare.txt")).find("Sink dropped"), std::string::npos);
}

/// Of the ids that layers share, and at the setting that is advised.
TEST_F(Sinks, OfReuseAndAdviseAreNamed) {
    const std::string file = path("planted.h5");
    ASSERT_EQ(kSynth({"--out", file, "--tokens", "1K", "--model-layers", "2", "--query-heads", "4",
                      "--kv-heads", "2", "--head-dim", "32", "--index-dim", "32"})
                  .code,
              0);
    const std::vector<std::string> reuse{"--selectors", "mean-key", "--block-size", "32",
                                         "--top-k",     "4",        "--lose",       "0.9"};
    const std::vector<std::string> advise{"--selectors", "mean-key", "--block-size",   "32",
                                          "--top-k",     "4",        "--forced-local", "1",
                                          "--keep",      "0.1",      "--context",      "128K"};
    for (const auto& [program, options, page] :
         {std::tuple{&kReuse, reuse, "reuse.txt"}, {&kAdvise, advise, "advice.txt"}})
        for (const std::string first : {"0", "1"}) {
            const std::string out = concat(page, first);
            std::vector<std::string> args{file,  "--out",          path(out), "--sample-queries",
                                          "256", "--forced-first", first};
            args.insert(args.end(), options.begin(), options.end());
            const Outcome outcome = (*program)(args);
            ASSERT_EQ(outcome.code, 0) << outcome.err;
            const json all = json::parse(file_text(path(out + "/summary.json")));
            const json& dropped = rows_of_table(all, "dropped_sinks");
            EXPECT_EQ(dropped.size(), first == "0" ? 2U : 0U) << dropped;
            for (const json& row : dropped) EXPECT_EQ(row["selector"], "mean-key");
            EXPECT_EQ(file_text(path(out + "/" + page)).find("Sink dropped") != std::string::npos,
                      first == "0");
        }
}

}  // namespace
}  // namespace msa::test
