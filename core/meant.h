// SPDX-License-Identifier: MIT
// What was meant by a name that nobody has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace msa {

/// Those of `known` that are nearest to `word`, at most three: they differ from it in case, in '_'
/// for '-', or in a letter in three that is wrong, missing, too many or swapped with the next. None
/// where `word` is like none of them.
std::vector<std::string> nearest_names(std::string_view word,
                                       const std::vector<std::string>& known);

/// " (did you mean 'oracle'?)", to follow the word, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace msa
