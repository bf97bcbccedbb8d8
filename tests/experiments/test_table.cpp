// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/driver/metrics.h"
#include "experiments/measure/sinks.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

TEST(Table, AlignsNumbersToTheRightUnderHeadersOfSeveralLines) {
    report::AlignedColumns table({"name", "mass\nkept", "-"});
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
        report::print_paragraph(out, words);
        return out.str();
    };
    EXPECT_EQ(printed("two  words"), "two words\n");
    const std::string half(50, 'a'), rest(49, 'b'), longer(150, 'c');
    EXPECT_EQ(printed(half + " " + rest), half + " " + rest + "\n");
    EXPECT_EQ(printed(half + " " + half), half + "\n" + half + "\n");
    EXPECT_EQ(printed("x " + longer + " y"), "x\n" + longer + "\ny\n");
}

TEST(MetricsCsv, QuotesWhatNeedsItAndLeavesOutWhatIsUnknown) {
    MetricsCsv lines({"layer", "setting"});
    lines.add({"3", "32,first=1"}, "mass_kept", 0.123456789012);
    lines.add({"3", "a \"b\""}, "mass_kept", NAN);
    EXPECT_EQ(lines.text(),
              "layer,setting,metric,axis,index,value\n"
              "3,\"32,first=1\",mass_kept,,,0.123456789\n"
              "3,\"a \"\"b\"\"\",mass_kept,,,\n");
}

TEST(DroppedSinks, AreThoseOfLayersThatHaveOne) {
    // Those of layers 20 and 29 are a public model's; the others lie on either side of a limit.
    report::Report report;
    measure::add_dropped_sinks({{20, "mean-key", std::nullopt, 0.458, 0.247},
                                {20, "quest", std::nullopt, 0.458, 0.45},
                                {29, "mean-key", std::nullopt, 0.294, 0.122},
                                {2, "mean-key", std::nullopt, 0.05, 0.01},
                                {3, "mean-key", std::nullopt, 0.051, 0.0407},
                                {3, "window", std::nullopt, 0.051, 0.041},
                                {4, "window", std::nullopt, NAN, 0.1},
                                {5, "window", std::nullopt, 0.5, NAN}},
                               report);
    const nlohmann::ordered_json dropped = report.tables.at(0).json()["rows"];
    ASSERT_EQ(dropped.size(), 3U) << dropped;
    EXPECT_EQ(dropped[0]["layer"], 20);
    EXPECT_EQ(dropped[0]["selector"], "mean-key");
    EXPECT_EQ(dropped[2]["layer"], 3);
    EXPECT_EQ(dropped[2]["sink_mass_sparse"], 0.0407);
    EXPECT_EQ(dropped[2]["remedy"], "--forced-first 1");
    const std::string words = report.notes.at(0).text;
    EXPECT_NE(words.find("mean-key in layer 20 (0.458 to 0.247), 29 (0.294 to 0.122), 3"),
              std::string::npos)
        << words;
    EXPECT_NE(words.find("--forced-first 1 keeps it."), std::string::npos) << words;
    EXPECT_TRUE(words.starts_with("Sink from layer 3; mean-key drops it; force block 0.\n"))
        << words;
    report::Report nothing;
    measure::add_dropped_sinks({}, nothing);
    EXPECT_TRUE(nothing.notes.empty());
}

}  // namespace
}  // namespace msa::experiments
