// SPDX-License-Identifier: MIT
// msa-fit-indexer killed or interrupted at any moment, and started again.
#include "core/io/results.h"
#include "tests/experiments/fit_test.h"
#include "tests/support/sanitized.h"

namespace msa::test {
namespace {

using FitResume = Fit;

TEST_F(FitResume, AfterKillsAtManyMoments) {
    const std::string file = write("a.h5", {.layers = {3, 5}});
    ASSERT_EQ(run({file}, "whole", {"--eval-every", "2"}).code, 0);
    constexpr int64_t kTrials = repeated(4, 2);
    int64_t killed = 0;
    for (int64_t trial = 0; trial < kTrials; ++trial) {
        const std::string out = concat("killed", trial);
        int code = -1;
        for (int64_t delay = 15000 + 4000 * trial; code != 0; delay += delay / 4) {
            code = run_for("msa-fit-indexer", args({file}, out, {"--eval-every", "2"}),
                           std::chrono::microseconds(delay));
            ASSERT_TRUE(code == 0 || code == -1) << code;
            killed += code == -1 ? 1 : 0;
        }
        EXPECT_TRUE(same_results(path(out + "/results.h5"), path("whole/results.h5")));
        EXPECT_EQ(file_text(path(out + "/summary.json")), file_text(path("whole/summary.json")));
        EXPECT_FALSE(std::filesystem::exists(path(out + "/checkpoint-3.h5")));
        EXPECT_FALSE(std::filesystem::exists(path(out + "/checkpoint-5.h5")));
        for (int64_t layer : {3, 5}) {
            const auto index = [&](const std::string& of) {
                return io::ActivationsReader(path(of + "/indexer.h5"))
                    .read(layer, io::Field::index_q, {0, 192});
            };
            const Tensor<float, 3> left = index(out), right = index("whole");
            EXPECT_TRUE(std::equal(left.data(), left.data() + left.size(), right.data()));
        }
    }
    EXPECT_GT(killed, kTrials);
    std::cout << "killed " << killed << " times\n";
}

TEST_F(FitResume, FinishesWhatFollowsTheResults) {
    // Killed after results.h5 and before summary.json.
    const std::string file = write("a.h5");
    ASSERT_EQ(run({file}, "out").code, 0);
    const std::string summary = file_text(path("out/summary.json"));
    std::filesystem::remove(path("out/summary.json"));
    std::filesystem::rename(path("out/indexer.h5"), path("out/indexer.h5.partial"));
    const Outcome resumed = run({file}, "out");
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(file_text(path("out/summary.json")), summary);
    EXPECT_TRUE(std::filesystem::exists(path("out/indexer.h5")));
    EXPECT_FALSE(std::filesystem::exists(path("out/indexer.h5.partial")));
    const Outcome again = run({file}, "out");
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(again.out, resumed.out);
    EXPECT_NE(again.err.find("layer 3: done before"), std::string::npos) << again.err;
}

TEST_F(FitResume, GoesOnFromTheCheckpointBitByBit) {
    const std::string file = write("a.h5");
    const std::vector<std::string> more{"--steps", "400",          "--warmup-steps",
                                        "200",     "--eval-every", "10"};
    ASSERT_EQ(run({file}, "whole", more).code, 0);
    int interrupted = 0;
    for (int64_t delay = 40000;; delay += delay / 4) {
        const int code = run_for("msa-fit-indexer", args({file}, "out", more),
                                 std::chrono::microseconds(delay), SIGINT);
        if (code == 0) break;
        ASSERT_TRUE(code == 130 || code == -1) << code;
        if (!std::filesystem::exists(path("out/checkpoint-3.h5"))) continue;
        ++interrupted;
        std::vector<std::string> other = more;
        other.insert(other.end(), {"--lr", "0.5"});
        EXPECT_NE(run({file}, "out", other).err.find("is of another run, options.lr was"),
                  std::string::npos);
    }
    EXPECT_GT(interrupted, 0);
    EXPECT_TRUE(same_results(path("out/results.h5"), path("whole/results.h5")));
}

TEST_F(FitResume, OtherProgramsLeaveAnUnfinishedFitAndItsResultsAlone) {
    const std::string file = write("a.h5", {.layers = {3, 5}});
    const auto refused = [&](const std::string& place) {
        const Outcome outcome = kAnalyze({file, "--out", path("out"), "--block-size", "8",
                                          "--top-k", "2", "--selectors", "oracle", "--overwrite"});
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(place + ": is of msa-fit-indexer; choose another --out"),
                  std::string::npos)
            << outcome.err;
    };
    const std::string unit = path("out/results.h5.partial/unit-layer-3.h5");
    {
        Process process("msa-fit-indexer", args({file}, "out", {"--steps", "400"}));
        while (!std::filesystem::exists(unit) && !process.has_ended()) usleep(1000);
    }
    // Of layer 3, whose unit is there before it is removed, or of layer 5; it would be named first.
    for (const char* checkpoint : {"out/checkpoint-3.h5", "out/checkpoint-5.h5"})
        std::filesystem::remove(path(checkpoint));
    refused(path("out/results.h5.partial"));
    EXPECT_TRUE(std::filesystem::exists(unit));
    ASSERT_EQ(run({file}, "out", {"--steps", "400"}).code, 0);
    refused(path("out/results.h5"));
    // As of a fit that is interrupted before its first layer is done.
    std::filesystem::rename(path("out/results.h5"), path("out/checkpoint-3.h5"));
    refused(path("out/checkpoint-3.h5"));
}

TEST_F(FitResume, ARefusalTrainsAndLosesNothing) {
    // Layer 3 is under way, layer 5 waits.
    const std::string file = write("a.h5", {.layers = {3, 5}});
    const std::vector<std::string> more{"--steps", "400",          "--warmup-steps",
                                        "200",     "--eval-every", "10"};
    const auto with = [&](std::vector<std::string> last) {
        last.insert(last.begin(), more.begin(), more.end());
        return last;
    };
    ASSERT_EQ(run({file}, "whole", more).code, 0);
    for (int64_t delay = 40000; !std::filesystem::exists(path("out/checkpoint-3.h5"));
         delay += delay / 4)
        ASSERT_NE(run_for("msa-fit-indexer", args({file}, "out", more),
                          std::chrono::microseconds(delay), SIGINT),
                  0);
    const std::string before = file_text(path("out/checkpoint-3.h5"));
    const Outcome refused = run({file}, "out", with({"--lr", "0.5"}));
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("checkpoint-3.h5: is of another run, options.lr was"),
              std::string::npos)
        << refused.err;
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5.partial")));
    EXPECT_EQ(file_text(path("out/checkpoint-3.h5")), before);
    EXPECT_EQ(run({file}, "out", more).code, 0);
    EXPECT_TRUE(same_results(path("out/results.h5"), path("whole/results.h5")));
}

TEST_F(FitResume, GoesOnWithARunThatReplacesAnother) {
    const std::string file = write("a.h5");
    const std::vector<std::string> more{"--steps", "400",          "--warmup-steps",
                                        "200",     "--eval-every", "10"};
    const auto with = [&](const char* last) {
        std::vector<std::string> all = more;
        all.emplace_back(last);
        return all;
    };
    ASSERT_EQ(run({file}, "whole", more).code, 0);
    ASSERT_EQ(run({file}, "out").code, 0);
    for (int64_t delay = 40000; !std::filesystem::exists(path("out/checkpoint-3.h5"));
         delay += delay / 4)
        ASSERT_NE(run_for("msa-fit-indexer", args({file}, "out", with("--overwrite")),
                          std::chrono::microseconds(delay), SIGINT),
                  0);
    EXPECT_EQ(run({file}, "out").code, 2);  // that is the run which is replaced
    EXPECT_TRUE(std::filesystem::exists(path("out/checkpoint-3.h5")));
    const Outcome resumed = run({file}, "out", more);
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_TRUE(same_results(path("out/results.h5"), path("whole/results.h5")));
}

TEST_F(FitResume, FilesOfOneNameAndTheOrderOfFilesCount) {
    std::filesystem::create_directories(path("one"));
    std::filesystem::create_directories(path("two"));
    const std::string a = write("one/a.h5"), other = write("two/a.h5", {.stream = 2}),
                      b = write("b.h5", {.stream = 3});
    ASSERT_EQ(run({a, other, b}, "out").code, 0);
    EXPECT_EQ(io::ResultsReader(path("out/results.h5")).run().inputs.size(), 3U);
    EXPECT_EQ(run({a, other, b}, "out").code, 0);
    EXPECT_NE(run({other, a, b}, "out").err.find("is of another run, inputs.a.h5"),
              std::string::npos);
    EXPECT_NE(run({b, a, other}, "out").err.find("is of another run, options.files was"),
              std::string::npos);
}

TEST_F(FitResume, InspectShowsAFit) {
    const std::string file = write("a.h5", {.layers = {3, 5}});
    ASSERT_EQ(run({file}, "out").code, 0);
    const Outcome shown = kInspect({path("out/results.h5"), "--stats"});
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_NE(shown.out.find("/train/kl"), std::string::npos) << shown.out;
    const nlohmann::json about =
        nlohmann::json::parse(kInspect({path("out/results.h5"), "--json"}).out).at(0);
    EXPECT_EQ(about["layers"], nlohmann::json({"3", "5"}));
}

}  // namespace
}  // namespace msa::test
