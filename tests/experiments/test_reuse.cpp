// SPDX-License-Identifier: MIT
// msa-reuse on planted attention whose best sharing is known: a layer looks at one of two sets of
// three tokens, and layers of different sets have no block in common but the local one.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/experiments/report_of.h"
#include "tests/support/random.h"

namespace msa::test {
namespace {

using nlohmann::json;

class Reuse : public CliTest {
protected:
    static constexpr int64_t kTokens = 1280, kDim = 32;
    // Blocks 4, 8, 12 and 6, 10, 14 of 32 tokens, all seen by queries from 512 on and local to
    // none.
    static constexpr int64_t kLookedAt[2][3] = {{130, 262, 394}, {194, 326, 458}};
    // Each logit is 20 there and 0 elsewhere: less than 1024 / (3 e^20) = 7e-7 of the mass is
    // missing.
    static constexpr double kLogit = 20, kMissing = 1e-6;

    /// looks [layers]: which tokens each layer looks at, in both branches; its values are its own.
    std::string plant(const std::string& name, const std::vector<int>& looks,
                      int64_t step = 1) const {
        io::ActivationsInfo info{"planted", "{}", "msalab tests", {0, kTokens}, {}, false};
        for (size_t n = 0; n < looks.size(); ++n) {
            io::LayerInfo layer;
            layer.layer = step * static_cast<int64_t>(n);
            layer.query_heads = 4;
            layer.kv_heads = 2;
            layer.head_dim = layer.index_dim = kDim;
            layer.softmax_scale = 1;
            layer.element = Element::f32;
            info.layers.push_back(layer);
        }
        io::ActivationsWriter writer(path(name), info, true);
        for (size_t n = 0; n < looks.size(); ++n)
            for (io::Field field :
                 {io::Field::q, io::Field::k, io::Field::v, io::Field::index_q, io::Field::index_k})
                writer.write(info.layers[n].layer, field, 0, 0,
                             values(info.layers[n], field, looks[n]));
        writer.finish();
        return path(name);
    }
    /// Three blocks and the local one, at queries that see all that is planted; what `more` says
    /// otherwise holds.
    std::vector<std::string> args(const std::string& file, const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{file, "--out", path(out), "--threads", "2"};
        for (const auto& [option, value] : {std::pair{"--block-size", "32"},
                                            {"--top-k", "4"},
                                            {"--forced-first", "0"},
                                            {"--forced-local", "1"},
                                            {"--positions", "512:"}})
            if (std::find(more.begin(), more.end(), option) == more.end())
                all.insert(all.end(), {option, value});
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    json summary(const std::string& file, const std::vector<std::string>& more = {},
                 int code = 0) const {
        std::filesystem::remove_all(path("out"));
        const Outcome outcome = kReuse(args(file, "out", more));
        EXPECT_EQ(outcome.code, code) << outcome.err;
        return report_of(path("out"));
    }
    void refuses(const std::string& file, const std::vector<std::string>& more,
                 const std::string& message) const {
        const Outcome outcome = kReuse(args(file, "refused", more));
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
        EXPECT_FALSE(std::filesystem::exists(path("refused/results.h5")));
    }

private:
    static Tensor<float, 3> values(const io::LayerInfo& layer, io::Field field, int look) {
        const Shape<3> shape{kTokens, layer.heads(field), layer.channels(field)};
        if (field == io::Field::v) return normal<3>(shape, static_cast<uint64_t>(layer.layer));
        Tensor<float, 3> made(shape);
        const bool query = field == io::Field::q || field == io::Field::index_q;
        for (int64_t h = 0; h < shape[1]; ++h)
            if (query)
                for (int64_t i = 0; i < kTokens; ++i) made(i, h, 0) = static_cast<float>(kLogit);
            else
                for (int64_t j : kLookedAt[look]) made(j, h, 0) = 1;
        return made;
    }
};

json pair_of(const json& all, const json& source, const json& target) {
    return row_of(all, "pairs", {{"source", source}, {"target", target}});
}
json pattern_of(const json& all, const char* role) {
    return row_of(all, "patterns", {{"pattern_role", role}});
}

TEST_F(Reuse, LayersThatLookAtTheSameLoseNothing) {
    const json all = summary(plant("a.h5", {0, 0, 0}), {"--lose", "0"});
    ASSERT_EQ(rows_of_table(all, "pairs").size(), 6U);
    for (const json& pair : rows_of_table(all, "pairs"))
        for (const std::string end : {"", "_low", "_high"}) {
            EXPECT_EQ(pair["mass_lost" + end], 0.0) << pair;
            EXPECT_EQ(pair["own_recall" + end], 1.0) << pair;
            EXPECT_EQ(pair["block_recall" + end], 1.0) << pair;
            EXPECT_NEAR(pair["mass_kept" + end].get<double>(), 1, kMissing) << pair;
            EXPECT_LT(pair["output_error" + end].get<double>(), 1e-4) << pair;
        }
    for (const char* best : {"target_each", "target_mean"})
        EXPECT_EQ(pattern_of(all, best)["computing_layers"], "0") << best;
    // Two of three selections are not done, and the layers are alike.
    const json own = pattern_of(all, "own"), each = pattern_of(all, "target_each");
    for (const std::string what : {"seconds", "flops", "bytes"}) {
        const double selection = own["selection_" + what];
        EXPECT_GT(selection, 0) << what;
        EXPECT_NEAR(each["saved_" + what].get<double>() / selection, 2.0 / 3, 1e-9) << what;
    }
    EXPECT_LT(each["share_of_own"].get<double>(), 1);
    EXPECT_EQ(all["verdict"]["reached"], true);
}

// What a layer of the other set keeps is the local block, and a 1e-7 of the mass.
TEST_F(Reuse, TheBestPatternComputesWhereTheAttentionChanges) {
    const std::string file = plant("a.h5", {0, 0, 1, 1});
    const json all = summary(file, {"--groups", "1-2"});
    EXPECT_EQ(row_of(all, "measured")["layers"], "0 1 2 3");
    for (int64_t t = 0; t < 4; ++t)
        for (int64_t s = 0; s <= t; ++s) {
            const json pair = pair_of(all, s, t);
            const double same = s / 2 == t / 2 ? 1 : 0;
            EXPECT_NEAR(pair["mass_kept"].get<double>(), same, kMissing) << pair;
            EXPECT_NEAR(pair["mass_lost"].get<double>(), 1 - same, kMissing) << pair;
            EXPECT_NEAR(pair["own_recall"].get<double>(), same == 1 ? 1 : 0.25, 1e-12);
            EXPECT_NEAR(pair["block_recall"].get<double>(), same == 1 ? 1 : 0.25, 1e-12);
        }
    const double expected[] = {0, 1.0 / 3, 1, 1};
    ASSERT_EQ(rows_of_table(all, "distances").size(), 4U);
    for (size_t d = 0; d < 4; ++d) {
        const json& at = rows_of_table(all, "distances")[d];
        EXPECT_EQ(at["distance"], d);
        EXPECT_EQ(at["pairs"], 4 - d);
        EXPECT_NEAR(at["mass_lost"].get<double>(), expected[d], kMissing) << d;
        EXPECT_NEAR(at["own_mass_kept"].get<double>(), 1, kMissing) << d;
    }
    const auto named = [&](const char* name) {
        return row_of(all, "patterns", {{"pattern", name}});
    };
    const auto lost = [&](const char* name) { return named(name)["mass_lost"].get<double>(); };
    EXPECT_EQ(lost("every 2"), 0);
    EXPECT_NEAR(lost("every 4"), 0.5, kMissing);
    EXPECT_EQ(named("groups 1-2")["sources"], "0 1 1 3");
    EXPECT_EQ(named("groups 1-2")["pattern_role"], "asked");
    EXPECT_NEAR(lost("groups 1-2"), 0.25, kMissing);
    EXPECT_NEAR(named("groups 1-2")["most_lost"].get<double>(), 1, kMissing);
    EXPECT_EQ(named("best of 2")["computing_layers"], "0 2");
    ASSERT_FALSE(named("best of 4").is_null());
    EXPECT_EQ(pattern_of(all, "target_mean")["computing_layers"], "0 2");
    for (const std::vector<std::string>& target :
         {std::vector<std::string>{}, {"--keep", "0.9"}, {"--error", "0.01"}})
        EXPECT_EQ(pattern_of(summary(file, target), "target_each")["computing_layers"], "0 2");
}

// Half of the layers lose all: the mean may, each layer may not.
TEST_F(Reuse, TheMeanMayReachWhatNotEveryLayerDoes) {
    const json all = summary(plant("a.h5", {0, 0, 1, 1}), {"--lose", "0.6"});
    const json mean = pattern_of(all, "target_mean"), each = pattern_of(all, "target_each");
    EXPECT_EQ(mean["computing_layers"], "0");
    EXPECT_EQ(each["computing_layers"], "0 2");
    EXPECT_FALSE(mean["each_reaches"]);
    EXPECT_TRUE(each["each_reaches"]);
}

// The ids of a layer that has nothing to do with this one keep what random blocks keep: within the
// width of the interval, four standard errors.
TEST_F(Reuse, IndependentLayersKeepTheRandomShare) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 1280}, .layers = {0, 1, 2}});
    const json all =
        summary(file, {"--selectors", "oracle", "--sample-queries", "0", "--keep", "0.01"});
    const double floor = row_of(all, "measured")["random_mass_kept"];
    for (const json& pair : rows_of_table(all, "pairs")) {
        const double kept = pair["mass_kept"];
        const double wide =
            pair["mass_kept_high"].get<double>() - pair["mass_kept_low"].get<double>();
        EXPECT_GT(wide, 0) << pair;
        if (pair["source"] == pair["target"])
            EXPECT_GT(kept, floor + wide) << pair;
        else
            EXPECT_NEAR(kept, floor, wide) << pair;
    }
    EXPECT_TRUE(row_of(all, "measured")["is_bound"]);
}

// Both count the queries that see more than k blocks.
TEST_F(Reuse, OwnIdsAgreeWithAnalyze) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 300, 684}, .layers = {0, 1}});
    const json all = summary(file, {"--sample-queries", "0", "--block-size", "8", "--positions",
                                    "0:", "--selectors", "mean-key"});
    ASSERT_EQ(kAnalyze({file, "--out", path("analyzed"), "--block-size", "8", "--top-k", "4",
                        "--forced-first", "0", "--forced-local", "1", "--selectors", "mean-key"})
                  .code,
              0);
    const json analyzed = rows_of_table(report_of(path("analyzed")), "selectors");
    EXPECT_EQ(row_of(all, "measured")["sequences"], 2);
    ASSERT_EQ(analyzed.size(), 2U);
    for (const json& row : analyzed) {
        EXPECT_EQ(row_of(all, "measured")["queries"], row["rows_counted"]);
        const json own = pair_of(all, row["layer"], row["layer"]);
        for (const std::string measure : {"mass_kept", "block_recall", "output_error"}) {
            const double of = own[measure];  // the same sums of doubles
            EXPECT_NEAR(row[measure].get<double>(), of, 1e-9) << row;
            EXPECT_LT(own[measure + "_low"].get<double>(), of);
            EXPECT_GT(own[measure + "_high"].get<double>(), of);
        }
    }
}

TEST_F(Reuse, NamesTheNearestPatternWhereNoneReachesTheTarget) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 1024}, .layers = {4, 5}});
    const Outcome outcome = kReuse(args(file, "out", {"--keep", "0.9"}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("no pattern reaches it; the nearest is best of 2, layers 4, 5, with "
                               "mass kept 0."),
              std::string::npos)
        << outcome.err;
    const json all = report_of(path("out"));
    EXPECT_EQ(all["verdict"]["reached"], false);
    EXPECT_EQ("msa-reuse: " + all["verdict"]["text"].get<std::string>() + "\n", outcome.err);
    for (const char* role : {"target_each", "target_mean"})
        EXPECT_TRUE(pattern_of(all, role).is_null()) << role;
    EXPECT_NE(file_text(path("out/reuse.txt")).find("no pattern"), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(path("out/results.h5")));
}

TEST_F(Reuse, GapsBetweenLayersAreNamed) {
    const std::string file = plant("gaps.h5", {0, 0, 1}, 3);
    refuses(file, {}, "gaps.h5: has layers 0, 3, 6 and not 1-2, 4-5 between them");
    const Outcome outcome = kReuse(args(file, "out", {"--layers", "0,3,6"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("not measured: layers 1-2, 4-5"), std::string::npos) << outcome.err;
    const json all = report_of(path("out"));
    EXPECT_EQ(row_of(all, "measured")["missing_layers"], "1-2, 4-5");
    EXPECT_EQ(rows_of_table(all, "distances")[1]["distance"], 3);
    EXPECT_NE(outcome.out.find("Not measured: layers 1-2, 4-5."), std::string::npos);
}

/// The same bytes in both folders.
void expect_same(const std::string& one, const std::string& other) {
    for (const char* name : {"/results.h5", "/summary.json", "/reuse.txt", "/tables/pairs.csv"})
        EXPECT_TRUE(file_text(one + name) == file_text(other + name)) << other << name;
}

TEST_F(Reuse, ProcessesAndKillsChangeNoByte) {
    const std::string file = plant("a.h5", {0, 0, 1, 1, 0});
    const std::vector<std::string> more{"--sample-queries", "128"};
    ASSERT_EQ(kReuse(args(file, "whole", more)).code, 0);
    run_together("msa-reuse", args(file, "together", more), 2);
    expect_same(path("whole"), path("together"));
    int64_t killed = 0;
    for (int64_t delay = 20000; delay < 60000000; delay += delay / 2) {
        const int code =
            run_for("msa-reuse", args(file, "killed", more), std::chrono::microseconds(delay));
        killed += code == -1 ? 1 : 0;
        if (code == 0) break;
        ASSERT_EQ(code, -1);
    }
    EXPECT_GT(killed, 0);
    expect_same(path("whole"), path("killed"));
}

TEST_F(Reuse, RefusesBadInput) {
    const std::string file = plant("a.h5", {0, 0, 1});
    refuses(plant("one.h5", {0}), {}, "one.h5: only layer 0 is there");
    refuses(file, {"--layers", "1"}, "only layer 1 is chosen");
    refuses(file, {"--layers", "0,7"}, "7");
    refuses(file, {"--lose", "1"}, "--lose is 1, must be at least 0 and below 1");
    refuses(file, {"--keep", "1.5"}, "--keep is 1.5, must be above 0 and below 1");
    refuses(file, {"--error", "0"}, "--error is 0, must be above 0");
    refuses(file, {"--error", "inf"}, "--error is inf, must be above 0 and finite");
    refuses(file, {"--keep", "0.9", "--lose", "0.1"}, "exclude each other");
    refuses(file, {"--every", "0"}, "--every");
    refuses(file, {"--every", "2,3,2"}, "--every is '2,3,2', it names one twice");
    refuses(file, {"--groups", "2-1"}, "--groups has '2-1'");
    refuses(file, {"--groups", "0-1,1-2"}, "layer 1 in two groups");
    refuses(file, {"--groups", "4-5"}, "whose first layer is not among those chosen");
    refuses(file, {"--selectors", "snapkv"}, "--selectors has snapkv");
    refuses(file, {"--context", "32"}, "--context is 32, must be at least the 128 tokens");
    refuses(file, {"--positions", "512:520"}, "at least 2 are needed");
    refuses(file, {"--hardware", "abacus"}, "abacus");
    refuses(make("no_index.h5", {.cu_seqlens = {0, kTokens}, .layers = {0, 1}, .index_dim = 0}), {},
            "layer 0 has no index_q and index_k");
    refuses(
        make("pre.h5",
             {.cu_seqlens = {0, kTokens}, .layers = {0, 1}, .q_state = io::RopeState::pre_rope}),
        {}, "pre_rope");
}

TEST_F(Reuse, LayersWithOtherGroupsCannotShare) {
    io::ActivationsInfo info{"planted", "{}", "msalab tests", {0, kTokens}, {}, false};
    for (int64_t n : {0, 1}) {
        io::LayerInfo layer;
        layer.layer = n;
        layer.query_heads = 4;
        layer.kv_heads = n == 0 ? 2 : 4;
        layer.head_dim = layer.index_dim = kDim;
        layer.softmax_scale = 1;
        layer.element = Element::f32;
        info.layers.push_back(layer);
    }
    io::ActivationsWriter writer(path("a.h5"), info, true);
    for (const io::LayerInfo& layer : info.layers)
        for (io::Field field :
             {io::Field::q, io::Field::k, io::Field::v, io::Field::index_q, io::Field::index_k})
            writer.write(layer.layer, field, 0, 0,
                         normal<3>({kTokens, layer.heads(field), layer.channels(field)}, 1));
    writer.finish();
    refuses(path("a.h5"), {}, "layer 0 has kv_heads 2, layer 1 has 4");
}

}  // namespace
}  // namespace msa::test
