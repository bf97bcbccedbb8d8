// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

#include "experiments/bench/record.h"

namespace msa::experiments::bench {

/// Checks and times every requested stage on one case, and passes each measurement to `done`. A
/// stage without enough memory or without the backend's support is passed on as skipped. Throws
/// std::logic_error if a result is wrong.
void run_case(Backend&, Meter&, const BenchOptions&, const Case&,
              const std::function<void(const Measurement&)>& done);

}  // namespace msa::experiments::bench
