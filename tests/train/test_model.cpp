// SPDX-License-Identifier: MIT
// The model that is trained: its gradient against differences of its loss, what must agree with
// what, and that it learns.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/train/nano.h"

namespace msa::train {
namespace {

double lm_loss(Model& model, const Sample& sample, bool sparse) {
    const View<const float, 1> losses = model.forward(sample.batch(), sparse);
    return std::accumulate(losses.data(), losses.data() + losses.size(), 0.0) /
           static_cast<double>(losses.size() - 2);  // the last tokens of both sequences
}

/// For each parameter that `counts`, the loss along its own gradient must change by the gradient's
/// norm. Central differences of a float loss: error about 1e-7 / step + step^2.
template <typename Loss, typename Counts>
void expect_slopes(const ModelConfig& config, bool sparse, Loss loss, Counts counts) {
    const Sample sample;
    std::vector<float> values = lively(config);
    Model model = make(config, values);
    const std::vector<float> g = gradient_of(model, sample.batch(), sparse);
    constexpr double kStep = 4e-3;
    for (const Parameter& p : model.parameters().all()) {
        if (!counts(p)) continue;
        double squares = 0;
        for (int64_t i = 0; i < p.size(); ++i)
            squares += std::pow(double{g[static_cast<size_t>(p.offset + i)]}, 2);
        const double norm = std::sqrt(squares);
        ASSERT_GT(norm, 1e-4) << p.name;
        const auto at = [&](double step) {
            std::vector<float> moved = values;
            for (int64_t i = 0; i < p.size(); ++i) {
                const auto n = static_cast<size_t>(p.offset + i);
                moved[n] += static_cast<float>(step * double{g[n]} / norm);
            }
            Model other = make(config, moved);
            return loss(other, sample, sparse);
        };
        const double slope = (at(kStep) - at(-kStep)) / (2 * kStep);
        EXPECT_NEAR(slope, norm, 0.01 * norm + 1e-4) << p.name;
    }
}

bool every(const Parameter&) { return true; }

TEST(Model, GradientOfFullAttentionIsTheSlopeOfTheLoss) {
    ModelConfig config = nano(Attention::full);
    config.msa.sink = true;
    expect_slopes(config, false, lm_loss, every);
}

TEST(Model, GradientOfTheValueHeadIsTheSlopeOfTheLoss) {
    ModelConfig config = nano(Attention::msa);
    config.msa.value_head = true;
    config.msa.kl = false;
    config.msa.detach = false;
    expect_slopes(config, false, lm_loss, every);
    config.msa.rule.top_k = 7;  // all blocks, so that no selection jumps
    expect_slopes(config, true, lm_loss, every);
}

/// Of both losses together, with the KL loss detached, the backbone has the slope of the LM loss,
/// through index_q and index_k too; cut, it has not.
TEST(Model, TheLmLossReachesTheBackboneThroughTheIndexBranch) {
    const Sample sample;
    ModelConfig config = nano(Attention::msa);
    config.msa.value_head = true;
    const auto backbone = [](const Parameter& p) { return !p.indexer; };
    expect_slopes(config, false, lm_loss, backbone);
    const std::vector<float> values = lively(config);
    const auto gradient = [&](const MsaOptions& o) {
        ModelConfig own = config;
        own.msa = o;
        Model model = make(own, values);
        return gradient_of(model, sample.batch(), false);
    };
    MsaOptions lm = config.msa, kl = config.msa, cut = config.msa;
    lm.kl = false;
    cut.detach_lm = true;
    kl.kl_weight = 2;
    const std::vector<float> both = gradient(config.msa), alone = gradient(lm),
                             heavier = gradient(kl), without = gradient(cut);
    const Model names = make(config);
    for (const Parameter& p : names.parameters().all()) {
        const auto part = [&](const std::vector<float>& g) {
            return std::vector<float>(g.begin() + p.offset, g.begin() + p.offset + p.size());
        };
        if (!p.indexer) {
            EXPECT_EQ(part(both), part(alone)) << p.name;
        }
        if (p.name.find("layers.0.input_layernorm") == 0) {  // below the cut
            EXPECT_NE(part(without), part(both));
        }
        if (p.name.find("indexer.k_proj") != std::string::npos) {
            // Linear in the KL weight: what weight 2 adds to weight 1 is the KL's part.
            const std::vector<float> one = part(both), two = part(heavier), none = part(alone);
            for (size_t i = 0; i < one.size(); ++i)
                EXPECT_NEAR(two[i] - one[i], one[i] - none[i], 1e-6) << p.name;
        }
    }
}

/// A passive Index Branch learns as in the warm-up, and nothing hangs on it.
TEST(Model, APassiveIndexBranchChangesNothing) {
    const Sample sample;
    const ModelConfig passive = nano(Attention::passive), msa = nano(Attention::msa);
    const std::vector<float> values = lively(msa);
    Model control = make(passive, values), warming = make(msa, values);
    EXPECT_EQ(gradient_of(control, sample.batch(), true),
              gradient_of(warming, sample.batch(), false));
    Model full = make(nano(Attention::full), continue_from(make(nano(Attention::full)).parameters(),
                                                           0, control.parameters(), values));
    EXPECT_EQ(lm_loss(control, sample, true), lm_loss(full, sample, true));
}

TEST(Model, GradientOfTheKlIsItsSlopeInTheIndexer) {
    const ModelConfig config = nano(Attention::msa);
    const auto kl_loss = [](Model& model, const Sample& sample, bool sparse) {
        model.weights().clear_gradient();
        const Losses losses = model.forward_backward(sample.batch(), sparse);
        return losses.total(model.config()) - losses.lm;
    };
    expect_slopes(config, false, kl_loss, [](const Parameter& p) { return p.indexer; });
}

TEST(Model, GradientOfAWindowIsTheSlopeOfTheLoss) {
    ModelConfig config = nano(Attention::window);
    config.msa.sink = true;
    expect_slopes(config, false, lm_loss, every);
}

TEST(Model, GradientOfLayersOfEveryKindIsTheSlopeOfTheLoss) {
    ModelConfig config = nano(Attention::full);
    config.sizes.layers = 3;
    config.attention = {Attention::window, Attention::msa, Attention::full};
    config.msa.detach = false;
    config.msa.kl = false;
    config.msa.value_head = true;
    config.msa.rule.top_k = 4;
    expect_slopes(config, false, lm_loss, every);
}

/// The first block and the newest tokens: what the loss of one token hangs on.
TEST(Model, AWindowShowsTheFirstBlockAndTheNewestTokens) {
    Sample sample;
    ModelConfig config = nano(Attention::window);
    config.sizes.layers = 1;
    Model model = make(config, lively(config));
    const auto loss_at = [&](int64_t token) { return model.forward(sample.batch(), true)(token); };
    constexpr int64_t kToken = 43, kBudget = 3 * 8, kFirst = 8;  // of the first sequence
    const float before = loss_at(kToken);
    for (int64_t seen = 0; seen < kToken; ++seen) {
        int32_t& token = sample.tokens[static_cast<size_t>(seen)];
        token = (token + 1) % 29;
        const bool visible = seen < kFirst || seen > kToken - (kBudget - kFirst);
        EXPECT_EQ(loss_at(kToken) != before, visible) << seen;
        token = (token + 28) % 29;
    }
}

TEST(Model, AWindowAsLongAsTheContextIsFullAttention) {
    const Sample sample;
    ModelConfig window = nano(Attention::window);
    window.msa.rule.top_k = 7;
    Model a = make(nano(Attention::full)), b = make(window);
    EXPECT_NEAR(lm_loss(a, sample, true), lm_loss(b, sample, true), 1e-6);
}

TEST(Model, LayersAttendEachInTheirOwnWay) {
    const Sample sample;
    ModelConfig config = nano(Attention::full);
    config.attention = {Attention::full, Attention::msa};
    Model model = make(config);
    const Losses losses = model.forward_backward(sample.batch(), true);
    ASSERT_EQ(losses.kl.size(), 2U);
    EXPECT_EQ(losses.kl[0], 0);
    EXPECT_GT(losses.kl[1], 0);
    for (const Parameter& p : model.parameters().all())
        EXPECT_EQ(p.indexer, p.name.find("layers.1.self_attn.indexer") == 0) << p.name;
}

TEST(Model, WithAllBlocksMsaIsFullAttention) {
    const Sample sample;
    ModelConfig msa = nano(Attention::msa);
    msa.msa.rule.top_k = 7;
    const ModelConfig full = nano(Attention::full);
    Model a = make(full), b = make(msa);
    EXPECT_NEAR(lm_loss(a, sample, true), lm_loss(b, sample, true), 1e-6);
    const std::vector<float> one = gradient_of(a, sample.batch(), true);
    const std::vector<float> other = gradient_of(b, sample.batch(), true);
    for (const Parameter& p : a.parameters().all())
        for (const Parameter& q : b.parameters().all()) {
            if (p.name != q.name) continue;
            for (int64_t i = 0; i < p.size(); ++i)
                ASSERT_NEAR(one[static_cast<size_t>(p.offset + i)],
                            other[static_cast<size_t>(q.offset + i)], 1e-6)
                    << p.name;
        }
}

/// eq:msa-detach: the KL weight moves nothing of the backbone.
TEST(Model, DetachedTheKlReachesTheIndexerAlone) {
    const Sample sample;
    ModelConfig config = nano(Attention::msa);
    const std::vector<float> values = lively(config);
    for (bool detach : {true, false}) {
        config.msa.detach = detach;
        config.msa.kl_weight = 1;
        Model light = make(config, values);
        config.msa.kl_weight = 3;
        Model heavy = make(config, values);
        const std::vector<float> a = gradient_of(light, sample.batch(), true);
        const std::vector<float> b = gradient_of(heavy, sample.batch(), true);
        double backbone = 0, indexer = 0;
        for (const Parameter& p : light.parameters().all())
            for (int64_t i = p.offset; i < p.offset + p.size(); ++i) {
                const auto n = static_cast<size_t>(i);
                (p.indexer ? indexer : backbone) += std::fabs(double{a[n]} - double{b[n]});
            }
        EXPECT_GT(indexer, 0);
        EXPECT_EQ(backbone == 0, detach);
    }
}

TEST(Model, ThreadsAndRerunsChangeNoBit) {
    const Sample sample;
    ModelConfig config = nano(Attention::msa);
    config.msa.value_head = true;
    config.msa.sink = true;
    Model one = make(config, {}, 1), three = make(config, {}, 3);
    const std::vector<float> first = gradient_of(one, sample.batch(), true);
    EXPECT_EQ(first, gradient_of(three, sample.batch(), true));
    EXPECT_EQ(first, gradient_of(one, sample.batch(), true));
}

TEST(Model, LearnsOneBatchByHeart) {
    const Sample sample;
    for (Attention attention : {Attention::full, Attention::msa, Attention::window}) {
        Model model = make(nano(attention));
        const AdamW rule{.beta2 = 0.95, .weight_decay = 0};
        Losses losses;
        for (int64_t step = 1; step <= 150; ++step) {
            model.weights().clear_gradient();
            losses = model.forward_backward(sample.batch(), step > 20);
            model.weights().step(rule, step, 1e-2, model.weights().gradient_norms(), {});
        }
        EXPECT_LT(losses.lm, 0.05);
    }
}

TEST(Model, ConfigurationsAreRefusedWithTheValueAndTheRule) {
    const auto refusal = [](auto change) -> std::string {
        ModelConfig config = nano(Attention::msa);
        change(config);
        try {
            make(config);
        } catch (const InputError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refusal([](auto& c) { c.sizes.layers = 0; }), "layers is 0, must be at least 1");
    EXPECT_EQ(refusal([](auto& c) { c.sizes.rotary_dim = 18; }),
              "rotary_dim is 18, must be even, from 0 to head_dim = 16");
    EXPECT_EQ(refusal([](auto& c) { c.msa.kl = false; }),
              "neither the KL loss nor the value head is on, so nothing trains the Index Branch");
    EXPECT_EQ(refusal([](auto& c) { c.attention.resize(3); }),
              "attention is given for 3 layers, must be given once, or for each of the 2");
    EXPECT_EQ(refusal([](auto& c) {
                  c.attention = {Attention::window};
                  c.msa.rule.top_k = 1;
              }),
              "top_k is 1, must be at least 2 for a window: the first block, and k - 1 blocks of "
              "newest tokens");
    EXPECT_EQ(refusal([](auto& c) {
                  c.attention = {Attention::passive};
                  c.msa.value_head = true;
              }),
              "a layer with a passive Index Branch has no value head, which would be a use of it");
    EXPECT_EQ(refusal([](auto& c) { c.msa.kl_weight = -1; }),
              "kl_weight is -1, must not be negative");
}

}  // namespace
}  // namespace msa::train
