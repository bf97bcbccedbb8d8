// SPDX-License-Identifier: MIT
// Dense over choices of blocks, put together from attention to single blocks, against that of
// the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/output_error.h"
#include "core/registry.h"
#include "core/tolerance.h"
#include "experiments/driver/layers.h"
#include "experiments/measure/choice_errors.h"
#include "tests/support/far_backend.h"
#include "tests/support/random.h"

namespace msa::test {
namespace {

class ChoiceErrors : public testing::Test {
protected:
    using Choice = View<const int32_t, 3>;
    using Errors = std::vector<experiments::measure::ChoiceError>;
    using Dense = experiments::Attention;

    /// Two sequences, of 150 and 75 tokens; 2 groups of 3 heads of 20 channels; blocks of 16.
    Problem p_ = [] {
        Problem p = square_problem(0, 6, 2, 20, 0, 16);
        p.batch = PackedBatch({0, 150, 225}, {0, 150, 225});
        return p;
    }();
    Tensor<float, 3> q_ = normal<3>({225, 6, 20}, 1, 2), k_ = normal<3>({225, 2, 20}, 2),
                     v_ = normal<3>({225, 2, 20}, 3);
    Tensor<float, 1> sinks_;

    /// The operands where a backend works.
    struct There {
        There(Backend& backend, const ChoiceErrors& of)
            : q(backend, of.q_.view()),
              k(backend, of.k_.view()),
              v(backend, of.v_.view()),
              sinks(backend, of.sinks_.view()) {}
        AttentionInput input() const { return {q.view(), k.view(), v.view(), sinks}; }
        experiments::Operand<3> q, k, v;
        experiments::Sinks sinks;
    };

    /// Every query keeps `of` blocks: the oldest, and then each `step`-th that it sees; from
    /// `blind` on none.
    Tensor<int32_t, 3> choose(int64_t of, int64_t step, int64_t blind = 225) const {
        Tensor<int32_t, 3> ids({p_.queries(), p_.kv_heads, of});
        std::fill_n(ids.data(), ids.size(), kNoBlock);
        for (int64_t i = 0; i < blind; ++i) {
            const int64_t seen = visible_keys(p_)[static_cast<size_t>(i)].count;
            for (int64_t r = 0; r < p_.kv_heads; ++r)
                for (int64_t n = 0; n < of && n * (step + r) < visible_blocks(seen, 16); ++n)
                    ids(i, r, n) = static_cast<int32_t>(n * (step + r));
        }
        return ids;
    }
    Errors errors(const char* name, const std::vector<Choice>& choices, int threads = 2) const {
        const std::unique_ptr<Backend> backend = make_backend(name, {.threads = threads});
        const There there(*backend, *this);
        return experiments::measure::squared_errors(*backend, p_, there.input(), dense(*backend),
                                                    choices);
    }
    Dense dense(Backend& backend) const {
        return experiments::attend(backend, p_, There(backend, *this).input(), {});
    }
    AttentionInput input() const { return {q_, k_, v_, sinks_}; }  // on the host

    /// The roots of the errors differ by no more than the outputs do.
    void expect_errors(const char* name, const std::vector<Choice>& choices) const {
        const Errors got = errors(name, choices);
        ASSERT_EQ(got.size(), choices.size());
        const std::unique_ptr<Backend> reference = make_backend("reference");
        const Dense whole = dense(*reference);
        const double v_max = largest_norm<3>(v_), keys = 150;
        const double logit = main_logit_bound(p_, largest_norm<3>(q_), largest_norm<3>(k_));
        double lse = std::log(keys);
        for (int64_t at = 0; at < whole.lse.size(); ++at)
            lse = std::max(lse, std::fabs(double{whole.lse.data()[at]}));
        lse += 2 * p_.softmax_scale() * largest_norm<3>(q_) * largest_norm<3>(k_);  // of any block
        // Of the choice, and of dense attention.
        const double each =
            2 * joined_bound(logit, keys, lse, v_max) +
            (sinks_.data() ? 2 * sink_output_bound(lse_bound(logit, keys, lse), Element::f32, v_max)
                           : 0);
        const double bound = std::sqrt(60.0) * each;
        for (size_t c = 0; c < choices.size(); ++c) {
            const Dense some = experiments::attend_selected(*reference, p_, input(), choices[c]);
            const Tensor<double, 2> want =
                analysis::squared_differences(some.out, whole.out, p_.kv_heads);
            for (int64_t i = 0; i < p_.queries(); ++i)
                for (int64_t r = 0; r < p_.kv_heads; ++r)
                    ASSERT_NEAR(std::sqrt(got[c].squared(i, r)), std::sqrt(want(i, r)), bound)
                        << name << ", choice " << c << ", query " << i << ", group " << r;
            for (int64_t at = 0; at < some.lse.size(); ++at) {
                const double of_choice{some.lse.data()[at]}, found{got[c].lse.data()[at]};
                if (std::isinf(of_choice))
                    ASSERT_EQ(found, of_choice) << name << ", choice " << c << ", row " << at;
                else
                    ASSERT_NEAR(found, of_choice, 4 * lse_bound(logit, keys, lse))
                        << name << ", choice " << c << ", row " << at;
            }
        }
    }
    /// Few choices, which keep less than all blocks together, and many.
    void expect_few_and_many() const {
        register_far_backend();
        const Tensor<int32_t, 3> one = choose(1, 1), three = choose(3, 2), some = choose(4, 1, 200),
                                 all = all_visible_blocks(p_);
        for (const char* name : {"cpu", "reference", "far"}) {
            expect_errors(name, {one.view(), three.view()});
            expect_errors(name, {one.view(), three.view(), some.view(), all.view()});
        }
    }
};

TEST_F(ChoiceErrors, AreThoseOfSparseAttention) { expect_few_and_many(); }

TEST_F(ChoiceErrors, ObeyWindowCapAndSinks) {
    sinks_ = normal<1>({6}, 4);
    p_.softcap = 5;
    expect_few_and_many();
    p_.window = 20;  // hides all of some choices
    expect_few_and_many();
}

// Dense attention gives the blocks that are kept a share that no double can hold.
TEST_F(ChoiceErrors, KnowWhatNobodyLooksAt) {
    for (int64_t j = 0; j < 225; ++j)
        for (int64_t r = 0; r < 2; ++r) k_(j, r, 0) = j % 150 < 16 ? 0 : 100;
    for (int64_t i = 0; i < 225; ++i)
        for (int64_t h = 0; h < 6; ++h) q_(i, h, 0) = 100;
    const Tensor<int32_t, 3> oldest = choose(1, 1);
    const std::unique_ptr<Backend> cpu = make_backend("cpu");
    const Dense whole = dense(*cpu);
    const Tensor<double, 2> want = analysis::squared_differences(
        experiments::attend_selected(*cpu, p_, input(), oldest.view()).out, whole.out, 2);
    const Errors got = experiments::measure::squared_errors(*cpu, p_, input(), whole,
                                                            std::vector<Choice>{oldest.view()});
    for (int64_t at = 0; at < want.size(); ++at)  // one block alone is that block
        EXPECT_NEAR(got[0].squared.data()[at], want.data()[at], 1e-12 * want.data()[at]);
    EXPECT_GT(want(149, 0), 1);
}

TEST_F(ChoiceErrors, UndefinedBlocksSpoilWhoKeepsThemAlone) {
    for (int64_t d = 0; d < 20; ++d) v_(40, 1, d) = NAN;  // block 2 of group 1
    const Tensor<int32_t, 3> one = choose(1, 1), three = choose(3, 1);
    const std::unique_ptr<Backend> cpu = make_backend("cpu");
    Dense zero{Tensor<float, 3>({225, 6, 20}), dense(*cpu).lse};
    const Errors got = experiments::measure::squared_errors(
        *cpu, p_, input(), zero, std::vector<Choice>{one.view(), three.view()});
    EXPECT_FALSE(std::isnan(got[0].squared(149, 1)));
    EXPECT_FALSE(std::isnan(got[1].squared(149, 0)));
    for (int64_t at = 0; at < 225; ++at) {
        const bool kept = three(at, 1, 1) == 2 || three(at, 1, 2) == 2;
        EXPECT_EQ(std::isnan(got[1].squared(at, 1)), kept && at >= 40 && at < 150) << at;
    }
}

// A backend with memory of its own attends to every choice by itself: its errors are those of that
// attention, to the bit.
TEST_F(ChoiceErrors, FarAwayAreThoseOfTheBackendsOwnAttention) {
    register_far_backend();
    const Tensor<int32_t, 3> three = choose(3, 2), some = choose(4, 1, 200);
    const std::unique_ptr<Backend> cpu = make_backend("cpu", {.threads = 2});
    const Dense whole = dense(*cpu);
    const std::vector<Choice> choices{three.view(), some.view()};
    const Errors got = errors("far", choices);
    for (size_t c = 0; c < choices.size(); ++c) {
        const Tensor<double, 2> want = analysis::squared_differences(
            experiments::attend_selected(*cpu, p_, input(), choices[c]).out, whole.out,
            p_.kv_heads);
        EXPECT_TRUE(std::equal(want.data(), want.data() + want.size(), got[c].squared.data())) << c;
    }
}

// To the bit: whatever else is asked for, with any threads, in any tile of queries.
TEST_F(ChoiceErrors, AreTheSameInAnyCompany) {
    const Tensor<int32_t, 3> three = choose(3, 2), all = all_visible_blocks(p_);
    const Tensor<double, 2> alone = std::move(errors("cpu", {three.view()}, 1)[0].squared);
    const Errors together = errors("cpu", {all.view(), three.view()}, 3);
    const std::unique_ptr<Backend> cpu = make_backend("cpu");
    const Dense whole = dense(*cpu);
    for (int64_t i = 0; i < p_.queries(); ++i) {
        const std::vector<int64_t> row{i};
        const Problem one = p_.with_query_rows(row);
        Dense of_row{Tensor<float, 3>({1, 6, 20}), Tensor<float, 2>({1, 6})};
        std::copy_n(whole.out.view()[i].data(), 120, of_row.out.data());
        std::copy_n(whole.lse.view()[i].data(), 6, of_row.lse.data());
        const Errors got = experiments::measure::squared_errors(
            *cpu, one, {q_.view().slice(i, 1), k_, v_, {}}, of_row,
            std::vector<Choice>{std::as_const(three).view().slice(i, 1)});
        for (int64_t r = 0; r < 2; ++r) {
            EXPECT_EQ(together[1].squared(i, r), alone(i, r)) << i;
            EXPECT_EQ(got[0].squared(0, r), alone(i, r)) << i;
        }
    }
    EXPECT_TRUE(errors("cpu", {}).empty());
}

}  // namespace
}  // namespace msa::test
