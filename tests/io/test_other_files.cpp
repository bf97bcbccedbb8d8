// SPDX-License-Identifier: MIT
// Data that a file does not hold itself: in other files, never written, or stored with what this
// HDF5 library lacks.
#include <hdf5.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/io/activations.h"
#include "core/io/results.h"
#include "tests/io/activations_test.h"

namespace msa::io {
namespace {

constexpr const char* kQ = "/layers/3/q";

class OtherFiles : public Activations {
public:
    ~OtherFiles() override { std::filesystem::remove(other_); }

protected:
    OtherFiles() : other_(path_.string() + ".other") {}
    /// `write()` to the other file.
    void write_other() {
        write();
        std::filesystem::rename(path_, other_);
    }
    static void external_link(hid_t file, const std::string& to, const std::string& object,
                              const std::string& name) {
        ASSERT_GE(H5Lcreate_external(to.c_str(), object.c_str(), file, name.c_str(), H5P_DEFAULT,
                                     H5P_DEFAULT),
                  0);
    }
    std::string external(const std::string& at) const {
        return at + " is an external link into " + other_ + ", must lie in the file itself";
    }
    /// Creates q anew, as `layout` says.
    static h5::Handle create_q(hid_t file, hid_t layout, hsize_t rows = kTokens) {
        drop(file, kQ);
        const hsize_t shape[] = {rows, 4, 16};
        const h5::Handle space(H5Screate_simple(3, shape, nullptr), H5Sclose);
        return {H5Dcreate2(file, kQ, H5T_IEEE_F32LE, space, H5P_DEFAULT, layout, H5P_DEFAULT),
                H5Dclose};
    }
    static h5::Handle layout() { return {H5Pcreate(H5P_DATASET_CREATE), H5Pclose}; }
    void starts(const std::string& text, const std::string& with) const {
        EXPECT_EQ(text.rfind(with, 0), 0U) << text;
    }

    std::string other_;
};

TEST_F(OtherFiles, ExternalLinksAreRefused) {
    write_other();
    starts(refusal_after([&](hid_t file) {
               drop(file, kQ);
               external_link(file, other_, kQ, kQ);
           }),
           external(kQ));
    starts(refusal_after([&](hid_t file) {
               drop(file, "/layers/3");
               external_link(file, other_, "/layers/3", "/layers/3");
           }),
           external("/layers/3"));
    // Behind a link of the file itself.
    starts(refusal_after([&](hid_t file) {
               external_link(file, other_, "/layers", "/elsewhere");
               drop(file, kQ);
               H5Lcreate_soft("/elsewhere/3/q", file, kQ, H5P_DEFAULT, H5P_DEFAULT);
           }),
           external(kQ));
    starts(refusal_after([&](hid_t file) {
               drop(file, "/cu_seqlens");
               external_link(file, other_, "/cu_seqlens", "/cu_seqlens");
           }),
           external("/cu_seqlens"));
    EXPECT_EQ(refusal_after([&](hid_t file) {  // a link within the file is as good as any
                  H5Lmove(file, kQ, file, "/moved", H5P_DEFAULT, H5P_DEFAULT);
                  H5Lcreate_soft("/moved", file, kQ, H5P_DEFAULT, H5P_DEFAULT);
              }),
              "");
}

TEST_F(OtherFiles, ExternalStorageAndVirtualDatasetsAreRefused) {
    write_other();
    starts(refusal_after([&](hid_t file) {
               const h5::Handle how = layout();
               H5Pset_external(how, other_.c_str(), 0, H5F_UNLIMITED);
               ASSERT_TRUE(create_q(file, how));
           }),
           std::string(kQ) + " has external storage, whose values lie in other files");
    starts(refusal_after([&](hid_t file) {
               const h5::Handle how = layout();
               const hsize_t shape[] = {kTokens, 4, 16};
               const h5::Handle space(H5Screate_simple(3, shape, nullptr), H5Sclose);
               ASSERT_GE(H5Pset_virtual(how, space, other_.c_str(), kQ, space), 0);
               ASSERT_TRUE(create_q(file, how));
           }),
           std::string(kQ) + " is a virtual dataset, whose values lie in other files");
}

TEST_F(OtherFiles, NorDoResultsReadThem) {
    write_other();
    write();
    {
        const h5::Handle file(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        drop(file, kQ);
        external_link(file, other_, kQ, kQ);
    }
    const DatasetReader reader(path_);
    starts(refusal([&] { reader.read<float, 3>(kQ); }), external(kQ));
    starts(refusal([&] { reader.datasets("/"); }), external(kQ));
}

TEST_F(OtherFiles, WhatWasNeverWrittenIsRefused) {
    const auto with = [&](bool chunked, bool deflated, hsize_t rows_written) {
        return refusal_after([&](hid_t file) {
            const h5::Handle how = layout();
            const hsize_t chunk[] = {10, 4, 16};
            if (chunked) H5Pset_chunk(how, 3, chunk);
            if (deflated) H5Pset_deflate(how, 1);
            const h5::Handle q = create_q(file, how);
            const std::vector<float> values(kTokens * 64, 1.0F);
            const h5::Slab all{{0, 0, 0}, {rows_written, 4, 16}};
            h5::write(q, H5T_NATIVE_FLOAT, all, values.data(), {});
            if (rows_written > 30) return;
            if (rows_written > 0)  // one chunk, the fourth, is left out
                h5::write(q, H5T_NATIVE_FLOAT, {{40, 0, 0}, {10, 4, 16}}, values.data(), {});
        });
    };
    for (const auto& [chunked, deflated] : {std::pair{false, false}, {true, false}, {true, true}}) {
        starts(with(chunked, deflated, 0), std::string(kQ) + " was never written");
        EXPECT_EQ(with(chunked, deflated, kTokens), "");
        if (!chunked) continue;
        EXPECT_EQ(
            with(chunked, deflated, 30),
            std::string(kQ) + " holds 4 of its 5 chunks of 10 rows: the others were never written");
    }
}

TEST_F(OtherFiles, FiltersThatTheLibraryLacksAreNamed) {
    constexpr H5Z_filter_t kOwn = 300;
    const auto same = [](unsigned, size_t, const unsigned*, size_t bytes, size_t*,
                         void**) -> size_t { return bytes; };
    const H5Z_class2_t filter{H5Z_CLASS_T_VERS, kOwn, 1, 1, "squash", nullptr, nullptr, same};
    const std::string refused = refusal_after([&](hid_t file) {
        ASSERT_GE(H5Zregister(&filter), 0);
        const h5::Handle how = layout();
        const hsize_t chunk[] = {10, 4, 16};
        H5Pset_chunk(how, 3, chunk);
        ASSERT_GE(H5Pset_filter(how, kOwn, H5Z_FLAG_MANDATORY, 0, nullptr), 0);
        const h5::Handle q = create_q(file, how);
        const std::vector<float> values(kTokens * 64, 1.0F);
        h5::write(q, H5T_NATIVE_FLOAT, {{0, 0, 0}, {kTokens, 4, 16}}, values.data(), {});
        H5Fflush(file, H5F_SCOPE_GLOBAL);
    });
    EXPECT_EQ(refused, "");  // while it is there
    H5Zunregister(kOwn);
    starts(refusal([&] { ActivationsReader{path_}; }),
           std::string(kQ) +
               " is stored with filter 300 (squash), which this HDF5 library has not "
               "got: write it with gzip");
}

/// A layout of a later release: the version is a byte before the class of the layout and the
/// address.
TEST_F(OtherFiles, LaterVersionsOfTheFormatAreSaidToBe) {
    EXPECT_EQ(refusal_after([&](hid_t file) {
                  const h5::Handle q = create_q(file, layout());
                  const std::vector<float> values(kTokens * 64, 1.0F);
                  h5::write(q, H5T_NATIVE_FLOAT, {{0, 0, 0}, {kTokens, 4, 16}}, values.data(), {});
              }),
              "");
    std::ifstream in(path_, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    in.close();
    const uint64_t size = kTokens * 64 * 4;
    const std::string size_bytes(reinterpret_cast<const char*>(&size), 8);
    size_t changed = 0;
    for (size_t at = 0; at + 18 <= bytes.size(); ++at)
        if (bytes[at] == 3 && bytes[at + 1] == 1 && bytes.compare(at + 10, 8, size_bytes) == 0) {
            bytes[at] = 5;
            ++changed;
        }
    ASSERT_EQ(changed, 1U);
    std::ofstream(path_, std::ios::binary) << bytes;
    const std::string refused = refusal([&] { ActivationsReader{path_}; });
    starts(refused, std::string(kQ) + " cannot be opened: bad version number for layout message");
    EXPECT_NE(refused.find("which a later release may have written: write it for older ones (h5py: "
                           "libver=('earliest', 'v110'))"),
              std::string::npos)
        << refused;
}

/// Numbers of heads that differ by layer, in the forms that models' configurations have.
TEST_F(OtherFiles, AModelsHeadsMayDifferByLayer) {
    using nlohmann::json;
    const auto with = [&](json config) {  // the layer, number 3, has 4 query heads over 2
        info_.model_config = config.dump();
        write();
        return refusal([&] { ActivationsReader{path_}; });
    };
    const std::string repeated =
        "/layers/3/k has 2 heads, model_config names 1 key-value heads for this layer; K and V "
        "must not be repeated to the query heads";
    const json kinds{"sliding_attention", "sliding_attention", "sliding_attention",
                     "full_attention"};
    json gemma{{"num_attention_heads", 4},
               {"num_key_value_heads", 1},
               {"layer_types", kinds},
               {"num_global_key_value_heads", 2},
               {"attention_k_eq_v", true}};
    EXPECT_EQ(with(gemma), "");
    gemma["attention_k_eq_v"] = false;  // then the number is of no layer
    EXPECT_EQ(with(gemma), repeated);
    gemma["attention_k_eq_v"] = true;
    gemma["num_global_key_value_heads"] = 1;
    gemma["num_key_value_heads"] = 2;
    EXPECT_EQ(with(gemma), repeated);
    const json own{{"head_dim", 16}, {"num_key_value_heads", 2}};
    json config{{"num_attention_heads", 4}, {"num_key_value_heads", 1}};
    EXPECT_EQ(with(config), repeated);
    config["per_layer_config"] = {{"2", own}};
    EXPECT_EQ(with(config), repeated);
    config["per_layer_config"] = {{"3", own}};
    EXPECT_EQ(with(config), "");
    EXPECT_EQ(with({{"num_key_value_heads_per_layer", {1, 1, 1, 2}}, {"num_key_value_heads", 1}}),
              "");
    EXPECT_EQ(with({{"num_kv_heads", {1, 1, 1, 2}}}), "");
    EXPECT_EQ(with({{"num_kv_heads", {2, 2, 2, 1}}}), repeated);
    EXPECT_EQ(with({{"num_attention_heads", 8},
                    {"swa_num_attention_heads", 4},
                    {"layer_types", json(4, "sliding_attention")},
                    {"swa_num_key_value_heads", 2},
                    {"num_key_value_heads", 1}}),
              "");
    EXPECT_EQ(with({{"num_attention_heads_per_layer", {4, 4, 4, 8}}, {"num_attention_heads", 4}}),
              "/layers/3/q has 4 heads, model_config names 8 for this layer");
}

}  // namespace
}  // namespace msa::io
