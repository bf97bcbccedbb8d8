// SPDX-License-Identifier: MIT
// msa-fit-indexer --architecture seerattention: where it starts, that it learns, that its file is
// the gate for the other programs, what it costs, and what is refused.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "tests/experiments/fit_test.h"

namespace msa::test {
namespace {

using nlohmann::json;

class FitSeerAttention : public FitArchitecture {
protected:
    FitSeerAttention() : FitArchitecture("seerattention") {}
    static json row_of(const json& rows, const std::string& selector) {
        for (const json& row : rows)
            if (row["selector"] == selector) return row;
        ADD_FAILURE() << selector;
        return {};
    }
    static void expect_refused(const Outcome& outcome, const std::string& message) {
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    }
};

/// Without RoPE, the closed form is the mean of the group's queries times the block's mean key.
TEST_F(FitSeerAttention, StartsAsTheMeanKey) {
    const std::string file = write("a.h5", {.rotary_dim = 0});
    ASSERT_EQ(fit(file, "out",
                  {"--index-rotary", "0", "--steps", "1", "--warmup-steps", "1", "--lr", "0"})
                  .code,
              0);
    const json rows = rows_of(kAnalyze({path("out/indexer.h5"), "--out", path("a"), "--selectors",
                                        "seerattention,mean-key", "--json"}));
    const json gate = row_of(rows, "seerattention"), mean_key = row_of(rows, "mean-key");
    for (const char* name : {"block_recall", "mass_kept"})
        EXPECT_NEAR(gate[name].get<double>(), mean_key[name].get<double>(), 1e-3) << name;
    EXPECT_LT(gate["mass_kept"], gate["oracle_mass"]);
}

TEST_F(FitSeerAttention, LearnsTheModelsAttentionFromRandomWeights) {
    const std::string file =
        write("a.h5", {.cu_seqlens = {0, 768}, .query_heads = 2, .kv_heads = 1});
    ASSERT_EQ(fit(file, "out",
                  {"--init", "normal", "--steps", "600", "--warmup-steps", "600", "--lr", "1e-2",
                   "--eval-every", "600"})
                  .code,
              0);
    // The seed is fixed: the KL falls from 9.06 to 1.17, the recall grows from 0.075 to 0.195.
    const std::vector<double> kl = curve("out", "held_out/kl");
    const std::vector<double> recall = curve("out", "held_out/score_recall");
    ASSERT_EQ(kl.size(), 2U);
    EXPECT_LT(kl.back(), 0.2 * kl.front());
    EXPECT_GT(recall.back(), 2 * recall.front());
    EXPECT_GT(curve("out", "held_out/entropy_teacher")[0], 0.5);
}

TEST_F(FitSeerAttention, TheLayoutOfRopeDoesNotMatter) {
    ASSERT_EQ(fit(write("split.h5"), "split").code, 0);
    ASSERT_EQ(fit(write("pairs.h5", {.interleaved = true}), "pairs").code, 0);
    const std::vector<double> split = curve("split", "train/kl"),
                              pairs = curve("pairs", "train/kl");
    for (size_t n = 0; n < split.size(); ++n) EXPECT_NEAR(split[n], pairs[n], 1e-5);
}

TEST_F(FitSeerAttention, EveryBlockSelectedIsTheFullSupport) {
    expect_every_block_selected_is_the_full_support();
}

TEST_F(FitSeerAttention, TakesTheSourcesTeacherUnlessAsked) {
    const std::string file = write("a.h5", {.with_x = false});  // the gate reads q and k alone
    ASSERT_EQ(kFit({file, "--out", path("bare"), "--architecture", "seerattention", "--steps", "2",
                    "--block-size", "8", "--index-dim", "16"})
                  .code,
              0);  // all of them on the full support
    EXPECT_EQ(io::ResultsReader(path("bare/results.h5")).number("/fit/3", "warmup_steps"), 2);
    ASSERT_EQ(fit(file, "usual").code, 0);
    ASSERT_EQ(fit(file, "max", {"--teacher", "max"}).code, 0);
    ASSERT_EQ(fit(file, "mean", {"--teacher", "mean"}).code, 0);
    EXPECT_EQ(curve("usual", "train/kl"), curve("max", "train/kl"));
    EXPECT_GT(std::fabs(curve("usual", "train/kl")[0] - curve("mean", "train/kl")[0]), 1e-3);
}

TEST_F(FitSeerAttention, IndexerFileGivesOtherProgramsTheSameNumbers) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 192, 299}});
    ASSERT_EQ(fit(file, "out", {"--index-dim", "32", "--index-norm", "rms"}).code, 0);
    const std::string indexer = path("out/indexer.h5");
    const io::ActivationsReader reader(indexer);
    EXPECT_EQ(reader.layer(3).learned.gate_dim, 32);
    EXPECT_EQ(reader.layer(3).learned.gate_block_size, 8);
    EXPECT_EQ(reader.info().rows(reader.layer(3), io::Field::gate_k), 24 + 14);
    EXPECT_FALSE(reader.layer(3).has(io::Field::index_q));
    const json fitted = row("out");
    const json analyzed =
        rows_of(kAnalyze({indexer, "--out", path("a"), "--selectors", "seerattention", "--top-k",
                          "4", "--queries", "144:192", "--json"}));
    for (const char* name : {"block_recall", "score_recall", "mass_kept", "oracle_mass"})
        EXPECT_NEAR(analyzed[0][name].get<double>(), fitted[name].get<double>(), 1e-3) << name;

    const json compared =
        rows_of(kCompare({indexer, "--out", path("c"), "--selectors",
                          "seerattention,seerattention:threshold=0.05,oracle", "--block-size", "8",
                          "--budgets", "32", "--queries", "144:192", "--json"}));
    const json got = row_of(compared, "seerattention");
    EXPECT_NEAR(got["mass_kept"].get<double>(), fitted["mass_kept"].get<double>(), 1e-3);
    EXPECT_EQ(got["index_flops"], fitted["index_flops"]);
    EXPECT_EQ(got["index_bytes"], fitted["index_bytes"]);
    EXPECT_NE(row_of(compared, "seerattention:threshold=0.05")["blocks_kept"], got["blocks_kept"]);
}

TEST_F(FitSeerAttention, FileOfTheGateServesAdviceAndReuse) {
    const std::string file = write("a.h5", {.layers = {3, 4}});
    ASSERT_EQ(fit(file, "out").code, 0);
    const std::string indexer = path("out/indexer.h5");
    const Outcome advice = kAdvise({indexer, "--out", path("advice"), "--selectors",
                                    "seerattention,oracle", "--block-size", "8,16", "--top-k",
                                    "2,4", "--keep", "0.3", "--context", "4096", "--json"});
    EXPECT_EQ(advice.code, 0) << advice.err;
    // Of 16 tokens: k of 2 and 4, 0 and 1 first and 1 and 2 newest blocks, but for 3 in a k of 2.
    EXPECT_NE(advice.err.find("note: 7 settings are left out: what their selectors need is for "
                              "another block size"),
              std::string::npos)
        << advice.err;
    const Outcome reuse = kReuse({indexer, "--out", path("reuse"), "--selectors", "seerattention",
                                  "--top-k", "4", "--json"});
    EXPECT_EQ(reuse.code, 0) << reuse.err;
}

TEST_F(FitSeerAttention, OneFileHoldsGateAndIndexBranch) {
    const std::string file = write("a.h5");
    ASSERT_EQ(fit(file, "gate", {"--keep-x"}).code, 0);
    ASSERT_EQ(run({path("gate/indexer.h5")}, "both").code, 0);
    const io::ActivationsReader one(path("gate/indexer.h5")), both(path("both/indexer.h5"));
    for (io::Field field : {io::Field::gate_q, io::Field::gate_k}) {
        const QueryRange all{0, one.info().rows(one.layer(3), field)};
        const Tensor<float, 3> a = one.read(3, field, all), b = both.read(3, field, all);
        EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data()));
    }
    const json rows = rows_of(
        kCompare({path("both/indexer.h5"), "--out", path("c"), "--selectors", "index,seerattention",
                  "--block-size", "8", "--budgets", "32", "--queries", "144:", "--json"}));
    for (const auto& [selector, of] : {std::pair{"index", "both"}, {"seerattention", "gate"}})
        EXPECT_NEAR(row_of(rows, selector)["mass_kept"].get<double>(),
                    row(of)["mass_kept"].get<double>(), 1e-3);
}

TEST_F(FitSeerAttention, CostsOneKeyPerBlock) {
    const Outcome table = fit(write("a.h5"), "out");
    ASSERT_EQ(table.code, 0) << table.err;
    const std::string title = report_of(path("out"))["title"];
    EXPECT_NE(title.find("seerattention: 2 index heads of 16 channels, one of each group, with "
                         "pooled keys of each group; scores take "),
              std::string::npos)
        << title;
    // 11.5 blocks before a query's own on average, 2 groups of 16 channels.
    EXPECT_EQ(row("out")["index_flops"], 2 * 2 * 16 * 11.5);
    EXPECT_EQ(row("out")["index_bytes"], 2 * 2 * 16 * 11.5);
}

TEST_F(FitSeerAttention, RefusesWhatItIsNotFor) {
    const std::string file = write("a.h5");
    expect_refused(
        fit(file, "heads", {"--index-heads", "4"}),
        "--index-heads is 4, which --architecture seerattention lacks: it has one head per group");
    expect_refused(kAnalyze({file, "--out", path("none"), "--selectors", "seerattention"}),
                   "a.h5: has no gate_q and gate_k, which selector seerattention needs");
    ASSERT_EQ(fit(file, "out").code, 0);
    const std::string indexer = path("out/indexer.h5");
    const std::string other = "no gate_q and gate_k for blocks of 16 tokens (they are for 8)";
    expect_refused(kAnalyze({indexer, "--out", path("a"), "--selectors", "seerattention",
                             "--block-size", "16"}),
                   other + ", which selector seerattention needs");
    expect_refused(kCompare({indexer, "--out", path("c"), "--selectors", "seerattention",
                             "--block-size", "16"}),
                   "cannot run on layer 3: the layer has " + other);
    expect_refused(kCompare({indexer, "--out", path("c"), "--selectors", "seerattention",
                             "--ablation", "block-size", "--block-size", "8"}),
                   "its operands are for one block size");
    expect_refused(kAdvise({indexer, "--out", path("v"), "--selectors", "seerattention",
                            "--block-size", "16", "--context", "4096"}),
                   "layer 3 has " + other + ", which selector seerattention needs");
    expect_refused(
        kAnalyze({indexer, "--out", path("t"), "--selectors", "seerattention:threshold=0.1"}),
        "which spends its budget unevenly; msa-compare alone takes it");
    expect_refused(kBench({"--input", file, "--indexer", path("out/results.h5")}),
                   "is an indexer of --architecture seerattention, must be of msa");
    // Where nobody asked for it, a gate for other blocks is left out.
    EXPECT_EQ(kAnalyze({indexer, "--out", path("l"), "--block-size", "16"}).code, 0);
}

TEST_F(FitSeerAttention, ThreadsAndResumeChangeNoBit) {
    expect_threads_and_resume_change_no_bit(
        {"--steps", "60", "--eval-every", "3", "--index-norm", "rms"});
}

}  // namespace
}  // namespace msa::test
