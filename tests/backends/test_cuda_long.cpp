// SPDX-License-Identifier: MIT
// Tensors of more than 2^31 elements on the tuned kernels: q and what is shaped like it, index_q,
// or k and v, of heads and an index of 128 or 256 channels. A short sequence behind so many rows
// has the results that it has alone.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <ostream>

#include "core/number/half.h"
#include "tests/backends/cuda_grad_test.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr int64_t kHeads = 64, kQueries = 100, kKeys = 700;
constexpr size_t kMemory = 40'000'000'000;  // tensors take up to 34 GB
constexpr SelectionRule kRule{.top_k = 4};

/// Rows of `heads` heads of `dim` channels that have more than 2^31 elements.
constexpr int64_t beyond(int64_t heads, int64_t dim) {
    return (int64_t{1} << 31) / (heads * dim) + 77;
}

struct LongCase {
    std::string name;
    int64_t kv_heads;
    int64_t head_dim, index_dim;
    int64_t queries, keys;  // of the sequence in front
};
std::ostream& operator<<(std::ostream& out, const LongCase& c) { return out << c.name; }

class CudaLong : public testing::TestWithParam<LongCase> {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE("cuda");
        size_t free = 0, all = 0;
        ASSERT_EQ(cudaMemGetInfo(&free, &all), cudaSuccess);
        if (all < kMemory) GTEST_SKIP() << "the GPU has less than 40 GB";
        runner_.emplace(Subject{"cuda", Element::bf16, Element::bf16});
        alone_ = {GetParam().name, problem({0, kQueries}, {0, kKeys}), kRule};
        whole_ = problem({0, GetParam().queries, GetParam().queries + kQueries},
                         {0, GetParam().keys, GetParam().keys + kKeys});
        operands_ = make_operands(alone_, Element::bf16);
        index_q_ = behind(GetParam().queries, operands_.index_q);
        index_k_ = behind(GetParam().keys, operands_.index_k);
        q_ = behind(GetParam().queries, operands_.q);
        k_ = behind(GetParam().keys, operands_.k);
        v_ = behind(GetParam().keys, operands_.v);
        ids_ = make<int32_t>({whole_.queries(), whole_.kv_heads, kRule.top_k});
        index_lse_ = backend().make<float, 2>({whole_.queries(), whole_.kv_heads});
    }
    static Problem problem(std::vector<int64_t> cu_seqlens_q, std::vector<int64_t> cu_seqlens_k) {
        const LongCase& c = GetParam();
        Problem p = square_problem(0, kHeads, c.kv_heads, c.head_dim, c.index_dim, 128);
        p.batch = PackedBatch(std::move(cu_seqlens_q), std::move(cu_seqlens_k));
        return p;
    }
    Backend& backend() { return runner_->backend(); }
    template <typename T>
    Tensor<T, 3> make(const Shape<3>& shape) {
        return backend().make<T, 3>(shape);
    }
    /// On the device and in bf16, behind `rows` rows of zeros.
    template <int Rank>
    Tensor<bf16, Rank> behind(int64_t rows, const Tensor<float, Rank>& wide) {
        std::vector<bf16> values(static_cast<size_t>(wide.size()));
        std::transform(wide.data(), wide.data() + wide.size(), values.begin(),
                       [](float value) { return bf16(value); });
        Shape<Rank> shape = wide.shape();
        const int64_t width = wide.size() / shape[0];
        shape[0] += rows;
        Tensor<bf16, Rank> here = backend().make<bf16, Rank>(shape);
        backend().copy(here.data() + rows * width, Space::device, values.data(), Space::host,
                       static_cast<int64_t>(values.size() * sizeof(bf16)));
        return here;
    }
    /// The last rows, as many as there are of the short sequence.
    template <typename To, typename T, int Rank>
    Tensor<To, Rank> last(const Tensor<T, Rank>& here, int64_t rows) {
        Shape<Rank> shape = here.shape();
        const int64_t first = here.size() / shape[0] * (shape[0] - rows);
        shape[0] = rows;
        std::vector<T> values(static_cast<size_t>(element_count(shape)));
        backend().copy(values.data(), Space::host, here.data() + first, Space::device,
                       static_cast<int64_t>(values.size() * sizeof(T)));
        Tensor<To, Rank> host(shape);
        std::transform(values.begin(), values.end(), host.data(),
                       [](T value) { return static_cast<To>(value); });
        return host;
    }
    void expect_tuned() {
        EXPECT_EQ(backend().answered_by().find("_any"), std::string::npos)
            << backend().answered_by();
    }
    /// The ids, and the lse of the Index Branch.
    Tensor<int32_t, 3> select() {
        backend().index_select(whole_, kRule, {index_q_, index_k_}, ids_, index_lse_);
        expect_tuned();
        return last<int32_t>(ids_, kQueries);
    }
    Attention attend(LoopOrder order = LoopOrder::automatic) {
        out_ = make<bf16>(q_.shape());
        lse_ = backend().make<float, 2>({whole_.queries(), kHeads});
        backend().sparse_attention(whole_, {q_, k_, v_}, ids_, {out_, lse_}, order);
        expect_tuned();
        return {last<float>(out_, kQueries), last<float>(lse_, kQueries)};
    }

    std::optional<Runner> runner_;
    HalfCase alone_;
    Problem whole_;
    Operands operands_;
    Tensor<bf16, 3> index_q_, q_, k_, v_, out_;
    Tensor<bf16, 2> index_k_;
    Tensor<int32_t, 3> ids_;
    Tensor<float, 2> index_lse_, lse_;
};
INSTANTIATE_TEST_SUITE_P(
    All, CudaLong,
    testing::Values(LongCase{"queries_of_4_groups", 4, 128, 128, beyond(kHeads, 128), 40},
                    LongCase{"queries_of_64_groups", 64, 128, 128, beyond(kHeads, 128), 40},
                    LongCase{"keys_of_64_groups", 64, 128, 128, 1, beyond(64, 128)},
                    LongCase{"h256_queries_of_4_groups", 4, 256, 128, beyond(kHeads, 256), 40},
                    LongCase{"h256_keys_of_32_groups", 32, 256, 128, 1, beyond(32, 256)},
                    LongCase{"i256_queries_of_64_groups", 64, 128, 256, beyond(64, 256), 40}),
    [](const auto& instance) { return instance.param.name; });

TEST_P(CudaLong, SelectionAndAttention) {
    const Problem& p = alone_.problem;
    const Tensor<int32_t, 3> ids = select();
    EXPECT_TRUE(selection_follows(p, kRule, reference().index_scores(p, operands_), ids,
                                  half_bounds(p, operands_).scores));
    const Attention want = reference().sparse_attention(p, operands_, ids);
    for (LoopOrder order : {LoopOrder::automatic, LoopOrder::tile_union, LoopOrder::kv_outer})
        EXPECT_TRUE(matches(attend(order), want, half_bounds(p, operands_))) << to_string(order);
}

TEST_P(CudaLong, GradientOfAttention) {
    const Problem& p = alone_.problem;
    const Tensor<int32_t, 3> ids = select();
    Attention saved = attend();
    Tensor<float, 3> d_out = make_d_out(operands_.q.shape(), Element::bf16);
    const Tensor<bf16, 3> d_out_here = behind(GetParam().queries, d_out);
    Tensor<bf16, 3> d_q = make<bf16>(q_.shape()), d_k = make<bf16>(k_.shape()),
                    d_v = make<bf16>(v_.shape());
    backend().sparse_attention_grad(whole_, {q_, k_, v_}, ids_, {out_, lse_, d_out_here},
                                    {d_q, d_k, d_v});
    expect_tuned();
    const AttentionGrad want =
        runner_->sparse_attention_grad(p, operands_, ids, {std::move(saved), std::move(d_out)});
    EXPECT_TRUE(is_rounded(last<float>(d_q, kQueries), want.d_q, Element::bf16));
    EXPECT_TRUE(is_rounded(last<float>(d_k, kKeys), want.d_k, Element::bf16));
    EXPECT_TRUE(is_rounded(last<float>(d_v, kKeys), want.d_v, Element::bf16));
}

TEST_P(CudaLong, KlLoss) {
    if (GetParam().index_dim == 256) GTEST_SKIP() << "index_kl has no tuned kernel for it";
    const Problem& p = alone_.problem;
    const Tensor<int32_t, 3> ids = select();
    attend();
    out_ = Tensor<bf16, 3>();  // for the memory
    v_ = Tensor<bf16, 3>();
    Tensor<double, 2> kl = backend().make<double, 2>({whole_.queries(), whole_.kv_heads});
    Tensor<float, 3> d_index_q = make<float>(index_q_.shape());
    Tensor<float, 2> d_index_k = backend().make<float, 2>(index_k_.shape());
    const double scale = 1.0 / static_cast<double>(p.queries() * p.kv_heads);
    backend().index_kl(whole_,
                       {.index = {index_q_, index_k_},
                        .q = q_,
                        .k = k_,
                        .ids = ids_,
                        .main_lse = lse_,
                        .index_lse = index_lse_,
                        .gradient_scale = scale},
                       {kl, d_index_q, d_index_k});
    expect_tuned();
    const IndexKl got{last<double>(kl, kQueries), last<float>(d_index_q, kQueries),
                      last<float>(d_index_k, kKeys)};
    EXPECT_TRUE(matches(got, reference().index_kl(p, operands_, ids.view()),
                        bounds(p, operands_, Teacher::mean, true)));
}

}  // namespace
}  // namespace msa::test
