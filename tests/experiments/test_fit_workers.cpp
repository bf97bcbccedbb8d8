// SPDX-License-Identifier: MIT
// msa-fit-indexer with several workers: threads of one process (--devices) and ranks of MPI that
// have layers of their own or, with --together, shares of every step.
#include <cmath>
#include <iostream>
#include <sstream>

#include "core/registry.h"
#include "core/train/tolerance.h"
#include "experiments/fit/architecture.h"
#include "experiments/fit/rope.h"
#include "experiments/fit/start.h"
#include "experiments/fit/training.h"
#include "tests/experiments/fit_test.h"
#include "tests/support/wrong_group.h"

namespace msa::test {
namespace {

namespace fit = experiments::fit;
using Words = std::vector<std::string>;

/// What some steps of a fit leave.
struct Fitted {
    std::vector<double> kl;
    std::vector<float> first_moments, weights;  // after the first step, after the last one
};

/// As a share of the norm of `b`.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double off = 0, size = 0;
    for (size_t n = 0; n < a.size(); ++n) {
        off += (double{a[n]} - double{b[n]}) * (double{a[n]} - double{b[n]});
        size += double{b[n]} * double{b[n]};
    }
    return std::sqrt(off / size);
}

/// Trainers in this process, of queries and tokens that two and three workers do not divide.
class FitTrainers : public Fit {
protected:
    FitTrainers() : file_(write("a.h5", spec_)) {}

    /// Of every one of `count` workers.
    std::vector<Fitted> advance(int count, const Words& more = {},
                                WrongGroup::Error error = WrongGroup::kNone) const {
        std::ostringstream ignored;
        const auto o = fit::parse_fit_options(args({file_}, "out", more), ignored);
        const io::ActivationsReader file(o->files);
        const fit::Split split = fit::split_queries(*o, file.info().cu_seqlens);
        std::vector<Fitted> all(static_cast<size_t>(count));
        parallel::run_group(count, [&](const parallel::Group& right) {
            WrongGroup workers(right, error);
            const std::unique_ptr<Backend> backend = make_backend("cpu", {.threads = 1});
            IndexForm form = fit::index_form(*o, file, 3);
            fit::Members members;
            members.push_back(std::make_unique<fit::Member>(
                fit::read_layer(file, 3, *o, form, true), *backend, 1));
            fit::TrainingLayer& data = members.front()->data;
            const std::vector<int64_t> pairs = fit::choose_pairs(*o, data, split.train, form);
            fit::pool(data, file, form);
            const fit::Trainer trainer(*o, members, split.train, 1, workers);
            fit::FitState state =
                fit::start_state(right.is_first() ? fit::start_weights(o->start, form, pairs, data,
                                                                       split.train, o->seed)
                                                  : IndexWeights(form));
            trainer.broadcast_state(state);
            Fitted& mine = all[static_cast<size_t>(right.rank())];
            while (state.step < o->steps && trainer.advance(state))
                if (state.step == 1) mine.first_moments = list(state.first);
            mine.kl = state.kl;
            mine.weights = list(state.weights);
        });
        return all;
    }
    static std::vector<float> list(const IndexWeights& weights) {
        return {weights.values().begin(), weights.values().end()};
    }

    const Linear spec_{.cu_seqlens = {0, 100, 191}};
    std::string file_;
    const Words odd_{"--queries-per-step", "31"};
};

TEST_F(FitTrainers, HaveTheCurveOfOne) {
    ASSERT_EQ(run({file_}, "whole", odd_).code, 0);
    const FitBounds bound = bounds_of("whole", spec_);
    const Fitted one = advance(1, odd_).front();
    ASSERT_EQ(one.kl.size(), 12U);
    for (int count : {2, 3, 6}) {
        const std::vector<Fitted> all = advance(count, odd_);
        double most = 0;  // the moment is a tenth of the gradient
        for (size_t n = 0; n < one.first_moments.size(); ++n)
            most = std::max(most, std::fabs(10 * (double{all[0].first_moments[n]} -
                                                  double{one.first_moments[n]})));
        EXPECT_LE(most, bound.gradient) << count;
        EXPECT_NEAR(all[0].kl[0], one.kl[0], bound.step.kl) << count;
        for (size_t step = 0; step < one.kl.size(); ++step)
            EXPECT_NEAR(all[0].kl[step], one.kl[step], bound.loss) << count << " " << step;
        for (const Fitted& other : all) {
            EXPECT_EQ(other.weights, all[0].weights) << count;
            EXPECT_EQ(other.kl, all[0].kl) << count;
        }
        EXPECT_EQ(advance(count, odd_)[0].weights, all[0].weights) << "reruns change no bit";
        std::cout << count << " workers: gradients off by at most " << most << " of "
                  << bound.gradient << " allowed" << std::endl;
    }
    EXPECT_NE(advance(2, odd_)[0].weights,
              advance(3, odd_)[0].weights);  // they add in other orders
}

TEST_F(FitTrainers, OfEveryFormOfWeights) {
    const train::ModelBounds bound = train::model_bounds(Element::f32);
    for (const Words& form : {Words{"--index-norm", "rms"}, Words{"--architecture", "dsa"},
                              Words{"--architecture", "dsa", "--index-heads", "4"},
                              Words{"--architecture", "seerattention"},
                              Words{"--architecture", "seerattention", "--index-norm", "rms"}}) {
        const Fitted one = advance(1, form).front(), three = advance(3, form).front();
        EXPECT_LT(distance(three.first_moments, one.first_moments), bound.gradient) << form[1];
        ASSERT_EQ(three.kl.size(), one.kl.size());
        for (size_t step = 0; step < one.kl.size(); ++step)
            EXPECT_NEAR(three.kl[step], one.kl[step], bound.loss * one.kl[step]) << form[1];
    }
}

TEST_F(FitTrainers, WithAWrongSumAreFarFromOne) {
    ASSERT_EQ(run({file_}, "whole", odd_).code, 0);
    const double bound = bounds_of("whole", spec_).gradient;
    const Fitted one = advance(1, odd_).front();
    for (WrongGroup::Error error : {WrongGroup::kDropped, WrongGroup::kHalved}) {
        const Fitted wrong = advance(2, odd_, error).front();
        double most = 0;
        for (size_t n = 0; n < one.first_moments.size(); ++n)
            most = std::max(most, std::fabs(10 * (double{wrong.first_moments[n]} -
                                                  double{one.first_moments[n]})));
        EXPECT_GT(most, 10 * bound) << int{error};
        EXPECT_GT(distance(wrong.first_moments, one.first_moments),
                  100 * train::model_bounds(Element::f32).gradient)
            << int{error};
    }
    try {
        advance(2, odd_, WrongGroup::kOwnKept);
        FAIL();
    } catch (const SystemError& error) {
        EXPECT_NE(std::string(error.what()).find("different weights after step 1: their norm is"),
                  std::string::npos)
            << error.what();
    }
}

class FitWorkers : public Fit {
protected:
    FitWorkers() : file_(write("a.h5", {.layers = {3, 5}})) {}

    void train(const std::string& out, const Words& more = {}) const {
        const Outcome outcome = run({file_}, out, more);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
    }
    Words together(const std::string& devices, Words more = {}) const {
        more.insert(more.end(), {"--together", "--devices", devices});
        return more;
    }
    void expect_close(const std::string& got, const std::string& want, double steps = 12) const {
        const FitBounds bound = bounds_of(want, {.layers = {3, 5}}, Teacher::mean, steps);
        for (const char* name : {"train/kl", "held_out/kl"}) {
            const std::vector<double> a = curve(got, name), b = curve(want, name);
            ASSERT_EQ(a.size(), b.size());
            for (size_t n = 0; n < a.size(); ++n)
                EXPECT_NEAR(a[n], b[n], bound.loss) << got << " " << name << " " << n;
        }
        EXPECT_EQ(curve(got, "held_out/step"), curve(want, "held_out/step"));
        EXPECT_EQ(curve(got, "held_out/entropy_teacher"), curve(want, "held_out/entropy_teacher"));
    }
    void expect_same(const std::string& left, const std::string& right) const {
        for (const char* name : {"/results.h5", "/summary.json", "/indexer.h5"})
            EXPECT_TRUE(file_text(path(left + name)) == file_text(path(right + name)))
                << left << name << " and " << right << name << " differ";
    }
    std::string refusal(const Words& more) const {
        const Outcome outcome = run({file_}, "refused", more);
        EXPECT_EQ(outcome.code, 2);
        EXPECT_FALSE(std::filesystem::exists(path("refused")));
        return outcome.err;
    }
#ifdef MSA_MPIRUN
    int start(int ranks, const std::string& out, const Words& more,
              const std::function<bool()>& kills = {}) const {
        return run_ranks("msa-fit-indexer", ranks, args({file_}, out, more), path("out.txt"),
                         path("err.txt"), kills);
    }
    std::string said() const { return file_text(path("err.txt")); }
#endif

    std::string file_;
    const Words slow_{"--steps", "200", "--warmup-steps", "100", "--eval-every", "10"};
};

TEST_F(FitWorkers, TogetherHaveTheCurveOfOne) {
    train("one");
    for (const char* devices : {"0,1", "0,1,2"}) {
        train(devices, together(devices));
        expect_close(devices, "one");
        EXPECT_FALSE(same_data(path(std::string(devices) + "/results.h5"), path("one/results.h5")));
    }
    train("again", together("0,1"));
    expect_same("again", "0,1");
}

TEST_F(FitWorkers, OneOfThemIsAsGoodAsNone) {
    train("one");
    train("together", {"--together"});
    expect_same("together", "one");
    train("named", together("0"));
    expect_same("named", "one");
}

TEST_F(FitWorkers, SeveralGroupsShareTheLayers) {
    train("whole", together("0,1"));
    run_together("msa-fit-indexer", args({file_}, "out", together("0,1")), 2);
    expect_same("out", "whole");
}

TEST_F(FitWorkers, RefusalsNameTheValueAndTheRule) {
    EXPECT_NE(refusal(together("0,1,2", {"--queries-per-step", "2"}))
                  .find("--queries-per-step is 2, must be at least the 3 workers that share them"),
              std::string::npos);
    EXPECT_NE(refusal(together("0,1,2", {"--train", "7:9"}))
                  .find("--train has 2 queries, must have one for each of the 3 workers"),
              std::string::npos);
}

TEST_F(FitWorkers, ADivergingFitEndsAllAndKeepsTheLastGoodWeights) {
    const Outcome outcome =
        run({file_}, "out", together("0,1", {"--lr", "1e4", "--weight-decay", "1"}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("layer 3: the loss is not finite at step"), std::string::npos)
        << outcome.err;
    EXPECT_TRUE(std::filesystem::exists(path("out/checkpoint-3.h5")));
    EXPECT_FALSE(std::filesystem::exists(path("out/checkpoint-5.h5")));
}

TEST_F(FitWorkers, InterruptedTheyGoOnWithAnyNumber) {
    train("whole", slow_);
    int interrupted = 0;
    const char* devices[] = {"0,1", "0", "0,1,2"};
    for (int64_t delay = 40000, turn = 0;; delay += delay / 4, ++turn) {
        const int code =
            run_for("msa-fit-indexer", args({file_}, "out", together(devices[turn % 3], slow_)),
                    std::chrono::microseconds(delay), SIGINT);
        if (code == 0) break;
        ASSERT_TRUE(code == 130 || code == -1) << code;
        interrupted += std::filesystem::exists(path("out/checkpoint-3.h5")) ? 1 : 0;
    }
    EXPECT_GT(interrupted, 0);
    expect_close("out", "whole", 200);
}

#ifdef MSA_MPIRUN
TEST_F(FitWorkers, RanksHaveTheBitsOfThreads) {
    for (int ranks : {2, 3}) {
        const std::string devices = ranks == 2 ? "0,1" : "0,1,2", out = concat("ranks", ranks);
        const Outcome threads = run({file_}, devices, together(devices));
        ASSERT_EQ(threads.code, 0) << threads.err;
        ASSERT_EQ(start(ranks, out, {"--together"}), 0) << said();
        expect_same(out, devices);
        EXPECT_EQ(file_text(path("out.txt")), threads.out);  // of one of them
    }
}

TEST_F(FitWorkers, RanksHaveLayersOfTheirOwnUnlessTheyAreAskedToWorkTogether) {
    train("one");
    ASSERT_EQ(start(2, "ranks", {}), 0) << said();
    expect_same("ranks", "one");
}

TEST_F(FitWorkers, ACheckpointGoesOnWithAnyNumberOfRanks) {
    train("whole", slow_);
    Words words = slow_;
    words.emplace_back("--together");
    for (const auto& [before, after] : {std::pair{2, 1}, {1, 3}, {3, 2}}) {
        const std::string out = concat("from", before, "to", after);
        EXPECT_NE(start(before, out, words,
                        [&] { return std::filesystem::exists(path(out + "/checkpoint-3.h5")); }),
                  0);
        ASSERT_TRUE(std::filesystem::exists(path(out + "/checkpoint-3.h5")));
        ASSERT_EQ(start(after, out, words), 0) << said();
        expect_close(out, "whole", 200);
    }
    ASSERT_EQ(start(2, "from3to2", words), 0) << said();  // nothing is left, and all know it
}

TEST_F(FitWorkers, AnErrorOfARankEndsAll) {
    ASSERT_EQ(start(2, "out", {"--together"}), 0) << said();
    EXPECT_NE(start(2, "out", {"--together", "--lr", "0.5"}), 0);
    EXPECT_NE(said().find("results.h5: is of another run, options.lr was"), std::string::npos)
        << said();
    EXPECT_NE(start(2, "other", {"--together", "--devices", "0,1"}), 0);
    EXPECT_NE(said().find("--devices names 2 GPUs, and there are 2 ranks"), std::string::npos)
        << said();
    EXPECT_FALSE(std::filesystem::exists(path("other")));
    poke(file_, "/layers/5/k", {140, 1, 3}, std::nanf(""));
    EXPECT_NE(start(2, "nan", {"--together"}), 0);
    EXPECT_NE(said().find("/layers/5/k"), std::string::npos) << said();
}
#endif

}  // namespace
}  // namespace msa::test
