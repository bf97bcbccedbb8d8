// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <sstream>

#include "experiments/common/table.h"

namespace msa::experiments {
namespace {

TEST(Table, AlignsNumbersToTheRightUnderHeadersOfSeveralLines) {
    Table table({"name", "mass\nkept", "-"});
    table.add({"a", "0.5", "word"});
    table.add({"longer", "12.25", "-"});
    std::ostringstream out;
    table.print(out, "> ");
    EXPECT_EQ(out.str(),
              ">          mass\n"
              "> name     kept  -\n"
              "> a         0.5  word\n"
              "> longer  12.25  -\n");
}

}  // namespace
}  // namespace msa::experiments
