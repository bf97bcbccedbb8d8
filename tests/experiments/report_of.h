// SPDX-License-Identifier: MIT
// The answer of a program that a test has run.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/experiments/cli.h"

namespace msa::test {

/// summary.json of a folder.
inline nlohmann::json report_of(const std::filesystem::path& folder) {
    return nlohmann::json::parse(file_text(folder / "summary.json"));
}
/// The rows of a table.
inline const nlohmann::json& rows_of_table(const nlohmann::json& report, const char* table) {
    return report.at("tables").at(table).at("rows");
}
/// Those of msa-analyze or msa-compare.
inline const nlohmann::json& selector_rows(const nlohmann::json& report) {
    return rows_of_table(report, "selectors");
}
inline const nlohmann::json& options_of_run(const nlohmann::json& report) {
    return report.at("run").at("options");
}
/// A text of a row, empty where it is null.
inline std::string text_in(const nlohmann::json& row, const char* column) {
    return row.at(column).is_null() ? "" : row.at(column).get<std::string>();
}
/// The first row with these values, by column; null if there is none.
inline nlohmann::json row_of(const nlohmann::json& report, const char* table,
                             const nlohmann::json& values = nlohmann::json::object()) {
    for (const nlohmann::json& row : rows_of_table(report, table))
        if (std::ranges::all_of(values.items(),
                                [&](const auto& of) { return row.at(of.key()) == of.value(); }))
            return row;
    return nullptr;
}

}  // namespace msa::test
