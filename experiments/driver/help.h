// SPDX-License-Identifier: MIT
// What a program says of itself. Its options come in groups, the usual ones first.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/driver/options.h"

namespace msa::experiments {

enum class Length { usual, all };

/// The usual options of a program, in the order of its help; empty where all are.
const std::vector<std::string>& usual_options(std::string_view program);

/// --help, with the usual options alone, or --help-all.
void print_help(const About& about, const po::options_description& options, Length length,
                std::ostream& out);
/// --help-markdown, as experiments/CLI.md has it.
void print_markdown(const About& about, const po::options_description& options, std::ostream& out);

}  // namespace msa::experiments
