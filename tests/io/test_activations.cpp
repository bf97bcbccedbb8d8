// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/half.h"
#include "core/io/activations.h"
#include "core/io/h5.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace msa::io {
namespace {

constexpr int64_t kTokens = 50;

class Activations : public testing::Test {
public:
    ~Activations() override { std::filesystem::remove(path_); }

protected:
    Activations() {
        path_ = std::filesystem::temp_directory_path() /
                text("msalab-io-", getpid(), "-",
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
        layer.softmax_scale = 0.25;
        layer.rotary_dim = 8;
        layer.rope_theta = 1e4;
        layer.element = Element::f32;
        info_.layers = {layer};
    }

    Tensor<float, 3> values(Field field, float sigma = 1) const {
        const LayerInfo& layer = info_.layers[0];
        return test::normal<3>({kTokens, layer.heads(field), layer.channels(field)},
                               static_cast<uint64_t>(field) + 40, sigma);
    }
    void write() const {
        ActivationsWriter writer(path_, info_, true);
        for (Field field : {Field::x, Field::q, Field::k, Field::v, Field::index_q, Field::index_k})
            if (info_.layers[0].has(field)) writer.write(3, field, 0, 0, values(field));
        writer.finish();
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
        h5::create_dataset(file, {"", object}, type, shape, {});
    }

    std::filesystem::path path_;
    ActivationsInfo info_;
};

TEST_F(Activations, RoundTripInEveryElementType) {
    for (Element element : {Element::f32, Element::f16, Element::bf16}) {
        info_.layers[0].element = element;
        write();
        const ActivationsReader reader(path_);
        const LayerInfo& layer = reader.layer(3);
        EXPECT_EQ(layer.element, element);
        EXPECT_EQ(layer.query_heads, 4);
        EXPECT_EQ(layer.index_dim, 16);
        EXPECT_EQ(layer.model_dim, 24);
        EXPECT_EQ(layer.rotary_dim, 8);
        EXPECT_EQ(layer.rope_theta, 1e4);
        EXPECT_EQ(layer.softmax_scale, 0.25);
        EXPECT_EQ(reader.info().cu_seqlens, info_.cu_seqlens);
        EXPECT_EQ(reader.info().model_config, info_.model_config);
        for (Field field :
             {Field::x, Field::q, Field::k, Field::v, Field::index_q, Field::index_k}) {
            const Tensor<float, 3> got = reader.read(3, field, {0, kTokens});
            Tensor<float, 3> want = values(field);
            for (int64_t i = 0; i < want.size(); ++i) {
                float& value = want.data()[i];
                if (element == Element::f16) value = static_cast<float>(f16(value));
                if (element == Element::bf16) value = static_cast<float>(bf16(value));
            }
            EXPECT_TRUE(test::identical(got, want)) << to_string(field);
        }
    }
}

TEST_F(Activations, KeepWhatTheModelsOwnAttentionAdds) {
    info_.layers[0].own_attention = {{"sinks", {0.5, -1, 2, 0}}, {"sliding_window", {64}}};
    write();
    EXPECT_EQ(ActivationsReader(path_).layer(3).own_attention, info_.layers[0].own_attention);
}

TEST_F(Activations, KeepRopeOfEveryKindAndOwnSelection) {
    LayerInfo& layer = info_.layers[0];
    layer.rope_theta.reset();
    layer.rope_scaling = R"({"rope_type": "llama3", "factor": 8})";
    layer.rope_inv_freq = {1, 0.1, 1e-3, 0};
    layer.rope_attention_factor = 1.25;
    layer.rope_interleaved = true;
    layer.own_sparse = true;
    layer.own_block_size = 128;
    layer.own_top_k = 16;
    write();
    const LayerInfo read = ActivationsReader(path_).layer(3);
    EXPECT_EQ(read.rope_theta, std::nullopt);
    EXPECT_EQ(read.rope_scaling, layer.rope_scaling);
    EXPECT_EQ(read.rope_inv_freq, layer.rope_inv_freq);
    EXPECT_EQ(read.rope_attention_factor, 1.25);
    EXPECT_TRUE(read.rope_interleaved);
    EXPECT_TRUE(read.own_sparse);
    EXPECT_EQ(read.own_block_size, 128);
    EXPECT_EQ(read.own_top_k, 16);
}

TEST_F(Activations, OptionalAttributesAreValidWhereTheyArePresent) {
    const auto with = [&](const char* name, const auto& value) {
        return refusal_after([&](hid_t file) {
            h5::set_attribute(h5::open_object(file, {"", "/layers/3"}), name, value);
        });
    };
    using Numbers = std::vector<double>;
    const std::string at = "/layers/3 attribute ";
    EXPECT_EQ(with("sinks", Numbers{1, 2, 3}),
              at + "sinks has 3 numbers, must have one for each of the 4 query heads");
    EXPECT_EQ(with("sinks", Numbers{1, 2, 3, NAN}),
              at + "sinks is nan in one place, must be finite");
    EXPECT_EQ(with("sinks", Numbers{1, 2, 3, -4}), "");
    for (const char* name : {"sliding_window", "attention_chunk", "own_block_size", "own_top_k"}) {
        for (double value : {-64.0, 0.0, 1.5, HUGE_VAL})
            EXPECT_EQ(with(name, value),
                      at + text(name, " is ", value, ", must be an integer of at least 1"));
        EXPECT_EQ(with(name, int64_t{64}), "");
    }
    for (const char* name : {"softcap", "rope_theta", "rope_attention_factor", "softmax_scale"}) {
        for (double value : {-1.0, 0.0, std::nan(""), HUGE_VAL})
            EXPECT_EQ(with(name, value),
                      at + text(name, " is ", value, ", must be finite and positive"));
        EXPECT_EQ(with(name, 50.0), "");
    }
    EXPECT_EQ(with("softcap", std::string("much")), at + "softcap is 'much', must be a number");
    for (double value : {7.0, -2.0, 18.0, std::nan("")})
        EXPECT_EQ(with("rotary_dim", value),
                  at + text("rotary_dim is ", value, ", must be even, from 0 to the head dim 16"));
    EXPECT_EQ(with("rope_inv_freq", Numbers{1, 2}),
              at + "rope_inv_freq has 2 numbers, must have one for each of the 4 pairs of "
                   "rotary_dim");
    EXPECT_EQ(with("rope_inv_freq", Numbers{1, 2, 3, -1}),
              at + "rope_inv_freq is -1 in one place, must not be negative");
    EXPECT_EQ(with("rope_scaling", std::string("{")), at + "rope_scaling is not JSON");
    EXPECT_EQ(with("rope_layout", std::string("half")),
              at + "rope_layout is 'half', must be 'interleaved'");
    EXPECT_EQ(with("own_attention", std::string("dense")),
              at + "own_attention is 'dense', must be 'sparse'");
    info_.layers[0].rotary_dim.reset();
    EXPECT_EQ(with("rope_inv_freq", Numbers{1}),
              "/layers/3 has an attribute rope_inv_freq and no rotary_dim; they come together");
}

TEST_F(Activations, RangesHeadsAndGatherAreRowsOfTheWhole) {
    write();
    const ActivationsReader reader(path_);
    const Tensor<float, 3> whole = values(Field::q);
    Tensor<float, 3> part({7, 2, 16});
    reader.read(3, Field::q, {11, 18}, 1, part);
    for (int64_t i = 0; i < 7; ++i)
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(part(i, h, d), whole(11 + i, 1 + h, d));
    const std::vector<int64_t> tokens{0, 3, 3, 30, 49};
    const Tensor<float, 3> rows = reader.gather(3, Field::q, tokens);
    for (size_t i = 0; i < tokens.size(); ++i)
        EXPECT_EQ(rows(static_cast<int64_t>(i), 2, 5), whole(tokens[i], 2, 5));
    EXPECT_EQ(reader.gather(3, Field::q, {}).extent(0), 0);
    EXPECT_NE(refusal([&] {
                  reader.read(3, Field::q, {40, 51});
              }).find("tokens 40:51 asked for, must be within 0:50"),
              std::string::npos);
}

TEST_F(Activations, ManyChunksStreamThroughAnyWindow) {
    info_.cu_seqlens = {0, 2500};
    info_.layers[0].index_dim = info_.layers[0].model_dim = 0;
    const Tensor<float, 3> k = test::normal<3>({2500, 2, 16}, 3);
    ActivationsWriter writer(path_, info_, true);
    writer.write(3, Field::q, 0, 0, test::normal<3>({2500, 4, 16}, 1));
    writer.write(3, Field::v, 0, 0, test::normal<3>({2500, 2, 16}, 2));
    for (int64_t begin = 0; begin < 2500; begin += 300)  // across chunk borders, head by head
        for (int64_t h = 0; h < 2; ++h) {
            const int64_t n = std::min<int64_t>(300, 2500 - begin);
            Tensor<float, 3> head({n, 1, 16});
            for (int64_t i = 0; i < n; ++i) std::copy_n(&k(begin + i, h, 0), 16, &head(i, 0, 0));
            writer.write(3, Field::k, begin, h, head);
        }
    writer.finish();
    const ActivationsReader reader(path_);
    EXPECT_TRUE(test::identical(reader.read(3, Field::k, {0, 2500}), k));
    std::vector<int64_t> every_third;
    for (int64_t t = 1; t < 2500; t += 3) every_third.push_back(t);
    const Tensor<float, 3> rows = reader.gather(3, Field::k, every_third);
    for (size_t i = 0; i < every_third.size(); ++i)
        ASSERT_EQ(rows(static_cast<int64_t>(i), 1, 7), k(every_third[i], 1, 7));
}

TEST_F(Activations, TokensAreOptional) {
    write();
    EXPECT_FALSE(ActivationsReader(path_).info().has_tokens);
    EXPECT_EQ(refusal([&] { ActivationsReader(path_).tokens(); }), "/tokens is missing");
    ActivationsWriter writer(path_, info_, true);
    std::vector<int32_t> tokens(kTokens);
    std::iota(tokens.begin(), tokens.end(), 100);
    writer.write_tokens(tokens);
    writer.finish();
    EXPECT_EQ(ActivationsReader(path_).tokens(), tokens);
    EXPECT_EQ(refusal_after([](hid_t file) {
                  h5::create_dataset(file, {"", "/tokens"}, H5T_IEEE_F32LE, {50}, {});
              }),
              "/tokens must hold integers");
}

TEST_F(Activations, KAndVRepeatedToTheQueryHeadsAreRefused) {
    info_.model_config = "{}";
    info_.layers[0].kv_heads = 4;
    info_.layers[0].index_dim = 0;
    const auto written = [&](bool k_repeats, bool v_repeats) {
        ActivationsWriter writer(path_, info_, true);
        for (const auto& [field, repeats] :
             {std::pair{Field::k, k_repeats}, {Field::v, v_repeats}}) {
            Tensor<float, 3> heads = values(field);
            for (int64_t i = 0; repeats && i < kTokens; ++i)
                std::copy_n(&heads(i, 0, 0), 16, &heads(i, 1, 0));
            writer.write(3, field, 0, 0, heads);
        }
        writer.finish();
        return refusal([&] { ActivationsReader reader(path_); });
    };
    EXPECT_EQ(written(false, false), "");
    EXPECT_EQ(written(true, false), "");
    EXPECT_EQ(written(true, true),
              "/layers/3/k has 4 heads, as many as q, and heads 0 and 1 are the same; K and V must "
              "not be repeated to the query heads");
}

TEST_F(Activations, NanIsCountedAndLocated) {
    write();
    {
        const h5::Handle file(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const h5::Handle k = h5::open_object(file, {"", "/layers/3/k"});
        const float bad[2] = {HUGE_VALF, std::nanf("")};
        h5::write(k, H5T_NATIVE_FLOAT, {{31, 1, 4}, {1, 1, 2}}, bad, {});
    }
    const ActivationsReader reader(path_);
    const std::string message =
        "/layers/3/k holds 2 values that are NaN or Inf, must hold none; the first: token 31, "
        "head 1, channel 4 is inf";
    EXPECT_EQ(refusal([&] { reader.read(3, Field::k, {0, kTokens}); }), message);
    EXPECT_EQ(refusal([&] { reader.read(3, Field::k, {30, 32}); }), message);
    EXPECT_EQ(refusal([&] { reader.read(3, Field::k, {0, 30}); }), "");  // not looked at
}

TEST_F(Activations, FilesThatAreNone) {
    const auto open = [&](const std::filesystem::path& path) {
        return refusal([&] { ActivationsReader{path}; });
    };
    EXPECT_EQ(open(path_), "there is no such file");
    std::filesystem::create_directory(path_);
    EXPECT_EQ(open(path_), "is not a file");
    std::filesystem::remove(path_);
    std::ofstream(path_).close();
    EXPECT_EQ(open(path_), "is empty");
    std::ofstream(path_) << "text";
    EXPECT_EQ(open(path_), "is not an HDF5 file, or cannot be read by this user");
    for (const std::string extension : {".safetensors", ".npz", ".npy"}) {
        std::filesystem::path other = path_;
        std::ofstream(other.replace_extension(extension)) << "text";
        EXPECT_NE(
            open(other).find("is not an HDF5 file; python -m msacapture convert " + other.string() +
                             " --state post_rope --out " + path_.string() + " makes one"),
            std::string::npos);
        std::filesystem::remove(other);
    }
    write();
    std::filesystem::resize_file(path_, std::filesystem::file_size(path_) / 2);
    EXPECT_EQ(open(path_).rfind("is damaged or truncated: ", 0), 0U);
}

TEST_F(Activations, WhatTheFileMustSay) {
    const auto without = [&](const char* object, const char* name) {
        return refusal_after([=](hid_t file) { drop_attribute(file, object, name); });
    };
    const auto with = [&](const char* object, const char* name, const char* value) {
        return refusal_after([=](hid_t file) { set(file, object, name, value); });
    };
    EXPECT_EQ(without("/", "format"), "/ has no attribute format");
    EXPECT_EQ(with("/", "format", "weights"),
              "/ attribute format is 'weights', must be 'msa-activations'");
    EXPECT_EQ(with("/", "format_version", "2"),
              "/ attribute format_version is 2, this program reads 1");
    EXPECT_EQ(with("/", "format_version", "one"),
              "/ attribute format_version is 'one', must be a number");
    EXPECT_EQ(with("/", "format_version", "1"), "");
    EXPECT_EQ(without("/", "model_id"), "/ has no attribute model_id");
    EXPECT_EQ(with("/", "model_config", "{"), "/ attribute model_config is not JSON");
    EXPECT_EQ(without("/layers/3", "q_state"), "/layers/3 has no attribute q_state");
    EXPECT_EQ(with("/layers/3", "k_state", "rotated"),
              "/layers/3 attribute k_state is 'rotated', must be post_rope, pre_rope or none");
    EXPECT_EQ(without("/layers/3", "softmax_scale"), "/layers/3 has no attribute softmax_scale");
    EXPECT_EQ(with("/layers/3", "softmax_scale", "-1"),
              "/layers/3 attribute softmax_scale is -1, must be finite and positive");
    EXPECT_EQ(with("/layers/3", "softmax_scale", "0.125"), "");
    EXPECT_EQ(with("/layers/3", "rotary_dim", "1e300"),
              "/layers/3 attribute rotary_dim is 1e+300, must be even, from 0 to the head dim 16");
}

TEST_F(Activations, WhatTheFileMustHold) {
    const auto without = [&](const char* object) {
        return refusal_after([=](hid_t file) { drop(file, object); });
    };
    const auto reshaped = [&](const char* object, const std::vector<hsize_t>& shape) {
        return refusal_after([=](hid_t file) { reshape(file, object, shape); });
    };
    EXPECT_EQ(without("/cu_seqlens"), "/cu_seqlens is missing");
    EXPECT_EQ(without("/layers"), "/layers is missing");
    EXPECT_EQ(without("/layers/3"), "/layers is empty");
    EXPECT_EQ(without("/layers/3/v"), "/layers/3/v is missing");
    EXPECT_EQ(without("/layers/3/index_k"),
              "/layers/3/index_k is missing; index_q and index_k come together");
    EXPECT_EQ(without("/layers/3/x"), "");
    EXPECT_EQ(reshaped("/layers/3/q", {49, 4, 16}),
              "/layers/3/q has 49 tokens, /cu_seqlens ends at 50; they must agree");
    EXPECT_EQ(reshaped("/layers/3/q", {50, 64}), "/layers/3/q has rank 2, must be 3");
    EXPECT_EQ(reshaped("/layers/3/k", {50, 2, 32}), "/layers/3/k has head dim 32, q has 16");
    EXPECT_EQ(reshaped("/layers/3/v", {50, 1, 16}),
              "/layers/3/v has 1 heads of 16, k has 2 of 16; they must agree");
    EXPECT_EQ(reshaped("/layers/3/q", {50, 3, 16}),
              "/layers/3/q has 3 heads, k has 2; Hq must be a positive multiple of Hkv");
    EXPECT_EQ(reshaped("/layers/3/index_q", {50, 4, 16}),
              "/layers/3/index_q has 4 heads, k has 2; there is one index head per GQA group");
    EXPECT_EQ(reshaped("/layers/3/index_k", {50, 32}),
              "/layers/3/index_k has index dim 32, index_q has 16");
    EXPECT_EQ(refusal_after([](hid_t file) {
                  reshape(file, "/layers/3/q", {50, 4, 16}, H5T_NATIVE_INT32);
              }),
              "/layers/3/q is i32, must be float16, float32, or uint16 with logical_dtype = "
              "\"bfloat16\"");
    EXPECT_EQ(refusal_after([](hid_t file) {
                  const h5::Handle half = h5::memory_type(Element::f16);
                  reshape(file, "/layers/3/k", {50, 2, 16}, half);
              }),
              "/layers/3/k is f16, q is f32; a layer has one element type");
    EXPECT_EQ(refusal_after([](hid_t file) {
                  for (const char* object : {"/layers/3/k", "/layers/3/v", "/layers/3/index_q"})
                      reshape(file, object, {50, 4, 16});
              }),
              "/layers/3/k has 4 heads, model_config names 2 key-value heads; K and V must not be "
              "repeated to the query heads");
    EXPECT_EQ(refusal_after([](hid_t file) {
                  H5Lmove(file, "/layers/3", file, "/layers/three", H5P_DEFAULT, H5P_DEFAULT);
              }),
              "/layers/three is no layer number");
}

TEST_F(Activations, SequenceBoundaries) {
    const auto boundaries = [&](std::vector<int64_t> values) {
        return refusal_after([&](hid_t file) {
            drop(file, "/cu_seqlens");
            const h5::Handle made =
                h5::create_dataset(file, {"", "/cu_seqlens"}, H5T_STD_I64LE, {values.size()}, {});
            h5::write(made, H5T_NATIVE_INT64, {{0}, {values.size()}}, values.data(), {});
        });
    };
    EXPECT_EQ(boundaries({0, 30, 50}), "");
    EXPECT_EQ(boundaries({0}), "/cu_seqlens must be a list of at least 2 integers");
    EXPECT_EQ(boundaries({1, 50}), "/cu_seqlens starts at 1, must start at 0");
    EXPECT_EQ(boundaries({0, 30, 30, 50}),
              "/cu_seqlens[2] is 30, must be above the entry before it = 30");
    EXPECT_NE(boundaries({0, 40}).find("has 50 tokens, /cu_seqlens ends at 40; they must agree"),
              std::string::npos);
}

TEST_F(Activations, UnknownLayersAndPreRope) {
    write();
    const ActivationsReader reader(path_);
    EXPECT_EQ(refusal([&] { reader.layer(4); }), "has no layer 4; there are: 3");
    require_post_rope(reader, 3);
    for (const char* name : {"q_state", "k_state"}) {
        LayerInfo& layer = info_.layers[0];
        layer.q_state = layer.k_state = RopeState::none;
        (name[0] == 'q' ? layer.q_state : layer.k_state) = RopeState::pre_rope;
        write();
        EXPECT_EQ(refusal([&] {
                      require_post_rope(ActivationsReader(path_), 3);
                  }).rfind(text("/layers/3 ", name, " is pre_rope; attention needs"), 0),
                  0U)
            << name;
    }
}

TEST_F(Activations, ChunksHoldOneHead) {
    write();
    const h5::Handle file = h5::open_file(path_);
    for (const char* name : {"q", "k", "v", "index_q"}) {
        const h5::Handle dataset = h5::open_object(file, {path_, text("/layers/3/", name)});
        const h5::Handle layout(H5Dget_create_plist(dataset), H5Pclose);
        std::array<hsize_t, 3> chunk{};
        EXPECT_EQ(H5Pget_chunk(layout, 3, chunk.data()), 3) << name;
        EXPECT_EQ(chunk[1], 1U) << name;
    }
}

TEST_F(Activations, WriterRefusesWhatTheTypeCannotHold) {
    info_.layers[0].element = Element::f16;
    ActivationsWriter writer(path_, info_, true);
    Tensor<float, 3> v = values(Field::v);
    v(3, 0, 0) = 1e6F;
    EXPECT_THROW(writer.write(3, Field::v, 0, 0, v), InputError);
    v(3, 0, 0) = std::nanf("");
    EXPECT_THROW(writer.write(3, Field::v, 0, 0, v), InputError);
}

TEST_F(Activations, NothingUnderTheFinalNameUntilFinished) {
    const std::filesystem::path partial = path_.string() + ".partial";
    {
        ActivationsWriter writer(path_, info_, false);
        writer.write(3, Field::k, 0, 0, values(Field::k));
        EXPECT_FALSE(std::filesystem::exists(path_));
        EXPECT_TRUE(std::filesystem::exists(partial));
    }
    EXPECT_FALSE(std::filesystem::exists(partial));
    EXPECT_FALSE(std::filesystem::exists(path_));
    write();
    EXPECT_EQ(refusal([&] { ActivationsWriter(path_, info_, false); }),
              "exists; --overwrite replaces it");
    EXPECT_THROW(ActivationsWriter("/proc/none/x.h5", info_, false), SystemError);
}

}  // namespace
}  // namespace msa::io
