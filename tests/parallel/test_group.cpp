// SPDX-License-Identifier: MIT
// What the ranks of a group say to each other.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/parallel/group.h"

namespace msa::parallel {
namespace {

TEST(Group, AddUpInTheirOrder) {
    // In another order the third value is 0 or 2.
    constexpr float kLarge = 1e8F;
    const std::array<std::array<float, 3>, 4> values{
        {{1, 0.5F, kLarge}, {2, 0.25F, 1}, {3, 0.125F, -kLarge}, {4, 0, 1}}};
    for (int count = 1; count <= 4; ++count) {
        std::array<float, 3> want{};
        for (int w = 0; w < count; ++w)
            for (size_t i = 0; i < 3; ++i) want[i] += values[static_cast<size_t>(w)][i];
        run_group(count, [&](const Group& group) {
            for (int round = 0; round < 20; ++round) {
                std::array<float, 3> mine = values[static_cast<size_t>(group.rank())];
                group.all_reduce(mine);
                EXPECT_EQ(mine, want) << group.rank() << " of " << count;
                std::array<double, 1> number{double(group.rank()) + round};
                group.all_reduce(number);
                EXPECT_EQ(number[0], count * round + count * (count - 1) / 2);
            }
        });
    }
}

TEST(Group, HearAllInTheirOrder) {
    for (int count = 1; count <= 4; ++count)
        run_group(count, [&](const Group& group) {
            for (int round = 0; round < 20; ++round) {
                const std::array<int, 2> mine{group.rank(), round};
                std::vector<int> all(2 * static_cast<size_t>(count), -1);
                group.all_gather(std::as_bytes(std::span(mine)),
                                 std::as_writable_bytes(std::span(all)));
                for (int w = 0; w < count; ++w) {
                    EXPECT_EQ(all[2 * static_cast<size_t>(w)], w);
                    EXPECT_EQ(all[2 * static_cast<size_t>(w) + 1], round);
                }
            }
        });
}

TEST(Group, HearTheFirstAndAnyOfThem) {
    run_group(3, [](const Group& group) {
        std::array<int, 2> values{group.rank(), 10 * group.rank() + 7};
        group.broadcast(std::as_writable_bytes(std::span(values)));
        EXPECT_EQ(values, (std::array{0, 7}));
        EXPECT_TRUE(group.any(group.rank() == 2));
        EXPECT_FALSE(group.any(false));
        EXPECT_EQ(group.broadcast_value(5 - group.rank()), 5);
        EXPECT_NO_THROW(group.check());
    });
}

TEST(Group, AnErrorOfOneEndsAll) {
    for (int failing = 0; failing < 3; ++failing) {
        std::atomic<int> others = 0;
        const auto work = [&](const Group& group) {
            group.barrier();
            if (group.rank() == failing) throw InputError("it fails");
            try {
                while (true) group.barrier();
            } catch (const GroupStopped&) {
                EXPECT_THROW(group.check(), GroupStopped);
                EXPECT_THROW(group.barrier(), GroupStopped);
                ++others;
                throw;
            }
        };
        try {
            run_group(3, work);
            FAIL();
        } catch (const InputError& error) {
            EXPECT_STREQ(error.what(), "it fails");
        }
        EXPECT_EQ(others, 2);
    }
}

TEST(Group, ABarrierTellsTheOthersOfAnError) {
    run_group(3, [](const Group& group) {
        if (group.rank() == 1)
            EXPECT_THROW(group.barrier(std::make_exception_ptr(InputError("it fails"))),
                         InputError);
        else
            EXPECT_THROW(group.barrier(), GroupStopped);
        EXPECT_NO_THROW(group.barrier());
    });
}

TEST(Group, EveryRankHearsOfADifference) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    // The middle one of 1, 2, 3 is a third of their sum.
    for (const auto& values : {std::array{1.0, 2.0, 3.0}, std::array{kNan, 1.0, kNan},
                               std::array{0.0, -0.0, 0.0}, std::array{1.0, 1.0, kNan}})
        run_group(3, [&](const Group& group) {
            EXPECT_THROW(group.require_same(values[static_cast<size_t>(group.rank())], "norms"),
                         SystemError);
        });
    run_group(3, [](const Group& group) {
        EXPECT_NO_THROW(group.require_same(0.1, "norms"));
        EXPECT_NO_THROW(group.require_same(group.is_first() ? kNan : -kNan, "norms"));
    });
}

TEST(Group, OneThatEndsEarlyIsNotWaitedFor) {
    EXPECT_THROW(run_group(2,
                           [](const Group& group) {
                               if (group.is_first()) group.barrier();
                           }),
                 GroupStopped);
}

}  // namespace
}  // namespace msa::parallel
