// SPDX-License-Identifier: MIT
// Answers that this project did not make (tests/goldens): the MiniMax-M3 layer of transformers, and
// attention and the KL loss with their gradients by PyTorch autograd.
#include <numeric>

#include "core/indexer/projection.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

class MiniMaxM3 : public testing::TestWithParam<std::tuple<Subject, const char*>> {
protected:
    void SetUp() override {
        subject_ = std::get<0>(GetParam());
        if (subject_.element != Element::f32) GTEST_SKIP() << "the goldens are float32";
        operands_ = {golden_.read<float, 3>("/q"), golden_.read<float, 3>("/k"),
                     golden_.read<float, 3>("/v"), golden_.read<float, 3>("/index_q"),
                     golden_.read<float, 2>("/index_k")};
        problem_ = square_problem(operands_.k.extent(0), golden_.size("num_query_heads"),
                                  golden_.size("num_kv_heads"), golden_.size("head_dim"),
                                  golden_.size("index_dim"), golden_.size("block_size"));
        problem_ = problem_.with_queries({golden_.first_query(), problem_.queries()});
        rule_ = {.top_k = golden_.size("top_k"), .forced_local = golden_.size("local_blocks")};
    }

    /// Their ids are in descending score, the local block first: ours ascend.
    Tensor<int32_t, 3> expected_ids() const {
        Tensor<int32_t, 3> ids = golden_.read<int32_t, 3>("/expected/selected_blocks");
        for (int64_t row = 0; row < ids.size(); row += rule_.top_k) {
            int32_t* first = ids.data() + row;
            int32_t* last = std::remove(first, first + rule_.top_k, kNoBlock);
            std::sort(first, last);
            std::fill(last, first + rule_.top_k, kNoBlock);
        }
        return ids;
    }

    Golden golden_{std::get<1>(GetParam())};
    Subject subject_;
    Operands operands_;
    Problem problem_;
    SelectionRule rule_;
};
std::string golden_name(const testing::TestParamInfo<std::tuple<Subject, const char*>>& info) {
    const std::string name = std::get<1>(info.param);
    return identifier(concat(std::get<0>(info.param), '_', name.substr(0, name.size() - 3)));
}

INSTANTIATE_TEST_SUITE_P(All, MiniMaxM3,
                         testing::Combine(testing::ValuesIn(subjects()),
                                          testing::Values("minimax_m3_b32k4.h5",
                                                          "minimax_m3_b128k16.h5")),
                         golden_name);

TEST_P(MiniMaxM3, SelectsTheSameBlocks) {
    EXPECT_TRUE(
        identical(Runner(subject_).index_select(problem_, rule_, operands_), expected_ids()));
}

TEST_P(MiniMaxM3, AttendsToTheSameOutput) {
    const Attention got = Runner(subject_).sparse_attention(problem_, operands_, expected_ids());
    EXPECT_TRUE(close(got.out, golden_.read<float, 3>("/expected/attn_out"), 1e-5));
}

/// Projection, norm and RoPE of the layer. transformers forms RoPE angles in float32: an angle of
/// `position` radians is off by a rounding of its size, and turns values of at most `largest`.
TEST(MiniMaxM3Projection, MatchesHiddenStatesToOperands) {
    const Golden golden("minimax_m3_b32k4.h5");
    const Tensor<float, 2> x = golden.read<float, 2>("/x");
    std::vector<int64_t> positions(static_cast<size_t>(x.extent(0)));
    std::iota(positions.begin(), positions.end(), 0);
    const auto angle_rounding = static_cast<double>(positions.back()) * 0x1p-23;
    for (const auto& [name, heads] : {std::pair<std::string, int64_t>{"q", 8},
                                      {"k", 2},
                                      {"v", 2},
                                      {"index_q", 2},
                                      {"index_k", 1}}) {
        Tensor<float, 3> got = project(x, golden.read<float, 2>("/weights/w_" + name), heads);
        if (name != "v") {
            rms_norm(got, golden.read<float, 1>("/weights/" + name + "_norm"),
                     golden.number("rms_norm_eps"), 1);
            apply_rope(got, positions, golden.size("rotary_dim"), golden.number("rope_theta"));
        }
        const Tensor<float, 3> want =
            name == "index_k" ? Tensor<float, 3>() : golden.read<float, 3>("/" + name);
        const Tensor<float, 2> flat =
            name == "index_k" ? golden.read<float, 2>("/" + name) : Tensor<float, 2>();
        const View<const float, 3> expected =
            name == "index_k"
                ? View<const float, 3>(flat.data(), {flat.extent(0), 1, flat.extent(1)})
                : want.view();
        constexpr double kLargest = 6;            // of the rotated values
        const int64_t rows = expected.extent(0);  // of queries the last ones alone
        EXPECT_TRUE((close<float, 3>(std::as_const(got).view().slice(x.extent(0) - rows, rows),
                                     expected, 1e-5 + kLargest * angle_rounding)))
            << name;
    }
}

class PyTorch : public SubjectTest {
protected:
    Golden golden_{"torch.h5"};
    Problem problem_ = square_problem(golden_.size("tokens"), golden_.size("query_heads"),
                                      golden_.size("kv_heads"), golden_.size("head_dim"),
                                      golden_.size("index_dim"), golden_.size("block_size"));
    Operands operands_{golden_.read<float, 3>("/inputs/q"), golden_.read<float, 3>("/inputs/k"),
                       golden_.read<float, 3>("/inputs/v"),
                       golden_.read<float, 3>("/inputs/index_q"),
                       golden_.read<float, 2>("/inputs/index_k")};
    Tensor<int32_t, 3> ids_ = golden_.read<int32_t, 3>("/expected/ids");

    void SetUp() override {
        SubjectTest::SetUp();
        if (GetParam().element != Element::f32) GTEST_SKIP() << "the goldens are float32";
    }
    Attention attention(const std::string& group) const {
        return {golden_.read<float, 3>(group + "/out"), golden_.read<float, 2>(group + "/lse")};
    }
    IndexKl index_kl(const std::string& group) const {
        return {golden_.read<double, 2>(group + "/kl"),
                golden_.read<float, 3>(group + "/d_index_q"),
                golden_.read<float, 2>(group + "/d_index_k")};
    }
};
MSA_FOR_ALL_SUBJECTS(PyTorch);

TEST_P(PyTorch, Attention) {
    Runner runner(GetParam());
    const Bounds b = bounds(problem_, operands_);
    EXPECT_TRUE(matches(runner.dense_attention(problem_, operands_),
                        attention("/expected/dense_attention"), b));
    EXPECT_TRUE(matches(runner.sparse_attention(problem_, operands_, ids_),
                        attention("/expected/sparse_attention"), b));
}

TEST_P(PyTorch, AttentionGradients) {
    Runner runner(GetParam());
    if (!runner.backend().supports(problem_, DenseAttentionGradRequest{}).yes)
        GTEST_SKIP() << "the backend has no gradient of attention";
    const Tensor<float, 3> d_out = golden_.read<float, 3>("/inputs/d_out");
    for (bool sparse : {false, true}) {
        const std::string group =
            sparse ? "/expected/sparse_attention" : "/expected/dense_attention";
        const AttentionLoss loss(problem_, operands_, sparse ? ids_.view() : View<int32_t, 3>(),
                                 d_out);
        const Backward backward{attention(group), golden_.read<float, 3>("/inputs/d_out")};
        const AttentionGrad want{golden_.read<float, 3>(group + "/d_q"),
                                 golden_.read<float, 3>(group + "/d_k"),
                                 golden_.read<float, 3>(group + "/d_v"),
                                 {}};
        const AttentionGrad got =
            sparse ? runner.sparse_attention_grad(problem_, operands_, ids_, backward)
                   : runner.dense_attention_grad(problem_, operands_, backward);
        EXPECT_TRUE(matches(got, want, loss.sizes())) << group;
        for (const auto& [d, expected] :
             {std::pair{&got.d_q, &want.d_q}, {&got.d_k, &want.d_k}, {&got.d_v, &want.d_v}})
            EXPECT_TRUE(close(*d, *expected, 1e-5)) << group;
    }
}

TEST_P(PyTorch, Selection) {
    EXPECT_TRUE(identical(
        Runner(GetParam()).index_select(problem_, {.top_k = golden_.size("top_k")}, operands_),
        ids_));
}

TEST_P(PyTorch, IndexKlAndItsGradient) {
    Runner runner(GetParam());
    for (const auto& [group, support] :
         {std::pair<const char*, View<const int32_t, 3>>{"/expected/index_kl_full", {}},
          {"/expected/index_kl_selected", ids_.view()}}) {
        const IndexKl got = runner.index_kl(problem_, operands_, support);
        const IndexKl want = index_kl(group);
        EXPECT_TRUE(matches(got, want, bounds(problem_, operands_))) << group;
        EXPECT_TRUE(close(got.d_index_q, want.d_index_q, 1e-5)) << group;
        EXPECT_TRUE(close(got.d_index_k, want.d_index_k, 1e-5)) << group;
    }
}

TEST_P(PyTorch, IndexKlFromGivenSums) {
    Runner runner(GetParam());
    for (bool full : {true, false}) {
        const std::string group = full ? "/expected/index_kl_full" : "/expected/index_kl_selected";
        const std::string main = full ? "/expected/dense_attention" : "/expected/sparse_attention";
        KlRequest given;
        given.main_lse = golden_.read<float, 2>(main + "/lse");
        given.index_lse = golden_.read<float, 2>(group + "/index_lse");
        const IndexKl got =
            runner.index_kl(problem_, operands_, full ? View<const int32_t, 3>() : ids_.view(),
                            Teacher::mean, given);
        const IndexKl want = index_kl(group);
        EXPECT_TRUE(matches(got, want, bounds(problem_, operands_, Teacher::mean, true))) << group;
        EXPECT_TRUE(close(got.d_index_q, want.d_index_q, 1e-5)) << group;
        EXPECT_TRUE(close(got.d_index_k, want.d_index_k, 1e-5)) << group;
        if (full) continue;
        const SelectionRule rule{.top_k = golden_.size("top_k")};
        EXPECT_TRUE(close(runner.index_select_lse(problem_, rule, operands_).lse, given.index_lse,
                          bounds(problem_, operands_).index_lse));
    }
}

}  // namespace
}  // namespace msa::test
