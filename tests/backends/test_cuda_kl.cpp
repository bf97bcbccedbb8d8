// SPDX-License-Identifier: MIT
// index_kl on tensor cores, in both forms, against the plain kernel, which tests/backends compares
// with the reference: shapes, packed sequences, NaN, graphs, rounds of blocks and pieces of
// queries.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/gradient_tolerance.h"
#include "gpu/plan/padded_heads.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CudaKl : public testing::Test {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE("cuda");
        runner_.emplace(Subject{"cuda", element()});
    }

    virtual Element element() const { return Element::bf16; }
    /// The last call ran on tensor cores: by wgmma on Hopper, where that takes the blocks.
    void expect_tensor_cores(const Problem& p) {
        const std::string answered = runner_->backend().answered_by();
        if (answered.find("in the instructions of compute capability 8.0") != std::string::npos)
            return;
        const bool wide = p.head_dim > 128;
        const std::string kernel =
            p.block_size >= 64 && !wide
                ? "index_kl_sm90"
                : concat("index_kl_mma; sm90: the ", wide ? "head dim" : "block size", " is ",
                         wide ? cuda::kernel_head_dim(p.head_dim) : p.block_size,
                         ", must be 64 or 128");
        EXPECT_EQ(answered, kernel + cuda::padding_of(p));
    }

    std::optional<Runner> runner_;
};
class CudaKlCases : public CudaKl, public testing::WithParamInterface<HalfCase> {
protected:
    void SetUp() override {
        CudaKl::SetUp();
        if (!IsSkipped()) operands_ = make_operands(GetParam(), element());
    }
    Element element() const override { return GetParam().element; }
    const Problem& problem() const { return GetParam().problem; }
    /// The support's ids, absent for the full one.
    Tensor<int32_t, 3> ids(bool full) {
        if (full) return {};
        return runner_->index_select(problem(), GetParam().rule, operands_);
    }
    Tensor<float, 2> main_lse(const Tensor<int32_t, 3>& ids) {
        return ids.size() == 0 ? runner_->dense_attention(problem(), operands_).lse
                               : runner_->sparse_attention(problem(), operands_, ids).lse;
    }

    Operands operands_;
};
INSTANTIATE_TEST_SUITE_P(All, CudaKlCases, testing::ValuesIn(in_half_types(cases(kKl))),
                         [](const auto& instance) { return instance.param.name; });

View<const int32_t, 3> support(const Tensor<int32_t, 3>& ids) {
    return ids.size() == 0 ? View<const int32_t, 3>() : ids.view();
}

TEST_P(CudaKlCases, TensorCoresGiveWhatThePlainKernelGives) {
    for (bool full : {true, false}) {
        const Tensor<int32_t, 3> chosen = ids(full);
        const IndexKl plain = runner_->index_kl(problem(), operands_, support(chosen));
        if (runner_->backend().answered_by().find("bytes of shared memory") != std::string::npos)
            GTEST_SKIP() << runner_->backend().answered_by();
        EXPECT_EQ(runner_->backend().answered_by(), "index_kl_any; mma: main_lse is not given");
        KlRequest given;
        given.main_lse = main_lse(chosen);
        const auto run = [&] {
            IndexKl got =
                runner_->index_kl(problem(), operands_, support(chosen), Teacher::mean, given);
            expect_tensor_cores(problem());
            return got;
        };
        const Bounds bound = bounds(problem(), operands_, Teacher::mean, true);
        const IndexKl got = run(), again = run();
        EXPECT_TRUE(matches(got, plain, bound)) << (full ? "full" : "selected");
        EXPECT_TRUE(identical(again.kl, got.kl));
        EXPECT_TRUE(identical(again.d_index_q, got.d_index_q));
        EXPECT_TRUE(identical(again.d_index_k, got.d_index_k));
        if (!full) {
            given.index_lse = runner_->index_select_lse(problem(), GetParam().rule, operands_).lse;
            EXPECT_TRUE(matches(run(), plain, bound)) << "selected, both lse given";
        }
        const IndexKl whole = run();
        given.value = false;  // gradients alone
        const IndexKl alone = run();
        EXPECT_TRUE(identical(alone.d_index_q, whole.d_index_q));
        EXPECT_TRUE(identical(alone.d_index_k, whole.d_index_k));
    }
}

TEST_P(CudaKlCases, SinksWeighTheHeads) {
    // The lse of a few hundred keys is about 6. A sink of 6 leaves half of every other head; of 30,
    // so little of all that no float lse tells what.
    const Problem& p = problem();
    for (float most : {6.0F, 30.0F}) {
        operands_.sinks = Tensor<float, 1>({p.query_heads});
        for (int64_t h = 0; h < p.query_heads; ++h)
            operands_.sinks(h) = h % 2 == 0 || most > 10 ? most : -most;
        for (bool full : {true, false}) {
            const Tensor<int32_t, 3> chosen = ids(full);
            const IndexKl plain = runner_->index_kl(p, operands_, support(chosen));
            if (runner_->backend().answered_by().find("bytes of shared memory") !=
                std::string::npos)
                GTEST_SKIP() << runner_->backend().answered_by();
            KlRequest given;
            given.main_lse = main_lse(chosen);
            const IndexKl got =
                runner_->index_kl(p, operands_, support(chosen), Teacher::mean, given);
            expect_tensor_cores(p);
            EXPECT_TRUE(matches(got, plain, bounds(p, operands_, Teacher::mean, true)))
                << (full ? "full" : "selected") << ", sinks up to " << most;
        }
    }
}

/// Of operands in bf16 or f16 and given lse, on the device, into outputs that hold NaN before each
/// call.
class KlCall {
public:
    /// index_lse absent: not given.
    KlCall(Backend& backend, const Operands& o, const Tensor<int32_t, 3>& ids,
           const Tensor<float, 2>& main_lse, View<const float, 2> index_lse)
        : backend_(backend),
          q_(backend, o.element, o.q),
          k_(backend, o.element, o.k),
          index_q_(backend, o.element, o.index_q),
          index_k_(backend, o.element, o.index_k),
          main_lse_(backend.upload(main_lse.view())),
          d_index_q_(backend.make<float, 3>(o.index_q.shape())),
          d_index_k_(backend.make<float, 2>(o.index_k.shape())) {
        if (ids.size() > 0) ids_ = backend.upload(ids.view());
        if (index_lse) index_lse_ = backend.upload(index_lse);
    }
    void run(const Problem& p) {
        IndexKlInput in{{index_q_, index_k_}, q_, k_, support(ids_)};
        in.main_lse = main_lse_;
        if (index_lse_.size() > 0) in.index_lse = index_lse_;
        backend_.index_kl(p, in, {{}, d_index_q_, d_index_k_});
    }
    void poison() {
        poison(d_index_q_);
        poison(d_index_k_);
    }
    std::pair<Tensor<float, 3>, Tensor<float, 2>> gradients() const {
        return {backend_.download(d_index_q_.view()), backend_.download(d_index_k_.view())};
    }

private:
    template <int Rank>
    void poison(Tensor<float, Rank>& here) {
        Tensor<float, Rank> nan(here.shape());
        std::fill_n(nan.data(), nan.size(), kNan);
        backend_.copy(here.data(), Space::device, nan.data(), Space::host,
                      nan.size() * int64_t{sizeof(float)});
    }

    Backend& backend_;
    Uploaded<3> q_, k_, index_q_;
    Uploaded<2> index_k_;
    Tensor<float, 2> main_lse_, index_lse_;
    Tensor<int32_t, 3> ids_;
    Tensor<float, 3> d_index_q_;
    Tensor<float, 2> d_index_k_;
};

TEST_P(CudaKlCases, AGraphRepeatsIt) {
    Backend& backend = runner_->backend();
    const Selection selection = runner_->index_select_lse(problem(), GetParam().rule, operands_);
    for (const bool full : {true, false})
        for (const bool given : {false, true}) {
            if (full && given) continue;  // nothing gives the lse of the full support alone
            const Tensor<int32_t, 3> chosen = ids(full);
            KlCall call(backend, operands_, chosen, main_lse(chosen),
                        given ? selection.lse.view() : View<const float, 2>());
            call.poison();
            call.run(problem());
            if (backend.answered_by().find("bytes of shared memory") != std::string::npos)
                GTEST_SKIP() << backend.answered_by();
            expect_tensor_cores(problem());
            const auto [want_q, want_k] = call.gradients();
            const std::function<void()> again = backend.make_graph([&] { call.run(problem()); });
            for (int replay = 0; replay < 2; ++replay) {
                call.poison();
                again();
                const auto [got_q, got_k] = call.gradients();
                EXPECT_TRUE(identical(got_q, want_q)) << (full ? "full" : "selected");
                EXPECT_TRUE(identical(got_k, want_k)) << (full ? "full" : "selected");
            }
        }
}

TEST_P(CudaKlCases, WhatIsNotSeenHasNoInfluence) {
    const Problem& p = problem();
    const Tensor<int32_t, 3> chosen = ids(false);
    for (size_t s = 1; s < p.batch.cu_seqlens_k().size(); ++s) {
        const int64_t last = p.batch.cu_seqlens_k()[s] - 1;
        operands_.index_k(last, 3) = kNan;  // the last query of the sequence alone sees it
        operands_.k(last, 0, 1) = kNan;
    }
    operands_.index_q(p.queries() / 2, 1, 5) = kNan;
    operands_.index_q(p.queries() / 3, 0, 2) = std::numeric_limits<float>::infinity();
    for (bool full : {true, false}) {
        const View<const int32_t, 3> over = full ? View<const int32_t, 3>() : support(chosen);
        const IndexKl plain = runner_->index_kl(p, operands_, over);
        KlRequest given;
        given.main_lse = full ? main_lse({}) : main_lse(chosen);
        const IndexKl got = runner_->index_kl(p, operands_, over, Teacher::mean, given);
        if (runner_->backend().answered_by().find("bytes of shared memory") != std::string::npos)
            GTEST_SKIP() << runner_->backend().answered_by();
        expect_tensor_cores(p);
        const auto alike = [](const auto& a, const auto& b) {
            int64_t finite = 0;
            for (int64_t i = 0; i < a.size(); ++i) {
                EXPECT_EQ(std::isfinite(a.data()[i]), std::isfinite(b.data()[i])) << i;
                finite += std::isfinite(a.data()[i]);
                if (testing::Test::HasFailure()) return int64_t{0};
            }
            return finite;
        };
        const int64_t finite = alike(got.d_index_q, plain.d_index_q);
        EXPECT_GT(finite, 0);
        EXPECT_LT(finite, got.d_index_q.size());
        alike(got.d_index_k, plain.d_index_k);
        alike(got.kl, plain.kl);
    }
}

/// A difference in Euclidean norm. t - p goes into its products as two values, which are off by at
/// most 2^-16 of it (bf16) or far less (f16, see kKlUnit of gpu/kernels/index_kl_blocks.h); what
/// float sums of both sides add is less again.
template <int Rank>
testing::AssertionResult is_near(const Tensor<float, Rank>& got, const Tensor<float, Rank>& want) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
        const double g = got.data()[i], w = want.data()[i];
        error += (g - w) * (g - w);
        size += w * w;
    }
    if (std::sqrt(error) <= 0x1p-14 * std::sqrt(size)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "off by " << std::sqrt(error / size) << " of its norm";
}

class CudaKlTypes : public CudaKl, public testing::WithParamInterface<Element> {
protected:
    Element element() const override { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, CudaKlTypes, testing::Values(Element::bf16, Element::f16),
                         [](const auto& instance) { return to_string(instance.param); });

TEST_P(CudaKlTypes, RoundsAndPiecesAreTheirSum) {
    // More slots than one workspace holds: rounds of blocks on the full support, pieces of the
    // queries on the selected one.
    for (const Case& c :
         {make_case("rounds", {8, 4, 128, 128, 128}, {0, 20000}, {0, 20000}, {.top_k = 4}),
          make_case("pieces", {8, 4, 128, 128, 64}, {0, 40000}, {0, 40000}, {.top_k = 32})}) {
        const bool full = c.name == "rounds";
        const Operands o = make_operands(c, element());
        const Tensor<int32_t, 3> ids =
            full ? Tensor<int32_t, 3>() : runner_->index_select(c.problem, c.rule, o);
        KlRequest given;
        given.main_lse = full ? runner_->dense_attention(c.problem, o).lse
                              : runner_->sparse_attention(c.problem, o, ids).lse;
        const IndexKl plain = runner_->index_kl(c.problem, o, support(ids));
        if (runner_->backend().answered_by().find("bytes of shared memory") != std::string::npos)
            GTEST_SKIP() << runner_->backend().answered_by();
        const IndexKl got = runner_->index_kl(c.problem, o, support(ids), Teacher::mean, given);
        expect_tensor_cores(c.problem);
        EXPECT_TRUE(matches(got, plain, bounds(c.problem, o, Teacher::mean, true))) << c.name;
        // Thousands of keys a row: t and p are about 2^-14.
        EXPECT_TRUE(is_near(got.d_index_q, plain.d_index_q)) << c.name;
        EXPECT_TRUE(is_near(got.d_index_k, plain.d_index_k)) << c.name;
    }
}

}  // namespace
}  // namespace msa::test
