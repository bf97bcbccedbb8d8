// SPDX-License-Identifier: MIT
// What the tests of msa-cost share.
#pragma once

#include "tests/experiments/report_of.h"

namespace msa::test {

struct Cost : CliTest {
    static nlohmann::json run_json(std::vector<std::string> args) {
        args.emplace_back("--json");
        const Outcome outcome = kCost(args);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return nlohmann::json::parse(outcome.out);
    }
    static nlohmann::json context_of(const nlohmann::json& cost) {
        return row_of(cost, "contexts");
    }
    static nlohmann::json model_of(const nlohmann::json& cost) { return row_of(cost, "model"); }
    static void refused(const std::vector<std::string>& args, const std::string& why) {
        const Outcome outcome = kCost(args);
        EXPECT_EQ(outcome.code, 2) << why;
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
        EXPECT_EQ(outcome.out, "");
    }
};

}  // namespace msa::test
