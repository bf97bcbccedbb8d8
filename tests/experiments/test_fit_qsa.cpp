// SPDX-License-Identifier: MIT
// msa-fit-indexer --architecture qsa: where it starts, that it learns, that its file is QSA's
// indexer for the other programs, what it costs, and what is refused.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "tests/experiments/fit_test.h"

namespace msa::test {
namespace {

using nlohmann::json;

class FitQsa : public FitArchitecture {
protected:
    FitQsa() : FitArchitecture("qsa") {}
    static json row_of(const json& rows, const std::string& selector) {
        for (const json& row : rows)
            if (row["selector"] == selector) return row;
        ADD_FAILURE() << selector;
        return {};
    }
};

TEST_F(FitQsa, LearnsTheModelsAttentionFromRandomWeights) {
    const std::string file =
        write("a.h5", {.cu_seqlens = {0, 768}, .query_heads = 1, .kv_heads = 1});
    ASSERT_EQ(fit(file, "out",
                  {"--init", "normal", "--steps", "200", "--lr", "3e-2", "--warmup-steps", "200",
                   "--eval-every", "100", "--index-heads", "3"})
                  .code,
              0);
    const std::vector<double> kl = curve("out", "held_out/kl");
    const std::vector<double> recall = curve("out", "held_out/score_recall");
    ASSERT_EQ(kl.size(), 3U);
    // The seed is fixed: the KL falls from 1.89 to 1.28.
    EXPECT_LT(kl.back(), 0.75 * kl.front());
    EXPECT_GT(recall.back(), 1.5 * recall.front());
    EXPECT_GT(curve("out", "held_out/entropy_teacher")[0], 0.5);
}

/// The closed form is better than chance, and the steps that follow do not lose it.
TEST_F(FitQsa, StartsFromTheModelsQueriesAndKeys) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 768}});
    ASSERT_EQ(fit(file, "from-qk").code, 0);
    ASSERT_EQ(fit(file, "normal", {"--init", "normal"}).code, 0);
    EXPECT_GT(curve("from-qk", "held_out/mass_kept")[0], curve("normal", "held_out/mass_kept")[0]);
}

TEST_F(FitQsa, EveryBlockSelectedIsTheFullSupport) {
    expect_every_block_selected_is_the_full_support();
}

TEST_F(FitQsa, IndexerFileGivesOtherProgramsTheSameNumbers) {
    // 48 and 26 pieces; one token of the first sequence and three of the second are in none.
    const std::string file = write("a.h5", {.cu_seqlens = {0, 193, 300}});
    ASSERT_EQ(
        fit(file, "out", {"--index-heads", "4", "--index-dim", "32", "--index-norm", "rms"}).code,
        0);
    const std::string indexer = path("out/indexer.h5");
    const io::ActivationsReader reader(indexer);
    EXPECT_EQ(reader.layer(3).learned.qsa_heads, 4);
    EXPECT_EQ(reader.layer(3).learned.qsa_dim, 32);
    EXPECT_EQ(reader.layer(3).learned.qsa_compress, 4);
    EXPECT_EQ(reader.info().rows(reader.layer(3), io::Field::qsa_k), 48 + 26);
    EXPECT_FALSE(reader.layer(3).has(io::Field::index_q));
    const json fitted = row("out");
    const json analyzed =
        rows_of(kAnalyze({indexer, "--out", path("a"), "--selectors", "qsa", "--block-size", "8",
                          "--top-k", "4", "--queries", "144:193", "--json"}));
    for (const char* name : {"block_recall", "score_recall", "mass_kept", "oracle_mass"})
        EXPECT_NEAR(analyzed[0][name].get<double>(), fitted[name].get<double>(), 1e-3) << name;
    EXPECT_LT(fitted["mass_kept"], fitted["oracle_mass"]);

    const json compared = rows_of(
        kCompare({indexer, "--out", path("c"), "--selectors", "qsa,qsa-tokens,oracle",
                  "--block-size", "8", "--budgets", "32", "--queries", "144:193", "--json"}));
    const json got = row_of(compared, "qsa");
    EXPECT_NEAR(got["mass_kept"].get<double>(), fitted["mass_kept"].get<double>(), 1e-3);
    EXPECT_NEAR(got["index_flops"].get<double>(), fitted["index_flops"].get<double>(), 1e-9);
    EXPECT_NEAR(got["index_bytes"].get<double>(), fitted["index_bytes"].get<double>(), 1e-9);
    EXPECT_NEAR(row_of(compared, "qsa-tokens")["index_flops"].get<double>(),
                fitted["index_flops"].get<double>(), 1e-9);
}

TEST_F(FitQsa, OneFileHoldsEveryArchitecture) {
    const std::string file = write("a.h5");
    ASSERT_EQ(fit(file, "qsa", {"--keep-x"}).code, 0);
    ASSERT_EQ(run({path("qsa/indexer.h5")}, "both").code, 0);
    const io::ActivationsReader one(path("qsa/indexer.h5")), both(path("both/indexer.h5"));
    for (io::Field field : {io::Field::qsa_q, io::Field::qsa_k}) {
        const QueryRange all{0, one.info().rows(one.layer(3), field)};
        const Tensor<float, 3> a = one.read(3, field, all), b = both.read(3, field, all);
        EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data()));
    }
    const json rows =
        rows_of(kCompare({path("both/indexer.h5"), "--out", path("c"), "--selectors", "index,qsa",
                          "--block-size", "8", "--budgets", "32", "--queries", "144:", "--json"}));
    for (const auto& [selector, of] : {std::pair{"index", "both"}, {"qsa", "qsa"}})
        EXPECT_NEAR(row_of(rows, selector)["mass_kept"].get<double>(),
                    row(of)["mass_kept"].get<double>(), 1e-3);
}

TEST_F(FitQsa, CostsAQuarterOfMsa) {
    const Outcome table = fit(write("a.h5"), "out");
    ASSERT_EQ(table.code, 0) << table.err;
    const std::string title = report_of(path("out"))["title"];
    EXPECT_NE(title.find("qsa: 2 index heads of 16 channels summed, with one key for 4 tokens, "
                         "one choice for all groups; scores take "),
              std::string::npos)
        << title;
    // 192 queries see 0, 0, 0, 1, 1, ... 48 pieces: 23.75 on average.
    EXPECT_EQ(row("out")["index_flops"], 2 * 2 * 16 * 23.75);
    EXPECT_EQ(row("out")["index_bytes"], 2 * 16 * 23.75);
}

TEST_F(FitQsa, RefusesWhatItIsNotFor) {
    const std::string file = write("a.h5");
    const Outcome teacher = fit(file, "teacher", {"--teacher", "max"});
    EXPECT_EQ(teacher.code, 2);
    EXPECT_NE(teacher.err.find("--teacher is max, must be mean with --architecture qsa"),
              std::string::npos)
        << teacher.err;
    const Outcome none = kAnalyze({file, "--out", path("none"), "--selectors", "qsa"});
    EXPECT_EQ(none.code, 2);
    EXPECT_NE(none.err.find("has no qsa_q and qsa_k, nor index_q and index_k in their place"),
              std::string::npos)
        << none.err;
    ASSERT_EQ(fit(file, "out").code, 0);
    const Outcome timed = kBench({"--input", file, "--indexer", path("out/results.h5")});
    EXPECT_NE(timed.err.find("is an indexer of --architecture qsa, must be of msa"),
              std::string::npos)
        << timed.err;
}

TEST_F(FitQsa, ThreadsAndResumeChangeNoBit) {
    expect_threads_and_resume_change_no_bit({"--steps", "60", "--eval-every", "3"});
}

}  // namespace
}  // namespace msa::test
