// SPDX-License-Identifier: MIT
#include "tests/experiments/precision_test.h"

#include <algorithm>
#include <filesystem>

namespace msa::test {

using nlohmann::json;

std::vector<std::string> PrecisionRuns::args(const std::string& file, const std::string& out,
                                             const std::vector<std::string>& more) const {
    std::vector<std::string> all{file, "--out", path(out), "--threads", "2"};
    for (const auto& [option, value] : {std::pair{"--block-size", "32"},
                                        {"--top-k", "4"},
                                        {"--forced-first", "0"},
                                        {"--forced-local", "1"},
                                        {"--sample-queries", "64"},
                                        {"--positions", "512:"}})
        if (std::find(more.begin(), more.end(), option) == more.end())
            all.insert(all.end(), {option, value});
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

json PrecisionRuns::summary(const std::string& file, const std::vector<std::string>& more,
                            int code) const {
    std::filesystem::remove_all(path("out"));
    const Outcome outcome = kPrecision(args(file, "out", more));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    return json::parse(file_text(path("out/summary.json")));
}

std::vector<std::string> PrecisionRuns::as_analyzed(std::vector<std::string> more) {
    more.insert(more.end(), {"--sample-queries", "0", "--block-size", "8", "--positions", "0:"});
    return more;
}

json PrecisionRuns::row_of(const json& report, const char* table, const std::string& name) {
    json row = test::row_of(report, table, {{"precision", name}});
    EXPECT_FALSE(row.is_null()) << "no row " << name;
    return row;
}

double PrecisionRuns::mean_of(const json& row, const char* measure) { return row[measure]; }

}  // namespace msa::test
