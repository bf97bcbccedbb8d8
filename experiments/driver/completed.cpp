// SPDX-License-Identifier: MIT
#include "experiments/driver/completed.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>

#include "core/io/claim.h"

namespace msa::experiments {

namespace {

constexpr const char* kSummary = "summary.json";

/// Nothing if it cannot be read.
std::string content_of(const std::filesystem::path& file) {
    std::ostringstream content;
    if (std::ifstream stream(file); stream.good()) content << stream.rdbuf();
    return content.str();
}

/// One file for each table, and no file of an earlier run.
void write_tables(const std::filesystem::path& folder, const report::Report& report) {
    std::filesystem::create_directory(folder);
    std::set<std::string> names;
    for (const report::Table& table : report.tables) {
        const std::string name = table.shape().name + ".csv";
        write_text(folder / name, table.csv());
        names.insert(name);
    }
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
        if (entry.path().extension() == ".csv" && !names.contains(entry.path().filename().string()))
            std::filesystem::remove(entry.path(), ignored);
}

}  // namespace

std::string write_answer(const Completed& run, const RunAnswer& answer) {
    const report::Report& report = answer.report;
    std::ostringstream page;
    report::print(report, page);
    const std::string summary = report::json_text(report, run.results.run());
    if (answer.files) answer.files(run);
    write_tables(run.out / "tables", report);
    write_text(run.out / answer.page, page.str());
    write_text(run.out / kSummary, summary);
    run.print << (run.json ? summary : page.str());
    return report.verdict.reached.value_or(true) ? "" : report.verdict.text;
}

std::optional<std::string> print_answer(const std::filesystem::path& folder,
                                        const std::string& page, bool json, std::ostream& print) {
    const std::string summary = content_of(folder / kSummary), words = content_of(folder / page);
    const auto parsed = nlohmann::json::parse(summary, nullptr, false);
    if (words.empty() || !parsed.is_object() || !parsed.contains("verdict")) return std::nullopt;
    print << (json ? summary : words);
    const nlohmann::json& verdict = parsed["verdict"];
    return verdict.at("reached") == false ? verdict.at("text").get<std::string>() : "";
}

void write_text(const std::filesystem::path& path, const std::string& content) {
    io::replace_file(path, content);
}

}  // namespace msa::experiments
