// SPDX-License-Identifier: MIT
// What a machine can do at most: the rates that every timing is shown as a share of.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/backend.h"

namespace msa::experiments::bench {

struct Ceilings {
    /// Bytes read and written per second by a copy within the backend's memory, one entry per
    /// repetition of the measurement.
    std::vector<double> copy_rates;
    /// FLOP/s of a large dense matrix product of each element; an element without one is absent.
    std::map<Element, double> gemm_rates;
    /// Where gemm_rates come from, in words.
    std::string gemm_source;

    double copy_rate() const;  // median
};

/// Copies are measured. The matrix product is measured on a host backend (Eigen's sgemm with all
/// cores, 2048 x 2048); of a GPU it is what data/hardware/ tells of the chip that the device's name
/// mentions, nothing where none is known.
Ceilings measure_ceilings(Backend&);

}  // namespace msa::experiments::bench
