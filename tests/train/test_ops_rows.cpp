// SPDX-License-Identifier: MIT
// Operations of core/train/ops.h on rows, heads and lists, on the host and on a GPU, against sums
// in double.
#include <limits>
#include <numeric>

#include "tests/train/operations.h"

namespace msa::train {
namespace {

TEST_P(Operations, EmbedAndItsGradient) {
    for (const auto& [n, vocabulary, width] :
         {std::array<int64_t, 3>{91, 29, 32}, {2500, 7, 20}, {3000, 256, 520}}) {
        std::vector<int32_t> tokens;
        for (int64_t i = 0; i < n; ++i)
            tokens.push_back(static_cast<int32_t>(mix(7, i) % static_cast<uint64_t>(vocabulary)));
        const Values table = draw(1, vocabulary * width), d_x = draw(2, n * width),
                     before = draw(3, vocabulary * width);
        Sums x(n * width), d_table(vocabulary * width);
        for (int64_t i = 0; i < vocabulary * width; ++i) d_table.add(i, before[at(i)]);
        for (int64_t i = 0; i < n; ++i)
            for (int64_t c = 0; c < width; ++c) {
                x.add(i * width + c, table[at(tokens[at(i)] * width + c)]);
                d_table.add(tokens[at(i)] * width + c, d_x[at(i * width + c)]);
            }
        const Tensor<int32_t, 1> there = list(tokens);
        Stored from = stored(table), to = stored(d_x), d_to = wide(before);
        ops_->embed_grad(there, to.view<2>({n, width}), d_to.floats<2>({vocabulary, width}));
        expect(d_to, d_table, static_cast<double>(n));
        ops_->embed(there, from.view<2>({vocabulary, width}), to.view<2>({n, width}));
        expect(to, x, 0);
    }
}

TEST_P(Operations, CrossEntropy) {
    for (const auto& [n, vocabulary] : {std::pair<int64_t, int64_t>{91, 29}, {20, 256}, {3, 1}}) {
        constexpr float kFactor = 0.125F;
        const Values logits = draw(1, n * vocabulary);
        std::vector<int32_t> targets;
        Sums losses(n), d(n * vocabulary);
        for (int64_t i = 0; i < n; ++i) {
            const bool none = i % 5 == 3;
            targets.push_back(
                none ? Ops::kNoTarget
                     : static_cast<int32_t>(mix(9, i) % static_cast<uint64_t>(vocabulary)));
            if (none) continue;
            double sum = 0;
            const auto logit = [&, i, width = vocabulary](int64_t v) {
                return double{logits[at(i * width + v)]};
            };
            for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(logit(v));
            losses.add(i, std::log(sum));
            losses.add(i, -logit(targets.back()));
            losses.magnitudes[at(i)] += 8;  // of the largest logit, which goes and comes back
            for (int64_t v = 0; v < vocabulary; ++v) {
                d.add(i * vocabulary + v, kFactor * std::exp(logit(v)) / sum);
                if (v == targets.back()) d.add(i * vocabulary + v, -kFactor);
            }
        }
        const Tensor<int32_t, 1> there = list(targets);
        Stored to = stored(logits), each = wide(Values(at(n), 7));
        const auto roundings = static_cast<double>(vocabulary) + 2 * kExpRoundoffs + 16;
        ops_->cross_entropy(to.view<2>({n, vocabulary}), there, each.floats(), kFactor, false);
        expect(each, losses, roundings);
        EXPECT_EQ(to.get(), logits);
        ops_->cross_entropy(to.view<2>({n, vocabulary}), there, each.floats(), kFactor, true);
        expect(each, losses, roundings);
        expect(to, d, 2 * roundings);
    }
}

TEST_P(Operations, CrossEntropyOfNanIsNan) {
    Values logits = draw(1, 3 * 40);
    logits[40 + 35] = std::numeric_limits<float>::quiet_NaN();
    const Tensor<int32_t, 1> targets = list({1, 2, 3});
    Stored to = stored(logits), each = wide(Values(3));
    ops_->cross_entropy(to.view<2>({3, 40}), targets, each.floats(), 1, true);
    const Values losses = each.get();
    EXPECT_TRUE(std::isfinite(losses[0]) && std::isnan(losses[1]) && std::isfinite(losses[2]));
    EXPECT_TRUE(std::isnan(to.get()[40]));
}

TEST_P(Operations, AddBetweenElements) {
    for (int64_t n : {1, 77, 4096})
        for (bool from_wide : {false, true})
            for (bool to_wide : {false, true})
                for (Sum sum : {Sum::set, Sum::add}) {
                    const Values x = draw(1, n), before = draw(2, n);
                    Sums want(n);
                    for (int64_t i = 0; i < n; ++i) {
                        want.add(i, -1.5 * double{x[at(i)]});
                        if (sum == Sum::add) want.add(i, before[at(i)]);
                    }
                    Stored from = from_wide ? wide(x) : stored(x),
                           to = to_wide ? wide(before) : stored(before);
                    ops_->add(from.view<1>({n}), -1.5F, to.view<1>({n}), sum);
                    expect(to, want, 2);
                }
}

TEST_P(Operations, RepeatAndSumHeads) {
    constexpr int64_t kTokens = 13, kHeads = 3, kDims = 20;
    const Values one = draw(1, kTokens * kDims), many = draw(2, kTokens * kHeads * kDims);
    Sums repeated(kTokens * kHeads * kDims), summed(kTokens * kDims);
    for (int64_t i = 0; i < kTokens; ++i)
        for (int64_t h = 0; h < kHeads; ++h)
            for (int64_t d = 0; d < kDims; ++d) {
                const int64_t place = (i * kHeads + h) * kDims + d;
                repeated.add(place, one[at(i * kDims + d)]);
                summed.add(i * kDims + d, many[at(place)]);
            }
    Stored narrow = stored(one), broad = stored(many);
    ops_->sum_heads(broad.view<3>({kTokens, kHeads, kDims}), narrow.view<2>({kTokens, kDims}));
    expect(narrow, summed, kHeads);
    Stored each = stored(one);
    ops_->repeat(each.view<2>({kTokens, kDims}), broad.view<3>({kTokens, kHeads, kDims}));
    expect(broad, repeated, 0);
}

TEST_P(Operations, RowsOfAList) {
    constexpr int64_t kAll = 12, kHeads = 2;
    const std::vector<int32_t> rows{7, 0, 11, 3};
    const int64_t some = std::ssize(rows);
    const Tensor<int32_t, 1> there = list(rows);
    for (int64_t dims : {1, 5, 32})
        for (bool floats : {false, true}) {
            const int64_t width = kHeads * dims;
            const Values all = draw(1, kAll * width), part = draw(2, some * width);
            Sums gathered(some * width), added(kAll * width);
            for (int64_t i = 0; i < kAll * width; ++i) added.add(i, all[at(i)]);
            for (int64_t i = 0; i < some; ++i)
                for (int64_t c = 0; c < width; ++c) {
                    gathered.add(i * width + c, all[at(rows[at(i)] * width + c)]);
                    added.add(rows[at(i)] * width + c, part[at(i * width + c)]);
                }
            Stored whole = floats ? wide(all) : stored(all),
                   to = floats ? wide(part) : stored(part),
                   from = floats ? wide(part) : stored(part);
            ops_->gather_rows(whole.view<3>({kAll, kHeads, dims}), there,
                              to.view<3>({some, kHeads, dims}));
            expect(to, gathered, 0);
            ops_->add_rows(from.view<3>({some, kHeads, dims}), there,
                           whole.view<3>({kAll, kHeads, dims}));
            expect(whole, added, 1);
        }
}

TEST_P(Operations, MergeAttention) {
    constexpr int64_t kAll = 9, kHeads = 3, kDims = 40;
    const std::vector<int32_t> rows{8, 2, 5};
    const int64_t some = std::ssize(rows);
    const Values whole = draw(1, kAll * kHeads * kDims), part = draw(2, some * kHeads * kDims);
    Values lse = draw(3, kAll * kHeads), part_lse = draw(4, some * kHeads);
    const float none = -std::numeric_limits<float>::infinity();
    lse[8 * kHeads] = none;                                 // the part alone
    part_lse[kHeads + 1] = none;                            // the whole alone
    lse[5 * kHeads + 2] = part_lse[2 * kHeads + 2] = none;  // neither
    Sums out(kAll * kHeads * kDims);
    Doubles both(lse.begin(), lse.end());
    std::vector<bool> listed(at(kAll * kHeads));
    for (int64_t i = 0; i < some; ++i)
        for (int64_t h = 0; h < kHeads; ++h) {
            const int64_t to = rows[at(i)] * kHeads + h, from = i * kHeads + h;
            const double own = std::exp(double{lse[at(to)]}),
                         other = std::exp(double{part_lse[at(from)]}), sum = own + other;
            listed[at(to)] = true;
            both[at(to)] = std::log(sum);
            for (int64_t d = 0; d < kDims && sum > 0; ++d) {
                out.add(to * kDims + d, whole[at(to * kDims + d)] * own / sum);
                out.add(to * kDims + d, part[at(from * kDims + d)] * other / sum);
            }
        }
    for (int64_t i = 0; i < kAll * kHeads * kDims; ++i)
        if (!listed[at(i / kDims)]) out.add(i, whole[at(i)]);
    const Tensor<int32_t, 1> there = list(rows);
    Stored to = stored(whole), from = stored(part), to_lse = wide(lse), from_lse = wide(part_lse);
    ops_->merge_attention(from.view<3>({some, kHeads, kDims}), from_lse.floats<2>({some, kHeads}),
                          there, to.view<3>({kAll, kHeads, kDims}),
                          to_lse.floats<2>({kAll, kHeads}));
    // Weights: exps of differences of lse of at most 16, which are off by as many roundings.
    expect(to, out, 2 * kExpRoundoffs + 64);
    const Values merged = to_lse.get();
    for (size_t i = 0; i < merged.size(); ++i) {
        if (both[i] == -HUGE_VAL)
            EXPECT_EQ(merged[i], none) << i;
        else
            EXPECT_NEAR(merged[i], both[i], gamma(2 * kExpRoundoffs + 64)) << i;
    }
}

TEST_P(Operations, ListsOfParameters) {
    const std::vector<int64_t> starts{0, 3, 3, 1000, 70000};
    const Values values = draw(1, starts.back());
    Stored there = wide(values);
    const std::vector<double> norms = ops_->squared_norms(there.floats(), starts);
    ASSERT_EQ(norms.size(), 4U);
    for (size_t part = 0; part < norms.size(); ++part) {
        double sum = 0;
        for (int64_t i = starts[part]; i < starts[part + 1]; ++i)
            sum += double{values[at(i)]} * values[at(i)];
        EXPECT_NEAR(norms[part], sum, 1e-11 * sum);  // sums in double
    }
    Doubles wide_values(values.begin(), values.end());
    const double sum = std::accumulate(wide_values.begin(), wide_values.end(), 0.0);
    const Tensor<double, 1> doubles =
        ops_->backend().upload(View<const double, 1>(wide_values.data(), {starts.back()}));
    EXPECT_NEAR(ops_->total(there.view<1>({starts.back()})), sum, 1e-9);
    EXPECT_NEAR(ops_->total(In<1>(doubles.view())), sum, 1e-9);
    ops_->clear(there.floats());
    EXPECT_EQ(there.get(), Values(values.size()));
}

/// AdamW::update, and every result rounded once more: the device's double may fuse operations.
TEST_P(Operations, AdamwIsTheUpdateOfTheHost) {
    constexpr int64_t kCount = 3001;
    const AdamW rule{.beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1};
    Values weights = draw(1, kCount), gradient = draw(2, kCount), first = draw(3, kCount),
           second = draw(4, kCount);
    for (float& value : second) value *= value;
    Stored w = wide(weights), g = wide(gradient), m = wide(first), v = wide(second);
    ops_->adamw(rule, 3, 0.01, 0.25, w.floats(), g.floats(), m.floats(), v.floats());
    for (float& value : gradient) value *= 0.25F;
    rule.update(3, 0.01, weights, gradient, first, second);
    const auto expect_rounded = [](Stored& got, const Values& want) {
        const Values values = got.get();
        for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(values[i], want[i], 2 * kRoundoff * std::fabs(want[i]) + 1e-12) << i;
    };
    expect_rounded(w, weights);
    expect_rounded(m, first);
    expect_rounded(v, second);
}

TEST_P(Operations, NoTokensAreNoWork) {
    Stored none = stored({}), w = stored(draw(1, 32 * 16)), d_w = wide(draw(2, 32 * 16));
    const Values before = d_w.get();
    ops_->linear(none.view<2>({0, 16}), w.view<2>({32, 16}), none.view<2>({0, 32}), Sum::set);
    ops_->linear_grad_weight(none.view<2>({0, 32}), none.view<2>({0, 16}), d_w.floats<2>({32, 16}));
    EXPECT_EQ(d_w.get(), before);
}

}  // namespace
}  // namespace msa::train
