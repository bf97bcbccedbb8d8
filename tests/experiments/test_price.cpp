// SPDX-License-Identifier: MIT
// What costs are of where nobody says: the context that was captured, and all layers of the model.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/io/activations.h"
#include "experiments/driver/layers.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class Price : public CliTest {
public:
    static constexpr const char* kOfSix = R"({"num_hidden_layers": 6})";

    std::string capture(const std::string& config) const {
        return make("a.h5",
                    {.cu_seqlens = {0, 500, 1100}, .layers = {1, 2}, .model_config = config});
    }
    /// `what` of the summary of a run that is priced.
    json summary(const Program& program, std::vector<std::string> args) {
        page_.clear();
        std::filesystem::remove_all(path("out"));
        args.insert(args.end(), {"--out", path("out"), "--overwrite"});
        page_ = program(args).out;
        std::replace(page_.begin(), page_.end(), '\n', ' ');
        return json::parse(file_text(path("out/summary.json")));
    }
    json advise(const std::string& config, const std::vector<std::string>& more = {}) {
        std::vector<std::string> args{
            capture(config), "--block-size", "8",           "--top-k", "4",
            "--budgets",     "32",           "--selectors", "window"};
        args.insert(args.end(), more.begin(), more.end());
        return summary(kAdvise, args);
    }
    json reuse(const std::string& config, const std::vector<std::string>& more = {}) {
        std::vector<std::string> args{capture(config), "--block-size", "8", "--top-k", "4",
                                      "--selectors",   "mean-key"};
        args.insert(args.end(), more.begin(), more.end());
        return summary(kReuse, args);
    }
    bool says(const std::string& words) const { return page_.find(words) != std::string::npos; }

    std::string page_;
};

/// What a program says of the run, and of dense attention.
json options_of(const json& all) { return all["run"]["options"]; }
bool is_extrapolated(const json& all) { return row_of(all, "measured")["is_extrapolated"]; }
double dense(const json& all, const std::string& what) {
    return row_of(all, "measured")["dense_" + what];
}

TEST_F(Price, IsOfTheLongestSequenceCapturedUnlessAnotherIsAskedFor) {
    for (const auto& run : {&Price::advise, &Price::reuse}) {
        const json captured = (this->*run)(kOfSix, {});
        EXPECT_EQ(options_of(captured)["context"], 600);
        EXPECT_FALSE(is_extrapolated(captured));
        EXPECT_TRUE(says("prefill of 600 tokens on h100")) << page_;
        EXPECT_FALSE(says("EXTRAPOLATED")) << page_;
        const json longer = (this->*run)(kOfSix, {"--context", "64K"});
        EXPECT_TRUE(is_extrapolated(longer));
        EXPECT_TRUE(says("EXTRAPOLATED from sequences of at most 600 tokens")) << page_;
        EXPECT_GT(dense(longer, "seconds"), 100 * dense(captured, "seconds"));
    }
}

TEST_F(Price, IsOfAllLayersOfTheModel) {
    for (const auto& run : {&Price::advise, &Price::reuse}) {
        const json two = (this->*run)("{}", {}), six = (this->*run)(kOfSix, {});
        EXPECT_TRUE(says("2 layers for the 6 of the model")) << page_;
        EXPECT_EQ(options_of(six)["model_layers"], 6);
        const json asked = (this->*run)(kOfSix, {"--model-layers", "6"});
        for (const char* what : {"seconds", "flops", "bytes"}) {
            EXPECT_EQ(dense(asked, what), dense(six, what));
            EXPECT_NEAR(dense(six, what), 3 * dense(two, what), 1e-9 * dense(six, what));
        }
    }
    const json two = advise("{}"), six = advise(kOfSix);
    const json at_front = {{"setting_role", "front"}};
    const json cheap = row_of(two, "advice", at_front), all = row_of(six, "advice", at_front);
    EXPECT_NEAR(all["bytes"].get<double>(), 3 * cheap["bytes"].get<double>(), 1e-3);
    EXPECT_NEAR(all["share_of_dense"].get<double>(), cheap["share_of_dense"].get<double>(), 1e-12);
    EXPECT_EQ(row_of(six, "layers")["dense_seconds_of_layer"],
              row_of(two, "layers")["dense_seconds_of_layer"]);
    const json own = row_of(reuse("{}"), "patterns"), of_six = row_of(reuse(kOfSix), "patterns");
    EXPECT_NEAR(of_six["bytes"].get<double>(), 3 * own["bytes"].get<double>(), 1e-3);
    const Outcome few = kAdvise({path("a.h5"), "--out", path("few"), "--model-layers", "1"});
    EXPECT_EQ(few.code, 2);
    EXPECT_NE(few.err.find("--model-layers is 1, must be at least the 2 layers measured"),
              std::string::npos)
        << few.err;
}

TEST_F(Price, OfACacheIsOfAllLayersOfTheModelThatWasAnalysed) {
    const auto cached = [&](const std::string& config) {
        const Outcome analysed =
            kAnalyze({capture(config), "--out", path("analysed"), "--block-size", "8", "--top-k",
                      "4", "--selectors", "window", "--positions", "400:", "--overwrite"});
        EXPECT_EQ(analysed.code, 0) << analysed.err;
        return summary(kCache, {path("analysed/results.h5")});
    };
    const json two = cached("{}"), six = cached(kOfSix);
    EXPECT_EQ(two["run"]["options"]["model_layers"], 2);
    EXPECT_EQ(six["run"]["options"]["model_layers"], 6);
    EXPECT_TRUE(says("those of 2 layers, scaled to 6")) << page_;
    const auto written = [](const json& of) {
        return row_of(of, "selectors")["written_bytes_per_token"].get<double>();
    };
    EXPECT_NEAR(written(six), 3 * written(two), 1e-9);
}

TEST(ModelLayers, AreThoseOfTheKindsCaptured) {
    io::ActivationsInfo info;
    for (int64_t layer : {1, 3}) {
        info.layers.emplace_back();
        info.layers.back().layer = layer;
    }
    const auto of = [&](const char* config) {
        info.model_config = config;
        return experiments::model_layers(info, std::vector<int64_t>{1, 3});
    };
    EXPECT_EQ(of(""), std::nullopt);
    EXPECT_EQ(of("{}"), std::nullopt);
    EXPECT_EQ(of(R"({"num_hidden_layers": 30})"), 30);
    EXPECT_EQ(of(R"({"layers": 8})"), 8);
    EXPECT_EQ(of(R"({"text_config": {"num_hidden_layers": 12}})"), 12);
    EXPECT_EQ(of(R"({"num_hidden_layers": 5, "layer_types": ["linear_attention", "full_attention",
                     "linear_attention", "full_attention", "full_attention"]})"),
              3);
    // As transformers' Jamba, Bamba and Nemotron-H say it: layers 1 and 3 attend.
    for (
        const char* said :
        {R"("attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4)",
         R"("attn_layer_indices": [1, 3], "num_hidden_layers": 30)",
         R"("layers_block_type": ["linear_attention", "full_attention", "moe", "full_attention"])"})
        EXPECT_EQ(of(concat("{", said, "}").c_str()), 2) << said;
}

}  // namespace
}  // namespace msa::test
