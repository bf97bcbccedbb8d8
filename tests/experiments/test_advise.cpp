// SPDX-License-Identifier: MIT
// msa-advise on planted attention whose best setting is known: every query looks at the same three
// tokens, which lie in three far blocks of any block size.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/io/results.h"
#include "experiments/advise/options.h"
#include "experiments/report/text.h"
#include "tests/experiments/report_of.h"
#include "tests/support/random.h"

namespace msa::test {
namespace {

using nlohmann::json;

// The largest budget of 512 tokens leaves the queries behind them, which see all three.
constexpr int64_t kPlantedTokens = 1024, kPlantedDim = 32;
constexpr int64_t kLookedAt[] = {130, 262, 394};  // blocks 1, 2 and 3 of 128; no first, no local
// Each logit is 20 there and 0 elsewhere: less than 1024 / (3 e^20) = 7e-7 of the mass is missing.
constexpr double kLogit = 20, kMissing = 1e-6;

/// What the heads of a layer look at.
enum class Look : uint8_t { at_three_tokens, everywhere };

class Advise : public CliTest {
protected:
    std::string plant(const std::string& name, const std::vector<Look>& looks,
                      const std::vector<int64_t>& cu_seqlens = {0, kPlantedTokens},
                      bool with_index = false) const {
        io::ActivationsInfo info{"planted", "{}", "msalab tests", cu_seqlens, {}, false};
        for (size_t n = 0; n < looks.size(); ++n) {
            io::LayerInfo layer;
            layer.layer = 2 * static_cast<int64_t>(n);
            layer.query_heads = 8;
            layer.kv_heads = 2;
            layer.head_dim = kPlantedDim;
            layer.index_dim = with_index ? kPlantedDim : 0;
            layer.softmax_scale = 1;
            layer.element = Element::f32;
            info.layers.push_back(layer);
        }
        io::ActivationsWriter writer(path(name), info, true);
        for (size_t n = 0; n < looks.size(); ++n)
            for (io::Field field :
                 {io::Field::q, io::Field::k, io::Field::v, io::Field::index_q, io::Field::index_k})
                if (info.layers[n].has(field))
                    writer.write(info.layers[n].layer, field, 0, 0,
                                 values(info, info.layers[n], field, looks[n]));
        writer.finish();
        return path(name);
    }

    std::vector<std::string> args(const std::string& file, const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{file, "--out", path(out), "--threads", "2"};
        if (std::find(more.begin(), more.end(), "--top-k") == more.end())
            all.insert(all.end(), {"--top-k", "2,3,4,5,8"});
        if (std::find(more.begin(), more.end(), "--context") == more.end())
            all.insert(all.end(), {"--context", "128K"});
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    json advice(const std::string& file, const std::vector<std::string>& more = {},
                int code = 0) const {
        const Outcome outcome = kAdvise(args(file, "out", more));
        EXPECT_EQ(outcome.code, code) << outcome.err;
        return report_of(path("out"));
    }
    /// Priced where bytes decide: a decoded token reads k Bk keys, and a vector or two per block.
    static std::vector<std::string> priced(std::vector<std::string> more) {
        more.insert(more.end(), {"--phase", "decode", "--context", "4K"});
        return more;
    }
    void refuses(const std::string& file, const std::vector<std::string>& more,
                 const std::string& message) const {
        const Outcome outcome = kAdvise(args(file, "refused", more));
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
        EXPECT_FALSE(std::filesystem::exists(path("refused/results.h5")));
    }

private:
    static Tensor<float, 3> values(const io::ActivationsInfo& info, const io::LayerInfo& layer,
                                   io::Field field, Look look) {
        const Shape<3> shape{info.tokens(), layer.heads(field), layer.channels(field)};
        if (field == io::Field::v) return normal<3>(shape, 1);
        Tensor<float, 3> made(shape);
        if (look == Look::everywhere) return made;
        const bool query = field == io::Field::q || field == io::Field::index_q;
        for (int64_t h = 0; h < shape[1]; ++h)
            for (size_t s = 0; s + 1 < info.cu_seqlens.size(); ++s) {
                const int64_t first = info.cu_seqlens[s];
                if (query)
                    for (int64_t i = first; i < info.cu_seqlens[s + 1]; ++i)
                        made(i, h, 0) = static_cast<float>(kLogit);
                else
                    for (int64_t j : kLookedAt) made(first + j, h, 0) = 1;
            }
        return made;
    }
};

/// A setting that is singled out; null if there is none.
json singled(const json& all, const char* role) {
    return row_of(all, "advice", {{"setting_role", role}});
}
std::vector<json> front(const json& all) {
    std::vector<json> rows;
    for (const json& row : rows_of_table(all, "advice"))
        if (row["setting_role"] == "front") rows.push_back(row);
    return rows;
}

void expect_setting(const json& setting, int64_t block_size, int64_t top_k) {
    EXPECT_EQ(setting["block_size"], block_size) << setting;
    EXPECT_EQ(setting["top_k"], top_k) << setting;
    EXPECT_EQ(setting["forced_first"], 0) << setting;
    EXPECT_EQ(setting["forced_local"], 1) << setting;
}

// Three blocks and the local one: k = 4, of the smallest blocks, and no other block forced.
TEST_F(Advise, FindsTheSmallestSettingThatKeepsWhatIsPlanted) {
    for (const std::string selector : {"oracle", "mean-key", "quest"}) {
        const json all =
            advice(plant("a.h5", {Look::at_three_tokens}), priced({"--selectors", selector}));
        const json setting = singled(all, "recommended");
        EXPECT_EQ(setting["selector"], selector);
        expect_setting(setting, 32, 4);
        EXPECT_NEAR(setting["mass_kept"].get<double>(), 1, kMissing);
        EXPECT_LT(setting["group_output_error"].get<double>(), 1e-4);
        // Four blocks of queries are too few for an interval, and so for a share of the draws.
        EXPECT_TRUE(setting["mass_kept_low"].is_null());
        EXPECT_TRUE(setting["confidence"].is_null());
        EXPECT_NE(file_text(path("out/advice.txt")).find("too few blocks of queries"),
                  std::string::npos);
        EXPECT_LT(setting["share_of_dense"].get<double>(), 1.0);
        std::filesystem::remove_all(path("out"));
    }
}

TEST_F(Advise, TheOracleIsABoundAndNoAdvice) {
    const json all = advice(plant("a.h5", {Look::at_three_tokens}));
    EXPECT_EQ(singled(all, "recommended")["selector"],
              "mean-key");  // reads half of what quest reads
    EXPECT_EQ(singled(all, "bound")["selector"], "oracle");
    expect_setting(singled(all, "bound"), 32, 4);
    for (const json& setting : front(all)) EXPECT_NE(setting["selector"], "oracle");
    std::filesystem::remove_all(path("out"));
    // Where the oracle alone reaches the target, and costs less than dense attention.
    const json none = advice(path("a.h5"), {"--selectors", "oracle,window"}, 2);
    EXPECT_LT(singled(none, "bound")["share_of_dense"].get<double>(), 1.0);
    EXPECT_TRUE(singled(none, "recommended").is_null());
    EXPECT_EQ(singled(none, "nearest")["selector"], "window");
    for (const json& setting : front(none)) EXPECT_EQ(setting["selector"], "window");
}

TEST_F(Advise, EveryPointOfTheFrontCostsMoreAndLosesLess) {
    const json all = advice(plant("a.h5", {Look::everywhere}), {"--budgets", "512"});
    ASSERT_GT(front(all).size(), 2U);
    double cost = 0, kept = 0;
    for (const json& setting : front(all)) {
        EXPECT_GT(setting["seconds"].get<double>(), cost);
        EXPECT_GT(setting["mass_kept"].get<double>(), kept);
        cost = setting["seconds"];
        kept = setting["mass_kept"];
    }
    for (const json& setting : rows_of_table(all, "settings")) {
        if (setting["is_bound"]) continue;
        for (const json& on_front : front(all))
            EXPECT_FALSE(setting["seconds"] < on_front["seconds"] &&
                         setting["mass_kept"] > on_front["mass_kept"])
                << setting << on_front;
    }
}

// A query of the measured rows sees 512 to 1024 tokens evenly: 512 of them keep 0.69 on average.
TEST_F(Advise, ALayerThatLooksEverywhereStaysDense) {
    const json all = advice(plant("a.h5", {Look::at_three_tokens, Look::everywhere}), priced({}));
    const json chosen = singled(all, "recommended");
    EXPECT_EQ(chosen["sparse_layers"], "0");
    EXPECT_EQ(chosen["dense_layers"], "2");
    const json other = row_of(all, "layers", {{"layer", 2}});
    EXPECT_FALSE(row_of(all, "layers", {{"layer", 0}})["stays_dense"]);
    EXPECT_TRUE(other["stays_dense"]);
    const json own = row_of(all, "own_settings", {{"layer", 0}});
    expect_setting(own, 32, 4);
    EXPECT_TRUE(row_of(all, "own_settings", {{"layer", 2}}).is_null());
    EXPECT_DOUBLE_EQ(
        chosen["seconds"].get<double>(),
        other["dense_seconds_of_layer"].get<double>() + own["seconds_of_layer"].get<double>());
    EXPECT_NE(file_text(path("out/advice.txt")).find("stay dense: layer 2"), std::string::npos);
}

TEST_F(Advise, NamesTheNearestSettingWhereNoneReachesTheTarget) {
    const std::string file = plant("a.h5", {Look::at_three_tokens});
    const Outcome outcome = kAdvise(args(file, "out", {"--top-k", "2,3", "--positions", "512:"}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("no setting reaches the target"), std::string::npos) << outcome.err;
    const json all = report_of(path("out"));
    EXPECT_TRUE(singled(all, "recommended").is_null());
    EXPECT_EQ(singled(all, "nearest")["top_k"], 3);
    EXPECT_NEAR(singled(all, "nearest")["mass_kept"].get<double>(), 2.0 / 3, kMissing);
    EXPECT_TRUE(singled(all, "bound").is_null());
    EXPECT_TRUE(std::filesystem::exists(path("out/results.h5")));
}

TEST_F(Advise, SparseMustCostLessThanDense) {
    const std::string file = plant("a.h5", {Look::at_three_tokens});
    const Outcome outcome =
        kAdvise(args(file, "out", {"--context", "512", "--selectors", "oracle"}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("costs less than dense attention"), std::string::npos)
        << outcome.err;
}

TEST_F(Advise, AnErrorAndABudgetAreTargetsToo) {
    const std::string file = plant("a.h5", {Look::at_three_tokens});
    expect_setting(
        singled(advice(file, priced({"--selectors", "oracle", "--error", "0.01"})), "recommended"),
        32, 4);
    std::filesystem::remove_all(path("out"));
    const json within =
        singled(advice(file, priced({"--selectors", "oracle", "--budgets", "100"})), "recommended");
    expect_setting(within, 32, 3);  // of 96 tokens: two of the three
    EXPECT_NEAR(within["mass_kept"].get<double>(), 2.0 / 3, kMissing);
    std::filesystem::remove_all(path("out"));
    const json none = advice(file, {"--budgets", "50"}, 2);
    EXPECT_EQ(singled(none, "nearest")["budget"], 64);
}

TEST_F(Advise, MassOfLargeBlocksIsThatOfTheSmallOnesInThem) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 500, 900}, .layers = {1}});
    const std::vector<std::string> small{"--top-k", "2,3",       "--block-size",
                                         "8,16,48", "--budgets", "48"};
    const json shared = advice(file, small);
    std::filesystem::remove_all(path("out"));
    const json alone = advice(file, {"--top-k", "2,3", "--block-size", "48", "--budgets", "144"});
    int compared = 0;
    for (const json& one : rows_of_table(shared, "settings"))
        for (const json& other : rows_of_table(alone, "settings")) {
            bool same = true;
            for (const char* size :
                 {"selector", "block_size", "top_k", "forced_first", "forced_local"})
                same &= one[size] == other[size];
            if (!same) continue;
            ++compared;  // sums of floats below 1
            EXPECT_NEAR(one["mass_kept"].get<double>(), other["mass_kept"].get<double>(), 1e-6);
        }
    EXPECT_EQ(compared, static_cast<int>(rows_of_table(alone, "settings").size()));
}

// Both count the queries behind the largest budget of 64 tokens: 448, 14 blocks of 32.
TEST_F(Advise, AgreesWithCompare) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 512}, .layers = {1}});
    const std::vector<std::string> selectors{"--selectors", "index,oracle,mean-key,window,quest"};
    const json all =
        advice(file, {"--top-k", "4,8", "--block-size", "8", "--forced-first", "0",
                      "--forced-local", "1", "--sample-queries", "0", "--budgets", "64"});
    ASSERT_EQ(kCompare({file, "--out", path("compared"), "--block-size", "8", "--budgets", "32,64",
                        selectors[0], selectors[1]})
                  .code,
              0);
    const json compared = selector_rows(report_of(path("compared")));
    ASSERT_EQ(rows_of_table(all, "settings").size(), compared.size());
    for (const json& row : compared)
        for (const json& setting : rows_of_table(all, "settings")) {
            if (row["selector"] != setting["selector"] || row["top_k"] != setting["top_k"])
                continue;
            for (const char* measure :
                 {"mass_kept", "group_output_error"})  // the same sums of doubles
                EXPECT_NEAR(row[measure].get<double>(), setting[measure].get<double>(), 1e-9)
                    << row;
        }
}

TEST_F(Advise, ThePageFitsATerminal) {
    const std::string file = plant("a.h5", {Look::at_three_tokens, Look::everywhere});
    const std::vector<std::string> targets[] = {
        {"--keep", "0.9"}, {"--error", "0.1"}, {"--budgets", "512"}};
    for (std::vector<std::string> more : targets) {
        more.insert(more.end(),
                    {"--selectors", "mean-key,quest-pages,infllm-v2,oracle-logit", "--overwrite"});
        ASSERT_EQ(kAdvise(args(file, "out", priced(more))).code, 0) << more[0];
        const std::string loss = json::parse(file_text(path("out/summary.json")))["notes"]["loss"];
        EXPECT_NE(loss.find("No mean over layers foretells the bits"), std::string::npos) << loss;
        std::istringstream page(file_text(path("out/advice.txt")));
        for (std::string line; std::getline(page, line);) {
            EXPECT_LE(line.size(), experiments::kLineWidth) << line;
        }
    }
}

TEST_F(Advise, IntervalsHoldTheValueAndSpreadWhereQueriesDiffer) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 500, 900}, .layers = {1}});
    const json all = advice(file, {"--top-k", "4", "--block-size", "8", "--budgets", "32"});
    EXPECT_EQ(row_of(all, "layers")["sequences"], 2);
    EXPECT_EQ(singled(all, "recommended")["confidence"], 1.0);
    for (const json& setting : rows_of_table(all, "settings"))
        for (const char* measure : {"mass_kept", "group_output_error"}) {
            const double value = setting[measure];
            EXPECT_LT(setting[concat(measure, "_low")].get<double>(), value);
            EXPECT_GT(setting[concat(measure, "_high")].get<double>(), value);
        }
    EXPECT_NE(file_text(path("out/advice.txt")).find("seed 0"), std::string::npos);
}

TEST_F(Advise, TheIndexIsTriedWhereTheFileHasOne) {
    const json all = advice(plant("a.h5", {Look::at_three_tokens}, {0, kPlantedTokens}, true),
                            priced({"--selectors", "index"}));
    expect_setting(singled(all, "recommended"), 32, 4);
    const Outcome without = kAdvise(args(plant("b.h5", {Look::at_three_tokens}), "without"));
    EXPECT_EQ(without.code, 0);
    EXPECT_NE(without.err.find("note: layer 0 has no index_q and index_k: index is left out"),
              std::string::npos)
        << without.err;
}

TEST_F(Advise, ProcessesAndKillsChangeNoByte) {
    const std::string file =
        plant("a.h5", {Look::at_three_tokens, Look::everywhere, Look::at_three_tokens});
    const std::vector<std::string> more{"--sample-queries", "128"};
    ASSERT_EQ(kAdvise(args(file, "whole", more)).code, 0);
    run_together("msa-advise", args(file, "together", more), 2);
    int64_t killed = 0;
    for (int64_t delay = 20000; delay < 60000000; delay += delay / 2) {
        const int code =
            run_for("msa-advise", args(file, "killed", more), std::chrono::microseconds(delay));
        killed += code == -1 ? 1 : 0;
        if (code == 0) break;
        ASSERT_EQ(code, -1);
    }
    EXPECT_GT(killed, 0);
    for (const char* other : {"together", "killed"})
        for (const char* name : {"results.h5", "summary.json", "advice.txt"})
            EXPECT_TRUE(file_text(path(concat("whole/", name))) ==
                        file_text(path(concat(other, "/", name))))
                << other << "/" << name;
}

TEST_F(Advise, OptionsComeBackFromTheirRecord) {
    using experiments::advise::AdviseOptions;
    std::istringstream line(
        "a.h5 --out out --error 0.25 --layers 3,5 --phase decode --block-size 16,32 --context 4K "
        "--queries 0:8,16:32 --element bf16 --ceilings measured "
        "--selectors window,quest-pages:page=4");
    const std::vector<std::string> words{std::istream_iterator<std::string>(line), {}};
    std::ostringstream out;
    std::optional<AdviseOptions> o = experiments::advise::parse_advise_options(words, out);
    ASSERT_TRUE(o.has_value());
    const std::string record = option_table(*o).record();
    auto back = experiments::recorded_options<AdviseOptions>(record);
    EXPECT_EQ(option_table(back).record(), record);
    EXPECT_EQ(back.error, 0.25);
    EXPECT_FALSE(back.keep.has_value());
    EXPECT_TRUE(back.decode);
    EXPECT_EQ(back.selectors, o->selectors);
    EXPECT_EQ(back.block_sizes, (std::vector<int64_t>{16, 32}));
}

TEST_F(Advise, RefusesBadInput) {
    const std::string file = plant("a.h5", {Look::at_three_tokens});
    refuses(file, {"--keep", "1.5"}, "--keep is 1.5, must be above 0 and below 1");
    refuses(file, {"--error", "0"}, "--error is 0, must be above 0");
    refuses(file, {"--keep", "0.9", "--budgets", "64"}, "exclude each other");
    refuses(file, {"--budgets", "0"}, "--budgets is 0, must be at least 1");
    refuses(file, {"--selectors", "snapkv"}, "--selectors has snapkv");
    refuses(file, {"--selectors", "window-tokens"}, "--selectors has window-tokens");
    refuses(file, {"--selectors", "index"},
            "layer 0 has no index_q and index_k, which selector index needs; msa-fit-indexer");
    refuses(file, {"--top-k", "64"}, "half of the longest sequence");
    refuses(file, {"--context", "32"}, "leave no setting of at most 32 tokens, the context");
    refuses(file, {"--top-k", "1", "--forced-local", "2"}, "leave no setting");
    refuses(file, {"--queries", "0:550"}, "at least 2 are needed");
    refuses(file, {"--hardware", "abacus"}, "abacus");
    refuses(file, {"--hardware", "laptop"}, "laptop, which has no rate for bf16");
    refuses(file, {"--layers", "7"}, "7");
    refuses(make("pre.h5", {.cu_seqlens = {0, kPlantedTokens}, .q_state = io::RopeState::pre_rope}),
            {}, "pre_rope");
}

}  // namespace
}  // namespace msa::test
