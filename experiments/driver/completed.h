// SPDX-License-Identifier: MIT
// The end of a run: a program, or msa-merge in its place, writes files from results.h5.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "core/io/results.h"

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

/// Writes summary.json as the last file, and prints it or `page`.
void write_summary(const Completed&, const std::string& summary, const std::string& page);
/// The same, and writes the page to the file `name`.
void write_page(const Completed&, const std::string& name, const std::string& page,
                const std::string& summary);

/// Writes a small file through `path`.partial. SystemError naming file and reason; InputError if
/// another process is writing it.
void write_text(const std::filesystem::path& path, const std::string& content);

}  // namespace msa::experiments
