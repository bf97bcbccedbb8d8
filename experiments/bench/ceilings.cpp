// SPDX-License-Identifier: MIT
#include "experiments/bench/ceilings.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "experiments/bench/meter.h"
#include "experiments/bench/sgemm.h"
#include "experiments/driver/presets.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kDeviceCopy = int64_t{1} << 31;  // bytes, long against a copy's latency
constexpr int64_t kHostCopy = int64_t{1} << 25;
constexpr int64_t kGemm = 2048;
constexpr int kRepetitions = 7;       // at most
constexpr double kGemmSeconds = 0.5;  // then no further repetition

std::vector<double> copy_rates(Backend& backend) {
    const int64_t bytes = backend.space() == Space::device ? kDeviceCopy : kHostCopy;
    const Tensor<char, 1> from = backend.make<char, 1>({bytes});
    Tensor<char, 1> to = backend.make<char, 1>({bytes});
    std::vector<double> rates;
    for (int n = 0; n <= kRepetitions; ++n) {
        const double took = cold_seconds(backend, [&] {
            backend.copy(to.data(), backend.space(), from.data(), backend.space(), bytes);
        });
        if (n > 0) rates.push_back(2 * static_cast<double>(bytes) / took);
    }
    return rates;
}

/// FLOP/s of Eigen's sgemm.
double measure_sgemm() {
    using Clock = std::chrono::steady_clock;
    std::vector<float> a(kGemm * kGemm), b(a.size()), c(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
        a[i] = 1 + static_cast<float>(i % 7);
        b[i] = 1 + static_cast<float>(i % 5);
    }
    std::vector<double> rates;
    double spent = 0;
    for (int n = 0; n <= kRepetitions && spent < kGemmSeconds; ++n) {
        const Clock::time_point begin = Clock::now();
        eigen_sgemm(a.data(), b.data(), c.data(), kGemm);
        const double took = std::chrono::duration<double>(Clock::now() - begin).count();
        if (n == 0) continue;  // a warm-up
        rates.push_back(2.0 * kGemm * kGemm * kGemm / took);
        spent += took;
    }
    return median(rates);
}

/// The same for all records of a process.
double sgemm_rate() {
    static const double rate = measure_sgemm();
    return rate;
}

}  // namespace

double Ceilings::copy_rate() const { return median(copy_rates); }

Ceilings measure_ceilings(Backend& backend) {
    Ceilings ceilings{.copy_rates = copy_rates(backend), .gemm_rates = {}, .gemm_source = ""};
    if (backend.space() == Space::host) {
        ceilings.gemm_rates[Element::f32] = sgemm_rate();
        ceilings.gemm_source = concat("Eigen's sgemm in this run, ", kGemm, " x ", kGemm);
    } else if (const std::string chip = chip_of(backend.device()); !chip.empty()) {
        const bool measured = is_measured(chip);
        const auto which = measured ? experiments::Ceilings::measured : experiments::Ceilings::peak;
        ceilings.gemm_rates = read_hardware(chip, which).flops_per_second;
        ceilings.gemm_source = concat("data/hardware/", chip, ".json, ",
                                      measured ? "measured where it says so" : "the peak");
    }
    return ceilings;
}

}  // namespace msa::experiments::bench
