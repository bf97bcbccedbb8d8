// SPDX-License-Identifier: MIT
// The end of a run: a program writes files from results.h5.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/io/results.h"

namespace msa::experiments {

namespace report {
struct Report;
}

/// A run whose results.h5 is complete.
struct Completed {
    const io::ResultsReader& results;
    std::filesystem::path out;                  // the folder
    std::vector<std::filesystem::path> inputs;  // of the run
    bool json;                                  // print summary.json instead of the table
    int threads;                                // 0: all
    std::ostream& print;
    bool writes = true;  // false: another process has written all files
};

/// Writes a program's answer: the page to the file `name`, each table to tables/NAME.csv and, as
/// the last file, summary.json. Prints the page or summary.json. Returns the verdict if the target
/// is missed, else nothing.
std::string write_report(const Completed&, const std::string& name, const report::Report&);

/// Writes a small file by a rename. Several processes may write the same one at the same time.
/// SystemError naming file and reason.
void write_text(const std::filesystem::path& path, const std::string& content);

}  // namespace msa::experiments
