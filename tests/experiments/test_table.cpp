// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <sstream>

#include "experiments/driver/table.h"

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

TEST(Paragraph, BreaksBetweenWordsAtTheWidthOfATerminal) {
    const auto printed = [](const std::string& words) {
        std::ostringstream out;
        experiments::print_paragraph(out, words);
        return out.str();
    };
    EXPECT_EQ(printed("two  words"), "two words\n");
    const std::string half(50, 'a'), rest(49, 'b'), longer(150, 'c');
    EXPECT_EQ(printed(half + " " + rest), half + " " + rest + "\n");
    EXPECT_EQ(printed(half + " " + half), half + "\n" + half + "\n");
    EXPECT_EQ(printed("x " + longer + " y"), "x\n" + longer + "\ny\n");
}

}  // namespace
}  // namespace msa::experiments
