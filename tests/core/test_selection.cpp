// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/selection.h"
#include "tests/support/refusal.h"

namespace msa {
namespace {

using test::refusal;

TEST(SelectionRule, Limits) {
    const auto check = [](SelectionRule rule) { return refusal([&] { rule.validate(); }); };
    EXPECT_EQ(check({}), "");
    EXPECT_EQ(check({.top_k = 0}), "top_k is 0, must be at least 1");
    EXPECT_EQ(check({.forced_local = 0}),
              "forced_local is 0, must be at least 1: the local block is always kept");
    EXPECT_EQ(check({.forced_first = -1}), "forced_first is -1, must not be negative");
    EXPECT_EQ(check({.top_k = 4, .forced_local = 3, .forced_first = 2}),
              "forced_local + forced_first is 5, must not exceed top_k = 4");
    EXPECT_EQ(check({.forced_first = std::numeric_limits<int64_t>::max()}),
              "forced_local + forced_first is 9223372036854775808, must not exceed top_k = 16");
}

TEST(SelectionRule, ForcedBlocks) {
    const SelectionRule rule{.top_k = 8, .forced_local = 2, .forced_first = 1};
    for (int64_t b = 0; b < 6; ++b) EXPECT_EQ(is_forced(rule, b, 6), b == 0 || b >= 4) << b;
}

TEST(CheckSelection, NamesQueryGroupSlotAndRule) {
    const Problem p = square_problem(20, 2, 1, 16, 0, 8);  // the last query sees 3 blocks
    const auto check = [&](std::array<int32_t, 3> last) {
        Tensor<int32_t, 3> ids({20, 1, 3});
        for (int64_t i = 0; i < 20; ++i) {
            ids(i, 0, 0) = 0;
            ids(i, 0, 1) = ids(i, 0, 2) = kNoBlock;
        }
        std::copy(last.begin(), last.end(), &ids(19, 0, 0));
        return refusal([&] { check_selection(p, ids); });
    };
    EXPECT_EQ(check({0, 1, 2}), "");
    EXPECT_EQ(check({-1, -1, -1}), "");
    EXPECT_EQ(check({2, -1, -1}), "");
    EXPECT_EQ(check({0, 0, -1}),
              "ids[19, 0, 1] is 0, must be above the id before it (the query sees 3 blocks)");
    EXPECT_EQ(check({1, 0, -1}),
              "ids[19, 0, 1] is 0, must be above the id before it (the query sees 3 blocks)");
    EXPECT_EQ(check({0, 1, 3}),
              "ids[19, 0, 2] is 3, must be a visible block (the query sees 3 blocks)");
    EXPECT_EQ(check({0, -1, 2}),
              "ids[19, 0, 2] is 2, but -1 may only be followed by -1 (the query sees 3 blocks)");
    EXPECT_EQ(check({-2, 0, 1}),
              "ids[19, 0, 0] is -2, must be a visible block (the query sees 3 blocks)");
}

}  // namespace
}  // namespace msa
