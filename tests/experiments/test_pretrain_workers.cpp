// SPDX-License-Identifier: MIT
// msa-pretrain with several workers: threads of one process (--devices) and ranks of MPI. What they
// do to a curve is in tests/train/test_workers.cpp.
#include <cmath>
#include <thread>

#include "core/train/tolerance.h"
#include "tests/experiments/pretrain_test.h"

namespace msa::test {
namespace {

class PretrainWorkers : public Pretrain {
protected:
    PretrainWorkers() { text_file("a.txt", 40, 600); }

    /// args() with six sequences a step.
    Words six(const std::string& out, Words more = {}) const {
        more.insert(more.end(), {"--sequences", "6"});
        return args(out, more);
    }
    void train(const std::string& out, const Words& more = {}) const {
        const Outcome outcome = kPretrain(six(out, more));
        ASSERT_EQ(outcome.code, 0) << outcome.err;
    }
    /// The curves of two runs differ by what another order of sums does.
    void expect_close(const std::string& a, const std::string& b) const {
        const double bound = train::model_bounds(Element::f32).loss;
        const std::vector<double> of_a = curve(a, "/train/loss"), of_b = curve(b, "/train/loss");
        ASSERT_EQ(of_a.size(), of_b.size());
        ASSERT_GT(of_a.size(), 3U);
        for (size_t n = 0; n < of_a.size(); ++n)
            EXPECT_NEAR(of_a[n], of_b[n], bound * of_b[n]) << a << ", entry " << n;
        // Other rows than one worker's would show here first.
        const double norm = curve(b, "/train/gradient_norm").front();
        EXPECT_NEAR(curve(a, "/train/gradient_norm").front(), norm, bound * norm) << a;
        EXPECT_EQ(curve(a, "/train/step"), curve(b, "/train/step"));
        EXPECT_NEAR(row_of(summary(a), "trained")["bits_per_byte"].get<double>(),
                    row_of(summary(b), "trained")["bits_per_byte"].get<double>(), bound * 8);
    }
    void expect_same(const std::string& a, const std::string& b) const {
        EXPECT_TRUE(same_weights(a, b));
        EXPECT_TRUE(same_results(path(a + "/results.h5"), path(b + "/results.h5")));
    }
    int64_t kept_steps(const std::string& out) const {
        return static_cast<int64_t>(
            io::ResultsReader(path(out + "/checkpoint.h5")).number("/state", "step"));
    }
#ifdef MSA_MPIRUN
    int start(int ranks, const Words& words, const std::function<bool()>& kills = {}) const {
        return run_ranks("msa-pretrain", ranks, words, path("out.txt"), path("err.txt"), kills);
    }
    std::string said() const { return file_text(path("err.txt")); }
    /// Starts ranks and kills the last of them as soon as there is a checkpoint. The steps it has.
    int64_t kill_a_rank(int ranks, const Words& words, const std::string& out) const {
        EXPECT_NE(start(ranks, words,
                        [&] { return std::filesystem::exists(path(out + "/checkpoint.h5")); }),
                  0);
        return kept_steps(out);
    }
#endif
    /// Steps that are long enough for a kill to come before the last of them, and too few for
    /// another order of sums to grow.
    const Words slow_{"--model-dim", "64",           "--context", "512",           "--steps",
                      "16",          "--eval-every", "0",         "--probe-every", "0"};
};

TEST_F(PretrainWorkers, HaveTheCurveOfOne) {
    train("one");
    for (const char* devices : {"0,1", "0,1,2"}) {
        train(devices, {"--devices", devices});
        expect_close(devices, "one");
    }
    EXPECT_FALSE(same_weights("0,1", "0,1,2"));  // they do add in other orders
}

TEST_F(PretrainWorkers, OneNamedDeviceIsOneWorker) {
    train("one");
    train("named", {"--devices", "0"});
    expect_same("named", "one");
}

TEST_F(PretrainWorkers, PackedRowsAreShared) {
    const Words packed{"--short-documents", "pack", "--context", "128", "--block-size", "16"};
    train("one", packed);
    Words more = packed;
    more.insert(more.end(), {"--devices", "0,1"});
    train("two", more);
    expect_close("two", "one");
}

TEST_F(PretrainWorkers, RefusalsNameTheValueAndTheRule) {
    EXPECT_NE(refusal({"--sequences", "6", "--devices", "0,1,2,3"})
                  .find("--sequences is 6, must be a multiple of the 4 workers that share them"),
              std::string::npos);
    EXPECT_NE(refusal({"--devices", "0,0"}).find("--devices is '0,0', it names one twice"),
              std::string::npos);
    EXPECT_NE(refusal({"--devices", "0,2000"}).find("--devices is 2000, must be from 0 to 1023"),
              std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("refused")));
}

TEST_F(PretrainWorkers, ADivergingRunEndsAll) {
    const Outcome outcome =
        kPretrain(six("out", {"--weight-decay", "1e5", "--lr", "0.01", "--lr-warmup", "0",
                              "--save-every", "1", "--devices", "0,1"}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("diverged: the loss or its gradient is not finite after "),
              std::string::npos)
        << outcome.err;
    EXPECT_GT(kept_steps("out"), 0);
}

TEST_F(PretrainWorkers, InterruptedTheyKeepTheStep) {
    EXPECT_EQ(stop_at_work({"--steps", "100000", "--eval-every", "0", "--probe-every", "0",
                            "--save-every", "0", "--sequences", "6", "--devices", "0,1"}),
              130);
}

#ifdef MSA_MPIRUN
TEST_F(PretrainWorkers, RanksHaveTheBitsOfThreads) {
    for (const char* devices : {"0", "0,1", "0,1,2"}) {
        train(devices, {"--devices", devices});
        const int ranks = static_cast<int>(std::string(devices).size() + 1) / 2;
        const std::string out = "ranks" + std::to_string(ranks);
        ASSERT_EQ(start(ranks, six(out)), 0) << said();
        expect_same(out, devices);
        EXPECT_NE(file_text(path("out.txt")).find("12 steps of"), std::string::npos);
    }
}

TEST_F(PretrainWorkers, ACheckpointGoesOnWithAnyNumber) {
    train("one", slow_);
    for (const auto& [before, after] : {std::pair{2, 1}, {1, 3}, {3, 2}}) {
        const std::string out = concat("from", before, "to", after);
        const int64_t kept = kill_a_rank(before, six(out, slow_), out);
        EXPECT_GT(kept, 0);
        EXPECT_LT(kept, 16);
        Words more = slow_;
        more.emplace_back("--resume");
        ASSERT_EQ(start(after, six(out, more)), 0) << said();
        expect_close(out, "one");
    }
}

TEST_F(PretrainWorkers, AKilledRankLosesTheStepsSinceTheCheckpointAlone) {
    Words more = slow_;
    more.insert(more.end(), {"--devices", "0,1"});
    train("whole", more);
    more = slow_;
    more.emplace_back("--resume");
    EXPECT_LT(kill_a_rank(2, six("killed", more), "killed"), 16);
    ASSERT_EQ(start(2, six("killed", more)), 0) << said();
    expect_same("killed", "whole");
    // Nothing is left to do, and the ranks know it.
    ASSERT_EQ(start(2, six("killed", more)), 0) << said();
}

TEST_F(PretrainWorkers, AnErrorOfTheFirstRankEndsAll) {
    ASSERT_EQ(start(2, six("out")), 0) << said();
    EXPECT_NE(start(2, six("out")), 0);
    EXPECT_NE(said().find("results.h5: exists; --overwrite replaces it"), std::string::npos)
        << said();
    EXPECT_NE(start(4, six("other")), 0);
    EXPECT_NE(said().find("must be a multiple of the 4 workers"), std::string::npos) << said();
    EXPECT_NE(start(2, six("other", {"--devices", "0,1"})), 0);
    EXPECT_NE(said().find("--devices names 2 GPUs, and there are 2 ranks"), std::string::npos)
        << said();
    EXPECT_FALSE(std::filesystem::exists(path("other")));
}
#endif

}  // namespace
}  // namespace msa::test
