// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <string>

namespace msa::experiments {

/// A program's text for an error: its message and, if there is one, the option that helps (";
/// --overwrite replaces it").
std::string message_of(const std::exception&);

}  // namespace msa::experiments
