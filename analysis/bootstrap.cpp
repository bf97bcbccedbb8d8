// SPDX-License-Identifier: MIT
#include "analysis/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "core/random.h"

namespace msa::analysis {
namespace {

/// One of `count` numbers from 0.
int64_t draw(int64_t count, uint64_t bits) {
    return static_cast<int64_t>(random_uniform(bits) * static_cast<double>(count));
}

double point(const std::vector<double>& ascending, double share) {
    const double at = share * static_cast<double>(ascending.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, ascending.size() - 1);
    const double part = at - std::floor(at);
    return ascending[below] + part * (ascending[above] - ascending[below]);
}

}  // namespace

Tensor<int32_t, 2> bootstrap_draws(std::span<const int64_t> sequences, int64_t draws,
                                   uint64_t seed) {
    std::map<int64_t, std::vector<int64_t>> of_sequence;
    for (int64_t block = 0; block < std::ssize(sequences); ++block)
        of_sequence[sequences[static_cast<size_t>(block)]].push_back(block);
    std::vector<std::vector<int64_t>> groups;
    for (auto& [sequence, blocks] : of_sequence) groups.push_back(std::move(blocks));
    if (std::ssize(groups) < kLeastUnits) {
        groups.assign(1, std::vector<int64_t>(sequences.size()));
        std::iota(groups.front().begin(), groups.front().end(), int64_t{0});
    }
    const int64_t count = std::ssize(groups);
    Tensor<int32_t, 2> times({draws, std::ssize(sequences)});
    for (int64_t n = 0; n < draws; ++n)
        for (int64_t s = 0; s < count; ++s) {
            const auto& blocks = groups[static_cast<size_t>(draw(count, mix(seed, n, s)))];
            for (int64_t b = 0; b < std::ssize(blocks); ++b) {
                const int64_t one = draw(std::ssize(blocks), mix(seed, n, s, b));
                ++times(n, blocks[static_cast<size_t>(one)]);
            }
        }
    return times;
}

Estimate with_interval(double value, std::vector<double> draws) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const bool known =
        std::none_of(draws.begin(), draws.end(), [](double x) { return std::isnan(x); });
    if (draws.empty() || !known) return {value, kNone, kNone};
    std::sort(draws.begin(), draws.end());
    return {value, point(draws, 0.025), point(draws, 0.975)};
}

}  // namespace msa::analysis
