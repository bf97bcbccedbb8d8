// SPDX-License-Identifier: MIT
// index_select with an int8 copy of index_k: the ids are those without it, on every backend.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/support/compare.h"
#include "tests/support/hidden_score.h"
#include "tests/support/random.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

class CoarseIndex : public OperationTest {};
MSA_FOR_ALL_CASES(CoarseIndex);

TEST_P(CoarseIndex, IdsAreThoseOfTheOperands) {
    Runner runner(subject());
    const Tensor<int32_t, 3> want = runner.index_select(problem(), rule(), operands_);
    EXPECT_TRUE(identical(runner.index_select_coarse(problem(), rule(), operands_), want))
        << "seed " << seed();
    EXPECT_TRUE(identical(runner.index_select_coarse(problem(), rule(), operands_), want));
}

TEST_P(CoarseIndex, AndWhereValuesAreNotFinite) {
    const int64_t width = problem().index_dim;
    for (int64_t i = 0; i < operands_.index_q.size() / width; i += 13)
        operands_.index_q.data()[i * width + 3] = std::nanf("");
    for (int64_t j = 0; j < operands_.index_k.extent(0); j += 29)
        operands_.index_k(j, 1) =
            j % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
    Runner runner(subject());
    EXPECT_TRUE(identical(runner.index_select_coarse(problem(), rule(), operands_),
                          runner.index_select(problem(), rule(), operands_)))
        << "seed " << seed();
}

class CoarseIndexForms : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(CoarseIndexForms);

TEST_P(CoarseIndexForms, FindsAScoreThatInt8Loses) {
    const Problem p = hidden_score_problem();
    const Operands o = hidden_score(p);
    Runner runner(GetParam());
    const Tensor<int32_t, 3> ids = runner.index_select_coarse(p, {.top_k = 4}, o);
    for (int64_t r = 0; r < 2; ++r) {
        const int64_t last = p.queries() - 1;
        EXPECT_EQ(ids(last, r, 0), 5);
        EXPECT_EQ(ids(last, r, 1), 21);
        EXPECT_EQ(ids(last, r, 2), 37);
        EXPECT_EQ(ids(last, r, 3), 47);
    }
    EXPECT_TRUE(identical(ids, reference().index_select(p, {.top_k = 4}, o)));
}

enum class IndexKind : uint8_t { plain, ranked, spoilt, tied };

/// Makes the index operands of this kind, of those of the kind before it.
void make_index(IndexKind kind, int64_t block_size, Operands& o) {
    const int64_t keys = o.index_k.extent(0), dim = o.index_k.extent(1);
    if (kind == IndexKind::ranked)  // some blocks stand out, so that rows have few candidates
        for (int64_t j = 0; j < keys; j += 5 * block_size)
            for (int64_t d = 0; d < dim; ++d)
                o.index_k(j, d) = o.index_q(0, 0, d) * static_cast<float>(j / block_size % 7);
    if (kind == IndexKind::spoilt) {  // rows and blocks without a bound
        for (int64_t i = 0; i < o.index_q.extent(0); i += 3) o.index_q(i, i % 2, 5) = std::nanf("");
        for (int64_t j = 40; j < keys; j += 97 * block_size)
            o.index_k(j, 7) = j % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
    }
    if (kind == IndexKind::tied) {
        for (int64_t i = 0; i < o.index_q.size(); ++i)
            if (!std::isfinite(o.index_q.data()[i])) o.index_q.data()[i] = 1;
        for (int64_t j = 1; j < keys; ++j) std::copy_n(&o.index_k(0, 0), dim, &o.index_k(j, 0));
    }
}

/// The sizes that tuned kernels take: chunks and decode over hundreds of blocks, of which few are
/// candidates, or more than are listed; and over so many that a thread block finds a row's.
TEST_P(CoarseIndexForms, ManyBlocks) {
    if (GetParam().backend == "reference") GTEST_SKIP() << "it is the other side";
    Runner runner(GetParam());
    const bool half = GetParam().element != Element::f32;
    for (const auto& [block_size, dim, top_k, batch] :
         {std::tuple{32, 64, 16, PackedBatch({0, 65, 70, 71}, {0, 12800, 13000, 19400})},
          {64, 128, 16, PackedBatch({0, 65, 321}, {0, 9000, 25640})},
          {128, 128, 32, PackedBatch({0, 300, 301}, {0, 30000, 30128})},
          {128, 128, 16, PackedBatch({0, 1, 2}, {0, 66000, 132000})},
          {32, 64, 8, PackedBatch({0, 41, 43}, {0, 34000, 35000})},
          {64, 64, 12, PackedBatch({0, 1, 3}, {0, 67000, 67700})},
          {128, 64, 16, PackedBatch({0, 700}, {0, 700})}}) {
        Problem p = square_problem(0, 4, 2, 64, dim, block_size);
        p.batch = batch;
        Operands o = make_operands({"many", p, {}}, Element::bf16);
        for (const IndexKind kind :
             {IndexKind::plain, IndexKind::ranked, IndexKind::spoilt, IndexKind::tied}) {
            SCOPED_TRACE(
                concat("blocks of ", block_size, ", k ", top_k, ", kind ", static_cast<int>(kind)));
            make_index(kind, block_size, o);
            const SelectionRule rule{.top_k = top_k, .forced_first = 1};
            const Tensor<int32_t, 3> want = runner.index_select(p, rule, o);
            const std::string kernel = runner.backend().answered_by();
            EXPECT_TRUE(identical(runner.index_select_coarse(p, rule, o), want));
            if (half && kernel == "index_select_sm90") {
                EXPECT_EQ(runner.backend().answered_by(), "index_select_coarse_sm90");
            }
        }
    }
}

/// More queries than the bounds of are in memory at once.
TEST_P(CoarseIndexForms, ManyQueries) {
    if (GetParam().backend != "cuda" || GetParam().element == Element::f32)
        GTEST_SKIP() << "it is of a tuned kernel";
    Runner runner(GetParam());
    Problem p = square_problem(0, 4, 4, 64, 64, 128);
    p.batch = PackedBatch({0, 40007, 51010}, {0, 40100, 70000});
    const Operands o = make_operands({"queries", p, {}}, Element::bf16);
    const SelectionRule rule{.top_k = 16};
    const Tensor<int32_t, 3> want = runner.index_select(p, rule, o);
    EXPECT_TRUE(identical(runner.index_select_coarse(p, rule, o), want));
}

/// Scales far from 1 would overflow or lose a bound.
TEST_P(CoarseIndexForms, AnyIndexScale) {
    Problem p = hidden_score_problem();
    const Operands o = hidden_score(p);
    Runner runner(GetParam());
    for (const double scale : {1.0, 1e-12, 1e12}) {
        p.index_scale_override = scale;
        const SelectionRule rule{.top_k = 5, .forced_local = 2, .forced_first = 1};
        EXPECT_TRUE(
            identical(runner.index_select_coarse(p, rule, o), runner.index_select(p, rule, o)))
            << scale;
    }
}

}  // namespace
}  // namespace msa::test
