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
/// The key of the note on intervals, which says what they are or why there are none. Every report
/// with estimates has this note.
inline constexpr const char* kIntervals = "intervals";

/// A remark on the tables. Its key stays the same when the words change.
struct Note {
    std::string key, text;
};

/// Whether the run's target is reached, and the setting that reaches it or comes nearest. Without a
/// target `reached` is absent, and the text may be empty.
struct Verdict {
    std::optional<bool> reached{};
    std::string text{};  // paragraphs are divided by line breaks
};

struct Report {
    std::string title;          // what the run was asked; paragraphs are divided by line breaks
    std::vector<Table> tables;  // in the order of the page
    Verdict verdict{};
    std::vector<Note> notes{};

    /// Adds a note, unless its text is empty.
    void note(std::string key, std::string text);
};

/// Throws std::logic_error if two tables or two notes share a name, if a column's key means two
/// things, or if the note on intervals is missing.
void check(const Report&);
/// The text of summary.json. The report must pass the check.
std::string json_text(const Report&, const io::RunRecord&);
/// Writes the group /tables of results.h5, whose /run has the record. The report must pass the
/// check.
void write(const Report&, io::UnitWriter&);
/// Prints the page: title, tables, verdict, notes.
void print(const Report&, std::ostream&);

/// {key: definition} of all columns as JSON text, for RunRecord::definitions.
std::string definitions(std::span<const Shape> tables);
/// The columns of all tables in their order, each key once. Throws std::logic_error if a key means
/// two things.
std::vector<Column> columns_of(std::span<const Shape> tables);

}  // namespace msa::experiments::report
