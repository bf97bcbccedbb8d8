// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "analysis/sink.h"
#include "core/tolerance.h"
#include "tests/support/random.h"
#include "tests/support/runner.h"
#include "tests/support/softmax.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::filled;

/// Queries of zeros: every key of the support is equally likely.
struct Uniform {
    explicit Uniform(const Problem& p)
        : q({p.queries(), p.query_heads, p.head_dim}),
          k(filled<float, 3>({p.keys(), p.kv_heads, p.head_dim}, 3.0F)),
          lse({p.queries(), p.query_heads}) {}
    void set(int64_t i, int64_t support) {
        for (int64_t h = 0; h < lse.extent(1); ++h)
            lse(i, h) = static_cast<float>(std::log(static_cast<double>(support)));
    }
    Tensor<float, 3> q, k;
    Tensor<float, 2> lse;
};

TEST(SinkMass, UniformDenseAttentionGivesTheHarmonicMean) {
    const Problem p = square_problem(20, 2, 1, 16, 0, 8);
    Uniform at(p);
    double first = 0, three = 0;
    for (int64_t i = 0; i < 20; ++i) {
        at.set(i, i + 1);
        first += 1.0 / static_cast<double>(i + 1) / 20;
        three += std::min(1.0, 3.0 / static_cast<double>(i + 1)) / 20;
    }
    SinkMass sink(2, 3);
    sink.add(p, sink.logits(p, at.q, at.k), at.lse, {});
    for (size_t h = 0; h < 2; ++h) {
        EXPECT_NEAR(sink.first_token()[h], first, sink_bound(std::log(20)));
        EXPECT_NEAR(sink.first_tokens()[h], three, sink_bound(std::log(20)));
    }
}

TEST(SinkMass, OutsideTheSelectedBlocksIsNothingButTheRowCounts) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 2}, {0, 24}, {23, 23});
    Uniform at(p);
    const auto ids = test::tensor<int32_t, 3>({2, 1, 2}, {0, 2, 1, 2});
    at.set(0, 16);
    at.set(1, 16);
    SinkMass sink(1, 10);  // tokens 8 and 9 lie in block 1
    sink.add(p, sink.logits(p, at.q, at.k), at.lse, ids);
    EXPECT_NEAR(sink.first_token()[0], 1.0 / 16 / 2, sink_bound(std::log(16)));
    EXPECT_NEAR(sink.first_tokens()[0], (8.0 / 16 + 2.0 / 16) / 2, sink_bound(std::log(16)));
}

TEST(SinkMass, RowsWithoutAKeyDoNotCountAndNoneIsNaN) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 3}, {0, 1});
    Uniform at(p);
    at.lse(0, 0) = at.lse(1, 0) = -INFINITY;
    SinkMass sink(1, 1);
    EXPECT_TRUE(std::isnan(sink.first_token()[0]));
    const Tensor<double, 3> logits = sink.logits(p, at.q, at.k);
    sink.add(p.with_queries({0, 2}), logits.view().slice(0, 2), at.lse.view().slice(0, 2), {});
    EXPECT_TRUE(std::isnan(sink.first_tokens()[0]));
    sink.add(p.with_queries({2, 3}), logits.view().slice(2, 1), at.lse.view().slice(2, 1), {});
    EXPECT_EQ(sink.first_token()[0], 1);
}

TEST(SinkMass, WatchesAtLeastOneToken) {
    try {
        const SinkMass sink(1, 0);
        ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
        EXPECT_STREQ(error.what(), "sink tokens are 0, must be at least 1");
    }
}

TEST(SinkMass, IsThatOfTheWrittenOutSoftmax) {
    Problem p = square_problem(0, 6, 2, 16, 0, 8);
    p.batch = PackedBatch({0, 50, 83}, {0, 50, 83});
    test::Operands o;
    o.q = test::normal<3>({83, 6, 16}, 1, 2.0F);
    o.k = test::normal<3>({83, 2, 16}, 2);
    o.v = test::normal<3>({83, 2, 16}, 3);
    test::Runner reference = test::reference();
    const Tensor<int32_t, 3> kept =
        reference.select_blocks(p, {.top_k = 3}, test::normal<3>({83, 2, p.blocks()}, 4));
    for (const View<const int32_t, 3> ids : {View<const int32_t, 3>(), kept.view()}) {
        const test::Attention attention =
            ids ? reference.sparse_attention(p, o, ids) : reference.dense_attention(p, o);
        SinkMass whole(6, 11), chunked(6, 11);
        const Tensor<double, 3> logits = whole.logits(p, o.q, o.k);
        whole.add(p, logits, attention.lse, ids);
        for (const QueryRange& range : query_tiles(p, 19)) {
            const int64_t first = range.begin, n = range.end - range.begin;
            const Problem part = p.with_queries(range);
            chunked.add(part, chunked.logits(part, o.q.view().slice(first, n), o.k),
                        attention.lse.view().slice(first, n), ids ? ids.slice(first, n) : ids);
        }
        EXPECT_EQ(chunked.first_token(), whole.first_token());
        EXPECT_EQ(chunked.first_tokens(), whole.first_tokens());
        double lse = 0;
        for (int64_t n = 0; n < attention.lse.size(); ++n)
            lse = std::max(lse, std::fabs(double{attention.lse.data()[n]}));
        for (int64_t h = 0; h < 6; ++h) {
            double one = 0, eleven = 0;
            for (int64_t i = 0; i < 83; ++i) {
                const std::vector<double> weights = test::softmax(p, o.q, o.k, ids, i, h);
                one += weights[0] / 83;
                const auto end = weights.begin() + std::min<int64_t>(11, std::ssize(weights));
                eleven += std::accumulate(weights.begin(), end, 0.0) / 83;
            }
            EXPECT_NEAR(whole.first_token()[static_cast<size_t>(h)], one, sink_bound(lse));
            EXPECT_NEAR(whole.first_tokens()[static_cast<size_t>(h)], eleven, sink_bound(lse));
        }
    }
}

TEST(LearnedSinkMass, IsWhatTheKeysLeave) {
    // Two keys of logit 0 and a sink of logit ln 2: each takes a half. Then one of ln 6.
    const auto sinks = test::tensor<float, 1>({2}, {std::log(2.0F), std::log(6.0F)});
    const auto lse = test::tensor<float, 2>({2, 2}, {std::log(4.0F), std::log(8.0F),  //
                                                     std::log(2.0F), std::log(12.0F)});
    const std::vector<double> mass = learned_sink_mass(sinks, lse);
    EXPECT_NEAR(mass[0], (0.5 + 1) / 2, 1e-6);
    EXPECT_NEAR(mass[1], (0.75 + 0.5) / 2, 1e-6);
    EXPECT_TRUE(std::isnan(learned_sink_mass(sinks, View<const float, 2>(lse).slice(0, 0))[0]));
}

}  // namespace
}  // namespace msa::analysis
