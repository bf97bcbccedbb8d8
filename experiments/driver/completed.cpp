// SPDX-License-Identifier: MIT
#include "experiments/driver/completed.h"

#include <ostream>

#include "core/io/partial_file.h"
#include "experiments/report/report.h"

namespace msa::experiments {

void write_summary(const Completed& run, const std::string& summary, const std::string& page) {
    write_text(run.out / "summary.json", summary);
    run.print << (run.json ? summary : page);
}

void write_page(const Completed& run, const std::string& name, const std::string& page,
                const std::string& summary) {
    write_text(run.out / name, page);
    write_summary(run, summary, page);
}

std::string write_report(const Completed& run, const std::string& name,
                         const report::Report& report) {
    std::ostringstream page;
    report::print(report, page);
    const std::string summary = report::json_text(report, run.results.run());
    const std::filesystem::path folder = run.out / "tables";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    for (const report::Table& table : report.tables)
        write_text(folder / (table.shape().name + ".csv"), table.csv());
    write_page(run, name, page.str(), summary);
    return report.verdict.reached.value_or(true) ? "" : report.verdict.text;
}

void write_text(const std::filesystem::path& path, const std::string& content) {
    io::PartialFile file(path, true);
    file.write(content);
    file.finish();
}

}  // namespace msa::experiments
