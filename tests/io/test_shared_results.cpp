// SPDX-License-Identifier: MIT
// Several writers of one run.
#include <fstream>

#include "core/error.h"
#include "core/io/claim.h"
#include "tests/io/results_test.h"
#include "tests/support/refusal.h"

namespace msa::io {
namespace {

using test::refusal;

/// Writers of one run, as those of several processes.
class SharedResults : public Results {
protected:
    SharedResults() { record_.units = {"layer 1", "layer 2"}; }
    static void write(ResultsWriter& writer, const std::string& unit) {
        UnitWriter to = writer.begin(unit);
        to.write<int64_t, 1>("/counts/" + unit.substr(6), Tensor<int64_t, 1>({3}).view(), {});
        to.finish();
    }
    bool exists(const std::string& name) const {
        return std::filesystem::exists(path_.string() + ".partial/" + name);
    }
};

TEST_F(SharedResults, AnyWriterDoesAnyUnitAndCompletes) {
    ResultsWriter first(path_, record_, IfExists::join), second(path_, record_, IfExists::join);
    const std::optional<Claim> claim = first.claim("layer 1");
    EXPECT_TRUE(claim);
    EXPECT_FALSE(second.claim("layer 1"));
    EXPECT_EQ(second.holder("layer 1").rfind("process ", 0), 0U);
    EXPECT_EQ(second.holder("layer 2"), "");
    write(first, "layer 1");
    EXPECT_TRUE(second.done("layer 1"));
    EXPECT_FALSE(second.done("layer 2"));
    write(second, "layer 2");
    write(first, "layer 2");  // twice
    ResultsWriter late(path_, record_, IfExists::join);
    EXPECT_TRUE(late.done("layer 1") && late.done("layer 2"));
    for (ResultsWriter* writer : {&second, &first}) {  // both complete it, one after the other
        writer->finish();
        EXPECT_EQ(ResultsReader(path_).done(), record_.units);
        late.look();
        EXPECT_FALSE(late.complete());
    }
    first.end();
    late.look();
    EXPECT_TRUE(late.complete());
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
    EXPECT_TRUE(ResultsWriter(path_, record_, IfExists::join).complete());
}

/// Of a process that was killed when it had removed run.json.
TEST_F(SharedResults, WhatAKilledProcessLeftBesideResultsGoes) {
    const std::filesystem::path folder = path_.string() + ".partial";
    {
        ResultsWriter writer(path_, record_, IfExists::join);
        for (const std::string& unit : record_.units) write(writer, unit);
        writer.finish();
        writer.end();
    }
    std::filesystem::create_directory(folder);
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    std::ofstream(folder / "unit-results.h5.claim")
        << R"({"host": ")" << host << R"(", "process": 1, "process_start": 0})";
    std::ofstream(folder / "unit-layer-1.h5") << "a unit";
    EXPECT_TRUE(ResultsWriter(path_, record_, IfExists::join).complete());
    EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(SharedResults, AUnitOfAnotherRunIsRefused) {
    RunRecord other = record_;
    other.options = R"({"k": 8})";
    std::filesystem::path elsewhere = path_;
    elsewhere += "-other";
    {
        ResultsWriter writer(elsewhere, other, IfExists::join);
        write(writer, "layer 1");
    }
    ResultsWriter writer(path_, record_, IfExists::join);
    const std::string name = ".partial/unit-layer-1.h5";
    std::filesystem::copy(elsewhere.string() + name, path_.string() + name);
    std::filesystem::remove_all(elsewhere.string() + ".partial");
    write(writer, "layer 2");
    const std::string said =
        path_.string() + name + ": is of another run, options.k was 8, is 16 now";
    EXPECT_EQ(refusal([&] { writer.finish(); }), said);
    EXPECT_EQ(refusal([&] { ResultsWriter(path_, record_, IfExists::join); }), said);
    EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SharedResults, AMissingUnitIsNotPassedOver) {
    ResultsWriter writer(path_, record_, IfExists::join);
    write(writer, "layer 1");
    write(writer, "layer 2");
    std::filesystem::remove(path_.string() + ".partial/unit-layer-1.h5");
    EXPECT_THROW(writer.finish(), SystemError);
    write(writer, "layer 1");
    writer.finish();
    EXPECT_EQ(ResultsReader(path_).done(), record_.units);
}

/// Inputs are hashed beside the first units.
TEST_F(SharedResults, InputsAreComparedWhenTheyAreKnown) {
    const std::map<std::string, std::string> inputs = record_.inputs;
    record_.inputs.clear();
    ResultsWriter first(path_, record_, IfExists::join), second(path_, record_, IfExists::join),
        third(path_, record_, IfExists::join);
    first.record_inputs(inputs);
    write(first, "layer 1");
    second.record_inputs(inputs);
    write(second, "layer 2");
    EXPECT_EQ(
        refusal([&] {
            third.record_inputs({{"x.h5", "other"}});
        }),
        path_.string() + ".partial: is of another run, inputs.x.h5 was \"abc\", is \"other\" now");
    second.finish();
    EXPECT_EQ(ResultsReader(path_).run().inputs, inputs);
}

TEST_F(SharedResults, AnEmptyRunIsNoRun) {
    RunRecord other = record_;
    other.options = R"({"k": 8})";
    { const ResultsWriter writer(path_, other, IfExists::join); }
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
    std::filesystem::create_directory(path_.string() + ".partial");
    std::ofstream(path_.string() + ".partial/run.json") << "{}";  // of a process that was killed
    ResultsWriter writer(path_, record_, IfExists::join);
    const std::optional<Claim> claim = writer.claim("layer 1");
    EXPECT_EQ(refusal([&] { ResultsWriter(path_, other, IfExists::join); }),
              path_.string() + ".partial: is of another run, options.k was 16, is 8 now");
    EXPECT_EQ(refusal([&] { ResultsWriter(path_, other, IfExists::replace); }),
              "another process is writing " + path_.string());
    EXPECT_NO_THROW(ResultsWriter(path_, record_, IfExists::replace));
}

}  // namespace
}  // namespace msa::io
