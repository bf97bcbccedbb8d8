// SPDX-License-Identifier: MIT
// The programs of the table programs.def, one namespace and folder each. `run` sends results to
// `out`, progress and warnings to `err`, and returns the exit code, or throws (driver/program.h
// turns exceptions into codes). What a row names, its namespace defines, too.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace msa::io {
class ResultsReader;
class UnitWriter;
}  // namespace msa::io

namespace msa::experiments {

namespace report {
struct Shape;
}
struct RunAnswer;
using Arguments = std::span<const std::string>;

/// A program's name and question.
struct Named {
    const char* name;
    const char* question;
};

#define MSA_PROGRAM(space, name, question, tables_of)                                     \
    namespace space {                                                                     \
    inline constexpr Named kProgram{name, question};                                      \
    int run(Arguments args, std::ostream& out, std::ostream& err);                        \
    /** The tables of its answer, without rows. */                                        \
    std::vector<report::Shape> tables();                                                  \
    /** What it answers, from results.h5 or what becomes it. */                           \
    RunAnswer answer(const io::ResultsReader& results);                                   \
    /** Writes a layer's datasets from the files of its parts, in the order of queries:   \
        their rows and sums are joined in that order. The activations are not needed. */  \
    void join_layer(const std::vector<std::filesystem::path>& parts, io::UnitWriter& to); \
    }
#include "experiments/programs.def"
#undef MSA_PROGRAM

struct Program {
    const char* name;
    int (*run)(Arguments args, std::ostream& out, std::ostream& err);
    const char* question;
    std::vector<report::Shape> (*tables)();  // none: the answer is no report yet
};

/// All programs, in the order of the table.
std::span<const Program> programs();

}  // namespace msa::experiments
