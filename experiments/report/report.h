// SPDX-License-Identifier: MIT
// A program's whole answer: tables, notes and a verdict. summary.json, the tables of results.h5 and
// the page are written from it, in one schema for all programs: `msa-report` in data/FORMAT.md.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/io/run_record.h"
#include "experiments/report/table.h"

namespace msa::experiments::report {

inline constexpr const char* kFormat = "msa-report";
inline constexpr int kVersion = 1;
/// The note that says what the intervals are, or why there are none. Every report with estimates
/// has it.
inline constexpr const char* kIntervals = "intervals";

/// What is said of the tables in words, by a key that does not change with the words.
struct Note {
    std::string key, text;
};

/// Whether the run's target is reached, and by what. Without a target `reached` is absent, and the
/// text may be empty.
struct Verdict {
    std::optional<bool> reached{};
    std::string text{};  // paragraphs are divided by line breaks
};

struct Report {
    std::string title;          // what was asked: paragraphs divided by line breaks
    std::vector<Table> tables;  // in the order of the page
    Verdict verdict{};
    std::vector<Note> notes{};

    /// Adds a note, unless its text is empty.
    void note(std::string key, std::string text);
};

/// Throws std::logic_error if tables or notes share a name, a key means two things, or the note on
/// intervals is missing.
void check(const Report&);
/// summary.json, of a report that passes the check.
std::string json_text(const Report&, const io::RunRecord&);
/// The group /tables of results.h5, which has the record in /run. The report passes the check.
void write(const Report&, io::UnitWriter&);
/// The page: title, tables, verdict, notes.
void print(const Report&, std::ostream&);

/// {key: definition} of all columns, JSON text; for RunRecord::definitions.
std::string definitions(std::span<const Shape> tables);
/// {key: column} in the order of the tables. Throws std::logic_error where a key means two things.
std::vector<Column> columns_of(std::span<const Shape> tables);

}  // namespace msa::experiments::report
