// SPDX-License-Identifier: MIT
// The Index Branch's projections and AdamW: against PyTorch (tests/goldens/index_branch.h5), finite
// differences, and forms by hand.
#include <cmath>
#include <numeric>

#include "core/indexer/adamw.h"
#include "core/indexer/index_branch.h"
#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

constexpr double kGolden = 1e-5;  // what the project promises against PyTorch

std::vector<int64_t> positions_up_to(int64_t tokens) {
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
}

template <int Rank>
void fill(View<float, Rank> to, const Tensor<float, Rank>& from) {
    ASSERT_EQ(to.shape(), from.shape());
    std::copy_n(from.data(), from.size(), to.data());
}

class IndexBranchGolden : public testing::TestWithParam<bool> {
protected:
    IndexBranchGolden() {
        form_ = {golden_.size("kv_heads"),   golden_.size("index_dim"),
                 golden_.size("model_dim"),  GetParam(),
                 golden_.size("rotary_dim"), golden_.number("rope_theta")};
        weights_ = IndexWeights(form_);
        fill(weights_.w_q(), golden_.read<float, 2>("/inputs/w_index_q"));
        fill(weights_.w_k(), golden_.read<float, 2>("/inputs/w_index_k"));
        if (!GetParam()) return;
        fill(weights_.norm_q(), golden_.read<float, 1>("/inputs/index_q_norm"));
        fill(weights_.norm_k(), golden_.read<float, 1>("/inputs/index_k_norm"));
    }
    template <int Rank>
    Tensor<float, Rank> expected(const std::string& name) const {
        return golden_.read<float, Rank>((GetParam() ? "/expected/normed/" : "/expected/plain/") +
                                         name);
    }

    Golden golden_{"index_branch.h5"};
    IndexForm form_;
    IndexWeights weights_;
    Tensor<float, 2> x_ = golden_.read<float, 2>("/inputs/x");
    std::vector<int64_t> positions_ = positions_up_to(x_.extent(0));
};
INSTANTIATE_TEST_SUITE_P(All, IndexBranchGolden, testing::Bool(),
                         [](const auto& p) { return p.param ? "normed" : "plain"; });

TEST_P(IndexBranchGolden, FromHiddenStatesToTheGradientOfTheLoss) {
    Operands o{
        golden_.read<float, 3>("/inputs/q"), golden_.read<float, 3>("/inputs/k"), {}, {}, {}};
    o.index_q = index_queries(weights_, x_, positions_);
    const Tensor<float, 3> keys = index_keys(weights_, x_, positions_);
    o.index_k = Tensor<float, 2>({keys.extent(0), keys.extent(2)});
    std::copy_n(keys.data(), keys.size(), o.index_k.data());
    EXPECT_TRUE(close(o.index_q, expected<3>("index_q"), kGolden));
    EXPECT_TRUE(close(o.index_k, expected<2>("index_k"), kGolden));

    const Problem p = square_problem(x_.extent(0), golden_.size("query_heads"), form_.groups,
                                     golden_.size("head_dim"), form_.index_dim, kMinBlockSize);
    const IndexKl kl = Runner({"cpu", Element::f32}).index_kl(p, o, {});
    const Tensor<double, 1> loss =
        golden_.read<double, 1>(GetParam() ? "/expected/normed/kl" : "/expected/plain/kl");
    EXPECT_NEAR(kl.mean(), loss(0), kGolden);

    IndexWeights gradient(form_);
    index_queries_grad(weights_, x_, positions_, kl.d_index_q, gradient);
    index_keys_grad(weights_, x_, positions_,
                    View<const float, 3>(kl.d_index_k.data(), keys.shape()), gradient);
    const auto same = [&](auto got, const auto& want) {
        EXPECT_TRUE((close<float, std::tuple_size_v<std::decay_t<decltype(got.shape())>>>(
            got, want.view(), kGolden)));
    };
    same(gradient.w_q(), expected<2>("d_w_index_q"));
    same(gradient.w_k(), expected<2>("d_w_index_k"));
    if (!GetParam()) return;
    same(gradient.norm_q(), expected<1>("d_index_q_norm"));
    same(gradient.norm_k(), expected<1>("d_index_k_norm"));
}

TEST_P(IndexBranchGolden, GradientIsTheFiniteDifference) {
    // sum(c * index_q): linear in w without the norm, so that the difference has rounding alone.
    const Tensor<float, 3> c = normal<3>({x_.extent(0), form_.groups, form_.index_dim}, 1);
    const auto sum = [&] {
        const Tensor<float, 3> heads = index_queries(weights_, x_, positions_);
        double total = 0;
        for (int64_t n = 0; n < heads.size(); ++n)
            total += double{heads.data()[n]} * double{c.data()[n]};
        return total;
    };
    IndexWeights gradient(form_);
    index_queries_grad(weights_, x_, positions_, c, gradient);
    double magnitude = 0;  // of a derivative
    for (float g : gradient.values()) magnitude = std::max(magnitude, std::fabs(double{g}));
    for (int64_t at = 0; at < weights_.w_q().size(); at += 131) {
        float& w = weights_.w_q().data()[at];
        const float centre = w, step = 0x1p-7F;
        w = centre + step;
        const double up = sum(), above = w;
        w = centre - step;
        const double down = sum(), below = w;
        w = centre;
        EXPECT_NEAR((up - down) / (above - below), gradient.w_q().data()[at], 2e-3 * magnitude);
    }
}

TEST_P(IndexBranchGolden, ThreadsChangeNoBit) {
    const Tensor<float, 2> x = normal<2>({700, form_.model_dim}, 2);  // more than one tile
    const std::vector<int64_t> positions = positions_up_to(700);
    const Tensor<float, 3> d = normal<3>({700, form_.groups, form_.index_dim}, 3);
    const Tensor<float, 3> d_k = normal<3>({700, 1, form_.index_dim}, 4);
    IndexWeights one(form_), three(form_);
    for (auto& [gradient, threads] : {std::pair{&one, 1}, {&three, 3}}) {
        index_queries_grad(weights_, x, positions, d, *gradient, threads);
        index_keys_grad(weights_, x, positions, d_k, *gradient, threads);
    }
    EXPECT_TRUE(std::equal(one.values().begin(), one.values().end(), three.values().begin()));
    EXPECT_TRUE(identical(index_queries(weights_, x, positions, 1),
                          index_queries(weights_, x, positions, 3)));
}

TEST(IndexForm, RefusesSizesThatCannotBe) {
    const auto refused = [](IndexForm form, const std::string& message) {
        try {
            form.validate();
            ADD_FAILURE() << message;
        } catch (const InputError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
        }
    };
    const IndexForm good{2, 16, 8, false, 8, 1e4};
    EXPECT_NO_THROW(good.validate());
    IndexForm form = good;
    form.groups = 0;
    refused(form, "groups is 0");
    form = good;
    form.index_dim = 8;
    refused(form, "index_dim is 8, must be from 16 to 256");
    form = good;
    form.model_dim = 0;
    refused(form, "model_dim is 0");
    form = good;
    form.rotary_dim = 7;
    refused(form, "rotary_dim is 7, must be even");
    form.rotary_dim = 18;
    refused(form, "rotary_dim is 18");
    form = good;
    form.rope_theta = 0;
    refused(form, "rope_theta is 0");
}

TEST(IndexWeights, AreOneListOfValues) {
    IndexWeights w({2, 16, 8, true, 0, 0});
    EXPECT_EQ(w.values().size(), 2U * 16 * 8 + 16 * 8 + 16 + 16);
    EXPECT_EQ(w.w_k().data(), w.values().data() + std::ptrdiff_t{2} * 16 * 8);
    EXPECT_EQ(w.norm_q().data(), w.values().data() + std::ptrdiff_t{3} * 16 * 8);
    EXPECT_EQ(w.norm_k()(15), 1.0F);
    EXPECT_EQ(&w.norm_k()(15), &w.values().back());
    EXPECT_FALSE(IndexWeights({2, 16, 8, false, 0, 0}).norm_q());
}

TEST(AdamWTest, TakesPyTorchsSteps) {
    const Golden golden("index_branch.h5");
    const Tensor<float, 2> start = golden.read<float, 2>("/inputs/w_index_k");
    const Tensor<float, 3> gradients = golden.read<float, 3>("/inputs/gradients");
    std::vector<float> w(start.data(), start.data() + start.size());
    std::vector<float> first(w.size()), second(w.size());
    AdamW adamw;
    adamw.weight_decay = golden.number("weight_decay");
    const int64_t steps = golden.size("steps");
    for (int64_t step = 0; step < steps; ++step)
        adamw.update(step + 1, cosine_rate(golden.number("rate"), step, steps), w,
                     {gradients.view()[step].data(), w.size()}, first, second);
    EXPECT_TRUE((close<float, 2>({w.data(), start.shape()},
                                 golden.read<float, 2>("/expected/adamw/w_index_k"), 1e-6)));
}

TEST(AdamWTest, CosineFallsFromThePeakToZero) {
    EXPECT_EQ(cosine_rate(2, 0, 10), 2);
    EXPECT_DOUBLE_EQ(cosine_rate(2, 5, 10), 1);
    EXPECT_NEAR(cosine_rate(2, 10, 10), 0, 1e-15);
}

}  // namespace
}  // namespace msa::test
