// SPDX-License-Identifier: MIT
#include "experiments/bench/meter.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "experiments/driver/program.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kPoison = int64_t{1} << 26;  // bytes poisoned at a time
constexpr double kLongCall = 0.05, kMostSeconds = 10;

}  // namespace

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
    for (int64_t at = 0; at < bytes; at += filler_.size())
        backend_.copy(static_cast<char*>(memory) + at, backend_.space(), filler_.data(),
                      backend_.space(), std::min(filler_.size(), bytes - at));
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
        if (stop_requested()) throw Interrupted("stopped; --out keeps the stages before");
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

}  // namespace msa::experiments::bench
