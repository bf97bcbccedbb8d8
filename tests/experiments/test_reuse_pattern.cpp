// SPDX-License-Identifier: MIT
// Which layers compute ids of their own: the patterns of msa-reuse, and the best of them.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "experiments/reuse/pattern.h"
#include "tests/support/refusal.h"

namespace msa::test {
namespace {

using Pattern = experiments::LayerPattern;

constexpr double kNever = std::numeric_limits<double>::infinity();

double loss_of(const Pattern& pattern, View<const double, 2> loss) {
    const std::vector<size_t> from = experiments::sources(pattern);
    double sum = 0;
    for (size_t t = 0; t < from.size(); ++t)
        sum += loss(static_cast<int64_t>(from[t]), static_cast<int64_t>(t));
    return sum;
}

/// Layers that compute, the last one first: the first pattern among equals is the least of these.
std::vector<size_t> from_behind(const Pattern& pattern) {
    std::vector<size_t> layers;
    for (size_t t = pattern.size(); t-- > 0;)
        if (pattern[t]) layers.push_back(t);
    return layers;
}

std::vector<std::optional<Pattern>> by_trying_all(View<const double, 2> loss) {
    const auto layers = static_cast<size_t>(loss.extent(0));
    std::vector<std::optional<Pattern>> best(layers);
    for (size_t bits = 0; bits < size_t{1} << (layers - 1); ++bits) {
        Pattern pattern{true};
        for (size_t t = 1; t < layers; ++t) pattern.push_back((bits >> (t - 1) & 1) != 0);
        const double all = loss_of(pattern, loss);
        if (!(all < kNever)) continue;
        auto& least = best[static_cast<size_t>(experiments::reuse::computing(pattern)) - 1];
        if (!least || all < loss_of(*least, loss) ||
            (all == loss_of(*least, loss) && from_behind(pattern) < from_behind(*least)))
            least = pattern;
    }
    return best;
}

// Small whole numbers: sums are exact, and equal ones abound.
TEST(ReusePattern, LeastLossIsThatOfTryingAll) {
    std::mt19937_64 generator(1);
    int found = 0, not_found = 0;
    for (int64_t layers = 1; layers <= 9; ++layers)
        for (int n = 0; n < 60; ++n) {
            Tensor<double, 2> loss({layers, layers});
            for (int64_t s = 0; s < layers; ++s)
                for (int64_t t = s; t < layers; ++t) {
                    const uint64_t drawn = generator() % 12;
                    loss(s, t) = drawn == 10   ? kNever
                                 : drawn == 11 ? std::numeric_limits<double>::quiet_NaN()
                                               : static_cast<double>(drawn % 5);
                }
            const auto least = experiments::reuse::least_loss(loss.view());
            const auto expected = by_trying_all(loss.view());
            ASSERT_EQ(least.size(), expected.size());
            for (size_t c = 0; c < least.size(); ++c) {
                EXPECT_EQ(least[c], expected[c]) << layers << " layers, " << c + 1 << " compute";
                ++(least[c] ? found : not_found);
            }
        }
    EXPECT_GT(found, 500);
    EXPECT_GT(not_found, 500);
}

TEST(ReusePattern, EveryCountsLayersOfTheModel) {
    const std::vector<int64_t> numbers{3, 5, 6, 9, 10, 11};
    EXPECT_EQ(experiments::every(numbers, 1), Pattern(6, true));
    EXPECT_EQ(experiments::every(numbers, 2), (Pattern{true, true, false, true, false, true}));
    EXPECT_EQ(experiments::every(numbers, 4), (Pattern{true, false, false, true, false, false}));
    EXPECT_EQ(experiments::sources(experiments::every(numbers, 4)),
              (std::vector<size_t>{0, 0, 0, 3, 3, 3}));
}

TEST(ReusePattern, GroupsShareTheIdsOfTheirFirstLayer) {
    const std::vector<int64_t> numbers{3, 4, 5, 6, 9, 10};
    const auto grouped = [&](const std::vector<std::string>& items) {
        return experiments::grouped(numbers, items);
    };
    const auto refused = [&](const std::vector<std::string>& items) {
        return refusal([&] { grouped(items); });
    };
    EXPECT_EQ(grouped({}), Pattern(6, true));
    EXPECT_EQ(grouped({"4-6"}), (Pattern{true, true, false, false, true, true}));
    EXPECT_EQ(grouped({"9-9223372036854775807", "3", "5-8"}),
              (Pattern{true, true, true, false, true, false}));
    for (const char* bad :
         {"", "-", "-3", "3--4", "5-", "5-4", "3-4-5", "a", "3,4", "9223372036854775808"})
        EXPECT_NE(refused({bad}).find("--groups"), std::string::npos)
            << bad << ": " << refused({bad});
    EXPECT_EQ(refused({"7-9"}),
              "--groups has 7-9, whose first layer is not among those chosen; there are: 3, 4, 5, "
              "6, 9, 10");
    EXPECT_EQ(refused({"3-5", "5-6"}), "--groups has layer 5 in two groups, from 3 and from 5");
}

TEST(ReusePattern, GapsAreNamed) {
    EXPECT_EQ(experiments::reuse::missing_layers(std::vector<int64_t>{2, 3, 4}), "");
    EXPECT_EQ(experiments::reuse::missing_layers(std::vector<int64_t>{0, 3, 4, 6}), "1-2, 5");
    EXPECT_EQ(experiments::reuse::missing_layers(std::vector<int64_t>{0, int64_t{1} << 62}),
              "1-4611686018427387903");
}

}  // namespace
}  // namespace msa::test
