// SPDX-License-Identifier: MIT
// What one set of rows becomes: JSON, CSV and a table.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/driver/rows.h"

namespace msa::test {
namespace {

using experiments::Column, experiments::ColumnOf, experiments::Rows, experiments::Shown,
    experiments::Value;
using nlohmann::ordered_json;

struct Thing {
    std::string name;
    int64_t count = 0;
    std::optional<double> share{};
    Value mass{};
};

const std::vector<ColumnOf<Thing>> kColumns{
    {{"name", "name"}, &Thing::name},
    {{"count"}, &Thing::count},
    {{"", "many"}, [](const Thing& thing) { return thing.count > 1; }},
    {{"share", "share\n%", experiments::kPercent, "a part"}, &Thing::share},
    {{"mass", "mass", {.decimals = 2, .shown = Shown::low}}, &Thing::mass}};

Rows rows() {
    return {kColumns, std::vector<Thing>{{"a", 1, 0.25, analysis::Estimate{0.5, 0.25, 0.75}},
                                         {"b, \"c\"", 2, std::nullopt, Value()},
                                         {"d", 3, std::nan(""), std::nan("")}}};
}

TEST(Rows, JsonHasWhatHasAKey) {
    EXPECT_EQ(rows().json(0),
              (ordered_json{{"name", "a"},
                            {"count", 1},
                            {"share", 0.25},
                            {"mass", {{"value", 0.5}, {"low", 0.25}, {"high", 0.75}}}}));
    const ordered_json nothing{{"name", "d"}, {"count", 3}, {"share", nullptr}, {"mass", nullptr}};
    EXPECT_EQ(rows().json()[2], nothing);
}

TEST(Rows, CsvHasThreeColumnsOfAnEstimateAndQuotesWhatNeedsIt) {
    EXPECT_EQ(rows().csv(),
              "name,count,share,mass,mass_low,mass_high\n"
              "a,1,0.25,0.5,0.25,0.75\n"
              "\"b, \"\"c\"\"\",2,,,,\n"
              "d,3,,,,\n");
}

TEST(Rows, ATableHasWhatHasAHeading) {
    std::ostringstream table, definitions, none;
    rows().print(table);
    EXPECT_EQ(table.str(),
              "              share\n"
              "name    many      %  mass\n"
              "a       no     25.0  0.50 (0.25)\n"
              "b, \"c\"  yes       -  -\n"
              "d       yes       -  -\n");
    rows().print_definitions(definitions);
    EXPECT_EQ(definitions.str(), "column   definition\nshare %  a part\n");
    Rows(std::vector<Column>{{"key", "heading"}}).print(none);
    EXPECT_EQ(none.str(), "");
}

TEST(Rows, ARowHasAValueForEachColumn) {
    Rows rows(std::vector<Column>{{"a"}, {"b"}});
    EXPECT_ANY_THROW(rows.add({int64_t{1}}));
}

}  // namespace
}  // namespace msa::test
