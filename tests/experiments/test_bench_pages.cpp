// SPDX-License-Identifier: MIT
// msa-bench --pages.
#include <nlohmann/json.hpp>

#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class BenchPages : public CliTest {
protected:
    static Outcome run(std::vector<std::string> more) {
        more.insert(more.begin(), {"--backend",  "cpu", "--tokens",      "32", "--samples",    "2",
                                   "--batch",    "2",   "--query-heads", "4",  "--kv-heads",   "2",
                                   "--head-dim", "16",  "--index-dim",   "16", "--block-size", "8",
                                   "--top-k",    "2"});
        return kBench(more);
    }
};

TEST_F(BenchPages, AreMeasuredBesidePackedKeys) {
    const Outcome outcome =
        run({"--cases", "pack,decode", "--stages", "index_select,sparse_attention,layer",
             "--selection", "random", "--order", "automatic", "--pages", "4,24", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("layer random f32 pages of 24: "), std::string::npos) << outcome.err;
    std::map<std::string, std::vector<int>> sizes;
    const json record = json::parse(outcome.out);
    for (const json& m : rows_of_table(record, "measurements")) {
        EXPECT_TRUE(m["skipped"].is_null()) << m;
        EXPECT_GT(m["checked_rows"], 0);
        sizes[m["stage"]].push_back(m["page_size"].is_null() ? 0 : m["page_size"].get<int>());
    }
    constexpr int kCases = 3 + 2;
    std::vector<int> each;
    for (int n = 0; n < kCases; ++n) each.insert(each.end(), {0, 4, 24});
    EXPECT_EQ(sizes, (std::map<std::string, std::vector<int>>{
                         {"index_select", each}, {"sparse_attention", each}, {"layer", each}}));
}

TEST_F(BenchPages, RefusedWhereTheyDoNotFit) {
    const auto refused = [](const Outcome& outcome, const std::string& why) {
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
    };
    refused(run({"--pages", "12"}), "--pages is 12, but blocks have 8 tokens");
    refused(run({"--pages", "8", "--index-element", "int8"}),
            "--pages measures operands without scales");
    refused(run({"--pages", "8", "--devices", "0,1"}), "excludes --");
    refused(run({"--pages", "8", "--capacity", "64"}), "--capacity is of lengths on a GPU");
}

}  // namespace
}  // namespace msa::test
