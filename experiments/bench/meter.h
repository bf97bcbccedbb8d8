// SPDX-License-Identifier: MIT
// Times calls from cold caches.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/backend.h"

namespace msa::experiments::bench {

/// Throws Interrupted if the user asked to stop: between the samples and stages of a case, and
/// between the pieces of what makes and checks its operands.
void stop_case_if_asked();

double median(std::vector<double> values);

/// Seconds that `work`, calls of `backend`, takes with caches full of other, clean data: by events
/// on a GPU, by wall clock elsewhere.
double cold_seconds(Backend& backend, const std::function<void()>& work);

struct Timing {
    int64_t calls = 1;               // in a row, per sample
    bool captured = false;           // repeated as one launch
    std::vector<double> samples_us;  // per call
};

class Meter {
public:
    explicit Meter(Backend&);

    /// Overwrites with bytes that no result has: NaN as float or bf16, and not a block id.
    void poison(void* memory, int64_t bytes);

    /// Times `call(layer)` for the layers 0 to layers - 1, queued one after the other and captured
    /// if the backend can. For a long call, only the first layer.
    Timing time(const std::function<void(int64_t layer)>& call, int64_t layers, int64_t samples);

private:
    std::function<void()> capture(const std::function<void()>& work, Timing&);

    Backend& backend_;
    Tensor<char, 1> filler_;  // all bits set
};

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
