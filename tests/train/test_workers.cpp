// SPDX-License-Identifier: MIT
// Workers that train one model together: what they say to each other, and that their curve is that
// of one worker but for the order of its sums.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>

#include "core/error.h"
#include "tests/support/wrong_workers.h"
#include "tests/train/shares.h"

namespace msa::train {
namespace {

using test::WrongWorkers;

TEST(Workers, AddUpInTheirOrder) {
    // In another order the third value is 0 or 2.
    constexpr float kLarge = 1e8F;
    const std::array<std::array<float, 3>, 4> values{
        {{1, 0.5F, kLarge}, {2, 0.25F, 1}, {3, 0.125F, -kLarge}, {4, 0, 1}}};
    for (int count = 1; count <= 4; ++count) {
        std::array<float, 3> want{};
        for (int w = 0; w < count; ++w)
            for (size_t i = 0; i < 3; ++i) want[i] += values[static_cast<size_t>(w)][i];
        work_together(count, [&](Workers& workers) {
            for (int round = 0; round < 20; ++round) {
                std::array<float, 3> mine = values[static_cast<size_t>(workers.index())];
                workers.sum(mine);
                EXPECT_EQ(mine, want) << workers.index() << " of " << count;
                std::array<double, 1> number{double(workers.index()) + round};
                workers.sum(number);
                EXPECT_EQ(number[0], count * round + count * (count - 1) / 2);
            }
        });
    }
}

TEST(Workers, HearAllInTheirOrder) {
    for (int count = 1; count <= 4; ++count)
        work_together(count, [&](Workers& workers) {
            for (int round = 0; round < 20; ++round) {
                const std::array<int, 2> mine{workers.index(), round};
                std::vector<int> all(2 * static_cast<size_t>(count), -1);
                workers.from_all(std::as_bytes(std::span(mine)),
                                 std::as_writable_bytes(std::span(all)));
                for (int w = 0; w < count; ++w) {
                    EXPECT_EQ(all[2 * static_cast<size_t>(w)], w);
                    EXPECT_EQ(all[2 * static_cast<size_t>(w) + 1], round);
                }
            }
        });
}

TEST(Workers, HearTheFirstAndAnyOfThem) {
    work_together(3, [](Workers& workers) {
        std::array<int, 2> values{workers.index(), 10 * workers.index() + 7};
        workers.from_first(std::as_writable_bytes(std::span(values)));
        EXPECT_EQ(values, (std::array{0, 7}));
        EXPECT_TRUE(workers.any(workers.index() == 2));
        EXPECT_FALSE(workers.any(false));
        EXPECT_NO_THROW(workers.check());
    });
}

TEST(Workers, AnErrorOfOneEndsAll) {
    for (int failing = 0; failing < 3; ++failing) {
        std::atomic<int> others = 0;
        const auto work = [&](Workers& workers) {
            workers.any(false);
            if (workers.index() == failing) throw InputError("it fails");
            try {
                while (true) workers.any(false);
            } catch (const WorkerStopped&) {
                EXPECT_THROW(workers.check(), WorkerStopped);
                EXPECT_THROW(workers.any(false), WorkerStopped);
                ++others;
                throw;
            }
        };
        try {
            work_together(3, work);
            FAIL();
        } catch (const InputError& error) {
            EXPECT_STREQ(error.what(), "it fails");
        }
        EXPECT_EQ(others, 2);
    }
}

TEST(Workers, OneThatEndsEarlyIsNotWaitedFor) {
    EXPECT_THROW(work_together(2,
                               [](Workers& workers) {
                                   if (workers.is_first()) workers.any(false);
                               }),
                 WorkerStopped);
}

struct Choice {
    const char* name;
    ModelConfig config;
};

std::vector<Choice> choices() {
    std::vector<Choice> all{{"full", nano(Attention::full)},
                            {"msa", nano(Attention::msa)},
                            {"window", nano(Attention::window)},
                            {"value_head", nano(Attention::msa)}};
    all[0].config.msa.sink = true;
    all[3].config.msa.value_head = true;
    all[3].config.msa.detach = false;
    return all;
}

const TrainingOptions kOptions{.steps = 20, .warmup_steps = 4, .rate = 3e-3};

class Together : public testing::TestWithParam<Choice> {
protected:
    static Model make_model(int) { return make(GetParam().config, {}, 1); }
};

INSTANTIATE_TEST_SUITE_P(Choices, Together, testing::ValuesIn(choices()),
                         [](const auto& choice) { return std::string(choice.param.name); });

TEST_P(Together, TheCurveIsThatOfOne) {
    const ModelBounds bounds = model_bounds(Element::f32);
    const Model names = make_model(0);
    const Trained one = train_together(1, make_model, kOptions).front();
    EXPECT_LT(one.reports.back().losses.lm, 0.98 * one.reports.front().losses.lm);
    for (int count : {2, 3, 6}) {
        const std::vector<Trained> all = train_together(count, make_model, kOptions);
        const Distance off = distance(names.parameters(), all.front(), one);
        EXPECT_LT(off.loss, bounds.loss) << count;
        EXPECT_LT(off.kl, bounds.loss) << count;
        EXPECT_LT(off.gradient, bounds.gradient) << count;
        std::printf("%s, %d workers: losses off by at most %.1e of one worker's, gradients %.1e\n",
                    GetParam().name, count, off.loss, off.gradient);
        for (const Trained& other : all) EXPECT_EQ(other.weights, all.front().weights) << count;
        EXPECT_EQ(train_together(count, make_model, kOptions).front().weights, all.front().weights)
            << "reruns change no bit";
    }
}

TEST(OneWorker, HasTheBitsOfNone) {
    const auto make_model = [](int) { return make(nano(Attention::msa)); };
    Workers none;
    EXPECT_EQ(train_together(1, make_model, kOptions).front().weights,
              train_share(none, make_model(0), kOptions).weights);
}

Trained train_wrong(WrongWorkers::Error error) {
    Trained first;
    work_together(2, [&](Workers& workers) {
        WrongWorkers wrong(workers, error);
        Trained mine = train_share(wrong, make(nano(Attention::msa), {}, 1), kOptions);
        if (workers.is_first()) first = std::move(mine);
    });
    return first;
}

TEST(WrongWorkers, AreFarFromTheCurveOfOne) {
    const auto make_model = [](int) { return make(nano(Attention::msa), {}, 1); };
    const ModelBounds bounds = model_bounds(Element::f32);
    const Trained one = train_together(1, make_model, kOptions).front();
    for (WrongWorkers::Error error : {WrongWorkers::kDropped, WrongWorkers::kHalved}) {
        const Distance off = distance(make_model(0).parameters(), train_wrong(error), one);
        EXPECT_GT(off.gradient, 100 * bounds.gradient) << int{error};
    }
}

TEST(WrongWorkers, OfDifferentSumsStop) {
    try {
        train_wrong(WrongWorkers::kOwnKept);
        FAIL();
    } catch (const SystemError& error) {
        EXPECT_NE(std::string(error.what()).find("different sums of the gradient of step 0"),
                  std::string::npos)
            << error.what();
    }
}

TEST(Workers, GoOnFromTheFirst) {
    work_together(3, [](Workers& workers) {
        const ModelConfig config = nano(Attention::msa);
        Model model = make(config, {}, 1), same = make(config, {}, 1);
        const TrainingOptions o{.steps = 9};
        Trainer trainer(model, o, workers);
        const Sample sample;
        Trainer own(same, o);
        for (int step = 0; step < 3; ++step) own.update(own.gradient(sample.batch()));
        if (workers.is_first()) {  // the others have learned nothing
            Trainer before(model, o);
            for (int step = 0; step < 3; ++step) before.update(before.gradient(sample.batch()));
            trainer.resume(before.step());
        }
        trainer.follow_first();
        EXPECT_EQ(trainer.step(), 3);
        EXPECT_EQ(values_of(model), values_of(same));
        EXPECT_EQ(on_host(model, model.weights().first()), on_host(same, same.weights().first()));
        EXPECT_EQ(on_host(model, model.weights().second()), on_host(same, same.weights().second()));
    });
}

}  // namespace
}  // namespace msa::train
