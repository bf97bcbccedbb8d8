// SPDX-License-Identifier: MIT
// The checks of the public shell, which every backend shares.
#include <chrono>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/number/half.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

class Interface : public SubjectTest {
protected:
    Problem problem_ = square_problem(20, 4, 2, 16, 16, 8);
    Case case_{"interface", problem_, {.top_k = 2}};
    Operands operands_ = make_operands(case_, GetParam().element);

    template <typename Error = InputError, typename Call>
    std::string refusal(const Call& call) {
        try {
            call();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
};
MSA_FOR_ALL_SUBJECTS(Interface);

TEST_P(Interface, WrongShapesAreNamed) {
    Runner runner(GetParam());
    operands_.k = Tensor<float, 3>({20, 4, 16});
    EXPECT_EQ(refusal([&] { runner.dense_attention(problem_, operands_); }),
              "k has shape [20, 4, 16], must be [Nk, Hkv, dh] = [20, 2, 16]");
    operands_ = make_operands(case_, GetParam().element);
    operands_.index_q = Tensor<float, 3>({20, 1, 16});
    EXPECT_EQ(refusal([&] { runner.index_scores(problem_, operands_); }),
              "index_q has shape [20, 1, 16], must be [Nq, Hkv, didx] = [20, 2, 16]");
}

TEST_P(Interface, EveryOperandOfAttentionIsChecked) {
    Runner runner(GetParam());
    Backend& backend = runner.backend();
    const Tensor<float, 3> q = backend.make<float, 3>({20, 4, 16});
    const Tensor<float, 3> k = backend.make<float, 3>({20, 2, 16});
    const Tensor<f16, 3> half_k = backend.make<f16, 3>({20, 2, 16});
    Tensor<float, 3> out = backend.make<float, 3>({20, 4, 16});
    Tensor<f16, 3> half_out = backend.make<f16, 3>({20, 4, 16});
    Tensor<float, 2> lse = backend.make<float, 2>({20, 4});
    const View<float, 3> to = out.view();
    const auto dense = [&](const AttentionInput& in, const AttentionOutput& result) {
        return refusal([&] { backend.dense_attention(problem_, in, result); });
    };
    EXPECT_EQ(dense({q, k, q}, {to, lse}),
              "v has shape [20, 4, 16], must be [Nk, Hkv, dh] = [20, 2, 16]");
    EXPECT_EQ(dense({q, half_k, k}, {to, lse}), "k is f16, must be f32 like the operand before it");
    EXPECT_EQ(dense({q, k, half_k}, {to, lse}), "v is f16, must be f32 like the operand before it");
    EXPECT_EQ(dense({q, k, k}, {half_out.view(), lse}), "out is f16, must be f32");
    EXPECT_EQ(dense({q, k, k}, {to, {}}), "lse is absent, must be [Nq, Hq] = [20, 4]");
}

TEST_P(Interface, KlGradientsComeTogether) {
    Runner runner(GetParam());
    Backend& backend = runner.backend();
    const Tensor<float, 3> q = backend.make<float, 3>({20, 4, 16});
    const Tensor<float, 3> k = backend.make<float, 3>({20, 2, 16});
    const Tensor<float, 2> index_k = backend.make<float, 2>({20, 16});
    Tensor<double, 2> kl = backend.make<double, 2>({20, 2});
    Tensor<float, 3> d_index_q = backend.make<float, 3>({20, 2, 16});
    EXPECT_EQ(refusal([&] {
                  backend.index_kl(problem_, {{k, index_k}, q, k, {}}, {kl, d_index_q, {}});
              }),
              "only one of d_index_q and d_index_k is present, must be both or none");
}

TEST_P(Interface, AbsentOperandsAreNamed) {
    Runner runner(GetParam());
    EXPECT_EQ(refusal([&] { runner.backend().block_mass(problem_, {}, {}); }),
              "q is absent, must be [Nq, Hq, dh] = [20, 4, 16]");
    problem_.index_dim = 0;
    EXPECT_EQ(refusal([&] { runner.index_scores(problem_, operands_); }),
              "index_dim is 0: the problem has no Index Branch");
}

TEST_P(Interface, BadProblemsRulesAndIdsAreRefused) {
    Runner runner(GetParam());
    EXPECT_EQ(refusal([&] { runner.index_select(problem_, {.top_k = 0}, operands_); }),
              "top_k is 0, must be at least 1");
    if (runner.backend().space() == Space::host) {
        Tensor<int32_t, 3> ids({20, 2, 1});
        ids(0, 0, 0) = 1;
        EXPECT_EQ(refusal([&] { runner.sparse_attention(problem_, operands_, ids); }),
                  "ids[0, 0, 0] is 1, must be a visible block (the query sees 1 blocks)");
    }
    problem_.block_size = 7;
    EXPECT_EQ(refusal([&] { runner.dense_attention(problem_, operands_); }),
              "block_size is 7, must be from 8 to 256");
    problem_.block_size = 0;
    EXPECT_EQ(refusal([&] { runner.backend().block_mass(problem_, {}, {}); }),
              "block_size is 0, must be from 1 to 256");
}

TEST_P(Interface, UnsupportedSaysWhy) {
    Runner runner(GetParam());
    Backend& backend = runner.backend();
    const DenseAttentionGradRequest request{.element = GetParam().element};
    const Support support = backend.supports(problem_, request);
    if (support.yes) GTEST_SKIP() << "the gradient is there";
    EXPECT_FALSE(support.why_not.empty());
    const Tensor<float, 3> q = backend.make<float, 3>(operands_.q.shape());
    const Tensor<float, 3> k = backend.make<float, 3>(operands_.k.shape());
    const Tensor<float, 2> lse = backend.make<float, 2>({20, 4});
    Tensor<float, 3> d_q = backend.make<float, 3>(operands_.q.shape());
    Tensor<float, 3> d_k = backend.make<float, 3>(operands_.k.shape());
    Tensor<float, 3> d_v = backend.make<float, 3>(operands_.k.shape());
    EXPECT_NE(refusal<UnsupportedError>([&] {
                  backend.dense_attention_grad(problem_, {q, k, k}, {q, lse, q}, {d_q, d_k, d_v});
              }).find("does not support dense_attention_grad"),
              std::string::npos);
}

class CanStart : public testing::TestWithParam<BackendInfo> {};
INSTANTIATE_TEST_SUITE_P(Backends, CanStart, testing::ValuesIn(known_backends()),
                         [](const auto& param) { return identifier(param.param.name); });

TEST_P(CanStart, OrSaysWhyNot) {
    MSA_SKIP_UNLESS_USABLE(GetParam().name);
    const std::unique_ptr<Backend> backend = make_backend(GetParam().name);
    EXPECT_EQ(backend->name(), GetParam().name);
    EXPECT_FALSE(backend->device().empty());
}

TEST_P(CanStart, WithTheThreadsOfTheOptions) {
    MSA_SKIP_UNLESS_USABLE(GetParam().name);
    EXPECT_EQ(make_backend(GetParam().name, {.threads = 3})->host_threads(), 3);
    EXPECT_GE(make_backend(GetParam().name)->host_threads(), 1);
}

TEST(Backends, UnknownNamesAreAnsweredWithTheKnownOnes) {
    try {
        make_backend("vulkan");
        FAIL();
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("'vulkan'; there are: reference, cpu"),
                  std::string::npos);
    }
    try {
        make_backend("referense");
        FAIL();
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("(did you mean 'reference'?)"), std::string::npos)
            << error.what();
    }
}

TEST(Backends, OneThatCannotStartSaysWhy) {
    register_backend({"broken", Support::no("there is no such device")},
                     [](const BackendOptions&) { return std::unique_ptr<Backend>(); });
    try {
        make_backend("broken");
        FAIL();
    } catch (const UnsupportedError& error) {
        EXPECT_STREQ(error.what(), "backend broken cannot start here: there is no such device");
    }
}

}  // namespace
}  // namespace msa::test
