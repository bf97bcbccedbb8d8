// SPDX-License-Identifier: MIT
// The results file itself; kills and resumes are in tests/experiments/test_resume.cpp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "core/error.h"
#include "core/io/h5.h"
#include "core/io/results.h"
#include "core/io/sha256.h"
#include "tests/io/results_test.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"

namespace msa::io {
namespace {

using test::refusal;

TEST_F(Results, RoundTripOfTypesRowsAttributesAndRun) {
    const Tensor<float, 3> big = test::normal<3>({700, 3, 17}, 1);  // chunked and deflated
    Tensor<int64_t, 1> counts({3});
    counts(2) = int64_t{1} << 40;
    Tensor<int32_t, 2> ids({2, 2});
    ids(1, 1) = -1;
    const Tensor<double, 1> none({0});
    {
        ResultsWriter writer(path_, record_, IfExists::refuse);
        for (const char* unit : {"layer 10", "layer 9"}) {
            const std::string number = std::string(unit).substr(6);
            EXPECT_FALSE(writer.done(unit));
            UnitWriter to = writer.begin(unit);
            to.create<float, 3>("/outputs/" + number, {700, 3, 17}, {"a,b,c", "1", "d"});
            for (int64_t row = 0; row < 700; row += 300)
                to.write_rows<float, 3>(
                    "/outputs/" + number, row,
                    View<const float, 3>(big.view()).slice(row, std::min<int64_t>(300, 700 - row)));
            to.write<int64_t, 1>("/counts/" + number, counts.view(), {"block", "queries", ""});
            to.write<int32_t, 2>("/ids/" + number, ids.view(), {"query,slot", "block", ""});
            to.write<double, 1>("/none/" + number, none.view(), {"x", "1", ""});
            to.attribute("/metrics/" + number, "recall", 0.5);
            to.attribute("/metrics/" + number, "rows", int64_t{12});
            to.attribute("/counts/" + number, "note", std::string("text"));
            to.finish();
            EXPECT_TRUE(writer.done(unit));
            EXPECT_FALSE(std::filesystem::exists(path_));
        }
        writer.finish();
    }
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
    const ResultsReader reader(path_);
    EXPECT_EQ(reader.done(), (std::vector<std::string>{"layer 9", "layer 10"}));
    EXPECT_EQ(reader.list("/outputs"), (std::vector<std::string>{"9", "10"}));
    EXPECT_TRUE(test::identical(reader.read<float, 3>("/outputs/10"), big));
    EXPECT_EQ((reader.read_rows<float, 3>("/outputs/9", 650, 2)(1, 2, 16)), big(651, 2, 16));
    EXPECT_EQ((reader.read<int64_t, 1>("/counts/9")(2)), int64_t{1} << 40);
    EXPECT_EQ((reader.read<int32_t, 2>("/ids/9")(1, 1)), -1);
    EXPECT_EQ((reader.read<double, 1>("/none/9").size()), 0);
    EXPECT_EQ(reader.number("/metrics/9", "recall"), 0.5);
    EXPECT_EQ(reader.number("/metrics/9", "rows"), 12);
    EXPECT_EQ(reader.text("/counts/9", "note"), "text");
    EXPECT_EQ(reader.text("/ids/9", "axes"), "query,slot");
    EXPECT_EQ(reader.run().inputs, record_.inputs);
    EXPECT_EQ(reader.run().options, record_.options);
    EXPECT_EQ(reader.run().seed, 7U);
    EXPECT_TRUE(reader.has("/metrics/9"));
    EXPECT_FALSE(reader.has("/metrics/8"));
}

TEST_F(Results, UnitsOfLikeNamesAreApart) {
    const std::vector<std::string> units{"a b", "a-b", "a/b", "a%b", "a%2Db"};
    {
        ResultsWriter writer(path_, record_, IfExists::refuse);
        for (const std::string& unit : units) writer.begin(unit).finish();
    }
    const ResultsWriter writer(path_, record_, IfExists::resume);
    for (const std::string& unit : units) EXPECT_TRUE(writer.done(unit)) << unit;
}

/// Parts in the order that the record says, which is that of neither their names nor their writing.
TEST_F(Results, PartsAreJoinedIntoAUnit) {
    const Tensor<float, 3> big = test::normal<3>({700, 3, 17}, 1);
    record_.joined = {{"layer 3", {"layer 3, b", "layer 3, a"}}};
    const auto write = [&](ResultsWriter& writer, const char* unit, int64_t first, int64_t rows) {
        UnitWriter to = writer.begin(unit);
        to.write<float, 3>("/outputs/3", View<const float, 3>(big.view()).slice(first, rows),
                           {"a,b,c", "1", "d"});
        to.attribute("/layers/3", "tokens", int64_t{700});
        to.attribute("/state", "rows", rows);
        to.finish();
    };
    const auto join = [](const std::vector<std::filesystem::path>& parts, UnitWriter& to) {
        ASSERT_EQ(parts.size(), 2U);
        const DatasetReader first(parts[0]), second(parts[1]);
        const auto rows = static_cast<int64_t>(first.number("/state", "rows"));
        to.create_like(first, "/outputs/3", rows + 3);
        EXPECT_NE(
            refusal([&] { to.copy_rows(second, "/outputs/3", rows + 1); }).find("do not fit into"),
            std::string::npos);
        to.copy_rows(first, "/outputs/3", 0);
        to.copy_rows(second, "/outputs/3", rows);
        to.copy(first, "/layers/3");
    };
    {
        ResultsWriter writer(path_, record_, IfExists::refuse);
        write(writer, "layer 3, a", 697, 3);
        write(writer, "layer 3, b", 0, 697);
        writer.begin("layer 4").finish();
        EXPECT_EQ(writer.notes().size(), 3U);
        const auto fail = [&](const std::vector<std::filesystem::path>& parts, UnitWriter& to) {
            join(parts, to);
            throw SystemError("the disk is full");
        };
        EXPECT_THROW(writer.finish(fail), SystemError);
    }
    {
        ResultsWriter writer(path_, record_, IfExists::resume);
        EXPECT_TRUE(writer.done("layer 3, a") && writer.done("layer 3, b"));
        EXPECT_FALSE(writer.done("layer 3"));
        writer.finish(join);
    }
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
    const ResultsReader reader(path_);
    EXPECT_EQ(reader.done(), (std::vector<std::string>{"layer 3", "layer 4"}));
    EXPECT_TRUE(test::identical(reader.read<float, 3>("/outputs/3"), big));
    EXPECT_EQ(reader.text("/outputs/3", "axes"), "a,b,c");
    EXPECT_EQ(reader.number("/layers/3", "tokens"), 700);
    EXPECT_TRUE(ResultsWriter(path_, record_, IfExists::resume).done("layer 3, a"));
}

/// What is made of all units: whole in the results, or they get no name and the units stay.
TEST_F(Results, WhatIsMadeOfThemIsInThemFromTheStart) {
    const auto sums = [](const std::vector<double>& values) {
        return View<const double, 1>(values.data(), {std::ssize(values)});
    };
    for (const IfExists rule : {IfExists::resume, IfExists::join}) {
        std::filesystem::remove(path_);
        {
            ResultsWriter writer(path_, record_, rule);
            record_.units = {"a"};
            UnitWriter unit = writer.begin("a");
            unit.write<double, 1>("/group/values", sums({1, 2}), {"x", "1", ""});
            unit.finish();
            EXPECT_THROW(writer.finish({},
                                       [&](const ResultsReader&, UnitWriter& to) {
                                           to.write<double, 1>("/sum", sums({3}), {"", "1", ""});
                                           throw SystemError("the disk is full");
                                       }),
                         SystemError);
            EXPECT_FALSE(std::filesystem::exists(path_));
            for (const auto& file :
                 std::filesystem::directory_iterator(path_.string() + ".partial"))
                EXPECT_NE(file.path().extension(), ".tmp") << file.path();
        }
        ResultsWriter writer(path_, record_, rule);
        EXPECT_TRUE(writer.done("a"));
        writer.finish({}, [&](const ResultsReader& results, UnitWriter& to) {
            EXPECT_EQ(results.run().program, "test");
            const Tensor<double, 1> values = results.read<double, 1>("/group/values");
            to.write<double, 1>("/group/sum", sums({values(0) + values(1)}), {"x", "1", ""});
            to.write_texts("/group/words", {"", "two words"}, {"x", "", "said"});
        });
        verify_checksum(path_);
        const ResultsReader reader(path_);
        EXPECT_EQ((reader.read<double, 1>("/group/sum")(0)), 3);
        EXPECT_EQ(reader.text("/group/words", "description"), "said");
        EXPECT_EQ(reader.done(), (std::vector<std::string>{"a"}));
        EXPECT_EQ(reader.list("/"), (std::vector<std::string>{"done", "group", "run"}));
        if (rule == IfExists::join) writer.end();
    }
}

TEST_F(Results, SeveralThreadsWriteUnitsAndTheOrderDoesNotMatter) {
    const Tensor<float, 3> values = test::normal<3>({3000, 2, 8}, 1);
    const auto write = [&](ResultsWriter& writer, int64_t number) {
        UnitWriter to = writer.begin(concat("layer ", number));
        const std::string name = concat("/outputs/", number);
        to.create<float, 3>(name, values.shape(), {"a,b,c", "1", "d"});
        for (int64_t row = 0; row < 3000; row += 100)
            to.write_rows<float, 3>(name, row, View<const float, 3>(values.view()).slice(row, 100));
        to.attribute("/metrics/" + std::to_string(number), "recall", 0.5);
        to.finish();
    };
    std::string bytes;
    for (const bool threads : {false, true}) {
        {
            ResultsWriter writer(path_, record_, IfExists::overwrite);
            std::vector<std::jthread> workers;
            for (int64_t number = 11; number >= 0; --number)
                if (threads)
                    workers.emplace_back([&, number] { write(writer, number); });
                else
                    write(writer, number);
            workers.clear();
            writer.finish();
        }
        std::ifstream stream(path_, std::ios::binary);
        const std::string now{std::istreambuf_iterator<char>(stream), {}};
        EXPECT_TRUE(bytes.empty() || now == bytes);
        bytes = now;
        EXPECT_TRUE(test::identical(ResultsReader(path_).read<float, 3>("/outputs/7"), values));
        std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5 counts in seconds
    }
}

/// A run that does not know its inputs yet is not any run.
TEST_F(Results, OfOtherInputsAreNotResumed) {
    {
        ResultsWriter writer(path_, record_, IfExists::refuse);
        writer.begin("layer 1").finish();
        writer.finish();
    }
    record_.inputs.clear();
    EXPECT_EQ(refusal([&] { ResultsWriter(path_, record_, IfExists::resume); }),
              path_.string() + ": is of another run, inputs.x.h5 was \"abc\", is missing now");
    record_.inputs = {{"x.h5", "abc"}, {"y.h5", "def"}};
    EXPECT_EQ(refusal([&] { ResultsWriter(path_, record_, IfExists::resume); }),
              path_.string() + ": is of another run, inputs.y.h5 was null, is \"def\" now");
    record_.inputs.erase("y.h5");
    EXPECT_TRUE(ResultsWriter(path_, record_, IfExists::resume).complete());
}

/// Zeros show whether deflate was asked: weights go without.
TEST_F(Results, DeflateIsLeftOutWhereItIsSaid) {
    const Tensor<float, 1> zeros({100000});
    std::map<bool, uintmax_t> bytes;
    for (const bool deflated : {true, false}) {
        ResultsWriter writer(path_, record_, IfExists::overwrite);
        UnitWriter to = writer.begin("training");
        to.write<float, 1>("/weights", zeros.view(), {"channel", "1", "w", deflated});
        to.finish();
        writer.finish();
        EXPECT_TRUE(test::identical(ResultsReader(path_).read<float, 1>("/weights"), zeros));
        bytes[deflated] = std::filesystem::file_size(path_);
    }
    EXPECT_LT(bytes[true], 100000U);
    EXPECT_GT(bytes[false], 400000U);
}

TEST_F(Results, AUnitAloneBecomesTheResults) {
    const Tensor<float, 2> weights = test::normal<2>({300, 40}, 1);
    for (IfExists rule : {IfExists::refuse, IfExists::overwrite}) {
        ResultsWriter writer(path_, record_, rule);
        UnitWriter to = writer.begin("training");
        to.write<float, 2>("/weights/w", weights.view(), {"output,input", "1", "w", false});
        to.attribute("/state", "step", int64_t{3});
        writer.finish(std::move(to));
    }
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
    EXPECT_NO_THROW(verify_checksum(path_));
    const ResultsReader from(path_);
    EXPECT_EQ(from.run().inputs, record_.inputs);
    EXPECT_EQ(from.number("/state", "step"), 3);
    const auto read = from.read<float, 2>("/weights/w");
    EXPECT_TRUE(std::equal(read.data(), read.data() + read.size(), weights.data()));
    EXPECT_TRUE(ResultsWriter(path_, record_, IfExists::resume).done("training"));
}

TEST_F(Results, AUnitThatIsNotFinishedLeavesNothing) {
    ResultsWriter writer(path_, record_, IfExists::refuse);
    { const UnitWriter to = writer.begin("layer 1"); }
    EXPECT_FALSE(writer.done("layer 1"));
    for (const auto& entry : std::filesystem::directory_iterator(path_.string() + ".partial"))
        EXPECT_NE(entry.path().filename().string().rfind("unit-", 0), 0U) << entry.path();
}

TEST_F(Results, ReadersRefuseWithFileAndObject) {
    {
        ResultsWriter writer(path_, record_, IfExists::refuse);
        UnitWriter to = writer.begin("layer 1");
        to.write<int64_t, 1>("/counts/1", Tensor<int64_t, 1>({3}).view(), {});
        to.finish();
        writer.finish();
    }
    const std::string name = path_.string();
    {
        const ResultsReader reader(path_);
        EXPECT_EQ(refusal([&] { reader.read<float, 1>("/counts/2"); }),
                  name + ": /counts/2 is missing");
        EXPECT_EQ(refusal([&] { reader.read<float, 2>("/counts/1"); }),
                  name + ": /counts/1 has rank 1, must be 2");
        EXPECT_EQ(refusal([&] { reader.read_rows<int64_t, 1>("/counts/1", 2, 2); }),
                  name + ": /counts/1: rows 2:4 asked for, it has 3");
        EXPECT_EQ(refusal([&] { reader.number("/counts/1", "gini"); }),
                  name + ": /counts/1 has no attribute gini");
    }
    {
        const h5::Handle file(H5Fopen(name.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        h5::set_attribute(h5::open_object(file, {path_, "/"}), "format",
                          std::string("msa-activations"));
    }
    EXPECT_EQ(refusal([&] { ResultsReader{path_}; }),
              name + ": / attribute format is 'msa-activations', must be 'msa-results'");
}

TEST(Sha256, OfKnownBytes) {
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / concat("msalab-sha-", getpid());
    std::ofstream(path) << "abc";  // FIPS 180-4, the one-block example
    EXPECT_EQ(sha256_of_file(path),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    std::filesystem::remove(path);
    EXPECT_THROW(sha256_of_file(path), InputError);
}

}  // namespace
}  // namespace msa::io
