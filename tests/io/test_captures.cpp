// SPDX-License-Identifier: MIT
// Several captures as one data set: the same values in the same order as in one file, and a clear
// word where they do not agree.
#include <cmath>

#include "tests/io/activations_test.h"

namespace msa::io {
namespace {

using std::filesystem::path;

class Captures : public Activations {
public:
    ~Captures() override {
        for (const path& file : {first_, second_}) std::filesystem::remove(file);
    }

protected:
    Captures() : first_(path_.string() + "-1"), second_(path_.string() + "-2") {}

    /// Rows of a field for the tokens [range), which end sequences.
    static QueryRange rows_of(const ActivationsInfo& info, Field field, QueryRange range) {
        const auto until = [&](int64_t token) {
            if (token == 0) return int64_t{0};
            const std::vector<int64_t> cu =
                token == 20 ? std::vector<int64_t>{0, 20} : info.cu_seqlens;
            return row_count(cu, info.layers[0], field);
        };
        return {until(range.begin), until(range.end)};
    }
    /// The tokens [range) of the whole file as a file of its own.
    void copy_tokens(const path& to, QueryRange range, const std::vector<int64_t>& cu_seqlens,
                     ActivationsInfo info) const {
        const ActivationsReader whole(path_);
        info.cu_seqlens = cu_seqlens;
        ActivationsWriter writer(to, info, true);
        for (Field field : kFields)
            for (const LayerInfo& layer : info.layers) {
                const QueryRange rows = rows_of(info_, field, range);
                if (!layer.has(field)) continue;
                const Shape<3> shape{info.rows(layer, field), layer.heads(field),
                                     layer.channels(field)};
                Tensor<float, 3> values = whole.read(3, field, rows);
                if (values.shape() != shape) values = Tensor<float, 3>(shape);
                writer.write(layer.layer, field, 0, 0, values);
            }
        std::vector<int32_t> tokens;
        for (int64_t i = range.begin; i < range.end; ++i) tokens.push_back(static_cast<int>(7 * i));
        if (info.has_tokens) writer.write_tokens(tokens);
        writer.finish();
    }
    /// The two sequences of the whole file, each in a file; the second with what `info` says.
    void split(const ActivationsInfo& info) const {
        write();
        copy_tokens(first_, {0, 20}, {0, 20}, info_);
        copy_tokens(second_, {20, kTokens}, {0, 30}, info);
    }
    ActivationsReader both() const { return ActivationsReader(std::vector<path>{first_, second_}); }

    path first_, second_;
};

TEST_F(Captures, AreThePackedSequencesOfAll) {
    split(info_);
    const ActivationsReader whole(path_), parts = both();
    EXPECT_EQ(parts.info().cu_seqlens, whole.info().cu_seqlens);
    EXPECT_EQ(parts.name(), first_.string() + ", " + second_.string());
    ASSERT_EQ(parts.captures().size(), 2U);
    const Capture& second = parts.captures()[1];
    EXPECT_EQ(second.path, second_);
    EXPECT_EQ(second.first_sequence, 1);
    EXPECT_EQ(second.sequences, 1);
    EXPECT_EQ(second.first_token, 20);
    EXPECT_EQ(second.tokens, 30);
    const auto same = [](const Tensor<float, 3>& a, const Tensor<float, 3>& b) {
        return a.shape() == b.shape() && std::equal(a.data(), a.data() + a.size(), b.data());
    };
    const std::vector<int64_t> some{0, 3, 19, 20, 21, 49};
    for (Field field : kFields) {
        for (const QueryRange& range :
             field == Field::gate_k || field == Field::qsa_k
                 ? std::vector<QueryRange>{{0, 7}, {0, 3}, {3, 7}, {2, 5}, {3, 3}}
                 : std::vector<QueryRange>{{0, kTokens}, {0, 20}, {20, 50}, {18, 22}, {7, 7}})
            EXPECT_TRUE(same(parts.read(3, field, range), whole.read(3, field, range)))
                << to_string(field) << ' ' << range.begin << ':' << range.end;
        if (field == Field::gate_k || field == Field::qsa_k) continue;  // tokens are gathered
        EXPECT_TRUE(same(parts.gather(3, field, some), whole.gather(3, field, some)))
            << to_string(field);
    }
    Tensor<float, 3> heads({10, 2, 16});
    parts.read(3, Field::q, {15, 25}, 2, heads);
    EXPECT_EQ(heads(9, 1, 5), whole.read(3, Field::q, {24, 25})(0, 3, 5));
}

TEST_F(Captures, HaveTokensWhereAllHave) {
    info_.has_tokens = true;
    ActivationsInfo without = info_;
    without.has_tokens = false;
    ActivationsInfo whole = info_;
    info_.has_tokens = false;
    write();
    copy_tokens(first_, {0, 20}, {0, 20}, whole);
    copy_tokens(second_, {20, kTokens}, {0, 30}, whole);
    const std::vector<int32_t> tokens = both().tokens();
    ASSERT_EQ(tokens.size(), 50U);
    EXPECT_EQ(tokens[19], 7 * 19);
    EXPECT_EQ(tokens[20], 7 * 20);
    copy_tokens(second_, {20, kTokens}, {0, 30}, without);
    EXPECT_FALSE(both().info().has_tokens);
}

TEST_F(Captures, NameTheFileOfAValue) {
    split(info_);
    {
        const h5::Handle file(H5Fopen(second_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const float nan = std::nanf("");
        h5::write(h5::open_dataset(file, {second_, "/layers/3/k"}), H5T_NATIVE_FLOAT,
                  {{5, 1, 2}, {1, 1, 1}}, &nan, {second_, "/layers/3/k"});
    }
    both().read(3, Field::k, {0, 20});
    EXPECT_EQ(refusal([&] {
                  both().read(3, Field::k, {0, 50});
              }),
              ": /layers/3/k holds 1 values that are NaN or Inf, must hold none; the first: token "
              "5, head 1, channel 2 is nan");
}

struct Difference {
    void (*change)(ActivationsInfo&);
    const char *place, *found, *wanted;
};
const Difference kDifferences[] = {
    {[](ActivationsInfo& i) { i.model_id = "other"; }, "/ attribute model_id", "\"other\"",
     "\"test\""},
    {[](ActivationsInfo& i) {
         i.layers.push_back(i.layers[0]);
         i.layers[1].layer = 4;
     },
     "/layers", "3, 4", "3"},
    {[](ActivationsInfo& i) { i.layers[0].layer = 4; }, "/layers", "4", "3"},
    {[](ActivationsInfo& i) {
         i.model_config = "{}";
         i.layers[0].query_heads = 8;
     },
     "/layers/3/q", "f32, 8 heads of 16 channels", "f32, 4 heads of 16 channels"},
    {[](ActivationsInfo& i) {
         i.model_config = "{}";
         i.layers[0].kv_heads = 1;
     },
     "/layers/3/gate_k", "f32, 1 heads of 48 channels", "f32, 2 heads of 48 channels"},
    {[](ActivationsInfo& i) { i.layers[0].head_dim = 32; }, "/layers/3/k",
     "f32, 2 heads of 32 channels", "f32, 2 heads of 16 channels"},
    {[](ActivationsInfo& i) { i.layers[0].element = Element::f16; }, "/layers/3/dsa_k",
     "f16, 32 channels", "f32, 32 channels"},
    {[](ActivationsInfo& i) { i.layers[0].index_dim = 0; }, "/layers/3/index_k", "missing",
     "f32, 16 channels"},
    {[](ActivationsInfo& i) { i.layers[0].learned.gate_block_size = 16; },
     "/layers/3 attribute gate_block_size", "16", "8"},
    {[](ActivationsInfo& i) { i.layers[0].learned.dsa_dim = 16; }, "/layers/3/dsa_k",
     "f32, 16 channels", "f32, 32 channels"},
    {[](ActivationsInfo& i) { i.layers[0].learned.dsa_heads = 2; }, "/layers/3/dsa_q",
     "f32, 2 heads of 32 channels", "f32, 3 heads of 32 channels"},
    {[](ActivationsInfo& i) { i.layers[0].learned.dsa_heads = i.layers[0].learned.dsa_dim = 0; },
     "/layers/3/dsa_k", "missing", "f32, 32 channels"},
    {[](ActivationsInfo& i) { i.layers[0].model_dim = 0; }, "/layers/3/x", "missing",
     "f32, 24 channels"},
    {[](ActivationsInfo& i) { i.layers[0].softmax_scale = std::nextafter(0.25, 1); },
     "/layers/3 attribute softmax_scale", "0.25000000000000006", "0.25"},
    {[](ActivationsInfo& i) { i.layers[0].q_state = RopeState::pre_rope; },
     "/layers/3 attribute q_state", "\"pre_rope\"", "\"post_rope\""},
    {[](ActivationsInfo& i) { i.layers[0].rope_theta = 5e5; }, "/layers/3 attribute rope_theta",
     "500000.0", "10000.0"},
    {[](ActivationsInfo& i) { i.layers[0].rope_interleaved = true; },
     "/layers/3 attribute rope_layout", "\"interleaved\"", "missing"},
    {[](ActivationsInfo& i) { i.layers[0].own_attention["sliding_window"] = {8}; },
     "/layers/3 attribute sliding_window[0]", "8.0", "missing"},
    {[](ActivationsInfo& i) { i.layers[0].own_block_size = 64; },
     "/layers/3 attribute own_block_size", "64", "missing"},
};
TEST_F(Captures, ThatDifferAreRefused) {
    for (const Difference& of : kDifferences) {
        ActivationsInfo info = info_;
        of.change(info);
        split(info);
        EXPECT_EQ(refusal([&] { both(); }),
                  concat(": ", of.place, " is ", of.found, ", in ", first_.string(), " it is ",
                         of.wanted, "; captures that are read as one data set must agree in it"));
    }
}

/// Of an indexer that layers share, both captures must take the ids of one layer.
TEST_F(Captures, WhoseLayersTakeTheIdsOfOthersAreRefused) {
    split(info_);
    const auto set_source = [](const path& of, int64_t source) {
        const h5::Handle file(H5Fopen(of.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        h5::set_attribute(h5::open_object(file, {of, "/layers/3"}), "index_source", source);
    };
    const auto refused = [&](const char* found, const char* wanted) {
        EXPECT_EQ(
            refusal([&] { both(); }),
            concat(": /layers/3 attribute index_source is ", found, ", in ", first_.string(),
                   " it is ", wanted, "; captures that are read as one data set must agree in it"));
    };
    set_source(second_, 1);
    refused("1", "missing");
    set_source(first_, 2);
    refused("1", "2");
    set_source(second_, 2);
    EXPECT_EQ(both().layer(3).learned.source, 2);
}

TEST_F(Captures, AreDifferentFiles) {
    split(info_);
    const path again = path_.string() + "-3", missing = path_.string() + "-4";
    std::filesystem::create_symlink(first_, again);
    EXPECT_NE(refusal([&] {
                  ActivationsReader(std::vector<path>{first_, second_, again});
              }).find("is named twice, its sequences would count twice"),
              std::string::npos);
    std::filesystem::remove(again);
    EXPECT_NE(refusal([&] { ActivationsReader(std::vector<path>{first_, missing}); }), "");
}

}  // namespace
}  // namespace msa::io
