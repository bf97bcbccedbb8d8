// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

#include "experiments/bench/options.h"

namespace msa::experiments::bench {

/// Times one layer, index_select and sparse_attention, on --devices together and on the first of
/// them alone (core/parallel): a prefill of each length, and one token decoded behind it. The ids
/// of both are compared, all of them, and rows of the outputs; std::logic_error where ids differ.
void bench_over_ranks(const BenchOptions&, std::span<const std::string> args, std::ostream& out,
                      std::ostream& err);

}  // namespace msa::experiments::bench
