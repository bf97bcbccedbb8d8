// SPDX-License-Identifier: MIT
// What the tests of msa-precision share: runs and the rows of their summaries.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/experiments/report_of.h"

namespace msa::test {

class PrecisionRuns : public CliTest {
protected:
    /// `more` in place of what is usual here.
    std::vector<std::string> args(const std::string& file, const std::string& out,
                                  const std::vector<std::string>& more = {}) const;
    /// summary.json of a run into "out", which has to end with `code`.
    nlohmann::json summary(const std::string& file, const std::vector<std::string>& more = {},
                           int code = 0) const;
    /// Every query of two sequences, as msa-analyze counts them.
    static std::vector<std::string> as_analyzed(std::vector<std::string> more = {});

    /// Of the tables "index" or "cache".
    static nlohmann::json row_of(const nlohmann::json& report, const char* table,
                                 const std::string& name);
    static double mean_of(const nlohmann::json& row, const char* measure);
};

}  // namespace msa::test
