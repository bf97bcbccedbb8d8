// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/entropy.h"
#include "core/tolerance.h"
#include "tests/support/random.h"
#include "tests/support/runner.h"
#include "tests/support/softmax.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::filled;

TEST(Entropy, UniformAttentionHasLogN) {
    // Every key is (0.5, ..., 0.5) and so is their mean; the logit is 16 * 0.5 * 2 / 4 = 4.
    const Problem p = square_problem(20, 1, 1, 16, 0, 8);
    const auto q = filled<float, 3>({20, 1, 16}, 2.0F);
    const auto mean_key = filled<float, 3>({20, 1, 16}, 0.5F);
    Tensor<float, 2> lse({20, 1});
    double mean = 0;
    for (int64_t i = 0; i < 20; ++i) {
        const double log_n = std::log(static_cast<double>(i + 1));
        lse(i, 0) = static_cast<float>(4 + log_n);
        mean += log_n / 20;
    }
    Entropy entropy(1);
    entropy.add(p, q, mean_key, lse);
    EXPECT_NEAR(entropy.nats()[0], mean, entropy_bound(4 + std::log(20), 0.25, 8, 2));
}

TEST(Entropy, IsNeverNegativeAndSkipsEmptyRows) {
    const Problem p = square_problem(3, 2, 2, 16, 0, 8);
    const auto q = filled<float, 3>({3, 2, 16}, 1.0F);
    const auto mean_key = filled<float, 3>({3, 2, 16}, 1.0F);  // logit 4
    const auto lse =
        test::tensor<float, 2>({3, 2}, {-INFINITY, -INFINITY, 3.75F, -INFINITY, 6, -INFINITY});
    Entropy entropy(2);
    entropy.add(p, q, mean_key, lse);
    EXPECT_EQ(entropy.nats()[0], (0 + 2) / 2.0);
    EXPECT_TRUE(std::isnan(entropy.nats()[1]));
}

TEST(Entropy, OfNanIsNan) {
    const Problem p = square_problem(2, 1, 1, 16, 0, 8);
    auto mean_key = filled<float, 3>({2, 1, 16}, 1.0F);
    mean_key(1, 0, 3) = NAN;
    Entropy entropy(1);
    entropy.add(p, filled<float, 3>({2, 1, 16}, 1.0F), mean_key, filled<float, 2>({2, 1}, 9.0F));
    EXPECT_TRUE(std::isnan(entropy.nats()[0]));
}

/// One key takes it all, whose logit is 10^power, or -10^power: H is 0 and rounding makes 5e-3 of
/// it from 10^5 on.
TEST(Entropy, IsUndefinedWhereRoundingDecides) {
    const Problem p = square_problem(1, 1, 1, 16, 0, 8);
    for (int power = 0; power <= 20; ++power)
        for (const float sign : {1.0F, -1.0F}) {
            const auto logit = sign * static_cast<float>(std::pow(10.0, power));
            Entropy entropy(1);
            // 16 products of logit / 4, times a scale of 1 / 4.
            entropy.add(p, filled<float, 3>({1, 1, 16}, logit), filled<float, 3>({1, 1, 16}, 0.25F),
                        filled<float, 2>({1, 1}, logit));
            const double nats = entropy.nats()[0];
            EXPECT_TRUE(power < 5 ? nats == 0 : std::isnan(nats)) << logit << ' ' << nats;
        }
}

TEST(Entropy, UsesTheScaleOfTheProblem) {
    Problem p = square_problem(1, 1, 1, 16, 0, 8);
    p.softmax_scale_override = 0.5;
    Entropy entropy(1);
    entropy.add(p, filled<float, 3>({1, 1, 16}, 1.0F), filled<float, 3>({1, 1, 16}, 1.0F),
                filled<float, 2>({1, 1}, 9.0F));
    EXPECT_EQ(entropy.nats()[0], 1);
}

TEST(Entropy, IsThatOfTheWrittenOutSoftmax) {
    Problem p = square_problem(0, 6, 2, 16, 0, 8);
    p.batch = PackedBatch({0, 50, 83}, {0, 50, 83});
    test::Operands o;
    o.q = test::normal<3>({83, 6, 16}, 1, 2.0F);
    o.k = test::normal<3>({83, 2, 16}, 2);
    o.v = test::normal<3>({83, 2, 16}, 2);  // v := k
    test::Runner reference = test::reference();
    const Tensor<int32_t, 3> kept =
        reference.select_blocks(p, {.top_k = 3}, test::normal<3>({83, 2, p.blocks()}, 4));
    for (const View<const int32_t, 3> ids : {View<const int32_t, 3>(), kept.view()}) {
        const test::Attention attention =
            ids ? reference.sparse_attention(p, o, ids) : reference.dense_attention(p, o);
        Entropy whole(6), chunked(6);
        whole.add(p, o.q, attention.out, attention.lse);
        for (const QueryRange& range : query_tiles(p, 19)) {
            const int64_t first = range.begin, n = range.end - range.begin;
            chunked.add(p.with_queries(range), o.q.view().slice(first, n),
                        attention.out.view().slice(first, n), attention.lse.view().slice(first, n));
        }
        EXPECT_EQ(chunked.nats(), whole.nats());
        double lse = 0;
        for (int64_t n = 0; n < attention.lse.size(); ++n)
            lse = std::max(lse, std::fabs(double{attention.lse.data()[n]}));
        const double bound =
            entropy_bound(lse, p.softmax_scale(), largest_norm<3>(o.q), largest_norm<3>(o.k));
        for (int64_t h = 0; h < 6; ++h) {
            double mean = 0;
            for (int64_t i = 0; i < 83; ++i)
                for (double weight : test::softmax(p, o.q, o.k, ids, i, h))
                    if (weight > 0) mean -= weight * std::log(weight) / 83;
            EXPECT_NEAR(whole.nats()[static_cast<size_t>(h)], mean, bound);
        }
    }
}

}  // namespace
}  // namespace msa::analysis
