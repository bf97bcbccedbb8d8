// SPDX-License-Identifier: MIT
// Workers that train one model together: their curve is that of one worker but for the order of its
// sums.
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

#include "core/error.h"
#include "tests/support/wrong_group.h"
#include "tests/train/shares.h"

namespace msa::train {
namespace {

using test::WrongGroup;

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

const TrainingOptions kOptions{.steps = 20, .warmup_steps = 4, .lr = 3e-3};

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
    const parallel::Group none;
    EXPECT_EQ(train_together(1, make_model, kOptions).front().weights,
              train_share(none, make_model(0), kOptions).weights);
}

Trained train_wrong(WrongGroup::Error error) {
    Trained first;
    parallel::run_group(2, [&](const parallel::Group& workers) {
        WrongGroup wrong(workers, error);
        Trained mine = train_share(wrong, make(nano(Attention::msa), {}, 1), kOptions);
        if (workers.is_first()) first = std::move(mine);
    });
    return first;
}

TEST(WrongGroup, AreFarFromTheCurveOfOne) {
    const auto make_model = [](int) { return make(nano(Attention::msa), {}, 1); };
    const ModelBounds bounds = model_bounds(Element::f32);
    const Trained one = train_together(1, make_model, kOptions).front();
    for (WrongGroup::Error error : {WrongGroup::kDropped, WrongGroup::kHalved}) {
        const Distance off = distance(make_model(0).parameters(), train_wrong(error), one);
        EXPECT_GT(off.gradient, 100 * bounds.gradient) << int{error};
    }
}

TEST(WrongGroup, OfDifferentSumsStop) {
    try {
        train_wrong(WrongGroup::kOwnKept);
        FAIL();
    } catch (const SystemError& error) {
        EXPECT_NE(std::string(error.what()).find("different sums of the gradient of step 0"),
                  std::string::npos)
            << error.what();
    }
}

TEST(Workers, GoOnFromTheFirst) {
    parallel::run_group(3, [](const parallel::Group& workers) {
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
        trainer.broadcast_state();
        EXPECT_EQ(trainer.step(), 3);
        EXPECT_EQ(values_of(model), values_of(same));
        EXPECT_EQ(on_host(model, model.weights().first()), on_host(same, same.weights().first()));
        EXPECT_EQ(on_host(model, model.weights().second()), on_host(same, same.weights().second()));
    });
}

}  // namespace
}  // namespace msa::train
