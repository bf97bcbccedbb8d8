// SPDX-License-Identifier: MIT
// msa-fit-indexer on small files whose attention is a linear function of x: what it writes, that it
// learns, and that nothing but the question decides the result.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/io/results.h"
#include "experiments/fit/evaluation.h"
#include "experiments/fit/layer.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

/// The output of a head whose values are all 0 has no relative error: the mean is of the others.
TEST_F(Fit, DeadHeadsAreLeftOutAndCounted) {
    const std::string dead = write("dead.h5");
    poke(dead, "/layers/3/v", {0, 1, 0}, 0, {192, 1, 16});
    const Outcome outcome = run({dead}, "dead");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(row("dead")["dead_heads"], 2) << "the two query heads of group 1";
    EXPECT_GT(row("dead")["output_error"], 0.0);
}

TEST_F(Fit, WritesARowPerLayerWithItsSplit) {
    const std::string file = write("a.h5", {.layers = {3, 5}});
    const Outcome outcome = run({file}, "out", {"--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, file_text(path("out/summary.json")));
    const json summary = json::parse(outcome.out);
    ASSERT_EQ(rows_of_table(summary, "layers").size(), 2U);
    int layer = 3;
    for (const json& row : rows_of_table(summary, "layers")) {
        EXPECT_EQ(row["layer"], layer);
        EXPECT_EQ(row["last_step"], 12);
        EXPECT_EQ(row["split"], "trained on positions 0:144, held out 144:192, of 1 sequence");
        EXPECT_EQ(row["train_queries"], 144);
        EXPECT_EQ(row["held_out_queries"], 48);
        EXPECT_EQ(row["held_out_counted"], 48);
        EXPECT_EQ(row["dead_heads"], 0);
        for (const auto& of : experiments::fit::kUntrained) EXPECT_TRUE(row[of.name].is_number());
        EXPECT_TRUE(row[experiments::fit::kFirstForced].is_number());
        const json kept =
            row_of(summary, "evaluations", {{"layer", layer}, {"step", row["best_step"]}});
        EXPECT_EQ(kept["is_kept"], true);
        for (const auto& measure : experiments::fit::kMeasures)
            EXPECT_TRUE(kept[measure.metric].is_number()) << measure.metric;
        EXPECT_LE(kept["mass_kept"], kept["oracle_mass"]);
        layer += 2;
    }
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path("out")))
        files.insert(entry.path().filename().string());
    EXPECT_EQ(files, (std::set<std::string>{"results.h5", "indexer.h5", "summary.json", "fit.txt",
                                            "tables", "run.json"}));
    EXPECT_NE(run({file}, "table").out.find("trained on positions 0:144"), std::string::npos);
}

TEST_F(Fit, ClosedFormIsExactWhereOneIndexHeadCanBeTheModels) {
    // One head, one group: index_q . index_k can be q . k itself, but for the ridge.
    const std::string file = write("a.h5", {.query_heads = 1, .kv_heads = 1});
    for (const std::string start : {"from-qk", "pca"}) {
        ASSERT_EQ(run({file}, start, {"--init", start}).code, 0);
        EXPECT_LT(curve(start, "held_out/kl")[0], 0.01);
        EXPECT_GT(curve(start, "held_out/score_recall")[0], 0.9);
    }
    ASSERT_EQ(run({file}, "normal", {"--init", "normal"}).code, 0);
    EXPECT_GT(curve("normal", "held_out/kl")[0], 1);
    EXPECT_LT(curve("normal", "held_out/score_recall")[0], 0.8);
}

TEST_F(Fit, ClosedFormHoldsWithoutRopeAndAtHalfTheFrequencies) {
    const std::string plain =
        write("plain.h5",
              {.query_heads = 1, .kv_heads = 1, .rotary_dim = 0, .state = io::RopeState::none});
    ASSERT_EQ(run({plain}, "plain").code, 0);
    EXPECT_LT(curve("plain", "held_out/kl")[0], 0.01);
    // Every second frequency, and all channels that pass: better than chance.
    const std::string rotated = write("rotated.h5", {.query_heads = 1, .kv_heads = 1});
    ASSERT_EQ(run({rotated}, "half", {"--index-rotary", "4"}).code, 0);
    ASSERT_EQ(run({rotated}, "normal", {"--index-rotary", "4", "--init", "normal"}).code, 0);
    EXPECT_LT(curve("half", "held_out/kl")[0], 0.5 * curve("normal", "held_out/kl")[0]);
}

TEST_F(Fit, ClosedFormIsExactWithInterleavedRope) {
    const std::string split = write("split.h5", {.query_heads = 1, .kv_heads = 1});
    const std::string file =
        write("interleaved.h5", {.query_heads = 1, .kv_heads = 1, .interleaved = true});
    ASSERT_EQ(run({split}, "of-split").code, 0);
    ASSERT_EQ(run({file}, "out").code, 0);
    EXPECT_LT(curve("out", "held_out/kl")[0], 0.01);
    EXPECT_NEAR(curve("out", "held_out/kl")[0], curve("of-split", "held_out/kl")[0], 1e-5);
    const io::ActivationsReader indexer(path("out/indexer.h5"));
    EXPECT_TRUE(indexer.layer(3).rope_interleaved);
    const Outcome outcome = run({split, file}, "both");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("attribute rope_layout is \"interleaved\", in "), std::string::npos)
        << outcome.err;
}

TEST_F(Fit, LearnsFromRandomWeights) {
    const std::string file = write("a.h5", {.query_heads = 1, .kv_heads = 1});
    for (const std::string norm : {"none", "rms"}) {
        ASSERT_EQ(run({file}, norm,
                      {"--init", "normal", "--steps", "150", "--lr", "3e-2", "--index-norm", norm,
                       "--warmup-steps", "100", "--eval-every", "50"})
                      .code,
                  0);
        const std::vector<double> kl = curve(norm, "held_out/kl");
        const std::vector<double> recall = curve(norm, "held_out/score_recall");
        ASSERT_EQ(kl.size(), 4U);
        EXPECT_LT(kl.back(), 0.5 * kl.front()) << norm;
        EXPECT_GT(recall.back(), recall.front()) << norm;
    }
}

/// The weights written are those of the evaluation that keeps most mass: steps so long that they
/// ruin a good start leave it as it was, which is what no step at all writes.
TEST_F(Fit, KeepsTheBestStateAndNamesIt) {
    const std::string file = write("a.h5", {.query_heads = 1, .kv_heads = 1});
    const Outcome none = run({file}, "none", {"--steps", "0", "--warmup-steps", "0"});
    ASSERT_EQ(none.code, 0) << none.err;
    EXPECT_EQ(none.out.find("Made worse"), std::string::npos);
    EXPECT_EQ(row("none")["last_step"], 0);
    EXPECT_EQ(row("none")["best_step"], 0);
    EXPECT_TRUE(curve("none", "train/kl").empty());
    const Outcome ruined =
        run({file}, "ruined", {"--lr", "10", "--steps", "8", "--eval-every", "4"});
    ASSERT_EQ(ruined.code, 0) << ruined.err;
    const std::vector<double> kept = curve("ruined", "held_out/mass_kept");
    ASSERT_EQ(kept.size(), 3U);
    ASSERT_LT(kept.back(), kept.front());
    EXPECT_EQ(row("ruined")["best_step"], 0);
    EXPECT_EQ(row("ruined")["mass_kept"], kept.front());
    EXPECT_NE(ruined.out.find("Made worse by further steps: layer 3."), std::string::npos)
        << ruined.out;
    const io::ResultsReader best(path("ruined/results.h5")), start(path("none/results.h5"));
    for (const std::string side : {"q", "k"}) {
        const std::string name = "/fit/3/weights/w_index_" + side;
        const auto a = best.read<float, 2>(name), b = start.read<float, 2>(name);
        EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data()));
    }
}

TEST(FitPace, IsToldWhereTheWorkIsLong) {
    experiments::fit::FitOptions o;
    o.steps = 1500;
    o.layers.resize(30);
    std::iota(o.layers.begin(), o.layers.end(), 0);
    EXPECT_EQ(experiments::fit::pace_text(o, 0.001), "");
    const std::string said = experiments::fit::pace_text(o, 0.24);
    EXPECT_TRUE(said.starts_with("note: about 6 min a layer, 3 h 0 min all 30 ")) << said;
    o.steps = 100;
    EXPECT_TRUE(
        experiments::fit::pace_text(o, 0.24).starts_with("note: about 24 s a layer, 12 min"));
    o.every = 4;
    EXPECT_TRUE(
        experiments::fit::pace_text(o, 0.24).starts_with("note: about 24 s a layer, 3 min all 8 "));
}

TEST_F(Fit, WarmUpDecidesTheSupport) {
    const std::string file = write("a.h5");
    ASSERT_EQ(run({file}, "six").code, 0);
    ASSERT_EQ(run({file}, "none", {"--warmup-steps", "0"}).code, 0);
    ASSERT_EQ(run({file}, "all", {"--warmup-steps", "12"}).code, 0);
    const std::vector<double> six = curve("six", "train/kl"), none = curve("none", "train/kl"),
                              all = curve("all", "train/kl");
    ASSERT_EQ(six.size(), 12U);
    EXPECT_TRUE(std::equal(six.begin(), six.begin() + 6, all.begin()));
    EXPECT_NE(six[6], all[6]);
    EXPECT_NE(none[0], all[0]);
}

TEST_F(Fit, EveryBlockSelectedIsTheFullSupport) {
    const std::string file = write("a.h5");
    ASSERT_EQ(run({file}, "full", {"--warmup-steps", "12", "--top-k", "24"}).code, 0);
    ASSERT_EQ(run({file}, "selected", {"--warmup-steps", "0", "--top-k", "24"}).code, 0);
    const std::vector<double> full = curve("full", "train/kl");
    const std::vector<double> selected = curve("selected", "train/kl");
    for (size_t n = 0; n < full.size(); ++n) EXPECT_NEAR(full[n], selected[n], 1e-5);
    EXPECT_TRUE(row("full")["mass_kept"].is_null());  // no row has more blocks than k
    const Outcome said = run({file}, "said", {"--top-k", "24"});
    EXPECT_NE(said.err.find("no held-out query sees more than --top-k = 24 blocks of --block-size"),
              std::string::npos)
        << said.err;
    EXPECT_EQ(run({file}, "fewer", {"--top-k", "23"}).err.find("no held-out query"),
              std::string::npos);
}

TEST_F(Fit, EntropiesAreThoseOfTheDistributions) {
    // One head to a group: the teacher is its attention, whose entropy msa-analyze knows; and the
    // closed form's index distribution is nearly the same.
    const std::string file = write("a.h5", {.query_heads = 1, .kv_heads = 1});
    ASSERT_EQ(run({file}, "out").code, 0);
    const Outcome analysis =
        kAnalyze({path("out/indexer.h5"), "--out", path("a"), "--selectors", "oracle",
                  "--block-size", "8", "--top-k", "4", "--queries", "144:", "--json"});
    ASSERT_EQ(analysis.code, 0) << analysis.err;
    const double dense = selector_rows(json::parse(analysis.out))[0]["entropy_dense"];
    EXPECT_NEAR(curve("out", "held_out/entropy_teacher")[0], dense, 1e-5);
    EXPECT_NEAR(curve("out", "held_out/entropy_index")[0], dense, 0.1);
    EXPECT_GT(dense, 1);
}

TEST_F(Fit, TeacherDecidesTheLossAndItsEntropy) {
    const auto both = [&](const std::string& name, const Linear& spec) {
        const std::string file = write(name + ".h5", spec);
        EXPECT_EQ(run({file}, name + "-mean").code, 0);
        EXPECT_EQ(run({file}, name + "-max", {"--teacher", "max"}).code, 0);
    };
    // One head to a group is its own mean and maximum.
    both("one", {.query_heads = 2});
    both("two", {});
    for (const std::string curve_name : {"train/kl", "held_out/kl", "held_out/entropy_teacher"}) {
        EXPECT_NEAR(curve("one-mean", curve_name)[0], curve("one-max", curve_name)[0], 1e-5);
        EXPECT_GT(std::fabs(curve("two-mean", curve_name)[0] - curve("two-max", curve_name)[0]),
                  1e-3)
            << curve_name;
    }
}

TEST_F(Fit, IndexerFileGivesAnalyzeTheSameNumbers) {
    const std::string file = write("a.h5");
    for (const std::string norm : {"none", "rms"}) {
        ASSERT_EQ(run({file}, norm, {"--index-norm", norm}).code, 0);
        const Outcome analysis = kAnalyze({path(norm + "/indexer.h5"), "--out", path(norm + "-a"),
                                           "--selectors", "index,oracle", "--block-size", "8",
                                           "--top-k", "4", "--queries", "144:", "--json"});
        ASSERT_EQ(analysis.code, 0) << analysis.err;
        const json fitted = row(norm);
        const json rows = selector_rows(json::parse(analysis.out));
        for (const json& got : rows) {
            if (got["selector"] != "index") continue;
            for (const char* name : {"block_recall", "score_recall", "mass_kept", "oracle_mass"})
                EXPECT_NEAR(got[name].get<double>(), fitted[name].get<double>(), 1e-3) << name;
        }
    }
}

TEST_F(Fit, ThreadsChangeNoBit) {
    const std::string file = write("a.h5");
    ASSERT_EQ(run({file}, "one", {"--threads", "1"}).code, 0);
    ASSERT_EQ(run({file}, "three", {"--threads", "3"}).code, 0);
    EXPECT_TRUE(same_results(path("one/results.h5"), path("three/results.h5")));
}

TEST_F(Fit, AnErrorInOneLayerKeepsTheOthers) {
    const std::string file = write("a.h5", {.layers = {3, 5, 8}});
    poke(file, "/layers/3/q", {10, 0, 0}, std::nanf(""));
    poke(file, "/layers/8/q", {10, 0, 0}, std::nanf(""));
    const Outcome outcome = run({file}, "out");
    EXPECT_EQ(outcome.code, 2);
    for (const std::string layer : {"3", "8"})
        EXPECT_NE(outcome.err.find("/layers/" + layer + "/q holds 1 values"), std::string::npos)
            << outcome.err;
    EXPECT_EQ(outcome.err.find("done before"), std::string::npos);
    EXPECT_NE(run({file}, "out").err.find("layer 5: done before"), std::string::npos);
}

TEST_F(Fit, SeveralFilesAreOneTrainingSet) {
    const std::string left = write("left.h5", {.stream = 1});
    const std::string right = write("right.h5", {.cu_seqlens = {0, 120}, .stream = 2});
    ASSERT_EQ(run({left, right}, "out", {"--split", "sequence", "--json"}).code, 0);
    const json got = row("out");
    EXPECT_EQ(got["split"], "trained on sequences 0:1, held out 1:2, of 2 sequences");
    EXPECT_EQ(got["train_queries"], 192);
    EXPECT_EQ(got["held_out_queries"], 120);
    EXPECT_EQ(got["held_out_counted"], 120 - 32);
    const io::ActivationsReader indexer(path("out/indexer.h5"));
    EXPECT_EQ(indexer.info().cu_seqlens, (std::vector<int64_t>{0, 192, 312}));
    const Tensor<float, 3> k = io::ActivationsReader(right).read(3, io::Field::k, {0, 120});
    const Tensor<float, 3> copied = indexer.read(3, io::Field::k, {192, 312});
    EXPECT_TRUE(std::equal(k.data(), k.data() + k.size(), copied.data()));
    // Position split: both sequences have both kinds.
    ASSERT_EQ(run({left, right}, "position").code, 0);
    EXPECT_EQ(row("position")["train_queries"], 144 + 120);
    EXPECT_EQ(row("position")["held_out_queries"], 48);
}

TEST_F(Fit, ADivergingFitKeepsTheLastGoodWeights) {
    // Weight decay at this rate multiplies the weights by about -10^4 in every step.
    const std::string file = write("a.h5");
    const std::vector<std::string> wild{"--lr", "1e4", "--weight-decay", "1"};
    const Outcome outcome = run({file}, "out", wild);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(
        outcome.err.find("msa-fit-indexer: " + file + ": layer 3: the loss is not finite at step"),
        std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find(" are kept in " + path("out/checkpoint-3.h5")), std::string::npos)
        << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5")));
    const io::ResultsReader kept(path("out/checkpoint-3.h5"));
    const Tensor<float, 2> w = kept.read<float, 2>("/fit/3/weights/w_index_q");
    for (int64_t n = 0; n < w.size(); ++n) ASSERT_TRUE(std::isfinite(w.data()[n]));
    const Tensor<double, 1> kl = kept.read<double, 1>("/fit/3/train/kl");
    EXPECT_GT(kl.size(), 0);
    for (int64_t n = 0; n < kl.size(); ++n) EXPECT_TRUE(std::isfinite(kl(n)));
    // Going on from there ends at the same place; where the first step fails, the start is kept.
    EXPECT_EQ(run({file}, "out", wild).err, outcome.err);
    EXPECT_NE(
        run({file}, "at-once", {"--lr", "1e30"}).err.find("the weights after step 0 are kept"),
        std::string::npos);
    const io::ResultsReader start(path("at-once/checkpoint-3.h5"));
    const Tensor<float, 2> first = start.read<float, 2>("/fit/3/weights/w_index_q");
    EXPECT_EQ(first.size(), w.size());
    const std::string other = write("b.h5", {.stream = 2});
    EXPECT_NE(run({file, other}, "two", wild).err.find(file + ", " + other + ": layer 3: the loss"),
              std::string::npos);
}

}  // namespace
}  // namespace msa::test
