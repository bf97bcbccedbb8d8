// SPDX-License-Identifier: MIT
// Fixture of the tests of the activations format.
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/h5.h"
#include "tests/support/random.h"

namespace msa::io {

inline constexpr int64_t kTokens = 50;

/// A small valid file of one layer, number 3, and its refusals after changes.
class Activations : public testing::Test {
public:
    ~Activations() override { std::filesystem::remove(path_); }

protected:
    Activations() {
        path_ = std::filesystem::temp_directory_path() /
                concat("msalab-io-", getpid(), "-",
                       testing::UnitTest::GetInstance()->current_test_info()->name(), ".h5");
        info_.model_id = "test";
        info_.model_config = R"({"num_kv_heads": 2, "num_query_heads": 4})";
        info_.producer = "tests";
        info_.cu_seqlens = {0, 20, kTokens};
        LayerInfo layer;
        layer.layer = 3;
        layer.query_heads = 4;
        layer.kv_heads = 2;
        layer.head_dim = layer.index_dim = 16;
        layer.model_dim = 24;
        layer.learned.dsa_heads = 3;
        layer.learned.dsa_dim = 32;
        layer.learned.gate_dim = 48;
        layer.learned.gate_block_size = 8;  // 3 and 4 blocks
        layer.learned.qsa_heads = 5;
        layer.learned.qsa_dim = 24;
        layer.learned.qsa_compress = 4;  // 5 and 7 pieces
        layer.softmax_scale = 0.25;
        layer.rotary_dim = 8;
        layer.rope_theta = 1e4;
        layer.element = Element::f32;
        info_.layers = {layer};
    }

    Tensor<float, 3> values(Field field, float sigma = 1) const {
        const LayerInfo& layer = info_.layers[0];
        return test::normal<3>(
            {info_.rows(layer, field), layer.heads(field), layer.channels(field)},
            static_cast<uint64_t>(field) + 40, sigma);
    }
    void write() const {
        ActivationsWriter writer(path_, info_, true);
        write_fields(writer);
        writer.finish();
    }
    /// All fields but those of `but`.
    void write_fields(ActivationsWriter& writer, std::span<const Field> but = {}) const {
        for (Field field : kFields)
            if (info_.layers[0].has(field) && std::ranges::find(but, field) == but.end())
                writer.write(3, field, 0, 0, values(field));
    }

    /// The refusal of a file after `change` was made to a valid one; must name the file.
    std::string refusal_after(const std::function<void(hid_t)>& change) const {
        write();
        {
            const h5::Handle file(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
            change(file);
        }
        return refusal([&] { ActivationsReader{path_}; });
    }
    template <typename Call>
    std::string refusal(const Call& call) const {
        try {
            call();
        } catch (const InputError& error) {
            const std::string message = error.what();
            EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
            return message.substr(std::min(message.size(), path_.string().size() + 2));
        }
        return "";
    }

    static void set(hid_t file, const char* object, const char* name, const std::string& value) {
        h5::set_attribute(h5::open_object(file, {"", object}), name, value);
    }
    static void drop_attribute(hid_t file, const char* object, const char* name) {
        H5Adelete(h5::open_object(file, {"", object}), name);
    }
    static void drop(hid_t file, const char* object) { H5Ldelete(file, object, H5P_DEFAULT); }
    /// Replaces a dataset by zeros of another shape.
    static void reshape(hid_t file, const char* object, const std::vector<hsize_t>& shape,
                        hid_t type = H5T_IEEE_F32LE) {
        drop(file, object);
        const h5::Handle made = h5::create_dataset(file, {"", object}, type, shape, {});
        const hsize_t count =
            std::accumulate(shape.begin(), shape.end(), hsize_t{1}, std::multiplies<>());
        const std::vector<char> zeros(count * H5Tget_size(type), 0);
        h5::write(made, type, {std::vector<hsize_t>(shape.size(), 0), shape}, zeros.data(), {});
    }

    std::filesystem::path path_;
    ActivationsInfo info_;
};

}  // namespace msa::io
