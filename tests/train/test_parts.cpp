// SPDX-License-Identifier: MIT
// Gradients of attention in parts (AttentionSaved::partial), which a window is made of.
#include <gtest/gtest.h>

#include <cmath>

#include "core/random.h"
#include "core/registry.h"

namespace msa {
namespace {

constexpr int64_t kTokens = 40, kBlock = 8;

Tensor<float, 3> drawn(uint64_t seed, int64_t heads) {
    Tensor<float, 3> t({kTokens, heads, 16});
    for (int64_t i = 0; i < t.size(); ++i)
        t.data()[i] = static_cast<float>(random_normal(mix(seed, i)));
    return t;
}

class Parts : public testing::TestWithParam<const char*> {
protected:
    std::unique_ptr<Backend> backend_ = make_backend(GetParam(), {.threads = 2});
    Problem p_ = square_problem(kTokens, 4, 2, 16, 0, kBlock);
    Tensor<float, 3> q_ = drawn(1, 4), k_ = drawn(2, 2), v_ = drawn(3, 2), d_out_ = drawn(4, 4);
    Tensor<float, 3> out_{Shape<3>{kTokens, 4, 16}};
    Tensor<float, 2> lse_{Shape<2>{kTokens, 4}};

    struct Gradient {
        Tensor<float, 3> q{Shape<3>{kTokens, 4, 16}}, k{Shape<3>{kTokens, 2, 16}},
            v{Shape<3>{kTokens, 2, 16}};
    };
    /// Over the visible blocks from `first` to before `end`.
    Gradient gradient(int64_t first, int64_t end, bool partial) {
        Tensor<int32_t, 3> ids({kTokens, 2, end - first});
        for (int64_t i = 0; i < kTokens; ++i)
            for (int64_t r = 0; r < 2; ++r)
                for (int64_t b = first; b < end; ++b)
                    ids(i, r, b - first) = b * kBlock <= i ? static_cast<int32_t>(b) : kNoBlock;
        Gradient to;
        backend_->sparse_attention_grad(p_, {q_, k_, v_}, ids, {out_, lse_, d_out_, partial},
                                        {to.q, to.k, to.v});
        return to;
    }
};

INSTANTIATE_TEST_SUITE_P(Backends, Parts, testing::Values("reference", "cpu"));

TEST_P(Parts, TheirGradientsAddUp) {
    backend_->dense_attention(p_, {q_, k_, v_}, {out_, lse_});
    const Gradient whole = gradient(0, 5, false), a = gradient(0, 2, true),
                   b = gradient(2, 5, true);
    const auto expect_sum = [](const auto& all, const auto& one, const auto& other) {
        for (int64_t i = 0; i < all.size(); ++i)
            ASSERT_NEAR(all.data()[i], one.data()[i] + other.data()[i], 2e-5) << i;
    };
    expect_sum(whole.q, a.q, b.q);
    expect_sum(whole.k, a.k, b.k);
    expect_sum(whole.v, a.v, b.v);
}

TEST_P(Parts, AreOfNoFewerKeys) {
    backend_->dense_attention(p_, {q_, k_, v_}, {out_, lse_});
    EXPECT_THROW(gradient(0, 2, false), InputError);  // a part that does not say so
    lse_(kTokens - 1, 3) -= 10;
    try {
        gradient(0, 5, true);
        FAIL();
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("it is of fewer keys"), std::string::npos);
    }
}

}  // namespace
}  // namespace msa
