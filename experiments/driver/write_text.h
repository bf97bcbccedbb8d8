// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <string>

namespace msa::experiments {

/// Writes a small file through `path`.partial. SystemError naming file and reason; InputError if
/// another process is writing it.
void write_text(const std::filesystem::path& path, const std::string& content);

}  // namespace msa::experiments
