// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/io/results.h"

namespace msa::experiments {

/// "2026-01-31T12:00:00Z"
std::string utc_now();

/// The SHA-256 of files by name, the second of a name as "NAME (2)".
std::map<std::string, std::string> hash_inputs(const std::vector<std::filesystem::path>&);

/// What a result remembers of its run: program, arguments, commit, host, compiler, start, and the
/// SHA-256 of its input files (hash_inputs). Bytes of arguments and
/// names that are not UTF-8 become \xNN (core/utf8.h). options, definitions,
/// device and seed are the caller's to set.
io::RunRecord start_record(const std::string& program, std::span<const std::string> args,
                           const std::vector<std::filesystem::path>& inputs);

}  // namespace msa::experiments
