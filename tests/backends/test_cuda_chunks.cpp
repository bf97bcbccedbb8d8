// SPDX-License-Identifier: MIT
// Sparse attention with more slots than fit at once: chunks of queries, one after the other or,
// where their slots fit together, at once.
#include <memory>
#include <utility>
#include <vector>

#include "core/number/half.h"
#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

class CudaChunks : public testing::Test {
protected:
    void SetUp() override { MSA_SKIP_UNLESS_USABLE("cuda"); }
};

/// [Nq, Hkv, B] Where they are `alike`, 33 and 31 neighbouring queries in turn have the same.
Tensor<float, 3> random_scores(Shape<3> shape, bool alike) {
    Tensor<float, 3> scores(shape);
    uint64_t state = 1;
    const int64_t of_query = shape[1] * shape[2];
    for (int64_t i = 0; i < scores.size(); ++i) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        const int64_t at = i / of_query % 64;
        scores.data()[i] = alike && at != 0 && at != 33 ? scores.data()[i - of_query]
                                                        : static_cast<float>(state >> 40);
    }
    return scores;
}

/// So many slots that the tuned kernels take several chunks; `some` queries at their ends and
/// within are compared. With scores alike, one tile of eight has slots, and `automatic` takes all
/// chunks at once.
void compare_in_chunks(int64_t heads, const std::vector<int64_t>& some, bool alike = false) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    Problem p = square_problem(0, heads, 4, 128, 128, 128);
    constexpr int64_t kQueries = 9000, kKeys = 16640, kTopK = 32;
    p.batch = PackedBatch({0, kQueries}, {0, kKeys}, std::vector<int64_t>(kQueries, kKeys - 1));
    const auto random = [&](Shape<3> shape, int64_t which) {
        Tensor<bf16, 3> host(shape);
        uint64_t state = 0x9E3779B97F4A7C15U * static_cast<uint64_t>(which + 1);
        for (int64_t i = 0; i < host.size(); ++i) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            host.data()[i] = bf16(static_cast<float>(state >> 40) * 0x1p-23F - 1);
        }
        return host;
    };
    const Tensor<bf16, 3> q = random({kQueries, heads, 128}, 0), k = random({kKeys, 4, 128}, 1),
                          v = random({kKeys, 4, 128}, 2);
    const Tensor<float, 3> scores = random_scores({kQueries, 4, p.blocks()}, alike);
    const auto q_here = backend->upload(q.view()), k_here = backend->upload(k.view()),
               v_here = backend->upload(v.view());
    Tensor<int32_t, 3> ids = backend->make<int32_t, 3>({kQueries, 4, kTopK});
    backend->select_blocks(p, {.top_k = kTopK}, backend->upload(scores.view()), ids);
    Tensor<bf16, 3> out = backend->make<bf16, 3>(q.shape());
    Tensor<float, 2> lse = backend->make<float, 2>({kQueries, heads});
    const auto wide = [](const Tensor<bf16, 3>& narrow) {
        Tensor<float, 3> values(narrow.shape());
        for (int64_t i = 0; i < values.size(); ++i)
            values.data()[i] = static_cast<float>(narrow.data()[i]);
        return values;
    };
    Operands o;
    o.element = Element::bf16;
    o.k = wide(k);
    o.v = wide(v);
    o.index_q = Tensor<float, 3>({1, 4, 128});
    o.index_k = Tensor<float, 2>({kKeys, 128});
    for (LoopOrder order :
         orders_of(*backend, p, {.element = Element::bf16, .top_k = kTopK, .out = Element::bf16})) {
        backend->sparse_attention(p, {q_here, k_here, v_here}, ids, {out, lse}, order);
        for (int64_t i : some) {
            const Problem one = p.with_queries({i, i + 1});
            Tensor<bf16, 3> row({1, heads, 128});
            std::copy_n(q.data() + i * heads * 128, heads * 128, row.data());
            o.q = wide(row);
            const auto own = backend->download(std::as_const(ids).view().slice(i, 1));
            const Attention want = reference().sparse_attention(one, o, own);
            const Attention got{wide(backend->download(std::as_const(out).view().slice(i, 1))),
                                backend->download(std::as_const(lse).view().slice(i, 1))};
            Bounds b = bounds(one, o);
            b.out += slot_bound(Element::bf16, 1);
            EXPECT_TRUE(matches(got, want, b)) << to_string(order) << ", query " << i;
        }
    }
}

TEST_F(CudaChunks, AreThatOfEachQuery) { compare_in_chunks(64, {0, 4095, 4096, 8191, 8192, 8999}); }

TEST_F(CudaChunks, TakenTogetherAreThatOfEachQuery) {
    compare_in_chunks(64, {0, 32, 33, 4095, 4096, 8191, 8192, 8999}, true);
}

TEST_F(CudaChunks, OfFifteenHeadsAreThatOfEachQuery) {
    compare_in_chunks(60, {0, 4375, 4376, 8751, 8752, 8999});
}

}  // namespace
}  // namespace msa::test
