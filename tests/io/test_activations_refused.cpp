// SPDX-License-Identifier: MIT
// What a file of activations must not be, and what the reader then says.
#include <hdf5.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "core/io/activations.h"
#include "core/io/file_error.h"
#include "core/io/h5.h"
#include "tests/io/activations_test.h"

namespace msa::io {
namespace {

TEST_F(Activations, TextIsCutAtTheEndsOfItsTokens) {
    const auto with = [&](int64_t bytes, std::vector<int64_t> ends, hid_t type = H5T_STD_U8LE) {
        return refusal_after([&](hid_t file) {
            const std::vector<uint8_t> text(static_cast<size_t>(bytes), 'a');
            const h5::Place at{"", "/text"}, of{"", "/token_ends"};
            h5::write(h5::create_dataset(file, at, type, {text.size()}, {}), H5T_NATIVE_UINT8,
                      {{0}, {text.size()}}, text.data(), at);
            if (ends.empty()) return;
            h5::write(h5::create_dataset(file, of, H5T_STD_I64LE, {ends.size()}, {}),
                      H5T_NATIVE_INT64, {{0}, {ends.size()}}, ends.data(), of);
        });
    };
    std::vector<int64_t> ends(kTokens);
    std::iota(ends.begin(), ends.end(), 1);
    EXPECT_EQ(with(50, ends), "");
    EXPECT_EQ(with(50, {}), "/token_ends is missing; text and token_ends come together");
    EXPECT_EQ(with(50, ends, H5T_STD_I32LE), "/text must be a list of bytes (uint8)");
    EXPECT_EQ(with(51, ends), "/token_ends ends at 50, /text has 51 bytes; they must agree");
    EXPECT_EQ(with(50, {50}), "/token_ends must have one integer per token = 50");
    ends[7] = 3;
    EXPECT_EQ(with(50, ends), "/token_ends[7] is 3, must not be below the entry before it = 7");
    ends[0] = -1;
    EXPECT_EQ(with(50, ends), "/token_ends[0] is -1, must not be below the entry before it = 0");
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
                      at + concat(name, " is ", value, ", must be an integer of at least 1"));
        EXPECT_EQ(with(name, int64_t{64}), "");
    }
    for (double value : {-1.0, 0.5, 3.0, HUGE_VAL})
        EXPECT_EQ(
            with("index_source", value),
            at + concat("index_source is ", value, ", must be the number of an earlier layer"));
    EXPECT_EQ(with("index_source", int64_t{2}), "");
    for (const char* name : {"softcap", "rope_theta", "rope_attention_factor", "softmax_scale"}) {
        for (double value : {-1.0, 0.0, std::nan(""), HUGE_VAL})
            EXPECT_EQ(with(name, value),
                      at + concat(name, " is ", value, ", must be finite and positive"));
        EXPECT_EQ(with(name, 50.0), "");
    }
    EXPECT_EQ(with("softcap", std::string("much")), at + "softcap is 'much', must be a number");
    for (double value : {7.0, -2.0, 18.0, std::nan("")})
        EXPECT_EQ(
            with("rotary_dim", value),
            at + concat("rotary_dim is ", value, ", must be even, from 0 to the head dim 16"));
    EXPECT_EQ(with("rope_inv_freq", Numbers{1, 2}),
              at + "rope_inv_freq has 2 numbers, must have one for each of the 4 pairs of "
                   "rotary_dim");
    EXPECT_EQ(with("rope_inv_freq", Numbers{1, 2, 3, -1}),
              at + "rope_inv_freq is -1 in one place, must not be negative");
    EXPECT_EQ(with("rope_inv_freq", Numbers{1, 0.5, 0.25, 0}),
              "/layers/3 has the attributes rope_theta and rope_inv_freq, of plain and of scaled "
              "RoPE; a layer has one of them");
    EXPECT_EQ(with("rope_scaling", std::string("{")), at + "rope_scaling is not JSON");
    EXPECT_EQ(with("rope_layout", std::string("half")),
              at + "rope_layout is 'half', must be 'interleaved'");
    EXPECT_EQ(with("own_attention", std::string("dense")),
              at + "own_attention is 'dense', must be 'sparse'");
    info_.layers[0].rotary_dim.reset();
    EXPECT_EQ(with("rope_inv_freq", Numbers{1}),
              "/layers/3 has an attribute rope_inv_freq and no rotary_dim; they come together");
}

TEST_F(Activations, KAndVRepeatedToTheQueryHeadsAreRefused) {
    info_.model_config = "{}";
    info_.layers[0].kv_heads = 4;
    info_.layers[0].index_dim = 0;
    const auto written = [&](bool k_repeats, bool v_repeats) {
        ActivationsWriter writer(path_, info_, true);
        write_fields(writer, std::vector{Field::k, Field::v});
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
        try {
            ActivationsReader{other};
            FAIL() << "was read";
        } catch (const FileError& error) {
            EXPECT_EQ(error.what(), other.string() + ": is not an HDF5 file");
            EXPECT_EQ(error.problem(), FileProblem::arrays);
            EXPECT_EQ(error.file(), other.string());
        }
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

TEST_F(Activations, RefuseAGateThatIsNotWhole) {
    const auto without = [&](const char* object) {
        return refusal_after([=](hid_t file) { drop(file, object); });
    };
    const auto reshaped = [&](const char* object, const std::vector<hsize_t>& shape) {
        return refusal_after([=](hid_t file) { reshape(file, object, shape); });
    };
    for (const std::string name : {"gate_q", "gate_k"})
        EXPECT_EQ(without(("/layers/3/" + name).c_str()),
                  "/layers/3/" + name + " is missing; gate_q and gate_k come together");
    EXPECT_EQ(reshaped("/layers/3/gate_k", {6, 2, 48}),
              "/layers/3/gate_k has 6 blocks, the sequences of /cu_seqlens have 7 of "
              "gate_block_size = 8 tokens; they must agree");
    EXPECT_EQ(reshaped("/layers/3/gate_k", {7, 1, 48}),
              "/layers/3/gate_k has 1 heads, k has 2; there is one head of the gate per GQA group");
    EXPECT_EQ(reshaped("/layers/3/gate_q", {50, 2, 32}),
              "/layers/3/gate_k has gate dim 48, gate_q has 32");
    EXPECT_EQ(
        refusal_after([](hid_t file) { drop_attribute(file, "/layers/3", "gate_block_size"); }),
        "/layers/3 has no attribute gate_block_size, which gate_k needs");
    EXPECT_EQ(
        refusal_after([](hid_t file) {
            drop_attribute(file, "/layers/3", "gate_block_size");
            h5::set_attribute(h5::open_object(file, {"", "/layers/3"}), "gate_block_size", 7.5);
        }),
        "/layers/3 attribute gate_block_size is 7.5, must be an integer from 8 to 256");
}

TEST_F(Activations, RefuseAQsaIndexerThatIsNotWhole) {
    for (const std::string name : {"qsa_q", "qsa_k"})
        EXPECT_EQ(refusal_after([&](hid_t file) { drop(file, ("/layers/3/" + name).c_str()); }),
                  "/layers/3/" + name + " is missing; qsa_q and qsa_k come together");
    const auto reshaped = [&](const std::vector<hsize_t>& shape) {
        return refusal_after([=](hid_t file) { reshape(file, "/layers/3/qsa_k", shape); });
    };
    EXPECT_EQ(reshaped({12, 16}), "/layers/3/qsa_k has index dim 16, qsa_q has 24");
    EXPECT_EQ(reshaped({13, 24}),
              "/layers/3/qsa_k has 13 pieces, the sequences of /cu_seqlens have 12 of "
              "qsa_compress = 4 tokens; they must agree");
    EXPECT_EQ(refusal_after([](hid_t file) { drop_attribute(file, "/layers/3", "qsa_compress"); }),
              "/layers/3 has no attribute qsa_compress, which qsa_k needs");
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
    for (const std::string name : {"dsa_q", "dsa_k", "dsa_w"})
        EXPECT_EQ(without(("/layers/3/" + name).c_str()),
                  "/layers/3/" + name + " is missing; dsa_q, dsa_k and dsa_w come together");
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
    EXPECT_EQ(reshaped("/layers/3/dsa_w", {50, 2}),
              "/layers/3/dsa_w has weights of 2 heads, dsa_q has 3");
    EXPECT_EQ(reshaped("/layers/3/dsa_k", {50, 16}),
              "/layers/3/dsa_k has index dim 16, dsa_q has 32");
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
                  for (const char* object : {"/layers/3/gate_q", "/layers/3/gate_k"})
                      drop(file, object);
              }),
              "/layers/3/k has 4 heads, model_config names 2 key-value heads for this layer; K and "
              "V must not be "
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

}  // namespace
}  // namespace msa::io
