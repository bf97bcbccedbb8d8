// SPDX-License-Identifier: MIT
// Files with flipped bytes and with sizes that they do not have.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/h5.h"
#include "core/io/results.h"
#include "tests/fuzz/builder.h"
#include "tests/fuzz/consume.h"
#include "tests/support/refusal.h"

namespace msa::io {
namespace {

using test::refusal;
using Bytes = std::vector<uint8_t>;

Bytes bytes_of(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(stream)), {});
    return {all.begin(), all.end()};
}

void put(const std::filesystem::path& path, const Bytes& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
}

class Damage : public testing::Test {
public:
    ~Damage() override { std::filesystem::remove_all(folder_); }

protected:
    Damage() {
        folder_ = std::filesystem::temp_directory_path() /
                  concat("msalab-damage-", getpid(), "-",
                         testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
        record_.program = "test";
        record_.options = record_.definitions = "{}";
    }

    /// Two units; finished when asked for.
    void write_results(bool finished) const {
        ResultsWriter writer(file(), record_, IfExists::overwrite);
        for (const char* unit : {"layer 0", "layer 1"}) {
            UnitWriter to = writer.begin(unit);
            to.write<int64_t, 1>(concat("/counts/", unit[6]), Tensor<int64_t, 1>({300}).view(),
                                 {"block", "queries", "so many"});
            to.finish();
        }
        if (finished) writer.finish();
    }
    std::filesystem::path file() const { return folder_ / "a.h5"; }

    std::filesystem::path folder_;
    RunRecord record_;
};

TEST_F(Damage, TextsOfEveryKindAreRead) {
    const std::string longest(100000, 'x');
    const h5::Place root{file(), "/"};
    {
        const h5::Handle made = h5::create_file(file());
        const h5::Handle group = h5::open_object(made, root);
        h5::set_attribute(group, "empty", std::string());
        h5::set_attribute(group, "short", std::string("caf\xc3\xa9"));
        h5::set_attribute(group, "long", longest);
        h5::write_texts(made, {file(), "/list"}, {"layer 9", "", "layer 10"});
        const h5::Handle fixed(H5Tcopy(H5T_C_S1), H5Tclose);
        H5Tset_size(fixed, 3);
        const h5::Handle list = h5::create_dataset(made, {file(), "/fixed"}, fixed, {2}, {});
        h5::write(list, fixed, {{0}, {2}}, "abcde", {});
    }
    const Bytes bytes = bytes_of(file());
    for (bool in_memory : {false, true}) {
        const h5::Handle file_ = in_memory ? h5::open_bytes(file(), bytes) : h5::open_file(file());
        const h5::Handle group = h5::open_object(file_, root);
        EXPECT_EQ(h5::text_attribute(group, "empty", root), "");
        EXPECT_EQ(h5::text_attribute(group, "short", root), "caf\xc3\xa9");
        EXPECT_EQ(h5::text_attribute(group, "long", root), longest);
        EXPECT_EQ(h5::read_texts(file_, {file(), "/list"}),
                  (std::vector<std::string>{"layer 9", "", "layer 10"}));
        EXPECT_EQ(h5::read_texts(file_, {file(), "/fixed"}),
                  (std::vector<std::string>{"abc", "de"}));
        const h5::Handle attribute(H5Aopen(group, "short", H5P_DEFAULT), H5Aclose);
        EXPECT_EQ(H5Tis_variable_str(h5::Handle(H5Aget_type(attribute), H5Tclose)), 0);
    }
}

TEST_F(Damage, AFinishedUnitThatChangedIsNotResumed) {
    write_results(false);
    const std::filesystem::path unit = folder_ / "a.h5.partial/unit-layer-1.h5";
    const Bytes whole = bytes_of(unit);
    const auto resumed = [&] {
        return refusal([&] { ResultsWriter(file(), record_, IfExists::resume); });
    };
    EXPECT_EQ(resumed(), "");
    constexpr size_t kSeal = 76;
    for (size_t at = 0; at < whole.size() - kSeal; at += 1 + whole.size() / 200) {
        Bytes bytes = whole;
        bytes[at] ^= 0x10;
        put(unit, bytes);
        ASSERT_EQ(resumed(), unit.string() +
                                 ": this finished unit is damaged, its bytes do not match its "
                                 "checksum")
            << at;
    }
    put(unit, Bytes(whole.begin(), whole.end() - 20));
    EXPECT_NE(resumed().find("has no checksum at its end"), std::string::npos);
    std::filesystem::remove(unit);
    EXPECT_EQ(resumed(), "");
    put(unit, whole);
    EXPECT_EQ(resumed(), "");
}

TEST_F(Damage, ResultsThatChangedAreNotResumed) {
    write_results(true);
    const Bytes whole = bytes_of(file());
    for (size_t at = 0; at < whole.size() - 80; at += 1 + whole.size() / 200) {
        Bytes bytes = whole;
        bytes[at] ^= 4;
        put(file(), bytes);
        ASSERT_EQ(refusal([&] { ResultsWriter(file(), record_, IfExists::resume); }),
                  file().string() + ": is damaged, its bytes do not match the checksum at its end");
    }
    for (size_t at = whole.size() - 76; at < whole.size(); ++at)  // label, digits, line break
        for (int bit = 0; bit < 8; ++bit) {
            Bytes bytes = whole;
            bytes[at] = static_cast<uint8_t>(bytes[at] ^ (1 << bit));
            put(file(), bytes);
            EXPECT_NE(refusal([&] { ResultsWriter(file(), record_, IfExists::resume); }), "") << at;
        }
    put(file(), Bytes(whole.begin(), whole.end() - 76));  // as HDF5 leaves it after a change
    EXPECT_EQ(refusal([&] { ResultsWriter(file(), record_, IfExists::resume); }), "");
    EXPECT_EQ(ResultsReader(file()).done().size(), 2U);
}

TEST_F(Damage, DeclaredSizesAreHeldAgainstTheBytesOfTheFile) {
    constexpr hsize_t kMany = 1000000000;
    const auto change = [&](const std::function<void(hid_t)>& make_it) {
        put(file(), fuzz::build_activations(nullptr, 0));
        const h5::Handle opened(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        make_it(opened);
    };
    const auto declare = [&](hid_t to, const char* name, hid_t type,
                             const std::vector<hsize_t>& shape, const std::vector<hsize_t>& chunk) {
        H5Ldelete(to, name, H5P_DEFAULT);
        return h5::create_dataset(to, {file(), name}, type, shape, {chunk});
    };
    for (hsize_t chunk : {hsize_t{0}, hsize_t{1024}, kMany}) {  // none: contiguous
        change([&](hid_t to) {
            declare(to, "/cu_seqlens", H5T_STD_I64LE, {kMany},
                    chunk == 0 ? std::vector<hsize_t>{} : std::vector{std::min(chunk, kMany / 4)});
        });
        const std::string error = refusal([&] { ActivationsReader{file()}; });
        EXPECT_NE(error.find("/cu_seqlens declares 8e+09 bytes, more than the "), std::string::npos)
            << error;
    }
    change([&](hid_t to) {  // the sequence is as long as q, k, v and tokens say
        const int64_t boundaries[] = {0, kMany};
        h5::write(declare(to, "/cu_seqlens", H5T_STD_I64LE, {2}, {}), H5T_NATIVE_INT64, {{0}, {2}},
                  boundaries, {});
        const float row[64] = {};
        for (const char* name : {"/layers/3/q", "/layers/3/k", "/layers/3/v"})
            h5::write(declare(to, name, H5T_IEEE_F32LE, {kMany, 4, 16}, {1024, 1, 16}),
                      H5T_NATIVE_FLOAT, {{0, 0, 0}, {1, 1, 16}}, row, {});
    });
    EXPECT_NE(refusal([&] { ActivationsReader{file()}; }).find("/layers/3/q declares 2.56e+11 "),
              std::string::npos);
    change([&](hid_t to) {  // a chunk is read as a whole
        const hsize_t size = 40, endless = H5S_UNLIMITED, chunk = hsize_t{1} << 29;
        const h5::Handle space(H5Screate_simple(1, &size, &endless), H5Sclose),
            layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
        H5Pset_chunk(layout, 1, &chunk);
        const h5::Handle made(
            H5Dcreate2(to, "/tokens", H5T_STD_I32LE, space, H5P_DEFAULT, layout, H5P_DEFAULT),
            H5Dclose);
        EXPECT_TRUE(static_cast<bool>(made));
    });
    EXPECT_NE(refusal([&] { ActivationsReader(file()).tokens(); }).find("/tokens declares 2.1"),
              std::string::npos);

    write_results(true);
    {
        const h5::Handle opened(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        declare(opened, "/counts/0", H5T_STD_I64LE, {kMany}, {1024});
    }
    const ResultsReader results(file());
    EXPECT_NE(refusal([&] { results.read<int64_t, 1>("/counts/0"); }).find("declares 8e+09 bytes"),
              std::string::npos);
    for (const DatasetInfo& dataset : results.datasets("/counts"))
        if (dataset.path == "/counts/0") {
            EXPECT_NE(refusal([&] { results.visit(dataset, [](auto) {}); }).find("declares 8e+09"),
                      std::string::npos);
        }
}

TEST_F(Damage, WhatCompressesBestIsRead) {
    // Zeros are the most that deflate makes of a byte.
    ActivationsInfo info;
    info.model_config = "{}";
    info.cu_seqlens = {0, 8192};
    LayerInfo layer;
    layer.query_heads = layer.kv_heads = 1;
    layer.head_dim = kMaxHeadDim;
    layer.softmax_scale = 1;
    layer.element = Element::f32;
    info.layers = {layer};
    {
        ActivationsWriter writer(file(), info, false);
        writer.finish();
    }
    {
        const h5::Lock lock;
        const h5::Handle opened(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const Tensor<float, 3> zeros({8192, 1, kMaxHeadDim});
        for (const char* name : {"/layers/0/q", "/layers/0/k", "/layers/0/v"}) {
            H5Ldelete(opened, name, H5P_DEFAULT);
            const std::vector<hsize_t> shape{8192, 1, kMaxHeadDim};
            const h5::Place place{file(), name};
            const h5::Handle made =
                h5::create_dataset(opened, place, H5T_IEEE_F32LE, shape, {{1024, 1, kMaxHeadDim}});
            h5::write(made, H5T_NATIVE_FLOAT, {{0, 0, 0}, shape}, zeros.data(), place);
        }
    }
    EXPECT_LT(std::filesystem::file_size(file()), 3U * 8192 * kMaxHeadDim * 4 / 100);
    EXPECT_EQ(ActivationsReader(file()).read(0, Field::v, {8191, 8192})(0, 0, 0), 0);
}

TEST_F(Damage, AGroupThatHoldsItselfEnds) {
    write_results(true);
    {
        const h5::Handle opened(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        H5Lcreate_hard(opened, "/counts", opened, "/counts/again", H5P_DEFAULT, H5P_DEFAULT);
    }
    EXPECT_NE(refusal([&] { ResultsReader(file()).datasets("/"); }).find("lies 32 groups deep"),
              std::string::npos);
}

TEST_F(Damage, ARowAboveTheLimitsOfHdf5IsNamed) {
    ResultsWriter writer(file(), record_, IfExists::refuse);
    UnitWriter unit = writer.begin("layer 0");
    const std::string said = refusal([&] {
        unit.create<int32_t, 3>("/select/oracle/0/ids", {64, 2, int64_t{1} << 31}, {});
    });
    EXPECT_TRUE(said.starts_with(folder_.string() + "/a.h5.partial/unit-layer-0.h5.")) << said;
    EXPECT_TRUE(
        said.ends_with(".tmp: /select/oracle/0/ids needs chunks of 1.71799e+10 bytes, HDF5 "
                       "takes at most 4.29497e+09"))
        << said;
}

}  // namespace
}  // namespace msa::io
