// SPDX-License-Identifier: MIT
#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

TEST(Count, TheLastBlockMayBeShort) {
    const Outcome outcome = program("msa-count")({"--context", "129", "--top-k", "1"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.out, "blocks  kept\n     2     1\n");
}

}  // namespace
}  // namespace msa::test
