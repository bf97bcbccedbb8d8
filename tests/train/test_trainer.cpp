// SPDX-License-Identifier: MIT
// What changes along a run: the learning rate, the warm-up, clipping; and where a run starts from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/train/nano.h"

namespace msa::train {
namespace {

TEST(Trainer, TheRateRisesLinearlyAndFallsAlongACosine) {
    const TrainingOptions o{.steps = 110, .lr = 2, .lr_warmup = 10, .lr_floor = 0.25};
    EXPECT_DOUBLE_EQ(learning_rate(o, 0), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(o, 9), 2);
    EXPECT_DOUBLE_EQ(learning_rate(o, 10), 2);
    EXPECT_DOUBLE_EQ(learning_rate(o, 60), 2 * (0.25 + 0.75 / 2));
    EXPECT_NEAR(learning_rate(o, 109), 0.5, 1e-3);
}

TEST(Trainer, TheWarmUpAttendsToEverything) {
    const Sample sample;
    Model full = make(nano(Attention::full)), msa = make(nano(Attention::msa));
    const TrainingOptions o{.steps = 3, .warmup_steps = 2};
    Trainer dense(full, o), trainer(msa, o);
    for (int64_t step = 0; step < 3; ++step) {
        const StepReport a = dense.gradient(sample.batch()), b = trainer.gradient(sample.batch());
        // The backbone starts alike, and in the warm-up it moves alike.
        EXPECT_EQ(std::fabs(a.losses.lm - b.losses.lm) < 1e-6, step < 2) << step;
        dense.update({.losses = a.losses, .norms = {1, 0}, .lr = 0.1});
        trainer.update({.losses = b.losses, .norms = {1, 0}, .lr = 0.1});
    }
}

TEST(Trainer, ALongGradientIsScaledDownToTheClip) {
    const Sample sample;
    const TrainingOptions clipped{
        .steps = 1, .adamw = {.epsilon = 1, .weight_decay = 0}, .clip = {.norm = 1e-3}};
    TrainingOptions free = clipped;
    free.clip.norm = 0;
    Model a = make(nano(Attention::full)), b = make(nano(Attention::full));
    const std::vector<float> before = values_of(a);
    const auto moved = [&](Model& model, const TrainingOptions& o) {
        Trainer trainer(model, o);
        StepReport report = trainer.gradient(sample.batch());
        report.lr = 1;
        trainer.update(report);
        double squares = 0;
        const std::vector<float> after = values_of(model);
        for (size_t i = 0; i < after.size(); ++i)
            squares += std::pow(double{after[i]} - double{before[i]}, 2);
        return std::pair(std::sqrt(squares), report.norms.all);
    };
    // With an epsilon far above the gradient, AdamW's first step is the gradient times the rate.
    const auto [short_step, norm] = moved(a, clipped);
    const auto [long_step, same_norm] = moved(b, free);
    ASSERT_GT(norm, 0.1);
    EXPECT_EQ(norm, same_norm);
    EXPECT_NEAR(short_step, 1e-3, 1e-5);
    EXPECT_GT(long_step, 0.5 * norm);
}

/// The Index Branch of a detached KL loss, and its gradient's norm, are nothing to the backbone.
TEST(Trainer, WithAllBlocksMsaTrainsAsFullAttention) {
    const Sample sample;
    ModelConfig all = nano(Attention::msa);
    all.msa.rule.top_k = 7;
    const auto distance = [&](Clipping clip) {
        const TrainingOptions o{.steps = 30, .lr_warmup = 5, .clip = clip};
        Model a = make(nano(Attention::full)), b = make(all);
        Trainer full(a, o), msa(b, o);
        double largest = 0;
        int clipped = 0;
        for (int64_t step = 0; step < o.steps; ++step) {
            const StepReport one = full.gradient(sample.batch());
            const StepReport other = msa.gradient(sample.batch());
            largest = std::max(largest, std::fabs(one.losses.lm - other.losses.lm));
            clipped += one.norms.all > o.clip.norm ? 1 : 0;
            full.update(one);
            msa.update(other);
        }
        EXPECT_GT(clipped, 3);
        return largest;
    };
    EXPECT_LT(distance({}), 3e-7);
    EXPECT_GT(distance({.apart = false}), 1e-5);
}

TEST(Trainer, EachPartOfAGradientIsClippedByItsOwnNorm) {
    const Sample sample;
    const TrainingOptions o{
        .steps = 1, .adamw = {.epsilon = 1, .weight_decay = 0}, .clip = {.norm = 1e-3}};
    Model model = make(nano(Attention::msa));
    const std::vector<float> before = values_of(model);
    Trainer trainer(model, o);
    StepReport report = trainer.gradient(sample.batch());
    ASSERT_GT(std::min(report.norms.indexer, report.norms.backbone), 1e-2);
    report.lr = 1;
    trainer.update(report);
    const std::vector<float> after = values_of(model);
    double squares[2] = {0, 0};
    for (const Parameter& p : model.parameters().all())
        for (int64_t i = p.offset; i < p.offset + p.size(); ++i) {
            const auto n = static_cast<size_t>(i);
            squares[p.indexer ? 1 : 0] += std::pow(double{after[n]} - double{before[n]}, 2);
        }
    for (double moved : squares) EXPECT_NEAR(std::sqrt(moved), 1e-3, 1e-5);
}

TEST(Trainer, ALossThatIsNotFiniteShows) {
    const Sample sample;
    Model names = make(nano(Attention::full));
    std::vector<float> start = values_of(names);
    start[5] = std::numeric_limits<float>::infinity();
    Model model = make(nano(Attention::full), start);
    const TrainingOptions o{.steps = 1};
    EXPECT_FALSE(Trainer(model, o).gradient(sample.batch()).finite());
    EXPECT_TRUE(Trainer(names, o).gradient(sample.batch()).finite());
}

TEST(Trainer, OptionsAreRefusedWithTheValueAndTheRule) {
    const auto refusal = [](auto change) -> std::string {
        TrainingOptions o{.steps = 10};
        change(o);
        try {
            o.validate();
        } catch (const InputError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refusal([](auto&) {}), "");
    EXPECT_EQ(refusal([](auto& o) { o.warmup_steps = 11; }),
              "warmup_steps is 11, must be from 0 to steps = 10");
    EXPECT_EQ(refusal([](auto& o) { o.lr_floor = 2; }), "lr_floor is 2, must be from 0 to 1");
    EXPECT_EQ(refusal([](auto& o) { o.clip.norm = -1; }), "clip is -1, must not be negative");
}

TEST(ContinueFrom, TheBackboneIsTakenAndTheIndexBranchIsFresh) {
    Model dense = make(nano(Attention::full)), sparse = make(nano(Attention::msa));
    std::vector<float> trained = values_of(dense);
    for (float& value : trained) value += 1;
    const std::vector<float> start =
        continue_from(sparse.parameters(), kSeed, dense.parameters(), trained);
    const std::vector<float> fresh = sparse.parameters().start(kSeed);
    for (const Parameter& p : sparse.parameters().all()) {
        const auto own = start.begin() + p.offset;
        const auto known =
            std::find_if(dense.parameters().all().begin(), dense.parameters().all().end(),
                         [&](const Parameter& other) { return other.name == p.name; });
        ASSERT_EQ(known == dense.parameters().all().end(), p.indexer) << p.name;
        const auto want = p.indexer ? fresh.begin() + p.offset : trained.begin() + known->offset;
        EXPECT_TRUE(std::equal(own, own + p.size(), want)) << p.name;
    }
    // And back: a dense model leaves the Index Branch out.
    EXPECT_EQ(continue_from(dense.parameters(), kSeed, sparse.parameters(), start), trained);
}

TEST(ContinueFrom, AnotherBackboneIsRefused) {
    const auto refusal = [](const ModelConfig& to, const ModelConfig& from) -> std::string {
        Model target = make(to), known = make(from);
        try {
            continue_from(target.parameters(), 0, known.parameters(), values_of(known));
        } catch (const InputError& error) {
            return error.what();
        }
        return "";
    };
    const ModelConfig plain = nano(Attention::full);
    ModelConfig wide = plain, deep = plain;
    wide.sizes.hidden_dim = 24;
    deep.sizes.layers = 3;
    EXPECT_EQ(refusal(wide, plain), "layers.0.mlp.gate_proj.weight is [48, 32], must be [24, 32]");
    EXPECT_EQ(refusal(deep, plain),
              "layers.2.input_layernorm.weight is not there, but this model has it");
    EXPECT_EQ(refusal(plain, deep),
              "layers.2.input_layernorm.weight is there, but this model has none");
}

}  // namespace
}  // namespace msa::train
