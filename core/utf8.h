// SPDX-License-Identifier: MIT
// Sanitises external text (file names, arguments, attributes) for its destination.
#pragma once

#include <string>
#include <string_view>

namespace msa {

/// `words` with each byte that is not part of well-formed UTF-8 written as backslash xNN; for JSON
/// and HDF5.
std::string valid_utf8(std::string_view words);

/// The same, and also each byte of a control character (U+0000 to U+001F, U+007F to U+009F) except
/// those in `kept`; for a terminal, which would obey them.
std::string printable(std::string_view words, std::string_view kept = "");

}  // namespace msa
