// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <string>

namespace msa::experiments {

/// What a program says of an error: its message, and the option that helps, where there is one
/// ("; --overwrite replaces it", say).
std::string message_of(const std::exception&);

}  // namespace msa::experiments
