// SPDX-License-Identifier: MIT
// The gate of SeerAttention-R against PyTorch (tests/goldens/make_gate.py).
#include <numeric>

#include "core/indexer/gate_kl.h"
#include "core/indexer/index_branch.h"
#include "core/indexer/projection.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"

namespace msa::test {
namespace {

/// From queries and keys before RoPE to the gradient of the weights.
class GateGolden : public testing::TestWithParam<const char*> {
protected:
    static constexpr double kGolden = 1e-5;  // what the project promises against PyTorch
    bool is_normed() const { return GetParam() == std::string("normed"); }
    template <int Rank>
    Tensor<float, Rank> expected(const std::string& name) const {
        return golden_.read<float, Rank>("/expected/" + std::string(GetParam()) + "/" + name);
    }
    template <typename To, typename From>
    static void fill(To to, const From& from) {
        ASSERT_EQ(to.shape(), from.shape());
        std::copy_n(from.data(), from.size(), to.data());
    }
    Golden golden_{"gate.h5"};
};
INSTANTIATE_TEST_SUITE_P(All, GateGolden, testing::Values("plain", "normed", "mean"),
                         [](const auto& p) { return p.param; });

TEST_P(GateGolden, FromQueriesAndKeysToTheGradientOfTheLoss) {
    const Tensor<float, 3> q = golden_.read<float, 3>("/inputs/q"),
                           k = golden_.read<float, 3>("/inputs/k");
    const int64_t n = q.extent(0), dims = golden_.size("head_dim");
    const Problem p = square_problem(n, golden_.size("query_heads"), golden_.size("kv_heads"), dims,
                                     0, golden_.size("block_size"));
    IndexForm form{p.kv_heads,  golden_.size("gate_dim"),   p.group_size() * dims,
                   is_normed(), golden_.size("rotary_dim"), golden_.number("rope_theta")};
    form.architecture = Architecture::seerattention;
    form.key_dim = kGatePools * dims;
    IndexWeights weights(form), gradient(form);
    fill(weights.w_q(), golden_.read<float, 2>("/inputs/w_gate_q"));
    fill(weights.w_k(), golden_.read<float, 2>("/inputs/w_gate_k"));
    if (is_normed()) fill(weights.norm_q(), golden_.read<float, 1>("/inputs/gate_q_norm"));
    if (is_normed()) fill(weights.norm_k(), golden_.read<float, 1>("/inputs/gate_k_norm"));

    std::vector<int64_t> positions(static_cast<size_t>(n));
    std::iota(positions.begin(), positions.end(), 0);
    const View<const float, 2> of_q(q.data(), {n, p.query_heads * dims});
    const Tensor<float, 2> pooled = pool_keys(k, p.block_size);
    const Tensor<float, 3> gate_q = index_queries(weights, of_q, positions),
                           gate_k = index_keys(weights, pooled.view(), block_positions(p));
    const std::string of = is_normed() ? "/expected/normed/" : "/expected/plain/";
    EXPECT_TRUE(close(gate_q, golden_.read<float, 3>(of + "gate_q"), kGolden));
    EXPECT_TRUE(close(gate_k, golden_.read<float, 3>(of + "gate_k"), kGolden));

    const auto turned = [&](const char* name) {
        Tensor<float, 3> rows = golden_.read<float, 3>(name);
        apply_rope(rows, positions, form.rotary_dim, form.rope_theta);
        return rows;
    };
    const Tensor<float, 3> turned_q = turned("/inputs/q"), turned_k = turned("/inputs/k");
    const bool mean = std::string("mean") == GetParam();
    Tensor<float, 3> target({n, p.kv_heads, p.blocks()});
    gate_teacher(p, {turned_q.view(), turned_k.view(), {}, mean ? Teacher::mean : Teacher::max},
                 target);
    EXPECT_TRUE(close(
        target, golden_.read<float, 3>(mean ? "/expected/teacher/mean" : "/expected/teacher/max"),
        kGolden));

    Tensor<double, 2> kl({n, p.kv_heads});
    Tensor<float, 3> d_q(gate_q.shape()), d_k(gate_k.shape());
    gate_kl(p, {gate_q.view(), gate_k.view(), target.view(), {}},
            {.kl = kl.view(), .d_gate_q = d_q.view(), .d_gate_k = d_k.view()});
    const double loss =
        std::accumulate(kl.data(), kl.data() + kl.size(), 0.0) / static_cast<double>(kl.size());
    const std::string name = concat("/expected/", GetParam(), "/kl");
    EXPECT_NEAR(loss, (golden_.read<double, 1>(name)(0)), kGolden);
    index_queries_grad(weights, of_q, positions, d_q, gradient);
    index_keys_grad(weights, pooled.view(), block_positions(p), d_k, gradient);
    const auto same = [&](auto got, const auto& of_torch) {
        EXPECT_TRUE((close<float, std::tuple_size_v<std::decay_t<decltype(got.shape())>>>(
            got, of_torch.view(), kGolden)));
    };
    same(gradient.w_q(), expected<2>("d_w_gate_q"));
    same(gradient.w_k(), expected<2>("d_w_gate_k"));
    if (!is_normed()) return;
    same(gradient.norm_q(), expected<1>("d_gate_q_norm"));
    same(gradient.norm_k(), expected<1>("d_gate_k_norm"));
}

}  // namespace
}  // namespace msa::test
