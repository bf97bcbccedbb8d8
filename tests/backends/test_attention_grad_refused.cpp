// SPDX-License-Identifier: MIT
// What dense_attention_grad and sparse_attention_grad refuse.
#include <limits>

#include "tests/backends/attention_grad_test.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/truth.h"
#include "tests/support/values.h"

namespace msa::test {
namespace {

class AttentionGradRefusals : public AttentionGradSubjectTest {};
MSA_FOR_ALL_SUBJECTS(AttentionGradRefusals);

TEST_P(AttentionGradRefusals, SavedResultsOfAnotherInputAreRefused) {
    if (runner_.backend().space() != Space::host) GTEST_SKIP() << "a device checks no values";
    Problem p = square_problem(0, 4, 2, 16, 16, 8);
    p.batch = PackedBatch({0, 20}, {0, 18});  // the first two queries see nothing
    const Case c{"saved", p, {.top_k = 2}};
    Operands o = make_operands(c, GetParam().element);
    const Tensor<float, 3> d_out = normal<3>(o.q.shape(), 11);
    const AttentionLoss loss(p, o, {}, d_out);
    Backward backward{loss.saved(), normal<3>(o.q.shape(), 11)};
    const auto refused = [&] {
        return refusal([&] { runner_.dense_attention_grad(p, o, backward); });
    };
    EXPECT_EQ(refused(), "");
    const auto with = [&](float& value, float wrong) {
        const float right = value;
        value = wrong;
        const std::string message = refused();
        value = right;
        return message;
    };
    EXPECT_EQ(with(backward.saved.lse(1, 2), 0.5F),
              "saved lse[1, 2] is 0.5, must be -inf: the row sees no key");
    EXPECT_EQ(with(backward.saved.out(1, 2, 3), 0.5F),
              "saved out[1, 2, 3] is 0.5, must be 0: the row sees no key");
    EXPECT_EQ(with(backward.saved.lse(5, 2), -std::numeric_limits<float>::infinity()),
              "saved lse[5, 2] is -inf, but the row sees a key");
    EXPECT_EQ(with(backward.saved.lse(5, 2), std::numeric_limits<float>::quiet_NaN()).substr(0, 22),
              "saved out[5, 2, 0] is ");
    // The last row is one of those that are computed anew.
    const double bound = loss.sizes().out;
    const float out = backward.saved.out(19, 3, 5);
    EXPECT_EQ(with(backward.saved.out(19, 3, 5), out + static_cast<float>(bound / 64)), "");
    EXPECT_NE(with(backward.saved.out(19, 3, 5), out + static_cast<float>(2 * bound))
                  .find("it is not of this input"),
              std::string::npos);
    const float lse = backward.saved.lse(19, 3);
    EXPECT_NE(with(backward.saved.lse(19, 3), lse * 1.442695F).find("saved lse[19, 3] is "),
              std::string::npos);
    // What was made with a sink is not what is made without.
    o.sinks = filled<float, 1>({4}, 3.0F);
    EXPECT_NE(refused(), "");
}

TEST_P(AttentionGradRefusals, BadGradientRequestsAreNamed) {
    const Problem p = square_problem(20, 4, 2, 16, 16, 8);
    Backend& backend = runner_.backend();
    const Tensor<float, 3> q = backend.make<float, 3>({20, 4, 16});
    const Tensor<float, 3> k = backend.make<float, 3>({20, 2, 16});
    const Tensor<float, 2> lse = backend.make<float, 2>({20, 4});
    const Tensor<float, 1> sinks = backend.make<float, 1>({4}), few = backend.make<float, 1>({3});
    Tensor<float, 3> d_q = backend.make<float, 3>({20, 4, 16});
    Tensor<float, 3> d_k = backend.make<float, 3>({20, 2, 16});
    Tensor<float, 3> d_v = backend.make<float, 3>({20, 2, 16});
    Tensor<float, 1> d_sinks = backend.make<float, 1>({4});
    const auto dense = [&](const AttentionInput& in, const AttentionGradient& to) {
        return refusal([&] { backend.dense_attention_grad(p, in, {q, lse, q}, to); });
    };
    EXPECT_EQ(dense({q, k, k, few}, {d_q, d_k, d_v, {}}),
              "sinks has shape [3], must be [Hq] = [4]");
    EXPECT_EQ(dense({q, k, k, {}}, {d_q, d_k, d_v, d_sinks}),
              "d_sinks is present, but sinks are absent");
    EXPECT_EQ(dense({q, k, k, sinks}, {d_q, d_q, d_v, d_sinks}),
              "d_k has shape [20, 4, 16], must be [Nk, Hkv, dh] = [20, 2, 16]");
    if (backend.space() != Space::host) return;
    Tensor<int32_t, 3> ids({20, 2, 1});
    ids(3, 1, 0) = 2;
    EXPECT_EQ(refusal([&] {
                  backend.sparse_attention_grad(p, {q, k, k}, ids, {q, lse, q}, {d_q, d_k, d_v});
              }),
              "ids[3, 1, 0] is 2, must be a visible block (the query sees 1 blocks)");
}

}  // namespace
}  // namespace msa::test
