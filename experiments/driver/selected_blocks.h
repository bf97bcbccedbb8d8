// SPDX-License-Identifier: MIT
// Reads selected blocks from results of msa-analyze.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa::experiments {

/// InputError naming `file` unless its results are of msa-analyze.
void require_of_analyze(const std::string& file, const io::ResultsReader&);

/// The layers of the file, ascending, and its selectors: those asked for, or all. InputError naming
/// the option if the file lacks one.
std::vector<int64_t> pick_layers(const io::ResultsReader&, const std::vector<int64_t>& asked);
std::vector<std::string> pick_selectors(const io::ResultsReader&,
                                        const std::vector<std::string>& asked);

/// The problem of a layer's analysed queries with the keys that any of them sees. InputError naming
/// file, layer, dataset and values if the file contradicts itself, or if the queries of a sequence
/// have gaps; `why_neighbours` completes the message: why gaps are not allowed.
Problem read_queries(const std::string& file, const io::ResultsReader&, int64_t layer,
                     const std::string& why_neighbours);

/// The dataset of a selector's ids on a layer.
std::string ids_dataset(const std::string& selector, int64_t layer);
/// A selector's ids [Nq, Hkv, k] of the queries of `p`. InputError naming file and dataset.
Tensor<int32_t, 3> read_ids(const std::string& file, const io::ResultsReader&, const Problem& p,
                            const std::string& selector, int64_t layer);

}  // namespace msa::experiments
