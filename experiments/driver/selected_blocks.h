// SPDX-License-Identifier: MIT
// The blocks that a file of results holds, for programs that read results of msa-analyze.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa::experiments {

/// InputError naming `file` where its results are not of msa-analyze.
void require_of_analyze(const std::string& file, const io::ResultsReader&);

/// The layers of the file, ascending, and its selectors: those asked for, or all. InputError naming
/// the option where the file has no such one.
std::vector<int64_t> pick_layers(const io::ResultsReader&, const std::vector<int64_t>& asked);
std::vector<std::string> pick_selectors(const io::ResultsReader&,
                                        const std::vector<std::string>& asked);

/// The analysed queries of a layer, against the keys that any of them sees. InputError naming file,
/// layer, dataset and values where the file contradicts itself, and where the queries of a sequence
/// have gaps; `why_neighbours` completes the error: why gaps are not allowed.
Problem read_queries(const std::string& file, const io::ResultsReader&, int64_t layer,
                     const std::string& why_neighbours);

/// Where the ids of a selector on a layer are.
std::string ids_dataset(const std::string& selector, int64_t layer);
/// Its ids [Nq, Hkv, k] of the queries of `p`. InputError naming file and dataset.
Tensor<int32_t, 3> read_ids(const std::string& file, const io::ResultsReader&, const Problem& p,
                            const std::string& selector, int64_t layer);

}  // namespace msa::experiments
