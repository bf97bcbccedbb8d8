// SPDX-License-Identifier: MIT
// The words of a command line, and what --help, --help-markdown and --version print.
#pragma once

#include <iosfwd>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/option_table.h"

namespace msa::experiments {

/// The values that the words give each of the rows, in the order of the rows; "" for a switch.
/// "--option VALUE" and "--option=VALUE" are the same, and behind "--" all words belong to the
/// positional row. Nothing if help or version was requested and written to `out`. InputError for
/// words that are unknown, repeated, or lack a value; abbreviations are not accepted.
std::optional<std::vector<std::vector<std::string>>> read_command_line(
    const About& about, const std::list<OptionRow>& rows, std::span<const std::string> args,
    std::ostream& out);

}  // namespace msa::experiments
