// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "analysis/selector_cost.h"
#include "core/error.h"
#include "core/select/selector.h"

namespace msa::analysis {
namespace {

/// Two queries that see 100 and 320 keys: Hq 4, Hkv 2, dh 16, didx 8, blocks of 32.
Problem two_queries() {
    Problem p = square_problem(0, 4, 2, 16, 8, 32);
    p.batch = PackedBatch({0, 2}, {0, 320}, {99, 319});
    return p;
}

TEST(SelectorCost, ByHand) {
    const Problem p = two_queries();
    const auto expect = [&](const char* selector, double flops, double bytes) {
        const Cost cost = selector_cost(selector, p, 0);
        EXPECT_EQ(cost.flops, flops) << selector;
        EXPECT_EQ(cost.bytes, bytes) << selector;
    };
    expect("random", 0, 0);
    expect("index", 2 * 2 * 8 * 420, 2 * 8 * 420);
    expect("oracle", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420);
    expect("mean-key", 2 * 2 * 16 * (4 + 10), 2 * 2 * 16 * (4 + 10));
    expect("quest", 2 * 2 * 16 * 2 * (4 + 10), 2 * 2 * 16 * 2 * (4 + 10));
    // Pieces [0, 32), [16, 48), ... that end by 100 and by 320: 5 and 19.
    expect("nsa", 2 * 4 * 16 * 24, 2 * 2 * 16 * 24);
    expect("minference-vs", 64 * 2 * 4 * 16 * 320, 2 * 2 * 16 * 320);
    expect("snapkv", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420 / 32.0);
}

TEST(SelectorCost, OfThePromptInDecode) {
    const Cost cost = selector_cost("snapkv", two_queries(), 200);
    EXPECT_EQ(cost.flops, 32 * 2 * 4 * 16 * 200);
    EXPECT_EQ(cost.bytes, 2 * 2 * 16 * 200);
    EXPECT_EQ(selector_cost("minference-vs", two_queries(), 1000).flops, 64 * 2 * 4 * 16 * 320);
}

TEST(SelectorCost, KnowsEverySelector) {
    for (const std::string& name : list_selectors())
        EXPECT_GE(selector_cost(name, two_queries(), 0).flops, 0) << name;
    EXPECT_THROW(selector_cost("best", two_queries(), 0), InputError);
}

}  // namespace
}  // namespace msa::analysis
