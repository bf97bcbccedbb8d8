// SPDX-License-Identifier: MIT
// The controls of the KL loss: another sequence's teacher, steps in which it is attached, a frozen
// Index Branch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/train/nano.h"

namespace msa::train {
namespace {

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

TEST(KlControls, TheTeacherOfAnotherSequence) {
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
TEST(KlControls, TheTeacherOfAnotherSequenceHasItsQueriesAndKeys) {
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
    // The lse of both sides are floats of size below 8, so 4.8e-7 off, and a KL is a difference of
    // logarithms of that size.
    for (int64_t i = 0; i < kl.size(); ++i) ASSERT_NEAR(kl.data()[i], s.kl.data()[i], 1e-5) << i;
}

TEST(KlControls, TheTeacherOfAnotherSequenceNeedsOne) {
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
TEST(KlControls, OutsideOfTheAttachedStepsTheKlIsDetached) {
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

TEST(KlControls, AFrozenIndexBranchKeepsItsWeights) {
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

}  // namespace
}  // namespace msa::train
