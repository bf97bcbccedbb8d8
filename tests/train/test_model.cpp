// SPDX-License-Identifier: MIT
// The model that is trained: its gradient against differences of its loss, what must agree with
// what, and that it learns.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/train/nano.h"

namespace msa::train {
namespace {

std::vector<float> gradient_of(Model& model, const Batch& batch, bool sparse) {
    model.weights().clear_gradient();
    model.forward_backward(batch, sparse);
    const View<const float, 1> g = std::as_const(model.weights()).gradient();
    return {g.data(), g.data() + g.size()};
}

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

/// The same tokens twice: the other sequence teaches what the own one does.
struct TwinSample : Sample {
    explicit TwinSample(bool twins) {
        layout = PackedBatch{{0, 45, 90}, {0, 45, 90}};
        tokens.resize(90);
        if (twins) std::copy_n(tokens.begin(), 45, tokens.begin() + 45);
        targets = next_tokens(tokens, layout);
        positions = token_positions(layout);
    }
};

TEST(Model, TheTeacherOfAnotherSequence) {
    ModelConfig own = nano(Attention::msa);
    for (bool full_support : {false, true}) {
        own.msa.kl_full_support = full_support;
        ModelConfig other = own;
        other.msa.other_teacher = true;
        const std::vector<float> values = lively(own);
        for (bool sparse : {false, true}) {
            for (bool twins : {true, false}) {
                const TwinSample sample(twins);
                Model a = make(own, values), b = make(other, values);
                const std::vector<float> mine = gradient_of(a, sample.batch(), sparse);
                const std::vector<float> theirs = gradient_of(b, sample.batch(), sparse);
                double index = 0, backbone = 0, norm = 0;
                for (const Parameter& p : a.parameters().all())
                    for (int64_t i = p.offset; i < p.offset + p.size(); ++i) {
                        const auto n = static_cast<size_t>(i);
                        (p.indexer ? index : backbone) += std::fabs(double{mine[n]} - theirs[n]);
                        if (p.indexer) norm += std::fabs(double{mine[n]});
                    }
                EXPECT_EQ(backbone, 0);
                if (twins)
                    EXPECT_LT(index, 1e-4 * norm);  // float rounding of the lse
                else
                    EXPECT_GT(index, 0.1 * norm);
            }
        }
    }
}

/// The KL of every row is that of its index scores and the other sequence's q and k.
TEST(Model, TheTeacherOfAnotherSequenceHasItsQueriesAndKeys) {
    ModelConfig config = nano(Attention::msa);
    config.msa.other_teacher = true;
    const TwinSample sample(false);
    Model model = make(config, lively(config));
    model.forward_backward(sample.batch(), true);
    const AttentionState& s = model.attention(0);
    const auto other = [](In<3> rows) {
        const View<const float, 3> from = rows.as<const float>();
        Tensor<float, 3> to(from.shape());
        const int64_t half = to.size() / 2;
        std::copy_n(from.data() + half, half, to.data());
        std::copy_n(from.data(), half, to.data() + half);
        return to;
    };
    const Tensor<float, 3> q = other(s.q.in()), k = other(s.k.in());
    const Problem p = config.problem(sample.layout);
    Tensor<double, 2> kl({p.queries(), p.kv_heads});
    Tensor<float, 3> d_q({p.queries(), p.kv_heads, p.index_dim});
    Tensor<float, 2> d_k({p.keys(), p.index_dim});
    const IndexKlInput in{.index = {s.index_q, flat(s.index_k.in())},
                          .q = q.view(),
                          .k = k.view(),
                          .ids = s.ids.view()};
    model.ops().backend().index_kl(p, in, {kl.view(), d_q.view(), d_k.view()});
    for (int64_t i = 0; i < kl.size(); ++i) ASSERT_NEAR(kl.data()[i], s.kl.data()[i], 1e-5) << i;
}

TEST(Model, TheTeacherOfAnotherSequenceNeedsOne) {
    ModelConfig config = nano(Attention::msa);
    config.msa.other_teacher = true;
    config.sizes.max_positions = 91;
    Model model = make(config);
    const Sample uneven;
    EXPECT_THROW(model.forward_backward(uneven.batch(), true), InputError);
    Sample one;
    one.layout = PackedBatch{{0, 91}, {0, 91}};
    one.positions = token_positions(one.layout);
    EXPECT_THROW(model.forward_backward(one.batch(), true), InputError);
}

/// Steps outside of the attached ones have the gradient of a detached loss.
TEST(Model, OutsideOfTheAttachedStepsTheKlIsDetached) {
    const Sample sample;
    ModelConfig detached = nano(Attention::msa), attached = detached;
    attached.msa.detach = false;
    const std::vector<float> values = lively(detached);
    Model a = make(detached, values), b = make(attached, values);
    const std::vector<float> cut = gradient_of(a, sample.batch(), true);
    b.weights().clear_gradient();
    b.forward_backward(sample.batch(), true, false);
    const View<const float, 1> g = std::as_const(b.weights()).gradient();
    EXPECT_EQ(cut, std::vector<float>(g.data(), g.data() + g.size()));
    EXPECT_NE(cut, gradient_of(b, sample.batch(), true));

    const TrainingOptions middle{.steps = 9, .attach_from = 2, .attach_until = 5};
    for (int64_t step = 0; step < 9; ++step)
        EXPECT_EQ(middle.attached(step), step >= 2 && step < 5);
    EXPECT_TRUE((TrainingOptions{.steps = 9}.attached(8)));
}

TEST(Model, AFrozenIndexBranchKeepsItsWeights) {
    const Sample sample;
    Model model = make(nano(Attention::msa));
    const std::vector<float> before = values_of(model);
    const TrainingOptions options{.steps = 3, .freeze_index = true};
    Trainer trainer(model, options);
    for (int step = 0; step < 3; ++step) trainer.update(trainer.gradient(sample.batch()));
    const std::vector<float> after = values_of(model);
    for (const Parameter& p : model.parameters().all()) {
        const auto part = [&](const std::vector<float>& all) {
            return std::vector<float>(all.begin() + p.offset, all.begin() + p.offset + p.size());
        };
        EXPECT_EQ(part(before) == part(after), p.indexer) << p.name;
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
