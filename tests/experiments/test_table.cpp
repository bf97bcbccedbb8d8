// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/driver/sink_note.h"
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

TEST(DroppedSinks, AreThoseOfLayersThatHaveOne) {
    using nlohmann::ordered_json;
    const auto row = [](int layer, const char* selector, ordered_json dense, ordered_json sparse) {
        return ordered_json{{"layer", layer},
                            {"selector", selector},
                            {"sink_mass_dense", std::move(dense)},
                            {"sink_mass_sparse", std::move(sparse)}};
    };
    // Those of layers 20 and 29 are a public model's; the others lie on either side of a limit.
    const ordered_json dropped = dropped_sinks(
        ordered_json::array({row(20, "mean-key", 0.458, 0.247), row(20, "quest", 0.458, 0.45),
                             row(29, "mean-key", 0.294, 0.122), row(2, "mean-key", 0.05, 0.01),
                             row(3, "mean-key", 0.051, 0.0407), row(3, "window", 0.051, 0.041),
                             row(4, "window", nullptr, 0.1), row(5, "window", 0.5, nullptr)}));
    ASSERT_EQ(dropped.size(), 3U) << dropped;
    EXPECT_EQ(dropped[0]["layer"], 20);
    EXPECT_EQ(dropped[0]["selector"], "mean-key");
    EXPECT_EQ(dropped[2]["layer"], 3);
    EXPECT_EQ(dropped[2]["sink_mass_sparse"], 0.0407);
    EXPECT_EQ(dropped[2]["remedy"], "--forced-first 1");
    std::ostringstream out, nothing;
    print_dropped_sinks(dropped, out);
    std::string words = out.str();
    std::replace(words.begin(), words.end(), '\n', ' ');
    EXPECT_NE(words.find("mean-key in layer 20 (0.458 to 0.247), 29 (0.294 to 0.122), 3"),
              std::string::npos)
        << words;
    EXPECT_NE(words.find("--forced-first 1 keeps it."), std::string::npos) << words;
    EXPECT_TRUE(words.starts_with("Sink from layer 3; mean-key drops it; force block 0. "))
        << words;
    print_dropped_sinks(dropped_sinks(ordered_json::array()), nothing);
    EXPECT_EQ(nothing.str(), "");
}

}  // namespace
}  // namespace msa::experiments
