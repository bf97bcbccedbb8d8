// SPDX-License-Identifier: MIT
// msa-fit-indexer --architecture dsa: that it learns, that its file is DSA's indexer for the other
// programs, and what it costs.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "tests/experiments/fit_test.h"

namespace msa::test {
namespace {

using nlohmann::json;

class FitDsa : public FitArchitecture {
protected:
    FitDsa() : FitArchitecture("dsa") {}
};

TEST_F(FitDsa, ClosedFormRanksAsTheModelWhereOneHeadCanBeTheModels) {
    // One head, one group: max(0, q . k) has the order of q . k where that is above 0, and a linear
    // function of x can be the weight 1.
    const std::string file = write("a.h5", {.query_heads = 1, .kv_heads = 1, .constant = true});
    ASSERT_EQ(fit(file, "from-qk").code, 0);
    EXPECT_GT(curve("from-qk", "held_out/score_recall")[0], 0.9);
    ASSERT_EQ(fit(file, "normal", {"--init", "normal"}).code, 0);
    EXPECT_LT(curve("normal", "held_out/score_recall")[0], 0.8);
    // The teacher is the same for both architectures.
    ASSERT_EQ(run({file}, "msa").code, 0);
    EXPECT_EQ(curve("from-qk", "held_out/entropy_teacher"),
              curve("msa", "held_out/entropy_teacher"));
}

TEST_F(FitDsa, LearnsTheModelsAttentionFromRandomWeights) {
    // Two heads of weights 1 and -1 make q . k of max(0, q . k) and max(0, -q . k).
    const std::string file =
        write("a.h5", {.cu_seqlens = {0, 768}, .query_heads = 1, .kv_heads = 1, .constant = true});
    ASSERT_EQ(fit(file, "out",
                  {"--init", "normal", "--steps", "150", "--lr", "3e-2", "--warmup-steps", "100",
                   "--eval-every", "50", "--index-heads", "3"})
                  .code,
              0);
    const std::vector<double> kl = curve("out", "held_out/kl");
    const std::vector<double> recall = curve("out", "held_out/score_recall");
    ASSERT_EQ(kl.size(), 4U);
    EXPECT_LT(kl.back(), 0.1 * kl.front());
    EXPECT_LT(recall.front(), 0.3);
    EXPECT_GT(recall.back(), 0.7);
}

TEST_F(FitDsa, EveryBlockSelectedIsTheFullSupport) {
    expect_every_block_selected_is_the_full_support();
}

TEST_F(FitDsa, IndexerFileGivesOtherProgramsTheSameNumbers) {
    const std::string file = write("a.h5");
    ASSERT_EQ(fit(file, "out", {"--index-heads", "4"}).code, 0);
    const std::string indexer = path("out/indexer.h5");
    EXPECT_EQ(io::ActivationsReader(indexer).layer(3).learned.dsa_heads, 4);
    EXPECT_FALSE(io::ActivationsReader(indexer).layer(3).has(io::Field::index_q));
    const json fitted = row("out");
    const json analyzed =
        rows_of(kAnalyze({indexer, "--out", path("a"), "--selectors", "dsa", "--block-size", "8",
                          "--top-k", "4", "--queries", "144:", "--json"}));
    for (const char* name : {"block_recall", "score_recall", "mass_kept", "oracle_mass"})
        EXPECT_NEAR(analyzed[0][name].get<double>(), fitted[name].get<double>(), 1e-3) << name;
    EXPECT_LT(fitted["mass_kept"], fitted["oracle_mass"]);

    const json compared =
        rows_of(kCompare({indexer, "--out", path("c"), "--selectors", "dsa,dsa-tokens,oracle",
                          "--block-size", "8", "--budgets", "32", "--queries", "144:", "--json"}));
    int found = 0;
    for (const json& got : compared)
        if (got["selector"] == "dsa") {
            ++found;
            EXPECT_NEAR(got["mass_kept"].get<double>(), fitted["mass_kept"].get<double>(), 1e-3);
            EXPECT_EQ(got["index_flops"], fitted["index_flops"]);
            EXPECT_EQ(got["index_bytes"], fitted["index_bytes"]);
        }
    EXPECT_EQ(found, 1);
    const Outcome asked = kAnalyze({indexer, "--out", path("i"), "--selectors", "index"});
    EXPECT_EQ(asked.code, 2);
    EXPECT_NE(asked.err.find("has no index_q and index_k"), std::string::npos) << asked.err;
    const Outcome timed = kBench({"--input", file, "--indexer", path("out/results.h5")});
    EXPECT_EQ(timed.code, 2);
    EXPECT_NE(timed.err.find("is an indexer of --architecture dsa, must be of msa"),
              std::string::npos)
        << timed.err;
}

TEST_F(FitDsa, OneFileHoldsBothArchitecturesByKeepX) {
    const std::string file = write("a.h5");
    ASSERT_EQ(run({file}, "msa", {"--keep-x"}).code, 0);
    ASSERT_EQ(fit(path("msa/indexer.h5"), "both").code, 0);
    const io::ActivationsReader one(path("msa/indexer.h5")), both(path("both/indexer.h5"));
    EXPECT_TRUE(one.layer(3).has(io::Field::x));
    EXPECT_FALSE(both.layer(3).has(io::Field::x));
    for (io::Field field : {io::Field::index_q, io::Field::index_k}) {
        const Tensor<float, 3> a = one.read(3, field, {0, 192}), b = both.read(3, field, {0, 192});
        EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data()));
    }
    const json rows =
        rows_of(kCompare({path("both/indexer.h5"), "--out", path("c"), "--selectors", "index,dsa",
                          "--block-size", "8", "--budgets", "32", "--queries", "144:", "--json"}));
    for (const json& got : rows) {
        if (got["selector"] != "index" && got["selector"] != "dsa") continue;
        const std::string of = got["selector"] == "index" ? "msa" : "both";
        EXPECT_NEAR(got["mass_kept"].get<double>(), row(of)["mass_kept"].get<double>(), 1e-3);
    }
}

TEST_F(FitDsa, CostsWhatMsaCostsButForTheWeights) {
    const std::string file = write("a.h5");
    ASSERT_EQ(run({file}, "msa").code, 0);
    const Outcome table = fit(file, "dsa");
    ASSERT_EQ(table.code, 0);
    EXPECT_NE(table.out.find("dsa: 2 index heads of 16 channels with learned weights, one choice "
                             "for all groups; scores take "),
              std::string::npos)
        << table.out;
    // 2 heads of 16 channels with 96.5 keys on average, each product times a weight.
    EXPECT_EQ(row("msa")["index_flops"], 2 * 2 * 16 * 96.5);
    EXPECT_EQ(row("dsa")["index_flops"], 2 * 2 * 17 * 96.5);
    EXPECT_EQ(row("dsa")["index_bytes"], row("msa")["index_bytes"]);
}

TEST_F(FitDsa, ThreadsAndResumeChangeNoBit) {
    expect_threads_and_resume_change_no_bit({"--steps", "60", "--eval-every", "3"});
}

}  // namespace
}  // namespace msa::test
