// SPDX-License-Identifier: MIT
// The end of a run: a program answers from its results, and the answer is written.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/report/report.h"

namespace msa::experiments {

/// A run whose results.h5 is complete.
struct Completed {
    const io::ResultsReader& results;
    std::filesystem::path out;                  // the folder
    std::vector<std::filesystem::path> inputs;  // of the run
    bool json;                                  // print summary.json instead of the table
    int threads;                                // 0: all
    std::ostream& print;
};

/// What a program answers, from its results alone.
struct RunAnswer {
    report::Report report;
    std::string page;                               // the file of the page
    std::function<void(const Completed&)> files{};  // writes the program's other files
};
using MakeAnswer = RunAnswer (*)(const io::ResultsReader&);

/// Writes the answer to a folder: the other files, each table to tables/NAME.csv, the page and, as
/// the last file, summary.json. Prints the page or summary.json. Returns the verdict if the target
/// is missed, else nothing.
std::string write_answer(const Completed&, const RunAnswer&);

/// Prints what write_answer() has written to the folder: its page, or summary.json. Returns what it
/// returned; absent, and nothing is printed, if one of the two files is missing.
std::optional<std::string> print_answer(const std::filesystem::path& folder,
                                        const std::string& page, bool json, std::ostream& print);

/// Writes a small file by a rename. Several processes may write the same one at the same time.
/// SystemError naming file and reason.
void write_text(const std::filesystem::path& path, const std::string& content);

}  // namespace msa::experiments
