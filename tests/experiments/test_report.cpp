// SPDX-License-Identifier: MIT
// What one table becomes in JSON, CSV and on the page, and what a report refuses. The tables of all
// programs stand in data/FORMAT.md; on a difference the new text is left beside it as
// FORMAT.md.new, to be looked at and moved over it.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/io/results.h"
#include "experiments/programs.h"
#include "experiments/report/report.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

namespace report = experiments::report;
using nlohmann::ordered_json;

constexpr double kNoEnd = std::numeric_limits<double>::quiet_NaN();

struct Reported {
    std::string name;
    int64_t count = 0;
    std::optional<double> share{};
    analysis::Estimate mass{};
    bool is_good = false;
};

const report::TableOf<Reported> kThings{
    "things",
    "what there is",
    1,
    {{{"name", "", "what it is called", "name"}, &Reported::name},
     {{"count", "", "how many"}, &Reported::count},
     {{.key = "share",
       .unit = "1",
       .definition = "a part",
       .heading = "share\n%",
       .form = report::kPercent,
       .null = "there is no whole"},
      &Reported::share},
     {{"mass", "probability", "a mean", "mass", {.decimals = 2, .shown = report::Shown::low}},
      &Reported::mass},
     {{"is_good", "", "whether", "good"}, &Reported::is_good}}};

const std::vector<Reported> kReported{{"a", 1, 0.25, {0.1, 0.05, 0.75}, true},
                                      {"b, \"c\"", 2, std::nullopt, {0.5, kNoEnd, kNoEnd}},
                                      {"d", 3, kNoEnd, {kNoEnd, kNoEnd, kNoEnd}}};

report::Report things_report() {
    report::Report report{
        .title = "of things", .tables = {kThings.of(kReported)}, .verdict = {true, "enough"}};
    report.note("intervals", "none");
    report.note("nothing", "");
    return report;
}
ordered_json written(const report::Report& report) {
    io::RunRecord record;
    record.program = "msa-things";
    return ordered_json::parse(json_text(report, record));
}
/// The message of the logic_error that this throws.
template <typename Act>
std::string logic_fault(const Act& act) {
    try {
        act();
    } catch (const std::logic_error& error) {
        return error.what();
    }
    return "nothing";
}

TEST(Report, RowsOfJsonAreFlat) {
    const ordered_json all = written(things_report());
    EXPECT_EQ(all["format"], "msa-report");
    EXPECT_EQ(all["format_version"], 1);
    EXPECT_EQ(all["verdict"], (ordered_json{{"reached", true}, {"text", "enough"}}));
    EXPECT_EQ(all["notes"], (ordered_json{{"intervals", "none"}}));
    const ordered_json& table = all["tables"]["things"];
    EXPECT_EQ(table["key"], ordered_json::array({"name"}));
    EXPECT_EQ(table["columns"], (ordered_json{"name", "count", "share", "mass", "is_good"}));
    EXPECT_EQ(table["rows"][0], (ordered_json{{"name", "a"},
                                              {"count", 1},
                                              {"share", 0.25},
                                              {"mass", 0.1},
                                              {"mass_low", 0.05},
                                              {"mass_high", 0.75},
                                              {"is_good", true}}));
    for (const char* missing : {"mass_low", "mass_high", "share"})
        EXPECT_TRUE(table["rows"][1][missing].is_null()) << missing;
    EXPECT_TRUE(table["rows"][2]["share"].is_null());
    EXPECT_EQ(all["columns"]["share"], (ordered_json{{"type", "real"},
                                                     {"unit", "1"},
                                                     {"definition", "a part"},
                                                     {"null", "there is no whole"}}));
    EXPECT_EQ(all["columns"]["mass"]["type"], "estimate");
}

TEST(Report, CsvHasTheEntriesOfJson) {
    EXPECT_EQ(kThings.of(kReported).csv(),
              "name,count,share,mass,mass_low,mass_high,is_good\n"
              "a,1,0.25,0.1,0.05,0.75,true\n"
              "\"b, \"\"c\"\"\",2,,0.5,,,false\n"
              "d,3,,,,,false\n");
}

struct Missing {
    std::string name;
    std::optional<int64_t> count{};
    std::optional<bool> is_good{};
    std::optional<std::string> words{};
};
const report::TableOf<Missing> kThingsMissing{
    "missing",
    "what may not be there",
    1,
    {{{"name", "", "what it is called"}, &Missing::name},
     {{.key = "steps", .unit = "", .definition = "how many", .null = "none"}, &Missing::count},
     {{.key = "is_late", .unit = "", .definition = "whether", .null = "none"}, &Missing::is_good},
     {{.key = "words", .unit = "", .definition = "said", .null = "none"}, &Missing::words}}};

class ReportFile : public CliTest {
protected:
    /// A file with the report's tables.
    io::ResultsReader with(const report::Report& report) const {
        io::RunRecord record;
        record.program = "msa-things";
        record.options = "{}";
        io::ResultsWriter writer(path("results.h5"), record, io::IfExists::refuse);
        writer.begin("a unit").finish();
        writer.finish({}, [&](const io::ResultsReader& results, io::UnitWriter& to) {
            EXPECT_EQ(results.done(), (std::vector<std::string>{"a unit"}));
            report::write(report, to);
        });
        return io::ResultsReader(path("results.h5"));
    }
};

TEST_F(ReportFile, HasADatasetForEachColumn) {
    report::Report things = things_report();
    things.tables.push_back(kThingsMissing.of(
        std::vector<Missing>{{"a", 3, false, "text"}, {"b"}, {"c", 0, true, ""}}));
    const io::ResultsReader file = with(things);
    io::verify_checksum(path("results.h5"));
    EXPECT_EQ(file.list("/"), (std::vector<std::string>{"done", "run", "tables"}));
    for (const auto& [name, text] : {std::pair{"format", "msa-report"},
                                     {"title", "of things"},
                                     {"verdict", "enough"},
                                     {"notes", R"({"intervals":"none"})"},
                                     {"tables", "things missing"}})
        EXPECT_EQ(file.text("/tables", name), text);
    EXPECT_EQ(file.number("/tables", "format_version"), 1);
    EXPECT_EQ(file.number("/tables", "reached"), 1);
    EXPECT_EQ(file.text("/tables/things", "about"), "what there is");
    EXPECT_EQ(file.text("/tables/things", "key"), "name");
    EXPECT_EQ(file.text("/tables/things", "columns"), "name count share mass is_good");

    const auto mass = file.read<double, 2>("/tables/things/mass");
    ASSERT_EQ(mass.shape(), (Shape<2>{3, 3}));
    EXPECT_EQ(mass(0, 0), 0.1);
    EXPECT_EQ(mass(0, 1), 0.05);
    EXPECT_EQ(mass(0, 2), 0.75);
    EXPECT_TRUE(mass(1, 0) == 0.5 && std::isnan(mass(1, 1)) && std::isnan(mass(2, 0)));
    for (const auto& [name, text] : {std::pair{"axes", "row,end"},
                                     {"unit", "probability"},
                                     {"description", "a mean"},
                                     {"type", "estimate"}})
        EXPECT_EQ(file.text("/tables/things/mass", name), text);
    EXPECT_EQ((file.read<int64_t, 1>("/tables/things/count")(2)), 3);
    EXPECT_EQ(file.text("/tables/things/share", "null"), "there is no whole");
    EXPECT_TRUE(std::isnan(file.read<double, 1>("/tables/things/share")(1)));

    const auto steps = file.read<double, 1>("/tables/missing/steps");
    EXPECT_TRUE(steps(0) == 3 && std::isnan(steps(1)) && steps(2) == 0);
    const auto late = file.read<int32_t, 1>("/tables/missing/is_late");
    EXPECT_TRUE(late(0) == 0 && late(1) == -1 && late(2) == 1);
}

TEST_F(ReportFile, RefusesWhatAReaderCouldNotTellApart) {
    report::Report silent = things_report();
    silent.notes.clear();
    EXPECT_NE(logic_fault([&] { with(silent); }), "nothing");
    EXPECT_FALSE(std::filesystem::exists(path("results.h5")));
}

TEST(Report, ThePageHasTheColumnsWithAHeading) {
    std::ostringstream page, none;
    print(things_report(), page);
    EXPECT_EQ(page.str(),
              "of things\n\n"
              "what there is:\n\n"
              "        share\n"
              "name        %  mass         good\n"
              "a        25.0  0.10 (0.05)  yes\n"
              "b, \"c\"      -  0.50 (-)     no\n"
              "d           -  - (-)        no\n\n"
              "enough\n\n"
              "none\n");
    kThings.of(std::vector<Reported>{}).print(none);
    EXPECT_EQ(none.str(), "");
}

TEST(Report, RefusesWhatAReaderCouldNotTellApart) {
    EXPECT_NE(logic_fault([] {
                  kThings.of(std::vector<Reported>{{"a"}, {"a"}});
              }).find("two rows \"a\""),
              std::string::npos);
    const report::TableOf<Reported> other{
        "others", "", 1, {{{"name", "", "something else"}, &Reported::name}}};
    report::Report two = things_report();
    two.tables.push_back(other.of(kReported));
    EXPECT_NE(
        logic_fault([&] { written(two); }).find("column name of table others means two things"),
        std::string::npos);
    report::Report twice = things_report();
    twice.tables.push_back(kThings.of(kReported));
    EXPECT_NE(logic_fault([&] { written(twice); }), "nothing");
    report::Report silent = things_report();
    silent.notes.clear();
    EXPECT_NE(logic_fault([&] { written(silent); }),
              "nothing");  // estimates without a note on intervals
    const auto make = [](const report::Column& column) {
        return [column] { report::TableOf<Reported>("t", "", 0, {{column, &Reported::share}}); };
    };
    EXPECT_NE(logic_fault(make({"share", "", "may be null, and no reason"})), "nothing");
    EXPECT_NE(
        logic_fault(make({.key = "Share", .unit = "", .definition = "no key", .null = "none"})),
        "nothing");
    EXPECT_NE(
        logic_fault(make({.key = "share", .unit = "", .definition = "", .null = "no definition"})),
        "nothing");
}

/// The generated part of data/FORMAT.md.
std::string tables_of_programs() {
    std::string text =
        "| program | table | a row | row key | other columns |\n|---|---|---|---|---|\n";
    std::vector<report::Shape> all;
    for (const experiments::Program& program : experiments::programs()) {
        if (program.tables == nullptr) continue;
        for (const report::Shape& table : program.tables()) {
            all.push_back(table);
            std::string columns[2];
            for (size_t c = 0; c < table.columns.size(); ++c) {
                std::string& to = columns[c < table.keys ? 0 : 1];
                to += concat(to.empty() ? "`" : ", `", table.columns[c].key, "`");
            }
            text += concat("| `", program.name, "` | `", table.name, "` | ", table.about, " | ",
                           columns[0].empty() ? "one row" : columns[0], " | ", columns[1], " |\n");
        }
    }
    text += "\n| column | type | unit | definition |\n|---|---|---|---|\n";
    std::vector<report::Column> columns = report::columns_of(all);
    std::ranges::sort(columns, {}, &report::Column::key);
    for (const report::Column& of : columns) {
        std::string definition = of.definition;
        for (size_t at = 0; (at = definition.find('|', at)) != definition.npos; at += 2)
            definition.insert(at, "\\");
        text += concat("| `", of.key, "` | ", to_string(of.type), " | ", of.unit, " | ", definition,
                       of.null.empty() ? "" : concat("; null: ", of.null), " |\n");
    }
    return text;
}

TEST(Report, TheFormatPageHasTheTablesOfAllPrograms) {
    const std::string file = std::string(MSA_SOURCE_DIR) + "/data/FORMAT.md";
    const std::string page = file_text(file), begin = "<!-- tables -->\n", end = "<!-- end -->\n";
    const size_t from = page.find(begin), to = page.find(end);
    ASSERT_TRUE(from != page.npos && to != page.npos) << file << " has no part for the tables";
    const std::string wanted =
        page.substr(0, from + begin.size()) + tables_of_programs() + page.substr(to);
    if (page == wanted) return;
    std::ofstream(file + ".new") << wanted;
    FAIL() << file << " is out of date; see " << file << ".new";
}

class OneNumber : public CliTest {};

// The same queries of the same file: one number, to the last bit. Three groups, so that a mean over
// them is rounded.
TEST_F(OneNumber, OfMassKeptInAllProgramsThatMeasureIt) {
    const std::string file =
        make("random.h5",
             {.cu_seqlens = {0, 500, 900}, .layers = {1, 2}, .query_heads = 6, .kv_heads = 3});
    const auto run = [&](const Program& program, std::vector<std::string> more, int code = 0) {
        more.insert(more.begin(), {file, "--sample-queries", "192", "--out", path(program.name)});
        const Outcome outcome = program(more);
        EXPECT_EQ(outcome.code, code) << outcome.err;
        return report_of(path(program.name));
    };
    const std::vector<std::string> sizes{"--block-size", "8", "--top-k", "4"};
    const auto sized = [&](std::vector<std::string> more) {
        more.insert(more.end(), sizes.begin(), sizes.end());
        return more;
    };
    const nlohmann::json analyzed = run(kAnalyze, sized({"--selectors", "index"}));
    const nlohmann::json compared =
        run(kCompare, {"--selectors", "index", "--block-size", "8", "--budgets", "32"});
    const nlohmann::json reused = run(kReuse, sized({"--selectors", "index", "--keep", "0.001"}));
    const nlohmann::json stored = run(kPrecision, sized({"--formats", "f32", "--keep", "0.001"}));
    constexpr int kMissed = 2;  // at so few tokens dense attention costs less
    const nlohmann::json advised =
        run(kAdvise,
            {"--selectors", "index", "--block-size", "8", "--top-k", "4", "--forced-first", "0",
             "--forced-local", "1", "--budgets", "32", "--layers", "1"},
            kMissed);
    const nlohmann::json mass = row_of(analyzed, "selectors")["mass_kept"];
    ASSERT_TRUE(mass.is_number());
    EXPECT_EQ(row_of(compared, "selectors")["mass_kept"], mass);
    EXPECT_EQ(row_of(advised, "settings")["mass_kept"], mass);
    EXPECT_EQ(row_of(reused, "pairs", {{"source", 1}, {"target", 1}})["mass_kept"], mass);
    EXPECT_EQ(row_of(stored, "index_layers", {{"layer", 1}})["mass_kept"], mass);
    // Fewer queries than there are, of which some have nothing to choose.
    EXPECT_LT(row_of(advised, "layers")["queries"], 192);
    EXPECT_EQ(row_of(advised, "layers")["queries"], row_of(analyzed, "selectors")["rows_counted"]);
}

}  // namespace
}  // namespace msa::test
