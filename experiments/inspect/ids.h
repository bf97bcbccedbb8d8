// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "core/io/results.h"

namespace msa::experiments::inspect {

/// Refuses rows of ids [Nq, Hkv, k] of a layer that are not ascending blocks, filled up with
/// kNoBlock, or that name a block behind the query; reads `at_once` rows at a time. `path`: of the
/// file, for messages.
void check_ids(const io::ResultsReader&, const std::string& path, const io::DatasetInfo&,
               const std::string& layer, int64_t at_once);

}  // namespace msa::experiments::inspect
