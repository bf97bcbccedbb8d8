// SPDX-License-Identifier: MIT
// Evaluation, of predictions whose figures are known.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <sstream>

#include "core/registry.h"
#include "core/train/ops.h"
#include "experiments/pretrain/evaluate.h"
#include "tests/experiments/pretrain_text.h"
#include "tests/support/refusal.h"

namespace msa::experiments::pretrain {
namespace {

using test::MadeDocuments;
using test::prose;
using test::refusal;

train::Model nano(double scale = 1) {
    train::ModelConfig c;
    c.sizes = {.layers = 2,
               .model_dim = 32,
               .hidden_dim = 48,
               .query_heads = 4,
               .kv_heads = 2,
               .head_dim = 16,
               .rotary_dim = 8,
               .max_positions = 200,
               .index_dim = 16,
               .index_rotary = 8};
    c.msa.block_size = 16;
    c.msa.rule.top_k = 4;
    const auto ops = [] { return train::make_cpu_ops(make_backend("cpu", {.threads = 1})); };
    if (scale == 1) return {c, ops(), 7};
    return {c, ops(), 7,
            std::vector<float>(train::Model(c, ops(), 7).parameters().start(7).size())};
}

/// All numbers, NaN among them.
std::string text_of(const Evaluation& e) {
    std::ostringstream text;
    text.precision(17);
    text << e.bytes << ' ' << e.bits_per_byte << '\n';
    for (const PositionScore& of : e.by_position)
        text << of.first << ' ' << of.end << ' ' << of.bytes << ' ' << of.bits_per_byte << '\n';
    for (const FileScore& of : e.by_file)
        text << of.file << ' ' << of.bytes << ' ' << of.bits_per_byte << '\n';
    for (const RetrievalScore& of : e.retrieval)
        text << name_of(of.task) << ' ' << of.length << ' ' << of.shallowest << ' ' << of.deepest
             << ' ' << of.exercises << ' ' << of.answers << ' ' << of.exact_match << ' '
             << of.log_likelihood << '\n';
    return text.str();
}

class EvaluateTest : public testing::Test {
protected:
    MadeDocuments documents_{{prose(2000, 1), prose(900, 2), prose(60, 3)}};
    EvaluationOptions options_{.context = 100,
                               .sequences = 7,
                               .first_bucket = 16,
                               .tasks = {Task::needle, Task::recall},
                               .task = {.pairs = 3, .questions = 3},
                               .lengths = {120, 200},
                               .depths = 2,
                               .exercises = 6,
                               .batch_tokens = 300,
                               .seed = 5};

    Evaluation evaluate_with(const Predict& predict) const {
        return evaluate(predict, documents_.all(), options_);
    }
};

/// A loss for every target and no right answers, then what `change` makes of it.
template <typename Change>
Predict predictor(Change change) {
    return [change](const Sequences& s) {
        Predictions p;
        p.losses.assign(s.tokens.size(), 0.0F);
        p.right.assign(s.tokens.size(), 0);
        change(s, p);
        return p;
    };
}

/// Softmax of equal logits: every byte has 1/256, and the lowest counts as the likeliest.
TEST_F(EvaluateTest, AModelOfZerosNeedsEightBitsAByte) {
    train::Model model = nano(0);
    for (ShortDocuments how : {ShortDocuments::leave_out, ShortDocuments::pack}) {
        options_.reading.short_documents = how;
        const Evaluation e = evaluate(model, true, documents_.all(), options_);
        EXPECT_EQ(e.bytes, 700);
        EXPECT_NEAR(e.bits_per_byte, 8, 1e-6);
        for (const PositionScore& score : e.by_position) EXPECT_NEAR(score.bits_per_byte, 8, 1e-6);
        ASSERT_EQ(e.retrieval.size(), 2U * 2 * 2);
        for (const RetrievalScore& score : e.retrieval) {
            EXPECT_EQ(score.exact_match, 0);
            EXPECT_NEAR(score.log_likelihood, -8 * std::log(256.0), 1e-4);  // of 8 bytes
        }
    }
}

TEST_F(EvaluateTest, BitsGoToTheBucketOfThePosition) {
    const Evaluation e = evaluate_with(predictor([](const Sequences& s, Predictions& p) {
        for (size_t i = 0; i < s.tokens.size(); ++i)
            p.losses[i] = static_cast<float>(std::numbers::ln2) * (s.positions[i] < 16   ? 1
                                                                   : s.positions[i] < 32 ? 2
                                                                                         : 4);
    }));
    ASSERT_EQ(e.by_position.size(), 4U);  // up to 16, 32, 64, 100
    const std::array<int64_t, 5> ends{0, 16, 32, 64, 100};
    const std::array<double, 4> bits{1, 2, 4, 4};
    for (size_t b = 0; b < 4; ++b) {
        EXPECT_EQ(e.by_position[b].first, ends[b]);
        EXPECT_EQ(e.by_position[b].end, ends[b + 1]);
        EXPECT_EQ(e.by_position[b].bytes, 7 * (ends[b + 1] - ends[b]));
        EXPECT_NEAR(e.by_position[b].bits_per_byte, bits[b], 1e-6);
    }
    EXPECT_NEAR(e.bits_per_byte, (16 * 1 + 16 * 2 + 68 * 4) / 100.0, 1e-6);
}

TEST_F(EvaluateTest, AnAnswerIsRightWhereEveryByteIs) {
    // Deep answers are right, of the shallow ones one byte in the middle is wrong.
    const Evaluation e = evaluate_with(predictor([](const Sequences& s, Predictions& p) {
        for (const AnswerTokens& a : s.answers)
            for (int64_t i = a.begin; i < a.end; ++i) {
                const auto at = static_cast<size_t>(i);
                p.right[at] = a.depth >= 0.5 || i != a.begin + 3 ? 1 : 0;
                p.losses[at] = a.depth >= 0.5 ? 0.25F : 0.5F;
            }
    }));
    int64_t needles = 0, recalled = 0;
    for (const RetrievalScore& score : e.retrieval) {
        const bool deep = score.shallowest == 0.5;
        EXPECT_EQ(score.deepest, deep ? 1 : 0.5);
        EXPECT_EQ(score.exact_match, deep ? 1 : 0);
        EXPECT_DOUBLE_EQ(score.log_likelihood, deep ? -2 : -4);
        EXPECT_LE(score.exercises, score.answers);
        if (score.task == Task::needle) {
            EXPECT_EQ(score.exercises, 3);  // depths are spread evenly
        }
        (score.task == Task::needle ? needles : recalled) += score.answers;
    }
    EXPECT_EQ(needles, 2 * 6);
    EXPECT_EQ(recalled, 2 * 6 * 3);
    EXPECT_EQ(e.retrieval[0].length, 120);
    EXPECT_EQ(e.retrieval[2].length, 200);
    EXPECT_EQ(e.retrieval[4].task, Task::recall);
}

TEST_F(EvaluateTest, PartsOfDepthWithoutAnswersHaveNoMean) {
    options_.depths = 40;
    const Evaluation e = evaluate_with(predictor([](auto&, auto&) {}));
    int64_t empty = 0;
    for (const RetrievalScore& score : e.retrieval)
        if (score.answers == 0) {
            EXPECT_TRUE(std::isnan(score.exact_match) && std::isnan(score.log_likelihood));
            ++empty;
        }
    EXPECT_GE(empty, 2 * 34);
}

TEST_F(EvaluateTest, HowMuchGoesAtOnceChangesNothing) {
    const Predict by_content = predictor([](const Sequences& s, Predictions& p) {
        for (size_t i = 0; i < s.tokens.size(); ++i) {
            p.losses[i] = static_cast<float>(s.tokens[i]);
            p.right[i] = static_cast<char>(s.tokens[i] % 8 != 0);
        }
    });
    const std::string once = text_of(evaluate_with(by_content));
    EXPECT_EQ(once, text_of(evaluate_with(by_content)));
    for (int64_t tokens : {1, 100'000}) {
        options_.batch_tokens = tokens;
        EXPECT_EQ(once, text_of(evaluate_with(by_content)));
    }
    options_.seed = 6;
    EXPECT_NE(once, text_of(evaluate_with(by_content)));
}

TEST_F(EvaluateTest, TextAndRetrievalCanBeLeftOut) {
    const Predict nothing = predictor([](auto&, auto&) {});
    options_.sequences = 0;
    Evaluation e = evaluate_with(nothing);
    EXPECT_TRUE(std::isnan(e.bits_per_byte) && e.by_position.empty() && e.bytes == 0);
    EXPECT_TRUE(std::isnan(e.bits_per_byte));
    options_.sequences = 1;
    options_.tasks = {};
    e = evaluate_with(nothing);
    EXPECT_TRUE(e.bytes == 100 && e.retrieval.empty());
}

/// The exercises that a model was trained on by heart are the ones that it is asked.
TEST_F(EvaluateTest, AModelThatKnowsTheAnswersGivesThem) {
    options_.sequences = 0;
    options_.tasks = {Task::needle};
    options_.lengths = {120};
    options_.exercises = options_.depths = 1;
    train::Model model = nano();
    Sequences asked;
    evaluate(
        [&](const Sequences& s) {
            asked = s;
            return predictions_of(model, true)(s);
        },
        documents_.all(), options_);
    const RetrievalScore before = evaluate(model, true, documents_.all(), options_).retrieval[0];
    EXPECT_EQ(before.exact_match, 0);
    const Uploaded uploaded(model.ops().backend(), asked);
    const AdamW rule{.beta2 = 0.95, .weight_decay = 0};
    for (int64_t step = 1; step <= 120; ++step) {
        model.weights().clear_gradient();
        model.forward_backward(uploaded.batch(), true);
        model.weights().step(rule, step, 1e-2, model.weights().gradient_norms(), {});
    }
    const RetrievalScore after = evaluate(model, true, documents_.all(), options_).retrieval[0];
    EXPECT_EQ(after.exact_match, 1);
    EXPECT_GT(after.log_likelihood, -0.5);
    EXPECT_LT(before.log_likelihood, -8 * std::log(200.0));
}

TEST_F(EvaluateTest, RefusalsNameTheValueAndTheRule) {
    train::Model model = nano();
    const auto of = [&](auto change) {
        EvaluationOptions options = options_;
        change(options);
        return refusal([&] { evaluate(model, true, documents_.all(), options); });
    };
    EXPECT_EQ(of([](auto&) {}), "");
    EXPECT_EQ(of([](auto& o) { o.context = 201; }),
              "context is 201, must be at most 200, the positions of the model");
    EXPECT_EQ(of([](auto& o) {
                  o.lengths = {120, 300};
              }),
              "a length of exercises is 300, must be at most 200, the positions of the model");
    EXPECT_EQ(of([](auto& o) { o.lengths = {}; }), "no length of exercises is given");
    EXPECT_EQ(of([](auto& o) { o.lengths = {20}; }),
              "an exercise of needle takes 29 bytes without any filler, a length is 20; --context "
              "or --eval-lengths must be longer, or --tasks others");
    EXPECT_EQ(of([](auto& o) { o.batch_tokens = 0; }), "batch_tokens is 0, must be at least 1");
    EXPECT_EQ(of([](auto& o) { o.depths = 0; }), "depths is 0, must be at least 1");
    EXPECT_EQ(of([](auto& o) { o.sequences = -1; }), "sequences is -1, must be at least 0");
}

}  // namespace
}  // namespace msa::experiments::pretrain
