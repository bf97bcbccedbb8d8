// SPDX-License-Identifier: MIT
// Joins the parts of a layer (LayerPart in run.h): rows of their queries, and sums and counts over
// these. Nothing is rounded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "analysis/rows.h"
#include "core/io/dataset_reader.h"
#include "core/io/unit_writer.h"

namespace msa::experiments {

/// Concatenates the parts' rows of every dataset under these groups. Parts are in the order of the
/// queries. Within a part, all these datasets have equally many rows.
void join_rows(const std::vector<std::filesystem::path>& parts, std::span<const char* const> groups,
               io::UnitWriter& to);

/// Integers as a dataset, and back.
void store_list(io::UnitWriter&, const std::string& dataset, const std::vector<int64_t>& values);
std::vector<int64_t> stored_list(const io::DatasetReader&, const std::string& dataset);

/// A state as the datasets `sums` and `counts` of a group, and back.
void store_state(io::UnitWriter&, const std::string& group, const analysis::State&);
analysis::State stored_state(const io::DatasetReader&, const std::string& group);

}  // namespace msa::experiments
