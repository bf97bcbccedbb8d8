// SPDX-License-Identifier: MIT
// The help of a program. Its options come in groups, the usual ones first.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/driver/options.h"

namespace msa::experiments {

enum class Length { usual, all };

/// The usual options of a program, in the order of its help; empty if all of them are usual.
const std::vector<std::string>& usual_options(std::string_view program);

/// Prints --help, with the usual options only, or --help-all.
void print_help(const About& about, const po::options_description& options, Length length,
                std::ostream& out);
/// Prints --help-markdown, a section of experiments/CLI.md.
void print_markdown(const About& about, const po::options_description& options, std::ostream& out);

}  // namespace msa::experiments
