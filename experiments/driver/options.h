// SPDX-License-Identifier: MIT
// Command lines: what the table of options (option_table.h) is made of. One Boost description per
// program feeds the parser, the help and the generated reference (experiments/CLI.md).
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "experiments/programs.h"

namespace msa::experiments {

namespace po = boost::program_options;

/// What a program says of itself in its help.
struct About {
    Named program;                      // its row in programs.def
    std::string does{};                 // more than its question says; may be empty
    std::string usage;                  // "FILE --out DIR [options]"
    std::vector<std::string> examples;  // complete command lines that run
    std::string writes;                 // files and HDF5 groups it writes; may be empty
};

/// A count that may carry a binary suffix: 512, 128K = 2^17, 1M = 2^20.
struct Count {
    int64_t value = 0;
};
std::istream& operator>>(std::istream&, Count&);
std::ostream& operator<<(std::ostream&, const Count&);

/// "a:b", "a:" or ":b", half open; what is left out is the end of what there is.
struct Range {
    std::optional<int64_t> begin, end;
};
std::istream& operator>>(std::istream&, Range&);
std::ostream& operator<<(std::ostream&, const Range&);

/// "0:100,200:300"
std::string ranges_text(const std::vector<Range>&);

/// "3,6" -> {"3", "6"}; empty items are an InputError naming `option`.
std::vector<std::string> split_list(const std::string& option, const std::string& list);
/// A list of integers; InputError naming `option` and the item that is none.
std::vector<int64_t> integer_list(const std::string& option, const std::string& list);

/// "mass, max-logit"
std::string join(const std::vector<std::string>& words, const char* between = ", ");
/// The index of `value` among `known`; InputError naming them all when it is none.
size_t choice(const std::string& option, const std::string& value,
              const std::vector<std::string>& known);
/// The element type of that name among `known`; nothing for an absent option (empty).
std::optional<Element> element_option(const std::string& option, const std::string& value,
                                      const std::vector<Element>& known);
/// InputError "--option is V, must be from L to H" unless low <= value <= high.
void check_option(const std::string& option, int64_t value, int64_t low, int64_t high);
/// InputError "--option is V, must be at least L".
void check_at_least(const std::string& option, int64_t value, int64_t low);

/// InputError where a file stands in the way of a folder: the path itself, or what it lies in.
void check_folder(const std::string& option, const std::filesystem::path& folder);

/// Is "--option" among the arguments? For defaults that must not look like a choice.
bool given(std::span<const std::string> args, const std::string& option);

/// Adds --help, --help-markdown and --version, parses `args` into the variables that `options`
/// names, positional arguments into the option `positional` (none when empty). Returns false when
/// help or version was asked for, and written to `out`. Unknown, repeated and malformed options
/// are InputErrors; abbreviations are unknown.
bool parse_command_line(const About& about, const po::options_description& options,
                        const std::string& positional, std::span<const std::string> args,
                        std::ostream& out);

}  // namespace msa::experiments
