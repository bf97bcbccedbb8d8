// SPDX-License-Identifier: MIT
// msa-precision on planted attention whose answer is known: keys that a format cannot tell apart
// are chosen by the tie rule, and where every token has the same value, what a format loses of it
// is the output error.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/io/activations.h"
#include "experiments/report/text.h"
#include "tests/experiments/precision_test.h"

namespace msa::test {
namespace {

using io::Field;
using nlohmann::json;

class PrecisionTest : public PrecisionRuns {
protected:
    static constexpr int64_t kTokens = 1280, kDim = 32;
    // Blocks 1, 3, 5 and 7, 9, 11 of 32 tokens: all seen by queries from 512 on, local to none.
    static constexpr int64_t kDecoys[3] = {40, 100, 170}, kTargets[3] = {230, 300, 360};
    // Logits are 20 at the targets and 0 or less elsewhere: less than 1024 / (3 e^20) = 7e-7 of the
    // mass is missing.
    static constexpr double kLogit = 20, kMissing = 1e-6;
    // An index key of a target is (1, 1, 0, ...), of a decoy (0.96, 1, 0, ...); queries look at the
    // first channel. A decoy becomes a target in int4 (0.96 * 7 = 6.72), in e5m2 (steps of 1/8
    // below 1) and in fp4 (4 and 3.84 at a scale of 1/4); then the lower ids win, the decoys.
    static constexpr float kDecoy = 0.96F;
    // Every value is (7, 3.4, 0, ...): so is every output.
    static constexpr float kFirst = 7, kSecond = 3.4F;

    std::string plant(const std::string& name, int layers = 2, bool index = true,
                      int64_t dim = kDim, int window_of = -1) const {
        io::ActivationsInfo info{"planted", "{}", "msalab tests", {0, kTokens}, {}, false};
        for (int n = 0; n < layers; ++n) {
            io::LayerInfo layer;
            layer.layer = n;
            layer.query_heads = 4;
            layer.kv_heads = 2;
            layer.head_dim = dim;
            layer.index_dim = index ? dim : 0;
            layer.softmax_scale = 1;
            layer.element = Element::f32;
            if (n == window_of) layer.own_attention["sliding_window"] = {40};
            info.layers.push_back(layer);
        }
        io::ActivationsWriter writer(path(name), info, true);
        for (const io::LayerInfo& layer : info.layers)
            for (Field field : {Field::q, Field::k, Field::v, Field::index_q, Field::index_k})
                if (layer.has(field)) writer.write(layer.layer, field, 0, 0, values(layer, field));
        writer.finish();
        return path(name);
    }
    void refuses(const std::string& file, const std::vector<std::string>& more,
                 const std::string& message) const {
        const Outcome outcome = kPrecision(args(file, "refused", more));
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
        EXPECT_FALSE(std::filesystem::exists(path("refused/results.h5")));
    }
    /// Null where no format reaches the target.
    static json recommended(const json& report, const char* part) {
        return test::row_of(report, part, {{"is_recommended", true}});
    }
    /// The same bytes in both folders.
    void expect_same(const std::string& one, const std::string& other) const {
        for (const char* name :
             {"/results.h5", "/summary.json", "/tables/cache.csv", "/precision.txt"})
            EXPECT_TRUE(file_text(path(one + name)) == file_text(path(other + name)))
                << other << name;
    }

private:
    static Tensor<float, 3> values(const io::LayerInfo& layer, Field field) {
        Tensor<float, 3> made({kTokens, layer.heads(field), layer.channels(field)});
        for (int64_t i = 0; i < kTokens; ++i)
            for (int64_t h = 0; h < layer.heads(field); ++h) {
                switch (field) {
                    case Field::q: made(i, h, 0) = static_cast<float>(kLogit); break;
                    case Field::index_q: made(i, h, 0) = 1; break;
                    case Field::v:
                        made(i, h, 0) = kFirst;
                        made(i, h, 1) = kSecond;
                        break;
                    default: break;
                }
            }
        for (int64_t n = 0; n < 3; ++n)
            for (int64_t h = 0; h < layer.heads(field); ++h) {
                if (field == Field::k) made(kTargets[n], h, 0) = 1;
                if (field != Field::index_k) continue;
                made(kTargets[n], h, 0) = made(kTargets[n], h, 1) = made(kDecoys[n], h, 1) = 1;
                made(kDecoys[n], h, 0) = kDecoy;
            }
        return made;
    }
};

TEST_F(PrecisionTest, FormatsThatMergeKeysTakeTheLowerIds) {
    const json all = summary(plant("a.h5"));
    const auto keeps = [&](const std::string& name, bool all_ids) {
        const json row = row_of(all, "index", name);
        const auto of = [&](const char* measure, const char* end) {
            return row[concat(measure, end)].get<double>();
        };
        for (const char* end : {"", "_low", "_high"}) {
            // Of four blocks the local one is left.
            EXPECT_NEAR(of("precision_recall", end), all_ids ? 1 : 0.25, 1e-12) << name;
            EXPECT_NEAR(of("recall_share", end), all_ids ? 1 : 0.25, 1e-12) << name;
            EXPECT_NEAR(of("mass_share", end), all_ids ? 1 : 0, kMissing) << name;
        }
        EXPECT_EQ(row["reaches"], all_ids) << name;
    };
    for (const char* name :
         {"f32", "bf16", "f16", "e4m3", "e4m3, scale per token", "e4m3, scale per tensor",
          "e4m3, scale per block", "int8, scale per tensor", "int8, scale per token"})
        keeps(name, true);
    for (const char* name :
         {"e5m2", "e5m2, scale per token", "int4, scale per tensor", "int4, scale per token",
          "int4, scale per block", "fp4, scale per block"})
        keeps(name, false);
    // Rotated, half of a key's channels are (a + 1) / sqrt 32 and half (a - 1) / sqrt 32. With the
    // scale of its own (a + 1) / sqrt 32 / 7, int4 keeps a + 1 and drops a - 1; a scale of all keys
    // rounds 1.96 / 2 * 7 = 6.86 up to a target's 7, and fp4's, 1/16, 5.54 to its 6.
    keeps("int4, scale per token, rotated", true);
    keeps("int4, scale per tensor, rotated", false);
    keeps("fp4, scale per block, rotated", false);
    // 32 channels of 4 bits, a scale of 32.
    EXPECT_EQ(recommended(all, "index")["format"], "int4");
    EXPECT_EQ(recommended(all, "index")["bits_per_token"], 160);
    const json straight = summary(plant("b.h5"), {"--rotations", "none"});
    const json best = recommended(straight, "index");
    EXPECT_EQ(best["precision"], "e4m3");
    EXPECT_EQ(best["bits_per_token"], 256);
    EXPECT_EQ(best["bits_per_value"], 8);
    for (const json& row : rows_of_table(straight, "index")) EXPECT_FALSE(row["rotated"]) << row;
}

// The error is that of (7, 3.4): 3 in int4, 3.5 in e4m3 and e5m2's 3.5, 3.40625 in bf16.
TEST_F(PrecisionTest, WhatIsLostOfTheValuesIsTheOutputError) {
    const json all = summary(plant("a.h5"), {"--error", "0.02"});
    const double norm = std::hypot(kFirst, kSecond);
    const std::vector<std::pair<std::string, double>> errors{
        {"int4, scale per token", 0.4 / norm},
        {"int4, scale per tensor", 0.4 / norm},
        {"fp4, scale per block", std::hypot(1, 0.4) / norm},  // 6 and 3
        {"e4m3", 0.1 / norm},
        {"bf16", 0.00625 / norm},
        {"f16", std::fabs(kSecond - 3.400390625) / norm}};
    for (const auto& [name, error] : errors)
        for (const char* end : {"", "_low", "_high"})
            for (const char* measure : {"dense_error", "sparse_error"})
                EXPECT_NEAR(row_of(all, "cache", name)[concat(measure, end)].get<double>(), error,
                            1e-6)
                    << name << ' ' << measure;
    // Two heads of K and of V.
    EXPECT_EQ(row_of(all, "cache", "int8, scale per tensor")["bits_per_token"],
              4 * 32 * 8 + 2 * 32.0 / kTokens);
    EXPECT_EQ(row_of(all, "cache", "e4m3")["bits_per_token"], 4 * 32 * 8);
    EXPECT_EQ(row_of(all, "cache", "int8, scale per token")["bits_per_token"], 4 * (32 * 8 + 32));
    EXPECT_EQ(recommended(all, "cache")["precision"], "e4m3");
    EXPECT_FALSE(row_of(all, "cache", "int4, scale per token")["reaches"]);
}

TEST_F(PrecisionTest, AFormatReachesWithTheFarEndsOfItsIntervals) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 300, 684}, .layers = {0, 3}});
    const std::string name = "int4, scale per token";
    const auto with = [&](double keep, double error) {
        return summary(file, as_analyzed({"--formats", "f32,int4", "--scales", "token", "--keep",
                                          std::to_string(keep), "--error", std::to_string(error)}));
    };
    const json all = with(0.5, 1);
    const json index = row_of(all, "index", name), cache = row_of(all, "cache", name);
    const char *share = mean_of(index, "mass_share") < mean_of(index, "recall_share")
                            ? "mass_share"
                            : "recall_share",
               *error = mean_of(cache, "dense_error") > mean_of(cache, "sparse_error")
                            ? "dense_error"
                            : "sparse_error";
    const auto end = [](const json& row, const char* measure, const char* of) {
        return row[concat(measure, of)].get<double>();
    };
    ASSERT_GT(mean_of(index, share), end(index, share, "_low") + 1e-4);
    ASSERT_LT(mean_of(cache, error), end(cache, error, "_high") - 1e-4);
    const json missed = with((mean_of(index, share) + end(index, share, "_low")) / 2,
                             (mean_of(cache, error) + end(cache, error, "_high")) / 2);
    EXPECT_FALSE(row_of(missed, "index", name)["reaches"]) << index;
    EXPECT_FALSE(row_of(missed, "cache", name)["reaches"]) << cache;
    // As far as to_string goes.
    const json met = with(
        std::min(end(index, "mass_share", "_low"), end(index, "recall_share", "_low")) - 1e-5,
        std::max(end(cache, "dense_error", "_high"), end(cache, "sparse_error", "_high")) + 1e-5);
    EXPECT_TRUE(row_of(met, "index", name)["reaches"]) << index;
    EXPECT_TRUE(row_of(met, "cache", name)["reaches"]) << cache;

    const auto of_layer = [&](const char* table, int layer, const char* measure) {
        const json key{{"precision", name}, {"layer", layer}};
        return mean_of(test::row_of(all, table, key), measure);
    };
    EXPECT_EQ(index["worst_layer"],
              std::min(of_layer("index_layers", 0, share), of_layer("index_layers", 3, share)));
    EXPECT_EQ(cache["worst_layer"],
              std::max(of_layer("cache_layers", 0, error), of_layer("cache_layers", 3, error)));
}

// In a window of 40 tokens neither targets nor decoys are seen, and no format loses a thing.
TEST_F(PrecisionTest, MeansLeaveOutALayerWithAWindow) {
    const std::string file = plant("w.h5", 2, true, kDim, 1), name = "int4, scale per token";
    const auto share = [&](const json& all) {
        return mean_of(row_of(all, "index", name), "mass_share");
    };
    const json both = summary(file, {"--layers", "0,1", "--rotations", "none"});
    EXPECT_NEAR(share(both), 0, kMissing);
    EXPECT_EQ(rows_of_table(both, "index_layers").size(), 2 * rows_of_table(both, "index").size());
    EXPECT_NE(file_text(path("out/precision.txt")).find("mean over layer 0"), std::string::npos);
    const json alone = summary(file, {"--layers", "1", "--rotations", "none"});
    EXPECT_NEAR(share(alone), 1, kMissing);
    EXPECT_EQ(row_of(alone, "index", name)["bits_per_value"],
              row_of(both, "index", name)["bits_per_value"]);
}

TEST_F(PrecisionTest, MeasuresTheFormatsScalesAndRotationsThatAreAskedFor) {
    const json all = summary(plant("a.h5", 1),
                             {"--formats", "int8", "--scales", "token", "--rotations", "hadamard"});
    for (const char* part : {"index", "cache"}) {
        std::vector<std::string> names;
        for (const json& row : rows_of_table(all, part)) names.push_back(row["precision"]);
        EXPECT_EQ(names, (std::vector<std::string>{"f32", "int8, scale per token, rotated"}));
    }
    std::istringstream page(file_text(path("out/precision.txt")));
    for (std::string line; std::getline(page, line);)
        EXPECT_LE(line.size(), experiments::kLineWidth) << line;
}

TEST_F(PrecisionTest, ThePageSaysWhichFormatsAreWithinTheTarget) {
    const Outcome outcome = kPrecision(args(plant("a.h5", 1, false), "out", {"--error", "0.02"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("no index_q and index_k in layer 0:"), std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.out.find("mean over layer 0\n"), std::string::npos) << outcome.out;
    const auto last_word = [&](const std::string& row) {
        const size_t begin = outcome.out.find('\n' + row);
        if (begin == std::string::npos) return "no row " + row;
        const std::string line =
            outcome.out.substr(begin + 1, outcome.out.find('\n', begin + 1) - begin - 1);
        std::istringstream words(line);
        std::string word;
        while (words >> word) {
        }
        return word;
    };
    EXPECT_EQ(last_word("f32     none    no "), "yes");
    EXPECT_EQ(last_word("e4m3    none    no "), "yes");
    EXPECT_EQ(last_word("int4    token   no "), "no");
}

TEST_F(PrecisionTest, FullPrecisionLosesNothing) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 300, 684}, .layers = {0, 3}});
    const json all = summary(file, as_analyzed());
    const json index = rows_of_table(all, "index")[0], cache = rows_of_table(all, "cache")[0];
    for (const json& row : {index, cache}) EXPECT_EQ(row["precision"], "f32");
    for (const std::string end : {"", "_low", "_high"}) {
        for (const json& row : {index, cache}) EXPECT_EQ(row["mass_share" + end], 1.0);
        EXPECT_EQ(index["precision_recall" + end], 1.0);
        EXPECT_EQ(index["recall_share" + end], 1.0);
        EXPECT_EQ(cache["dense_error" + end], 0.0);
        EXPECT_EQ(cache["sparse_error" + end], 0.0);
    }
}

// Each step is at least four times as fine, and errors of the output are as small as those of the
// operands; recall loses in step with them.
TEST_F(PrecisionTest, MoreBitsLoseLessByFar) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 300, 684}, .layers = {0}});
    const json all = summary(file, as_analyzed({"--rotations", "none"}));
    const std::vector<std::string> chain{"int4, scale per token", "int8, scale per token", "f16",
                                         "f32"};
    for (size_t n = 0; n + 1 < chain.size(); ++n) {
        const json less = row_of(all, "index", chain[n]), more = row_of(all, "index", chain[n + 1]);
        EXPECT_LE(1 - mean_of(more, "precision_recall"),
                  0.5 * (1 - mean_of(less, "precision_recall")))
            << chain[n];
        for (const char* measure : {"dense_error", "sparse_error"})
            EXPECT_LT(mean_of(row_of(all, "cache", chain[n + 1]), measure),
                      0.25 * mean_of(row_of(all, "cache", chain[n]), measure))
                << chain[n];
    }
    const json int4 = row_of(all, "index", chain[0]);
    EXPECT_LT(mean_of(int4, "precision_recall"), 0.99);
    EXPECT_LT(int4["precision_recall_low"], int4["precision_recall"]);
    EXPECT_GT(int4["precision_recall_high"], int4["precision_recall"]);
}

TEST_F(PrecisionTest, WithoutAnIndexBranchTheCacheIsMeasured) {
    const std::string file = plant("a.h5", 2, false);
    const Outcome outcome = kPrecision(args(file, "out", {"--error", "0.02"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("no index_q and index_k in layers 0, 1: only the KV cache"),
              std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.out.find("No layer has an Index Branch"), std::string::npos);
    EXPECT_EQ(outcome.out.find("sparse error"), std::string::npos) << outcome.out;
    const json all = json::parse(file_text(path("out/summary.json")));
    EXPECT_TRUE(rows_of_table(all, "index").empty());
    EXPECT_EQ(recommended(all, "cache")["precision"], "e4m3");
    EXPECT_TRUE(row_of(all, "cache", "e4m3")["sparse_error"].is_null());
}

TEST_F(PrecisionTest, NamesTheNearestFormatWhereNoneReachesTheTarget) {
    const std::string file = plant("a.h5");
    const std::vector<std::string> some{"--formats", "int4,fp4", "--rotations", "none"};
    const Outcome outcome = kPrecision(args(file, "out", some));
    EXPECT_EQ(outcome.code, 2);
    for (const char* words :
         {"index operands, target mass share and recall share of at least 0.99: no format asked "
          "for reaches it; the nearest is int4, scale per tensor",
          "KV cache, target dense error and sparse error of at most 0.01: no format asked for "
          "reaches it; the nearest is int4, scale per t"})
        EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    EXPECT_FALSE(all["verdict"]["reached"]);
    for (const char* part : {"index", "cache"}) {
        EXPECT_TRUE(recommended(all, part).is_null());
        EXPECT_EQ(test::row_of(all, part, {{"is_nearest", true}})["format"], "int4") << part;
    }
    // Full precision is there to compare with, and not on offer.
    EXPECT_EQ(rows_of_table(all, "cache")[0]["precision"], "f32");
    EXPECT_FALSE(rows_of_table(all, "cache")[0]["asked"]);
    EXPECT_TRUE(std::filesystem::exists(path("out/results.h5")));
}

TEST_F(PrecisionTest, ProcessesAndKillsChangeNoByte) {
    const std::string file = plant("a.h5", 3);
    const std::vector<std::string> some{"--formats", "f32,int8", "--error", "1"};
    ASSERT_EQ(kPrecision(args(file, "whole", some)).code, 0);
    run_together("msa-precision", args(file, "together", some), 2);
    expect_same("whole", "together");
    int64_t killed = 0;
    for (int64_t delay = 10000; delay < 60000000; delay += delay / 2) {
        const int code =
            run_for("msa-precision", args(file, "killed", some), std::chrono::microseconds(delay));
        killed += code == -1 ? 1 : 0;
        if (code == 0) break;
        ASSERT_EQ(code, -1);
    }
    EXPECT_GT(killed, 0);
    expect_same("whole", "killed");
}

TEST_F(PrecisionTest, RefusesBadInput) {
    const std::string file = plant("a.h5");
    refuses(file, {"--formats", "int8,fp6"}, "fp6");
    refuses(file, {"--formats", "int8,int8"}, "--formats names 'int8' twice");
    refuses(file, {"--scales", "row"}, "row");
    refuses(file, {"--rotations", "givens"}, "givens");
    refuses(file, {"--formats", "int8", "--scales", "none"},
            "--scales leaves out every scale of int8, which needs one");
    refuses(file, {"--keep", "0"}, "--keep is 0, must be above 0 and at most 1");
    refuses(file, {"--keep", "1.5"}, "--keep is 1.5");
    refuses(file, {"--error", "-1"}, "--error is -1, must be at least 0");
    refuses(file, {"--error", "inf"}, "--error is inf, must be at least 0 and finite");
    refuses(file, {"--layers", "0,7"}, "7");
    refuses(file, {"--positions", "512:520"}, "at least 2 are needed");
    refuses(make("pre.h5", {.cu_seqlens = {0, kTokens}, .q_state = io::RopeState::pre_rope}), {},
            "pre_rope");
    refuses(plant("odd.h5", 1, true, 24), {"--rotations", "hadamard"},
            "layer 0 has heads of 24 channels in k, the Hadamard rotation takes powers of two");
}

TEST_F(PrecisionTest, LeavesTheRotationOutWhereHeadsHaveOtherWidths) {
    const std::string file = plant("odd.h5", 1, true, 24);
    const Outcome outcome = kPrecision(args(file, "out", {"--formats", "f32,int8"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("note: --rotations leaves out hadamard: layer 0 has heads of 24"),
              std::string::npos)
        << outcome.err;
    const json all = json::parse(file_text(path("out/summary.json")));
    EXPECT_EQ(all["run"]["options"]["rotations"], json({"none"}));
}

}  // namespace
}  // namespace msa::test
