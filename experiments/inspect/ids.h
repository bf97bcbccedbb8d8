// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "core/io/results.h"

namespace msa::experiments::inspect {

/// Checks the ids [Nq, Hkv, k] of a layer, reading `at_once` rows at a time. InputError unless rows
/// are ascending blocks padded with kNoBlock, none after the query. `path`: of the file, for
/// messages.
void check_ids(const io::ResultsReader&, const std::string& path, const io::DatasetInfo&,
               const std::string& layer, int64_t at_once);

}  // namespace msa::experiments::inspect
