// SPDX-License-Identifier: MIT
// msa-cache on results whose blocks stand here, so that every number is counted by hand, and on
// results of msa-analyze.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;
using Steps = std::vector<std::vector<int32_t>>;  // the blocks of each step
using Groups = std::vector<Steps>;

// Positions 38 to 41 and blocks of 8 tokens: block 4 is there before, block 5 is written.
constexpr int64_t kFirstPosition = 38, kBlockSize = 8, kSlots = 3, kHeadDim = 16;
constexpr int64_t kBlockBytes = 2 * kHeadDim * kBlockSize * 2;  // keys and values in bf16
const Groups kBefore{{{0, 1, 4}, {0, 2, 4}, {1, 2, 5}, {0, 3, 5}},
                     {{3, 4}, {3, 4}, {4, 5}, {4, 5}}};
const Groups kBehind{{{0, 1, 4}, {0, 1, 4}, {1, 2, 5}, {1, 3, 5}},
                     {{3, 4}, {3, 4}, {4, 5}, {4, 5}}};

struct Planted {
    std::map<int64_t, Groups> layers;
    std::string program = "msa-analyze", element = "bf16";
    bool with_ids = true;
};

void write_layer(int64_t layer, const Groups& groups, bool with_ids, io::UnitWriter& to) {
    const auto steps = std::ssize(groups.front());
    Tensor<int64_t, 1> token({steps}), sequence({steps});
    Tensor<int32_t, 3> ids({steps, std::ssize(groups), kSlots});
    std::fill_n(ids.data(), ids.size(), -1);
    for (int64_t i = 0; i < steps; ++i) {
        token(i) = kFirstPosition + i;
        for (size_t g = 0; g < groups.size(); ++g)
            for (int64_t slot = 0; int32_t block : groups[g][static_cast<size_t>(i)])
                ids(i, static_cast<int64_t>(g), slot++) = block;
    }
    const auto kv_heads = static_cast<int64_t>(groups.size());
    for (const auto& [name, value] : {std::pair{"query_heads", 2 * kv_heads},
                                      {"kv_heads", kv_heads},
                                      {"head_dim", kHeadDim},
                                      {"index_dim", kHeadDim},
                                      {"block_size", kBlockSize}})
        to.attribute(concat("/layers/", layer), name, value);
    const std::string queries = concat("/queries/", layer);
    to.write<int64_t, 1>(queries + "/token", token.view(), {});
    to.write<int64_t, 1>(queries + "/position", token.view(), {});
    to.write<int64_t, 1>(queries + "/sequence", sequence.view(), {});
    if (with_ids) to.write<int32_t, 3>(concat("/select/by-hand/", layer, "/ids"), ids.view(), {});
}

class Cache : public CliTest {
protected:
    std::string plant(const std::string& name, const Planted& planted) const {
        io::RunRecord record;
        record.program = planted.program;
        record.options = record.definitions = "{}";
        record.element = planted.element;
        io::ResultsWriter writer(path(name), record, io::IfExists::overwrite);
        for (const auto& [layer, groups] : planted.layers) {
            io::UnitWriter unit = writer.begin(concat("layer ", layer));
            write_layer(layer, groups, planted.with_ids, unit);
            unit.finish();
        }
        writer.finish();
        return path(name);
    }

    /// Results of msa-analyze with two sequences and layers 0 and 3.
    std::string analyze(const std::string& name, const std::vector<std::string>& more) const {
        std::vector<std::string> args{make("a.h5"), "--out",   path(name), "--block-size",
                                      "8",          "--top-k", "4"};
        args.insert(args.end(), more.begin(), more.end());
        const Outcome outcome = kAnalyze(args);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return path(name + "/results.h5");
    }

    std::vector<std::string> args(const std::string& file, const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{file, "--out", path(out)};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }

    json report(const std::string& file, std::vector<std::string> more = {}, int code = 0) const {
        more.insert(more.end(), {"--json", "--overwrite"});
        const Outcome outcome = kCache(args(file, "out", more));
        EXPECT_EQ(outcome.code, code) << outcome.err;
        EXPECT_EQ(outcome.out, file_text(path("out/summary.json")));
        return json::parse(outcome.out);
    }

    void refuses(const std::string& file, const std::vector<std::string>& more,
                 const std::string& why) const {
        const Outcome outcome = kCache(args(file, "refused", more));
        EXPECT_EQ(outcome.code, 2) << why;
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
        EXPECT_EQ(outcome.out, "");
        EXPECT_FALSE(std::filesystem::exists(path("refused"))) << why;
    }
};

/// Options under which the link carries so many bytes per token.
std::vector<std::string> carries(int64_t bytes, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--link", "0.001", "--time-per-token", std::to_string(bytes)});
    return more;
}

/// The caches of these sizes, of every selector.
json tried(const json& report) {
    json points = json::array();
    for (const json& point : rows_of_table(report, "caches"))
        if (point["cache_role"] == "tried") points.push_back(point);
    return points;
}
json recommended(const json& report) {
    return row_of(report, "caches", {{"cache_role", "recommended"}});
}
json layer_of(const json& report, size_t row) { return rows_of_table(report, "layers").at(row); }

std::vector<double> column(const json& points, const char* name) {
    std::vector<double> values;
    for (const json& point : points) values.push_back(point[name]);
    return values;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& known) {
    ASSERT_EQ(found.size(), known.size());
    for (size_t n = 0; n < known.size(); ++n) EXPECT_NEAR(found[n], known[n], 1e-12) << n;
}

// Group 0 has 12 uses: block 5 is written, 5 blocks are cold, reuses have the distances
// 0 0 1 2 3 4. Group 1 has 8, of which 5 is written and 2 are cold.
TEST_F(Cache, OneLayerByHand) {
    const json all = report(plant("r.h5", {{{0, kBefore}}}), carries(1000, {"--sizes", "3,4,5,6"}));
    const json measured = row_of(all, "measured"), selector = row_of(all, "selectors");
    EXPECT_EQ(measured["queries"], 4);
    EXPECT_EQ(measured["context_blocks"], 6);
    EXPECT_EQ(all["run"]["options"]["element"], "bf16");
    EXPECT_NEAR(measured["most_bytes_per_token"], 1000, 1e-9);
    const json layer = layer_of(all, 0), points = tried(all);
    EXPECT_EQ(layer["uses"], 20);
    EXPECT_EQ(layer["written"], 2);
    EXPECT_EQ(layer["cold"], 5 + 2);
    EXPECT_EQ(column(rows_of_table(all, "reuses"), "reuses"),
              (std::vector<double>{2 + 3, 1 + 2, 1, 1, 1}));
    EXPECT_EQ(layer["median_distance"], 1);
    EXPECT_EQ(layer["block_bytes"], kBlockBytes);
    EXPECT_EQ(layer["previous_step_hits"], 4 + 5);
    EXPECT_NEAR(layer["previous_step_share"], 9 / 20.0, 1e-12);
    for (const char* none : {"previous_layer", "previous_layer_hits", "layer_in_vain_per_token"})
        EXPECT_TRUE(layer[none].is_null()) << none;
    EXPECT_EQ(layer["previous_layer_note"], "it is the first layer");
    EXPECT_NEAR(layer["layer_misses_per_token"], 9 / 4.0, 1e-12);
    EXPECT_EQ(column(points, "blocks"), (std::vector<double>{3, 4, 5, 6}));
    expect_near(column(points, "misses_per_token"), {9 / 4.0, 8 / 4.0, 7 / 4.0, 7 / 4.0});
    expect_near(column(points, "hit_rate"), {11 / 20.0, 12 / 20.0, 13 / 20.0, 13 / 20.0});
    expect_near(column(points, "hit_rate_lfu"), {11 / 20.0, 12 / 20.0, 13 / 20.0, 13 / 20.0});
    expect_near(column(points, "hit_rate_belady"), {11 / 20.0, 13 / 20.0, 13 / 20.0, 13 / 20.0});
    expect_near(column(points, "bytes_per_token"), {1152, 1024, 896, 896});
    expect_near(column(points, "link_seconds_per_token"), {1152e-6, 1024e-6, 896e-6, 896e-6});
    expect_near(column(points, "share_of_context"), {0.5, 4 / 6.0, 5 / 6.0, 1});
    expect_near(column(points, "cache_bytes"), {3072, 4096, 5120, 6144});
    EXPECT_TRUE(all["verdict"]["reached"]);
    EXPECT_EQ(recommended(all)["blocks"], 5);
    EXPECT_EQ(selector["blocks_lru"], 5);
    EXPECT_EQ(selector["blocks_lfu"], 5);
    EXPECT_EQ(selector["blocks_belady"], 4);
    EXPECT_EQ(selector["written_bytes_per_token"], 2 * kBlockBytes / kBlockSize);
    EXPECT_NE(file_text(path("out/cache.txt")).find("at most 0.001 MB per token, for 1 layer\n"),
              std::string::npos);
}

// In group 0 of layer 1, the layer before guesses 10 of 12 blocks; it misses block 1 at distances 1
// and 2, and fetches in vain block 2, which is cold, and block 0 at distance 4.
TEST_F(Cache, TwoLayersByHand) {
    const std::string file = plant("r.h5", {{{0, kBefore}, {1, kBehind}}});
    const std::vector<std::string> sizes{"--sizes", "3,4,5"};
    const json all = report(file, carries(1950, sizes));
    const json layer = layer_of(all, 1), points = tried(all);
    EXPECT_EQ(layer["cold"], 5 + 2);
    EXPECT_EQ(layer["previous_layer"], 0);
    EXPECT_EQ(layer["previous_layer_hits"], 10 + 8);
    EXPECT_EQ(layer["previous_layer_left"], 2);
    EXPECT_EQ(layer["previous_layer_left_of_smallest"], 0);
    EXPECT_NEAR(layer["layer_in_vain_per_token"], 2 / 4.0, 1e-12);
    EXPECT_EQ(layer["previous_layer_note"], "");
    EXPECT_EQ(row_of(all, "selectors")["layers_guessed"], 1);
    expect_near(column(points, "misses_per_token"), {(9 + 7) / 4.0, (8 + 7) / 4.0, (7 + 7) / 4.0});
    expect_near(column(points, "late_misses_per_token"), {9 / 4.0, 8 / 4.0, 7 / 4.0});
    expect_near(column(points, "in_vain_per_token"), {2 / 4.0, 2 / 4.0, 1 / 4.0});
    expect_near(column(points, "bytes_per_token"), {2048, 1920, 1792});
    EXPECT_EQ(recommended(all)["blocks"], 4);
    std::vector<std::string> ahead = carries(1950, sizes);
    ahead.insert(ahead.end(), {"--prefetch", "previous-layer"});
    const json with = report(file, ahead);
    expect_near(column(tried(with), "bytes_per_token"), {2304, 2176, 1920});
    expect_near(column(tried(with), "misses_per_token"), column(points, "misses_per_token"));
    EXPECT_EQ(recommended(with)["blocks"], 5);
}

TEST_F(Cache, LayersOfTheModelShareTheLink) {
    const std::string file = plant("r.h5", {{{0, kBefore}, {1, kBehind}}});
    const json two = tried(report(file));
    const json ten = tried(report(file, {"--model-layers", "10"}));
    ASSERT_EQ(two.size(), ten.size());
    for (size_t n = 0; n < two.size(); ++n) {
        EXPECT_EQ(two[n]["hit_rate"], ten[n]["hit_rate"]);
        for (const char* scaled : {"bytes_per_token", "misses_per_token", "cache_bytes",
                                   "late_misses_per_token", "in_vain_per_token"})
            EXPECT_NEAR(5 * two[n][scaled].get<double>(), ten[n][scaled].get<double>(), 1e-9);
    }
    EXPECT_EQ(column(two, "blocks"), (std::vector<double>{3, 4, 6}));
}

// A window of 4 blocks from position 40 on, where a block begins: three blocks are cold in each
// group and sequence, and all others are written.
TEST_F(Cache, AWindowHasColdMissesAlone) {
    const std::string file = analyze("in", {"--selectors", "window", "--positions", "40:60"});
    const json all = report(file, {"--element", "f16"});
    EXPECT_EQ(row_of(all, "measured")["queries"], 2 * 20);
    EXPECT_EQ(row_of(all, "measured")["sequences"], 2);
    for (const json& layer : rows_of_table(all, "layers")) {
        EXPECT_EQ(layer["uses"], 2 * 2 * 20 * 4);
        EXPECT_EQ(layer["cold"], 2 * 2 * 3);
        EXPECT_EQ(layer["written"], 2 * 2 * 3);
    }
    for (const json& point : tried(all)) {
        EXPECT_NEAR(point["hit_rate"], 1 - 12 / 320.0, 1e-12);
        EXPECT_EQ(point["hit_rate"], point["hit_rate_belady"]);
        EXPECT_EQ(point["hit_rate"], point["hit_rate_lfu"]);
    }
    EXPECT_EQ(recommended(all)["blocks"], 4);
    EXPECT_EQ(layer_of(all, 1)["previous_layer_share"], 1.0);
    EXPECT_EQ(layer_of(all, 1)["previous_layer_note"],
              "between the two, " + file + " lacks layers 1, 2");
}

TEST_F(Cache, ALinkThatIsTooSlowIsToldTheNearest) {
    const std::string file = plant("r.h5", {{{0, kBefore}}});
    const json all = report(file, carries(895), 2);
    EXPECT_FALSE(all["verdict"]["reached"]);
    EXPECT_TRUE(recommended(all).is_null());
    EXPECT_TRUE(row_of(all, "selectors")["blocks_lru"].is_null());
    EXPECT_EQ(row_of(all, "caches", {{"cache_role", "whole"}})["bytes_per_token"], 896);
    std::vector<std::string> more = carries(895);
    more.emplace_back("--overwrite");
    const Outcome outcome = kCache(args(file, "out", more));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("with the whole context of 6 blocks, cold blocks alone are 0.000896 "
                               "MB per token (by-hand), 896 us"),
              std::string::npos)
        << outcome.err;
}

TEST_F(Cache, ProcessesChangeNoByte) {
    const std::string file = analyze("in", {"--selectors", "oracle,random"});
    ASSERT_EQ(kCache(args(file, "whole")).code, 0);
    run_together("msa-cache", args(file, "together"), 2);
    for (const char* name : {"results.h5", "summary.json", "tables/caches.csv", "cache.txt"})
        EXPECT_TRUE(file_text(path(concat("whole/", name))) ==
                    file_text(path(concat("together/", name))))
            << name;
    const Outcome again = kCache(args(file, "whole"));
    EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(Cache, PrefetchByThePreviousLayerNeedsIt) {
    const std::vector<std::string> ahead{"--prefetch", "previous-layer"};
    refuses(plant("first.h5", {{{0, kBefore}}}), ahead,
            "--prefetch is previous-layer, but layer 0: it is the first layer; two layers are "
            "needed, one right after the other");
    refuses(plant("one.h5", {{{3, kBefore}}}), ahead,
            "one.h5 has no layer before it: missing are layers 0, 1, 2; two layers are needed");
    refuses(plant("gap.h5", {{{1, kBefore}, {2, kBehind}, {5, kBefore}}}), ahead,
            "layer 5: between the two, " + path("gap.h5") + " lacks layers 3, 4");
    refuses(plant("two.h5", {{{0, kBefore}, {1, {kBehind.front()}}}}), ahead,
            "layer 1: layer 0, the one before it in " + path("two.h5") +
                ", has other queries, blocks or groups");
    EXPECT_EQ(
        kCache(args(path("gap.h5"), "two", {"--prefetch", "previous-layer", "--layers", "2"})).code,
        0);
}

TEST_F(Cache, RefusesBadInput) {
    const std::string file = plant("r.h5", {{{0, kBefore}}});
    refuses(file, {"--link", "0"}, "--link is 0, must be above 0");
    refuses(file, {"--time-per-token", "-1"}, "--time-per-token is -1, must be above 0");
    refuses(file, {"--sizes", "2,3"}, "--sizes has 2, must be from 3, the blocks of a step of");
    refuses(file, {"--sizes", "7"}, "--sizes has 7, must be from 3");
    refuses(file, {"--selectors", "quest"}, "--selectors is 'quest', must be one of: by-hand");
    refuses(file, {"--layers", "7"}, "--layers is '7', must be one of: 0");
    refuses(file, {"--prefetch", "always"}, "--prefetch is 'always', must be one of: none");
    refuses(plant("two.h5", {{{0, kBefore}, {1, kBehind}}}), {"--model-layers", "1"},
            "--model-layers is 1, must be at least the 2 layers chosen");
    refuses(plant("none.h5", {.layers = {{0, kBefore}}, .with_ids = false}), {},
            "none.h5: has no selected blocks");
    refuses(plant("mixed.h5", {.layers = {{0, kBefore}}, .element = "bf16 and f16"}), {},
            "mixed.h5: /run says element = bf16 and f16, must be one type");
    refuses(plant("other.h5", {.layers = {{0, kBefore}}, .program = "msa-compare"}), {},
            "other.h5: was written by msa-compare, must be results of msa-analyze");
    refuses(make("a.h5"), {}, "a.h5");
    refuses(path("absent.h5"), {}, "there is no such file");
    const Groups one{{{0, 4}}};
    refuses(plant("single.h5", {{{0, one}}}), {}, "single.h5: /queries/0/token has 1 queries");
    refuses(analyze("sampled", {"--selectors", "oracle", "--sample-queries", "40"}), {},
            "decode steps follow each other, so run msa-analyze without --sample-queries");
}

}  // namespace
}  // namespace msa::test
