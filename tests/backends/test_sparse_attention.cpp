// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

/// The same queries behind a prefix, `keys` keys in all.
Problem with_prefix(Problem p, int64_t keys) {
    p.batch = PackedBatch(p.batch.cu_seqlens_q(), {0, keys});
    return p;
}

class SparseAttention : public OperationTest {
protected:
    void SetUp() override {
        OperationTest::SetUp();
        if (IsSkipped()) return;
        // The ids of the reference, so that a flip of the selection is not taken for an error here.
        ids_ = reference().index_select(problem(), rule(), operands_);
    }
    Tensor<int32_t, 3> ids_;
};
MSA_FOR_ALL_CASES(SparseAttention);
MSA_FOR_OWN_ATTENTION(SparseAttention);

TEST_P(SparseAttention, EveryOrderMatchesReference) {
    const Attention want = reference().sparse_attention(problem(), operands_, ids_);
    Runner runner(subject());
    for (LoopOrder order : orders_of(runner, problem(), rule().top_k))
        EXPECT_TRUE(matches(runner.sparse_attention(problem(), operands_, ids_, order), want,
                            bounds(problem(), operands_)))
            << to_string(order) << ", seed " << seed();
}

TEST_P(SparseAttention, EmptyRowsGiveZeroAndMinusInfinity) {
    // Every third row selects nothing, every other third drops its first block.
    for (int64_t i = 0; i < problem().queries(); ++i)
        for (int64_t r = 0; r < problem().kv_heads; ++r) {
            int32_t* row = &ids_(i, r, 0);
            if ((i + r) % 3 == 0) std::fill_n(row, rule().top_k, kNoBlock);
            if ((i + r) % 3 == 1) {
                std::copy(row + 1, row + rule().top_k, row);
                row[rule().top_k - 1] = kNoBlock;
            }
        }
    const Attention want = reference().sparse_attention(problem(), operands_, ids_);
    Runner runner(subject());
    for (LoopOrder order : orders_of(runner, problem(), rule().top_k))
        EXPECT_TRUE(matches(runner.sparse_attention(problem(), operands_, ids_, order), want,
                            bounds(problem(), operands_)))
            << to_string(order) << ", seed " << seed();
}

TEST_P(SparseAttention, ThreadsAndRerunsChangeNoBit) {
    Runner one(subject(), 1), three(subject(), 3);
    for (LoopOrder order : orders_of(one, problem(), rule().top_k)) {
        const Attention once = one.sparse_attention(problem(), operands_, ids_, order);
        for (int rerun = 0; rerun < 2; ++rerun) {
            const Attention again = three.sparse_attention(problem(), operands_, ids_, order);
            EXPECT_TRUE(identical(again.out, once.out)) << to_string(order);
            EXPECT_TRUE(identical(again.lse, once.lse)) << to_string(order);
        }
    }
}

TEST_P(SparseAttention, AllBlocksSelectedIsDense) {
    const Problem& p = problem();
    const int64_t all = std::max<int64_t>(1, p.blocks());
    Tensor<int32_t, 3> every({p.queries(), p.kv_heads, all});
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t b = 0; b < all; ++b)
                every(i, r, b) =
                    b < visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size)
                        ? static_cast<int32_t>(b)
                        : kNoBlock;
    Runner runner(subject());
    const Attention dense = runner.dense_attention(p, operands_);
    Bounds twice = bounds(p, operands_);
    twice.out *= 2;
    twice.lse *= 2;
    for (LoopOrder order : orders_of(runner, p, all))
        EXPECT_TRUE(matches(runner.sparse_attention(p, operands_, every, order), dense, twice))
            << to_string(order);
}

TEST_P(SparseAttention, UnselectedAndInvisibleKeysHaveNoInfluence) {
    const Problem& p = problem();
    Runner runner(subject());
    // One query alone, with everything that it does not attend to poisoned in group 0.
    for (int64_t probe = p.queries() - 1; probe >= 0; probe -= 1 + p.queries() / 2) {
        const QueryRange range{probe, probe + 1};
        const Problem one = p.with_queries(range);
        const Operands clean = with_queries(operands_, range);
        Operands poisoned = with_queries(operands_, range);
        const View<const int32_t, 3> ids = View<const int32_t, 3>(ids_.view()).slice(probe, 1);
        const KeyRange seen = visible_keys(one)[0];
        std::vector<bool> used(static_cast<size_t>(p.keys()), false);
        for (int64_t b : selected(ids, 0, 0))
            for (int64_t j = std::max(b * p.block_size, p.window_start(seen.count));
                 j < std::min((b + 1) * p.block_size, seen.count); ++j)
                used[static_cast<size_t>(seen.first + j)] = true;
        for (int64_t j = 0; j < p.keys(); ++j)
            if (!used[static_cast<size_t>(j)])
                for (Tensor<float, 3>* t : {&poisoned.k, &poisoned.v})
                    std::fill_n(t->view()[j][0].data(), p.head_dim, std::nanf(""));
        for (LoopOrder order : orders_of(runner, one, rule().top_k)) {
            const Attention want = runner.sparse_attention(one, clean, ids, order);
            const Attention got = runner.sparse_attention(one, poisoned, ids, order);
            for (int64_t h = 0; h < p.group_size(); ++h) {
                EXPECT_EQ(got.lse(0, h), want.lse(0, h)) << to_string(order) << ' ' << probe;
                for (int64_t d = 0; d < p.head_dim; ++d)
                    EXPECT_EQ(got.out(0, h, d), want.out(0, h, d))
                        << to_string(order) << ", query " << probe << ", head " << h;
            }
        }
    }
}

class SparseAttentionForms : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(SparseAttentionForms);

TEST_P(SparseAttentionForms, SlotsThatExceedAnyBufferChangeNothing) {
    // 2048 slots a row, nearly all padding: slot buffers hold a few dozen queries at a time.
    const Problem p = with_prefix(square_problem(70, 4, 2, 16, 16, 256), 600);
    const Case c{"slots", p, {.top_k = 2048}};
    const Operands o = make_operands(c, GetParam().element);
    Tensor<int32_t, 3> ids({p.queries(), 2, c.rule.top_k});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < 2; ++r) ids(i, r, 0) = static_cast<int32_t>((i + r) % 3);
    const Attention want = reference().sparse_attention(p, o, ids);
    Runner runner(GetParam());
    for (LoopOrder order : orders_of(runner, p, c.rule.top_k))
        EXPECT_TRUE(matches(runner.sparse_attention(p, o, ids, order), want, bounds(p, o)))
            << to_string(order) << ", seed " << seed();
}

TEST_P(SparseAttentionForms, BlocksMayBeSingleTokens) {
    const Case c{"tokens", square_problem(150, 4, 2, 16, 16, 1), {.top_k = 40}};
    const Operands o = make_operands(c, GetParam().element);
    Tensor<int32_t, 3> ids({150, 2, 40});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    for (int64_t i = 0; i < 150; ++i)
        for (int64_t r = 0; r < 2; ++r)  // every third key or so, the group's own
            for (int64_t j = r, n = 0; j <= i && n < 40; j += 2 + (i + j) % 3)
                ids(i, r, n++) = static_cast<int32_t>(j);
    const Attention want = reference().sparse_attention(c.problem, o, ids);
    Runner runner(GetParam());
    for (LoopOrder order : orders_of(runner, c.problem, c.rule.top_k))
        EXPECT_TRUE(
            matches(runner.sparse_attention(c.problem, o, ids, order), want, bounds(c.problem, o)))
            << to_string(order) << ", seed " << seed();
}

TEST_P(SparseAttentionForms, TheLocalBlockAloneIsAWindow) {
    // Equal scores: the output is the mean of the visible values of the local block.
    Case c{"local", square_problem(30, 2, 1, 16, 16, 8), {.top_k = 1}, Values::equal};
    Operands o = make_operands(c, GetParam().element);
    for (int64_t j = 0; j < 30; ++j)
        for (int64_t d = 0; d < 16; ++d) o.v(j, 0, d) = static_cast<float>(j);
    Tensor<int32_t, 3> ids({30, 1, 1});
    for (int64_t i = 0; i < 30; ++i) ids(i, 0, 0) = static_cast<int32_t>(i / 8);
    Runner runner(GetParam());
    for (LoopOrder order : orders_of(runner, c.problem, 1)) {
        const Attention got = runner.sparse_attention(c.problem, o, ids, order);
        for (int64_t i = 0; i < 30; ++i) {
            const int64_t first = i / 8 * 8;
            EXPECT_NEAR(got.out(i, 1, 0), static_cast<double>(first + i) / 2,
                        bounds(c.problem, o).out);
            EXPECT_NEAR(got.lse(i, 1), 1 + std::log(static_cast<double>(i % 8 + 1)),
                        bounds(c.problem, o).lse);
        }
    }
}

TEST_P(SparseAttentionForms, GroupsSelectIndependently) {
    const Case c{"groups", square_problem(64, 4, 2, 16, 16, 8), {.top_k = 2}};
    Operands o = make_operands(c, GetParam().element);
    Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    Runner runner(GetParam());
    for (LoopOrder order : orders_of(runner, c.problem, 2)) {
        const Attention before = runner.sparse_attention(c.problem, o, ids, order);
        Tensor<int32_t, 3> changed({64, 2, 2});
        std::copy_n(ids.data(), ids.size(), changed.data());
        for (int64_t i = 0; i < 64; ++i) changed(i, 1, 1) = kNoBlock;  // group 1 keeps one block
        const Attention after = runner.sparse_attention(c.problem, o, changed, order);
        for (int64_t i = 0; i < 64; ++i)
            for (int64_t h = 0; h < 2; ++h)
                for (int64_t d = 0; d < 16; ++d)
                    EXPECT_EQ(before.out(i, h, d), after.out(i, h, d)) << to_string(order);
    }
}

}  // namespace
}  // namespace msa::test
