// SPDX-License-Identifier: MIT
#include "experiments/bench/meter.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "experiments/bench/sgemm.h"
#include "experiments/driver/presets.h"
#include "experiments/driver/program.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kPoison = int64_t{1} << 26;  // bytes poisoned at a time
constexpr double kLongCall = 0.05, kMostSeconds = 10;

}  // namespace

void stop_case_if_asked() {
    if (stop_requested()) throw Interrupted("stopped; --out has the stages before this one");
}

double cold_seconds(Backend& backend, const std::function<void()>& work) {
    if (const std::optional<double> seconds = cuda_cold_seconds(backend, work)) return *seconds;
    using Clock = std::chrono::steady_clock;
    static const std::vector<char> filler(size_t{1} << 26, 1);  // more than caches hold
    // Reads all of it: there is no 0.
    volatile bool found = std::memchr(filler.data(), 0, filler.size()) != nullptr;
    static_cast<void>(found);
    backend.finish();
    const Clock::time_point begin = Clock::now();
    work();
    backend.finish();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Meter::Meter(Backend& backend) : backend_(backend), filler_(backend.make<char, 1>({kPoison})) {
    const std::vector<char> ones(size_t{1} << 24, '\xff');
    for (int64_t at = 0; at < filler_.size(); at += std::ssize(ones))
        backend.copy(filler_.data() + at, backend.space(), ones.data(), Space::host,
                     std::ssize(ones));
}

void Meter::poison(void* memory, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += filler_.size()) {
        stop_case_if_asked();
        backend_.copy(static_cast<char*>(memory) + at, backend_.space(), filler_.data(),
                      backend_.space(), std::min(filler_.size(), bytes - at));
    }
}

std::function<void()> Meter::capture(const std::function<void()>& work, Timing& timing) {
    try {
        std::function<void()> again = backend_.make_graph(work);
        timing.captured = true;
        return again;
    } catch (const UnsupportedError&) {
        return work;
    }
}

Timing Meter::time(const std::function<void(int64_t)>& call, int64_t layers, int64_t samples) {
    std::function<void()> work = [&] { call(0); };
    const auto sample = [&] {
        stop_case_if_asked();
        return cold_seconds(backend_, work);
    };
    const double first = sample();
    Timing timing;
    if (first > kMostSeconds) {
        timing.samples_us = {1e6 * first};
        return timing;
    }
    if (first <= kLongCall) {
        timing.calls = layers;
        work = capture(
            [&] {
                for (int64_t layer = 0; layer < layers; ++layer) call(layer);
            },
            timing);
        sample();
    }
    const auto affordable = static_cast<int64_t>(kMostSeconds / first);
    for (int64_t n = 0; n < std::min(samples, affordable); ++n)
        timing.samples_us.push_back(1e6 * sample() / static_cast<double>(timing.calls));
    return timing;
}

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
