// SPDX-License-Identifier: MIT
// Parsing of command lines, used by the table of options (option_table.h). One Boost description
// per program gives the parser, the help and the generated reference (experiments/CLI.md).
#pragma once

#include <boost/program_options.hpp>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "experiments/programs.h"

namespace msa::experiments {

namespace po = boost::program_options;

/// The text of a program's help.
struct About {
    Named program;                      // its row in programs.def
    std::string does{};                 // continues its question; may be empty
    std::string usage;                  // "FILE --out DIR [options]"
    std::vector<std::string> examples;  // complete command lines that run
    std::string writes;                 // files and HDF5 groups it writes; may be empty
};

/// The number that all of `word` is; nothing if it is none.
template <typename T>
std::optional<T> number_of(std::string_view word) {
    T value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
    return value;
}

/// A count that may have a binary suffix: 512, 128K = 2^17, 1M = 2^20.
std::optional<int64_t> count_of(std::string_view word);

/// "a:b", "a:" or ":b", half open; a missing end is the first or last position.
struct Range {
    std::optional<int64_t> begin, end;
};
std::optional<Range> range_of(const std::string& word);
std::ostream& operator<<(std::ostream&, const Range&);

/// "3,6" -> {"3", "6"}; empty items are an InputError naming `option`.
std::vector<std::string> split_list(const std::string& option, const std::string& list);
/// A list of integers; InputError naming `option` and an item that is not an integer.
std::vector<int64_t> integer_list(const std::string& option, const std::string& list);

/// The index of `value` in `known`; InputError naming them all if it is none of them.
size_t choice(const std::string& option, const std::string& value,
              const std::vector<std::string>& known);
/// The element type of that name, one of `known`; nothing for an empty value.
std::optional<Element> element_option(const std::string& option, const std::string& value,
                                      const std::vector<Element>& known);
/// InputError "--option is V, must be from L to H" unless low <= value <= high.
void check_option(const std::string& option, int64_t value, int64_t low, int64_t high);
/// InputError "--option is V, must be at least L".
void check_at_least(const std::string& option, int64_t value, int64_t low);

/// InputError if the path, or a folder above it, is a file.
void check_folder(const std::string& option, const std::filesystem::path& folder);

/// Whether "--option" is among the arguments. For defaults that depend on whether the user chose.
bool given(std::span<const std::string> args, const std::string& option);

/// Adds --help, --help-all, --help-markdown and --version, parses `args` into the variables that
/// `options` names, positional arguments into the option `positional` (none when empty). Returns
/// false if help or version was requested and written to `out`. InputError for unknown, repeated
/// and malformed options; abbreviations are not accepted.
bool parse_command_line(const About& about, const po::options_description& options,
                        const std::string& positional, std::span<const std::string> args,
                        std::ostream& out);

}  // namespace msa::experiments
