// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "analysis/hardware.h"

namespace msa::analysis {
namespace {

const Hardware kChip{"chip", {{Element::bf16, 1000}}, 10, {}, {}};

TEST(Hardware, TheSlowerOfArithmeticAndMemory) {
    EXPECT_EQ(roofline_seconds({2000, 5}, Element::bf16, kChip), 2);
    EXPECT_EQ(roofline_seconds({2000, 50}, Element::bf16, kChip), 5);
    EXPECT_FALSE(memory_bound({2000, 5}, Element::bf16, kChip));
    EXPECT_TRUE(memory_bound({2000, 50}, Element::bf16, kChip));
    EXPECT_EQ(kChip.ridge(Element::bf16), 100);
}

TEST(Hardware, AMissingEntryIsAnError) {
    try {
        roofline_seconds({1, 1}, Element::e4m3, kChip);
        FAIL();
    } catch (const InputError& error) {
        EXPECT_STREQ(error.what(), "chip: teraflops_per_second has no e4m3");
    }
    EXPECT_THROW(kChip.cache(), InputError);
    EXPECT_EQ(roofline_seconds({0, 20}, Element::e4m3, kChip), 2);  // no arithmetic, no peak
}

}  // namespace
}  // namespace msa::analysis
