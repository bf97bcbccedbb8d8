// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

#include "experiments/bench/record.h"

namespace msa::experiments::bench {

/// Checks and times every stage that the options ask for on one case, and hands each measurement to
/// `done`. What the machine has no memory for, or the backend no support, is handed on as skipped.
/// Throws std::logic_error where a result is wrong.
void run_case(Backend&, Meter&, const BenchOptions&, const Case&,
              const std::function<void(const Measurement&)>& done);

}  // namespace msa::experiments::bench
