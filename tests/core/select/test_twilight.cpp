// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "tests/core/select/budget.h"

namespace msa::test {
namespace {

class Twilight : public BudgetTest {
protected:
    /// The source's min_max_per_token_quant_kv.
    std::vector<double> key(int64_t token, int64_t r, int64_t bits) const {
        std::vector<double> values;
        for (int64_t d = 0; d < 16; ++d) values.push_back(double{k_(token, r, d)});
        if (bits == 16) return values;
        const auto [low, high] = std::minmax_element(values.begin(), values.end());
        const double least = *low;
        const double scale = (*high - least) / (std::pow(2.0, static_cast<double>(bits)) - 1);
        for (double& value : values)
            value = std::nearbyint((value - least) / scale) * scale + least;
        return values;
    }
    /// Quest's bound of a block that is seen as a whole; the query's own is always in.
    double bound_of(int64_t token, int64_t r, int64_t b) const {
        double sum = 0;
        for (int64_t d = 0; d < 16; ++d) {
            double low = HUGE_VAL, high = -HUGE_VAL;
            for (int64_t j = 16 * b; j < 16 * b + 16; ++j) {
                low = std::min(low, double{k_(start(token) + j, r, d)});
                high = std::max(high, double{k_(start(token) + j, r, d)});
            }
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h)
                sum += std::max(double{q_(token, h, d)} * low, double{q_(token, h, d)} * high);
        }
        return sum;
    }
    /// [block]: the share of the candidates' attention, -1 for the others.
    std::vector<double> shares(int64_t token, int64_t r, int64_t top_k, double candidates,
                               int64_t bits) const {
        const int64_t all = blocks(token);
        std::vector<double> mass(static_cast<size_t>(all), 0.0);
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            std::vector<double> weights;
            for (int64_t j = 0; j <= position(token); ++j) {
                const std::vector<double>& values =
                    keys_[static_cast<size_t>(bits)]
                         [static_cast<size_t>(2 * (start(token) + j) + r)];
                double dot = 0;
                for (int64_t d = 0; d < 16; ++d)
                    dot += double{q_(token, h, d)} * values[static_cast<size_t>(d)];
                weights.push_back(std::exp(dot / 4));
            }
            const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
            for (size_t j = 0; j < weights.size(); ++j) mass[j / 16] += weights[j] / total / 2;
        }
        std::vector<std::pair<double, int64_t>> order;
        for (int64_t b = 0; b < all; ++b)
            order.emplace_back(b + 1 == all ? -HUGE_VAL : -bound_of(token, r, b), b);
        std::sort(order.begin(), order.end());
        const auto count = std::min<int64_t>(
            all, std::max<int64_t>(top_k, static_cast<int64_t>(
                                              std::ceil(candidates * static_cast<double>(all)))));
        std::vector<double> made(mass.size(), -1.0);
        double sum = 0;
        for (int64_t n = 0; n < count; ++n)
            sum += mass[static_cast<size_t>(order[static_cast<size_t>(n)].second)];
        for (int64_t n = 0; n < count; ++n) {
            const auto b = static_cast<size_t>(order[static_cast<size_t>(n)].second);
            made[b] = mass[b] / sum;
        }
        return made;
    }

    void expect_covered(const char* name, int64_t top_k, double candidates, int64_t bits,
                        double p) {
        keys_.resize(17);
        for (int64_t j = 0; j < 285; ++j)
            for (int64_t r = 0; r < 2; ++r)
                keys_[static_cast<size_t>(bits)].push_back(key(j, r, bits));
        const Tensor<float, 3> got = scores(name, 0, {.top_k = top_k});
        const double bound = 64 * votes_bound(1);  // candidates may hold a sixteenth of the mass
        int64_t left = 0;
        for (int64_t i = 0; i < 285; ++i)
            for (int64_t r = 0; r < 2; ++r) {
                const std::vector<double> want = shares(i, r, top_k, candidates, bits);
                const auto own = std::ssize(want) - 1;
                for (int64_t b = 0; b <= own; ++b) {
                    const double mine = want[static_cast<size_t>(b)];
                    double before = b == own ? -1 : want[static_cast<size_t>(own)];
                    for (int64_t other = 0; b != own && other < own; ++other)
                        if (want[static_cast<size_t>(other)] > mine)
                            before += want[static_cast<size_t>(other)];
                    if (std::fabs(before - p) < bound) continue;
                    const bool keep = mine >= 0 && before < p;
                    left += keep ? 0 : 1;
                    ASSERT_EQ(keep, got(i, r, b) > -INFINITY) << name << ", " << i << ", " << b;
                    if (keep) {
                        ASSERT_NEAR(got(i, r, b), mine, bound) << i;
                    }
                }
            }
        EXPECT_GT(left, 500) << name;
    }

private:
    std::vector<std::vector<std::vector<double>>> keys_;  // [bits][2 token + group]
};

TEST_F(Twilight, CoversTheShareAmongQuestsCandidates) {
    expect_covered("twilight:p=0.85", 2, 0.25, 4, 0.85);
    expect_covered("twilight:p=0.5:candidates=0.75:bits=2", 1, 0.75, 2, 0.5);
    expect_covered("twilight:p=0.95:candidates=0:bits=16", 6, 0, 16, 0.95);
}

TEST_F(Twilight, OfAllBlocksAsTheyAreIsTopP) {
    const Tensor<float, 3> want = scores("top-p:p=0.7"),
                           got = scores("twilight:p=0.7:candidates=1:bits=16");
    int64_t differ = 0;
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b < blocks(i); ++b)
                differ += (want(i, r, b) > -INFINITY) != (got(i, r, b) > -INFINITY) ? 1 : 0;
    EXPECT_LE(differ, 2) << "rounding decides on them";
}

TEST_F(Twilight, QueriesThatCountKeepTheBudget) {
    for (int64_t i = 64; i < 210; ++i) counted_.push_back(i);
    const Tensor<float, 3> got = scores("twilight:candidates=0.75");
    expect_budget_kept(got, 4);
}

TEST_F(Twilight, SpendsUnevenly) {
    EXPECT_EQ(make_selector("twilight")->adjust({.top_k = 4}, 0).top_k, kUneven);
    expect_chunks_do_not_matter("twilight");
}

}  // namespace
}  // namespace msa::test
