// SPDX-License-Identifier: MIT
// The peak rates of a machine, of which every timing is shown as a share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/backend.h"

namespace msa::experiments::bench {

struct Ceilings {
    /// Bytes read and written per second by a copy within the backend's memory, one value per
    /// repetition.
    std::vector<double> copy_rates;
    /// FLOP/s of a large dense matrix product, by element.
    std::map<Element, double> gemm_rates;
    /// Where gemm_rates come from, in words.
    std::string gemm_source;

    double copy_rate() const;  // median
};

/// Measures copies, and on a host backend the matrix product (Eigen's sgemm with all cores, 2048 x
/// 2048). For a GPU, the product's rates come from data/hardware/ for the chip in the device's
/// name; unknown chips have none.
Ceilings measure_ceilings(Backend&);

}  // namespace msa::experiments::bench
