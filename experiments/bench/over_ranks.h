// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

#include "experiments/bench/options.h"

namespace msa::experiments::bench {

/// Times index_select and sparse_attention of one layer on all --devices together and on the first
/// alone (core/parallel): a prefill of each length, and decoding one token after it. Compares all
/// ids, and rows of the outputs; std::logic_error if ids differ.
void bench_over_ranks(const BenchOptions&, std::span<const std::string> args, std::ostream& out,
                      std::ostream& err);

}  // namespace msa::experiments::bench
