// SPDX-License-Identifier: MIT
// msa-pretrain from its command line to its files, on a model and a text of a few kilobytes.
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "tests/experiments/pretrain_test.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

TEST_F(Pretrain, WritesCurvesAndASummary) {
    text_file("a.txt");
    const Outcome outcome = run("out");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(curve("out", "/train/step"), (std::vector<double>{0, 2, 4, 6, 8, 10, 11}));
    EXPECT_EQ(curve("out", "/probe/step"), (std::vector<double>{4, 8, 12}));
    EXPECT_EQ(curve("out", "/evaluation/step"), (std::vector<double>{5, 10, 12}));
    const json all = summary("out");
    const json trained = row_of(all, "trained");
    EXPECT_EQ(trained["last_step"], 12);
    EXPECT_NEAR(trained["bits_per_byte"], 8, 1.5);  // little is learned
    EXPECT_GT(trained["tokens_per_second"], 0);
    EXPECT_EQ(rows_of_table(all, "tasks").size(), 5U);
    EXPECT_EQ(row_of(all, "tasks", {{"task", "needle"}})["answers"], 2);
    ASSERT_EQ(rows_of_table(all, "layers").size(), 2U);
    EXPECT_EQ(rows_of_table(all, "heads").size(), 4U);
    for (const json& row : rows_of_table(all, "layers")) {
        EXPECT_GT(row["kl"], 0);
        EXPECT_LE(row["mass_kept"].get<double>(), row["oracle_mass"].get<double>() + 1e-6);
        EXPECT_GT(row["entropy_dense"], row["entropy_sparse"]);
        EXPECT_TRUE(row["far_overlap"].is_null());  // of one group
        EXPECT_TRUE(row["learned_sink_mass"].is_null());
        double mass = 0;
        for (int head = 0; head < 2; ++head) {
            const json own = row_of(all, "heads", {{"layer", row["layer"]}, {"head", head}});
            mass += own["head_sink_mass_dense"].get<double>() / 2;
            EXPECT_TRUE(own["head_learned_sink_mass"].is_null());
        }
        EXPECT_NEAR(row["sink_mass_dense"], mass, 1e-12);
    }
    const std::string csv = file_text(path("out/curves.csv"));
    EXPECT_EQ(csv.find("step,group,name,part,value\n0,train,loss,,"), 0U) << csv.substr(0, 99);
    EXPECT_NE(csv.find("\n12,probe,score_recall,1,"), std::string::npos);
    EXPECT_NE(outcome.out.find("bits per byte"), std::string::npos);
}

TEST_F(Pretrain, TheProbeTellsLocalBlocksFarOnesAndHeads) {
    text_file("a.txt");
    const Words more{"--kv-heads", "2", "--sink", "--forced-local", "2", "--attention", "full,msa"};
    ASSERT_EQ(run("out", more).code, 0);
    const json all = summary("out"), rows = rows_of_table(all, "layers");
    EXPECT_TRUE(rows[0]["local_rate"].is_null());
    EXPECT_EQ(rows[1]["local_rate"], 1);  // it is forced
    EXPECT_GE(rows[1]["far_overlap"], 0);
    EXPECT_LE(rows[1]["far_overlap"], 1);
    for (const json& row : rows) {
        double mass = 0;
        for (int head = 0; head < 2; ++head) {
            const json own = row_of(all, "heads", {{"layer", row["layer"]}, {"head", head}});
            EXPECT_GT(own["head_learned_sink_mass"], 0);
            mass += own["head_learned_sink_mass"].get<double>() / 2;
        }
        EXPECT_NEAR(row["learned_sink_mass"], mass, 1e-12);
    }
    const io::ResultsReader results(path("out/results.h5"));
    const Tensor<double, 2> heads = results.read<double, 2>("/heads/learned_sink_mass");
    EXPECT_EQ(heads.shape(), (Shape<2>{2, 2}));
    EXPECT_EQ(heads(1, 1),
              row_of(all, "heads", {{"layer", 1}, {"head", 1}})["head_learned_sink_mass"]);
    // A sink of logit 0 beside 1 to 64 keys whose logits are around 0, with deviation 1: each
    // weighs sqrt(e) on the mean.
    double share = 0;
    for (int keys = 1; keys <= 64; ++keys) share += 1 / (keys * std::exp(0.5) + 1) / 64;
    EXPECT_NEAR(heads(0, 0), share, 0.2 * share);
}

TEST_F(Pretrain, TheLossOfANanoRunFalls) {
    text_file("a.txt");
    ASSERT_EQ(run("out", {"--steps", "60", "--model-dim", "32", "--lr", "0.01", "--exercises", "0",
                          "--eval-exercises", "0", "--eval-every", "0", "--probe-every", "0"})
                  .code,
              0);
    const std::vector<double> losses = curve("out", "/train/loss");
    EXPECT_NEAR(losses.front(), std::log(256.0), 0.1);
    EXPECT_LT(losses.back(), 2.5);
    EXPECT_LT(row_of(summary("out"), "trained")["bits_per_byte"], 3.6);
}

TEST_F(Pretrain, EveryChoiceOfTrainingRuns) {
    text_file("a.txt");
    for (const Words& choice : std::vector<Words>{{"--attention", "full"},
                                                  {"--attention", "window", "--sink"},
                                                  {"--attention", "full,msa"},
                                                  {"--attention", "passive"},
                                                  {"--signals", "lm"},
                                                  {"--signals", "both", "--detach", "off"},
                                                  {"--kl-support", "full", "--index-norm", "none"},
                                                  {"--short-documents", "pack"},
                                                  {"--forced-first", "1", "--tasks", "copy"}}) {
        Words more{"--overwrite", "--steps", "6"};
        more.insert(more.end(), choice.begin(), choice.end());
        const Outcome outcome = run("out", more);
        EXPECT_EQ(outcome.code, 0) << choice[1] << outcome.err;
    }
}

TEST_F(Pretrain, KilledAndResumedGivesTheSameBits) {
    text_file("a.txt");
    ASSERT_EQ(run("whole").code, 0);
    int killed = 0, code = -1;
    for (int64_t delay = 30000; code != 0; delay += delay / 4) {
        code =
            run_for("msa-pretrain", args("killed", {"--resume"}), std::chrono::microseconds(delay));
        ASSERT_TRUE(code == 0 || code == -1) << code;
        killed += code == -1 ? 1 : 0;
    }
    EXPECT_GT(killed, 2);
    EXPECT_TRUE(same_weights("killed", "whole"));
    EXPECT_TRUE(same_results(path("killed/results.h5"), path("whole/results.h5")));
}

TEST_F(Pretrain, ThreadsChangeNoBit) {
    text_file("a.txt");
    ASSERT_EQ(run("one", {"--threads", "1"}).code, 0);
    ASSERT_EQ(run("three", {"--threads", "3"}).code, 0);
    EXPECT_TRUE(same_weights("one", "three"));
    EXPECT_TRUE(same_results(path("one/results.h5"), path("three/results.h5")));
}

TEST_F(Pretrain, InterruptedItKeepsTheStep) {
    text_file("a.txt");
    Words more{"--steps", "100000", "--eval-every", "0", "--probe-every", "0", "--save-every", "0"};
    EXPECT_EQ(stop_at_work(more), 130);
    const Outcome again = run("out", more);
    EXPECT_EQ(again.code, 2);
    EXPECT_NE(again.err.find("out: holds an unfinished run; --resume continues it"),
              std::string::npos)
        << again.err;
}

TEST_F(Pretrain, ADivergingRunKeepsTheLastGoodWeights) {
    text_file("a.txt");
    // Weights that decay by more than all of themselves grow a thousandfold in each step.
    const Outcome outcome =
        run("out", {"--weight-decay", "1e5", "--lr", "0.01", "--lr-warmup", "0", "--save-every",
                    "1", "--eval-every", "0", "--probe-every", "0"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("diverged: the loss or its gradient is not finite after "),
              std::string::npos)
        << outcome.err;
    const io::ResultsReader kept(path("out/checkpoint.h5"));
    for (const io::DatasetInfo& dataset : kept.datasets("/weights"))
        kept.visit(dataset, [&](std::span<const double> values) {
            for (double value : values) ASSERT_TRUE(std::isfinite(value)) << dataset.path;
        });
}

TEST_F(Pretrain, AFullDiskLeavesTheCheckpointBefore) {
    text_file("a.txt");
    Words more{"--steps", "100000", "--eval-every", "0", "--probe-every", "0", "--save-every", "0"};
    ASSERT_EQ(stop_at_work(more), 130);
    const std::string before = file_text(path("out/checkpoint.h5"));
    more.insert(more.end(), {"--resume"});
    more[7] = "1";
    constexpr size_t kUlimitBlock = 512;
    // In the middle of the unit's file, and where that fits, and what is made of it does not.
    std::vector<size_t> limits{before.size() / 2};
    for (size_t less = 8192; less < 14336; less += 1024) limits.push_back(before.size() - less);
    for (const size_t bytes : limits) {
        // HDF5 loses a buffer of 4 KB of a file that it cannot close.
        std::string line = concat("ulimit -f ", bytes / kUlimitBlock,
                                  "; ASAN_OPTIONS=detect_leaks=0 ", MSA_BIN_DIR, "/msa-pretrain");
        for (const std::string& word : args("out", more)) line += " '" + word + "'";
        const int status = std::system((line + " 2> " + path("err.txt")).c_str());
        EXPECT_EQ(WEXITSTATUS(status), 2) << bytes << " of " << before.size();
        const std::string said = file_text(path("err.txt"));
        EXPECT_NE(said.find("File too large"), std::string::npos) << said;
        EXPECT_NE(said.find("steps are kept in " + path("out/checkpoint.h5")), std::string::npos)
            << said;
        EXPECT_TRUE(file_text(path("out/checkpoint.h5")) == before);
    }
}

TEST_F(Pretrain, ContinuesFromADenseCheckpoint) {
    text_file("a.txt");
    ASSERT_EQ(run("dense", {"--attention", "full", "--steps", "40", "--lr", "0.01"}).code, 0);
    const Words from{"--start-from",   path("dense/checkpoint.h5"),
                     "--steps",        "2",
                     "--log-every",    "1",
                     "--exercises",    "0",
                     "--warmup-steps", "1"};
    const Outcome outcome = run("cpt", from);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_LT(curve("cpt", "/train/loss")[0], 4.5);  // and not ln 256 = 5.5
    Words wide = from;
    wide.insert(wide.end(), {"--hidden-dim", "24"});
    EXPECT_NE(
        refusal(wide).find(
            "dense/checkpoint.h5: layers.0.mlp.gate_proj.weight is [16, 16], must be [24, 16]"),
        std::string::npos);
}

/// The trunk ends behind its warm-up, at a step where the whole run takes no look.
TEST_F(Pretrain, AForkWithTheSameOptionsContinuesItsTrunkBitForBit) {
    text_file("a.txt");
    ASSERT_EQ(run("whole").code, 0);
    ASSERT_EQ(run("trunk", {"--until", "7"}).code, 0);
    EXPECT_EQ(row_of(summary("trunk"), "trained")["last_step"], 7);
    const Words fork{"--start-from", path("trunk/checkpoint.h5"), "--fork"};
    ASSERT_EQ(run("fork", fork).code, 0);
    EXPECT_TRUE(same_weights("fork", "whole"));
    for (const char* name : {"/train/step", "/train/loss", "/probe/step", "/evaluation/step",
                             "/evaluation/bits_per_byte"})
        EXPECT_EQ(curve("fork", name), curve("whole", name)) << name;
    EXPECT_EQ(evaluation("fork"), evaluation("whole"));
    // Killed, it is at its trunk again, or at its own checkpoint.
    Words resumed = fork;
    resumed.emplace_back("--resume");
    int code = -1;
    for (int64_t delay = 30000; code != 0; delay += delay / 4)
        code = run_for("msa-pretrain", args("killed", resumed), std::chrono::microseconds(delay));
    EXPECT_TRUE(same_weights("killed", "whole"));
}

/// Arms differ behind the trunk alone; what is new in one of them changes nothing at first.
TEST_F(Pretrain, ArmsOfATrunkShareItsStepsAndStartAsIt) {
    text_file("a.txt");
    const Words often{"--log-every", "1", "--probe-every", "0", "--eval-every", "0"};
    Words trunk = often;
    trunk.insert(trunk.end(), {"--until", "4"});
    ASSERT_EQ(run("trunk", trunk).code, 0);
    const auto losses = [&](const std::string& name, const Words& choice) {
        Words more = often;
        more.insert(more.end(), {"--start-from", path("trunk/checkpoint.h5"), "--fork"});
        more.insert(more.end(), choice.begin(), choice.end());
        const Outcome outcome = run(name, more);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return curve(name, "/train/loss");
    };
    const std::vector<double> msa = losses("msa", {}),
                              passive = losses("passive", {"--attention", "passive"}),
                              full = losses("full", {"--attention", "full"}),
                              window = losses("window", {"--attention", "window"}),
                              both = losses("both", {"--signals", "both"});
    ASSERT_EQ(msa.size(), 12U);
    EXPECT_TRUE(std::equal(msa.begin(), msa.begin() + 4, window.begin()));
    EXPECT_EQ(passive, full);    // of which one has no Index Branch
    EXPECT_EQ(both[4], msa[4]);  // its W_o_idx starts at 0
    EXPECT_NE(both[11], msa[11]);
    EXPECT_NE(window[4], msa[4]);
    EXPECT_NE(passive[4], msa[4]);
}

TEST_F(Pretrain, WhatIsNoTrunkOfARunIsRefusedAndNothingIsLost) {
    text_file("a.txt");
    ASSERT_EQ(run("trunk", {"--until", "6"}).code, 0);
    const std::string trunk = path("trunk/checkpoint.h5"), before = file_text(trunk);
    const auto forked = [&](const Words& more) {
        Words all{"--start-from", trunk, "--fork"};
        all.insert(all.end(), more.begin(), more.end());
        const std::string said = refusal(all);
        EXPECT_NE(said.find(trunk), std::string::npos) << said;
        return said;
    };
    EXPECT_NE(forked({"--hidden-dim", "24"})
                  .find("layers.0.mlp.gate_proj.weight is [16, 16], must be [24, 16]"),
              std::string::npos);
    EXPECT_NE(forked({"--seed", "2"}).find("seed is 0 there and 2 here"), std::string::npos);
    EXPECT_NE(forked({"--exercises", "0.1"}).find("exercises is 0.3 there and 0.1 here"),
              std::string::npos);
    EXPECT_NE(forked({"--steps", "6"}).find("has 6 steps behind it, a fork goes on to --steps = 6"),
              std::string::npos);
    std::ofstream(path("a.txt"), std::ios::app) << std::string(300, 'q');
    EXPECT_NE(forked({}).find("read another a.txt than this run does"), std::string::npos);
    text_file("a.txt");
    EXPECT_TRUE(file_text(trunk) == before);
    EXPECT_NE(refusal({"--fork"}).find("--fork needs the trunk: --start-from FILE"),
              std::string::npos);
    EXPECT_NE(refusal({"--until", "13"}).find("--until is 13"), std::string::npos);
    // Interrupted, a trunk is none yet.
    ASSERT_EQ(stop_at_work({"--steps", "100000", "--eval-every", "0", "--probe-every", "0"}), 130);
    EXPECT_NE(refusal({"--steps", "200000", "--start-from", path("out/checkpoint.h5"), "--fork"})
                  .find("is a trunk that is not finished: "),
              std::string::npos);
}

TEST_F(Pretrain, ACheckpointOfAnotherRunIsRefused) {
    text_file("a.txt");
    ASSERT_EQ(run("refused").code, 0);
    std::filesystem::remove(path("refused/results.h5"));
    EXPECT_NE(refusal({"--resume", "--model-dim", "24"}).find("model_dim"), std::string::npos);
}

TEST_F(Pretrain, ItsCaptureIsAnalysed) {
    text_file("a.txt");
    const Outcome outcome = run("out", {"--capture", "2", "--sink"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Outcome analysed =
        kAnalyze({path("out/activations.h5"), "--out", path("analysed"), "--selectors", "index"});
    ASSERT_EQ(analysed.code, 0) << analysed.err;
    const io::ActivationsReader capture(path("out/activations.h5"));
    EXPECT_EQ(capture.info().cu_seqlens, (std::vector<int64_t>{0, 64, 128}));
    EXPECT_EQ(capture.tokens().size(), 128U);
    EXPECT_EQ(capture.layer(1).own_top_k, 3);
    EXPECT_EQ(capture.layer(1).own_attention.at("sinks").size(), 2U);
    const Outcome later = run("out", {"--capture", "1", "--sink", "--resume"});
    ASSERT_EQ(later.code, 0) << later.err;
    EXPECT_EQ(io::ActivationsReader(path("out/activations.h5")).info().tokens(), 64);
    const json row = row_of(report_of(path("analysed")), "selectors");
    EXPECT_GT(row["mass_kept"], 0.3);
}

TEST_F(Pretrain, TextMayBeHeldOutByFile) {
    text_file("a.txt");
    std::ofstream(path("b.txt")) << std::string(200, 'q');
    ASSERT_EQ(run("out", {"--held-out-text", path("b.txt")}).code, 0);
    EXPECT_EQ(row_of(summary("out"), "positions")["scored_bytes"], 128);
    const io::ResultsReader results(path("out/results.h5"));
    EXPECT_EQ(results.run().inputs.count("b.txt"), 1U);
}

TEST_F(Pretrain, HeldOutFilesAreToldApart) {
    text_file("a.txt");
    std::ofstream(path("b.txt")) << std::string(200, 'q');
    std::ofstream(path("c.txt")) << std::string(150, 'z') << '\0' << std::string(70, 'y');
    std::ofstream(path("d.txt")) << std::string(150, 'x');
    ASSERT_EQ(run("out", {"--held-out-text", path("b.txt"), path("c.txt"), "--held-out-text",
                          path("d.txt"), "--eval-sequences", "60"})
                  .code,
              0);
    const json all = row_of(summary("out"), "trained"),
               files = rows_of_table(summary("out"), "files");
    ASSERT_EQ(files.size(), 3U);
    EXPECT_EQ(files[0]["file"], "b");
    EXPECT_EQ(files[1]["file"], "c");
    EXPECT_EQ(files[2]["file"], "d");
    double bits = 0;
    int64_t bytes = 0;
    for (const json& file : files) {
        EXPECT_GT(file["scored_bytes"], 64 * 8);  // of 60 sequences about a third each
        bytes += file["scored_bytes"].get<int64_t>();
        bits += file["bits_per_byte"].get<double>() * file["scored_bytes"].get<double>();
    }
    EXPECT_EQ(bytes, all["scored_bytes"]);
    EXPECT_NEAR(bits / static_cast<double>(bytes), all["bits_per_byte"], 1e-9);
    EXPECT_NE(files[0]["bits_per_byte"], files[1]["bits_per_byte"]);
}

/// So that seeds do not differ by samples of text.
TEST_F(Pretrain, EverySeedIsAskedAboutTheSameText) {
    text_file("a.txt");
    ASSERT_EQ(run("one", {"--lr", "0"}).code, 0);
    ASSERT_EQ(
        run("two", {"--lr", "0", "--start-from", path("one/checkpoint.h5"), "--seed", "2"}).code,
        0);
    EXPECT_EQ(evaluation("one"), evaluation("two"));
}

TEST_F(Pretrain, AttentionIsProbedMoreOftenAtFirst) {
    text_file("a.txt");
    ASSERT_EQ(run("out", {"--steps", "50", "--probe-every", "40", "--eval-every", "0"}).code, 0);
    std::vector<double> steps;
    for (int step = 0; step <= 40; step += 2) steps.push_back(step);
    steps.push_back(50);
    EXPECT_EQ(curve("out", "/probe/step"), steps);
}

TEST_F(Pretrain, RefusalsNameTheValueAndTheRule) {
    text_file("a.txt", 40, 50);
    const std::string short_text = refusal({});
    EXPECT_NE(short_text.find("training text: " + path("a.txt")), std::string::npos);
    EXPECT_NE(short_text.find("the longest document has 50 bytes, must have at least 65"),
              std::string::npos);
    text_file("a.txt");
    EXPECT_NE(refusal({"--top-k", "9"})
                  .find("--top-k times --block-size is 72, must be at most the context of 64"),
              std::string::npos);
    EXPECT_NE(refusal({"--preset", "huge"}).find("nano, pilot, large"), std::string::npos);
    EXPECT_NE(refusal({"--attention", "full,local"}).find("full, msa, window"), std::string::npos);
    EXPECT_NE(
        refusal({"--attention", "full,msa,msa"})
            .find("attention is given for 3 layers, must be given once, or for each of the 2"),
        std::string::npos);
    for (const std::string option : {"--warmup-steps", "--lr-warmup"})
        EXPECT_NE(refusal({option, "13"}).find(option + " is 13, must be from 0 to 12"),
                  std::string::npos)
            << option;
    EXPECT_NE(refusal({"--held-out-share", "0"}).find("share is 0, must"), std::string::npos);
    EXPECT_NE(refusal({"--eval-lengths", "65"}).find("--eval-lengths names 65"), std::string::npos);
    std::ofstream(path("a.txt")).close();
    EXPECT_NE(refusal({}).find("a.txt"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("refused/results.h5")));
}

}  // namespace
}  // namespace msa::test
