// SPDX-License-Identifier: MIT
// msa-advise and msa-reuse on captures some layers of which have a sliding window: these keep it,
// count at their own cost on both sides, are named, and are out of the choice.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "analysis/stage_cost.h"
#include "core/io/results.h"
#include "experiments/driver/price.h"
#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

constexpr int64_t kWindow = 128;

class Windowed : public CliTest {
protected:
    /// data/sample.h5 with a window of 128 tokens in layer 10.
    std::string sample(const std::string& config = "{}") const {
        const io::ActivationsReader from(std::string(MSA_SOURCE_DIR) + "/data/sample.h5");
        io::ActivationsInfo info = from.info();
        info.model_config = config;
        info.has_tokens = false;
        for (io::LayerInfo& layer : info.layers)
            if (layer.layer == 10) layer.own_attention["sliding_window"] = {double{kWindow}};
        io::ActivationsWriter to(path("s.h5"), info, true);
        for (const io::LayerInfo& layer : info.layers)
            for (const io::Field field : io::kFields)
                if (layer.has(field) && !io::is_of_index(field)) {
                    const auto values = from.read(layer.layer, field, {0, info.tokens()});
                    to.write(layer.layer, field, 0, 0, values.view());
                }
        to.finish();
        return path("s.h5");
    }
    Outcome advise(const std::string& file, std::vector<std::string> more) const {
        more.insert(more.begin(),
                    {file, "--out", path("out"), "--keep", "0.5", "--block-size", "32", "--top-k",
                     "8", "--selectors", "window", "--sample-queries", "256", "--overwrite"});
        return kAdvise(more);
    }
    json summary() const { return report_of(path("out")); }
    static double dense_seconds(const json& all) {
        return row_of(all, "measured")["dense_seconds"];
    }
    /// Dense attention of one of the sample's layers, by the formulas of msa-cost.
    static double dense(const io::LayerInfo& layer, int64_t tokens, std::optional<int64_t> window) {
        analysis::LayerSizes sizes;
        sizes.tokens = tokens;
        sizes.query_heads = layer.query_heads;
        sizes.kv_heads = layer.kv_heads;
        sizes.head_dim = layer.head_dim;
        sizes.block_size = sizes.top_k = sizes.index_dim = 1;
        sizes.window = window;
        return prefill_pipelines(sizes).front().seconds(
            experiments::read_hardware(experiments::PricingOptions{}));
    }
};

TEST_F(Windowed, AdviseLeavesThemAtTheirOwnCost) {
    const Outcome outcome = advise(sample(), {"--context", "64K"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("note: layer 10 attends to a sliding window of 128 tokens: left so, "
                               "at its own cost"),
              std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.out.find("Layer 10 attends to a sliding window of 128 tokens and keeps it"),
              std::string::npos)
        << outcome.out;
    const json all = summary();
    const io::ActivationsReader file(path("s.h5"));
    const double full = dense(file.layer(20), 65536, {}),
                 windowed = dense(file.layer(10), 65536, kWindow);
    EXPECT_LT(windowed, full / 50);
    ASSERT_EQ(rows_of_table(all, "windowed").size(), 1U);
    const json kept = row_of(all, "windowed");
    EXPECT_EQ(kept["layer"], 10);
    EXPECT_EQ(kept["window"], kWindow);
    EXPECT_DOUBLE_EQ(kept["seconds"].get<double>(), windowed);
    const json& layers = rows_of_table(all, "layers");
    for (const json& layer : layers) EXPECT_NE(layer["layer"], 10);
    const auto others = static_cast<double>(layers.size());
    EXPECT_NEAR(dense_seconds(all), others * full + windowed, 1e-12 * full);
    const json chosen = row_of(all, "advice", {{"setting_role", "recommended"}});
    for (const char* list : {"sparse_layers", "dense_layers"})
        EXPECT_EQ(chosen[list].get<std::string>().find("10"), std::string::npos);
    double own = windowed;
    for (const json& layer : layers)
        own +=
            layer[layer["is_sparse"] ? "seconds_of_layer" : "dense_seconds_of_layer"].get<double>();
    EXPECT_NEAR(chosen["seconds"].get<double>(), own, 1e-12 * full);
    EXPECT_NEAR(chosen["share_of_dense"].get<double>(), own / (others * full + windowed), 1e-12);
}

TEST_F(Windowed, AdviseRefusesWhereNoOtherLayerIsChosen) {
    const Outcome outcome = advise(sample(), {"--layers", "10", "--model-layers", "1"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("layer 10 attends to a sliding window of 128 tokens: each chosen "
                               "layer keeps its window, and none is left to select blocks"),
              std::string::npos)
        << outcome.err;
}

// Of ten layers eight have a window, as layer_types says: the one captured stands for all of them.
TEST_F(Windowed, StandForTheLayersOfTheirKind) {
    json kinds = json::array();
    for (int64_t n = 0; n < 24; ++n)
        kinds.push_back(n == 20 ? "full_attention" : "sliding_attention");
    const std::string config = json{{"num_hidden_layers", 24}, {"layer_types", kinds}}.dump();
    ASSERT_EQ(advise(sample(config), {"--context", "64K", "--layers", "10,20"}).code, 0);
    const io::ActivationsReader file(path("s.h5"));
    const double full = dense(file.layer(20), 65536, {}),
                 windowed = dense(file.layer(10), 65536, kWindow);
    const json all = summary();
    EXPECT_EQ(all["run"]["options"]["model_layers"], 1);
    EXPECT_EQ(row_of(all, "windowed")["model_layers"], 23.0);
    EXPECT_NEAR(dense_seconds(all), full + 23 * windowed, 1e-12 * full);
    // Where nothing tells the kinds apart, it stands for itself, and the others for the rest.
    ASSERT_EQ(
        advise(sample(R"({"num_hidden_layers": 24})"), {"--context", "64K", "--layers", "10,20"})
            .code,
        0);
    EXPECT_NEAR(dense_seconds(summary()), 23 * full + windowed, 1e-12 * full);
}

TEST_F(Windowed, ReuseSharesTheIdsOfTheOthers) {
    const std::string file = make("r.h5", {.cu_seqlens = {0, 600}, .layers = {1, 2, 3}});
    {
        const io::ActivationsReader from(file);
        io::ActivationsInfo info = from.info();
        info.layers[1].own_attention["sliding_window"] = {16.0};
        io::ActivationsWriter to(path("w.h5"), info, true);
        for (const io::LayerInfo& layer : info.layers)
            for (const io::Field field : io::kFields)
                if (layer.has(field))
                    to.write(layer.layer, field, 0, 0,
                             from.read(layer.layer, field, {0, info.tokens()}).view());
        to.finish();
    }
    const auto run = [&](const std::string& of, const std::string& layers) {
        const Outcome outcome = kReuse({of, "--out", path("out"), "--block-size", "8", "--top-k",
                                        "4", "--selectors", "mean-key", "--lose", "0.9",
                                        "--context", "64K", "--overwrite", "--layers", layers});
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return summary();
    };
    const json with = run(path("w.h5"), "1,2,3"), without = run(file, "1,3");
    const json measured = row_of(with, "measured");
    EXPECT_EQ(measured["layers"], "1 3");
    EXPECT_EQ(measured["missing_layers"], "");  // it is no gap
    EXPECT_EQ(rows_of_table(with, "pairs"), rows_of_table(without, "pairs"));
    const json windowed = row_of(with, "windowed");
    EXPECT_EQ(windowed["layer"], 2);
    EXPECT_EQ(windowed["window"], 16);
    const double seconds = dense(io::ActivationsReader(file).layer(2), 65536, 16);
    EXPECT_DOUBLE_EQ(windowed["seconds"].get<double>(), seconds);
    EXPECT_NEAR(measured["dense_seconds"].get<double>(),
                row_of(without, "measured")["dense_seconds"].get<double>() + seconds, 1e-12);
    const json &patterns = rows_of_table(with, "patterns"),
               &others = rows_of_table(without, "patterns");
    ASSERT_EQ(patterns.size(), others.size());
    const auto names = [](const json& rows) {
        std::vector<std::string> all;
        for (const json& row : rows) all.push_back(row["pattern"]);
        return all;
    };
    // Layers 1 and 3 are two apart: every second layer of the model would be a row like that of own
    // ids.
    const std::vector<std::string> named = names(patterns);
    EXPECT_EQ(std::ranges::count(named, "every 2"), 0);
    EXPECT_EQ(std::ranges::count(named, "every 4"), 1);
    EXPECT_EQ(
        with["notes"]["sharing_nothing"],
        "No row: --every 2, which counts layers of the model, and leaves each of these its own "
        "ids; --groups A-B names layers that share.");
    for (size_t n = 0; n < patterns.size(); ++n)
        EXPECT_NEAR(patterns[n]["seconds"].get<double>(),
                    others[n]["seconds"].get<double>() + seconds, 1e-12);
}

}  // namespace
}  // namespace msa::test
