// SPDX-License-Identifier: MIT
#include <hdf5.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/h5.h"
#include "core/number/half.h"
#include "tests/io/activations_test.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace msa::io {
namespace {

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
        EXPECT_EQ(layer.learned.dsa_heads, 3);
        EXPECT_EQ(layer.learned.dsa_dim, 32);
        EXPECT_EQ(layer.learned.gate_dim, 48);
        EXPECT_EQ(layer.learned.gate_block_size, 8);
        EXPECT_EQ(reader.info().rows(layer, Field::gate_k), 3 + 4);
        EXPECT_EQ(reader.info().rows(layer, Field::gate_q), kTokens);
        EXPECT_EQ(layer.learned.qsa_heads, 5);
        EXPECT_EQ(layer.learned.qsa_dim, 24);
        EXPECT_EQ(reader.info().rows(layer, Field::qsa_k), 5 + 7);
        EXPECT_EQ(layer.rotary_dim, 8);
        EXPECT_EQ(layer.rope_theta, 1e4);
        EXPECT_EQ(layer.softmax_scale, 0.25);
        EXPECT_EQ(reader.info().cu_seqlens, info_.cu_seqlens);
        EXPECT_EQ(reader.info().model_config, info_.model_config);
        for (Field field : kFields) {
            const Tensor<float, 3> got =
                reader.read(3, field, {0, reader.info().rows(layer, field)});
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
    info_.layers[0].learned = {};
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
    // The first chunk in order; in the second a token twice and one left out; the end in order.
    std::vector<int64_t> mixed{1000, 1001, 1002, 1030, 1030, 1032};
    for (int64_t t = 2048; t < 2500; ++t) mixed.push_back(t);
    const Tensor<float, 3> gathered = reader.gather(3, Field::k, mixed);
    for (size_t i = 0; i < mixed.size(); ++i)
        ASSERT_EQ(gathered(static_cast<int64_t>(i), 1, 7), k(mixed[i], 1, 7)) << mixed[i];
}

TEST_F(Activations, TokensAreOptional) {
    write();
    EXPECT_FALSE(ActivationsReader(path_).info().has_tokens);
    EXPECT_EQ(refusal([&] { ActivationsReader(path_).tokens(); }), "/tokens is missing");
    ActivationsWriter writer(path_, info_, true);
    std::vector<int32_t> tokens(kTokens);
    std::iota(tokens.begin(), tokens.end(), 100);
    write_fields(writer);
    writer.write_tokens(tokens);
    writer.finish();
    EXPECT_EQ(ActivationsReader(path_).tokens(), tokens);
    EXPECT_EQ(refusal_after([](hid_t file) {
                  h5::create_dataset(file, {"", "/tokens"}, H5T_IEEE_F32LE, {50}, {});
              }),
              "/tokens must hold integers");
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
                  }).rfind(concat("/layers/3 ", name, " is pre_rope; attention needs"), 0),
                  0U)
            << name;
    }
}

TEST_F(Activations, ChunksHoldOneHeadAndAreNotPacked) {
    write();
    const h5::Handle file = h5::open_file(path_);
    for (const char* name : {"q", "k", "v", "index_q"}) {
        const h5::Handle dataset = h5::open_object(file, {path_, concat("/layers/3/", name)});
        const h5::Handle layout(H5Dget_create_plist(dataset), H5Pclose);
        std::array<hsize_t, 3> chunk{};
        EXPECT_EQ(H5Pget_chunk(layout, 3, chunk.data()), 3) << name;
        EXPECT_EQ(chunk[1], 1U) << name;
        EXPECT_EQ(H5Pget_nfilters(layout), 1) << name;
        EXPECT_GE(H5Pget_filter_by_id2(layout, H5Z_FILTER_FLETCHER32, nullptr, nullptr, nullptr, 0,
                                       nullptr, nullptr),
                  0)
            << name;
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
    EXPECT_EQ(refusal([&] { ActivationsWriter(path_, info_, false); }), "exists");
    EXPECT_THROW(ActivationsWriter("/proc/none/x.h5", info_, false), SystemError);
}

}  // namespace
}  // namespace msa::io
