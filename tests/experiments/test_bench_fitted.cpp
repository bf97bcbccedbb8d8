// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>

#include "analysis/selection_cost.h"
#include "core/registry.h"
#include "experiments/bench/operands.h"

namespace msa::test {
namespace {

/// The ids [128, 2, 16] of "fitted" by the last 128 of `tokens` queries, and their problem.
std::pair<Problem, Tensor<int32_t, 3>> fitted_ids(int64_t tokens, uint64_t seed) {
    namespace bench = experiments::bench;
    bench::Case c{"short", "", square_problem(0, 2, 2, 64, 128, 128), 16, {}};
    c.problem.batch = PackedBatch({0, 128}, {0, tokens});
    bench::BenchOptions o;
    o.index_elements = {Element::f32};
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    bench::Layer layer = bench::allocate_layer(*backend, c, o, {.index = true});
    bench::fill_index(*backend, c, layer, "fitted", seed);
    backend->index_select(c.problem, {.top_k = 16}, layer.index[0].input(), layer.ids, {});
    return {c.problem, std::move(layer.ids)};
}

/// As in the table of docs/methods.md.
TEST(BenchFitted, AreAsWideAsTheSelectionsOfFittedIndexBranches) {
    struct Measured {
        int64_t tokens;
        double least_of_4, most_of_4, least_of_8, most_of_8;
    };
    for (const Measured& m :
         {Measured{8 << 10, 18.5, 21, 20, 23.5}, Measured{128 << 10, 22.5, 26, 26.5, 31}})
        for (const uint64_t seed : {0U, 1U}) {
            const auto [p, ids] = fitted_ids(m.tokens, seed);
            const double of_4 = analysis::tile_reads(p, ids, 4, 0).union_blocks();
            const double of_8 = analysis::tile_reads(p, ids, 8, 0).union_blocks();
            EXPECT_GT(of_4, m.least_of_4) << m.tokens;
            EXPECT_LT(of_4, m.most_of_4) << m.tokens;
            EXPECT_GT(of_8, m.least_of_8) << m.tokens;
            EXPECT_LT(of_8, m.most_of_8) << m.tokens;
            double near = 0;  // of the newest 8 blocks
            for (int64_t i = 0; i < 128; ++i)
                for (int64_t g = 0; g < 2; ++g) {
                    const int64_t own = (m.tokens - 128 + i) / 128;
                    const int32_t* row = &ids.view()(i, g, 0);
                    EXPECT_EQ(std::count(row, row + 16, own), 1);
                    near += static_cast<double>(
                        std::count_if(row, row + 16, [&](int32_t id) { return id > own - 8; }));
                }
            EXPECT_GT(near / 256, 5.5) << m.tokens;
            EXPECT_LT(near / 256, 9) << m.tokens;
        }
    const auto once = fitted_ids(8 << 10, 2).second, again = fitted_ids(8 << 10, 2).second,
               other = fitted_ids(8 << 10, 3).second;
    EXPECT_TRUE(std::equal(once.data(), once.data() + once.size(), again.data()));
    EXPECT_FALSE(std::equal(once.data(), once.data() + once.size(), other.data()));
}

}  // namespace
}  // namespace msa::test
