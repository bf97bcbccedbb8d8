// SPDX-License-Identifier: MIT
// Texts from outside (file names, arguments, attributes) made fit for where they go.
#pragma once

#include <string>
#include <string_view>

namespace msa {

/// `words` with each byte that is no part of well-formed UTF-8 as backslash xNN: for JSON, HDF5.
std::string valid_utf8(std::string_view words);

/// The same, and each byte of a control character too (U+0000 to U+001F, U+007F to U+009F) unless
/// it is one of `kept`: for a terminal, which obeys those.
std::string printable(std::string_view words, std::string_view kept = "");

}  // namespace msa
