// SPDX-License-Identifier: MIT
// A decode step over several ranks, threads of this process, beside that of one; and its parts by
// closed forms.
#include <array>
#include <cmath>
#include <limits>

#include "core/parallel/decode.h"
#include "tests/parallel/parallel_test.h"
#include "tests/parallel/scaled_test.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"

namespace msa::parallel {
namespace {

using namespace msa::test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<DecodeOutput> decode_by(const Subject& subject, const Case& c, const Operands& o,
                                    int ranks) {
    const SplitKeys split(c.problem, ranks);
    std::vector<DecodeOutput> all(static_cast<size_t>(ranks));
    parallel::run_group(ranks, [&](const parallel::Group& workers) {
        const KeyPart& part = split.of(workers.rank());
        const std::unique_ptr<Backend> backend = backend_of_rank(subject);
        const Element e = subject.element;
        const auto keys = [&](const auto& rows) {
            return rows.view().slice(part.keys.first, part.keys.count);
        };
        const Held<3> index_q(*backend, e, o.index_q), q(*backend, e, o.q),
            k(*backend, e, keys(o.k)), v(*backend, e, keys(o.v));
        const Held<2> index_k(*backend, e, keys(o.index_k));
        Tensor<float, 1> sinks;
        if (o.sinks.data() != nullptr) sinks = backend->upload(o.sinks.view());
        all[static_cast<size_t>(workers.rank())] =
            decode(workers, *backend, split, c.rule, {index_q, index_k, q, k, v, sinks});
    });
    return all;
}

class ParallelDecode : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(ParallelDecode);

TEST_P(ParallelDecode, HasTheIdsOfOneRank) {
    std::vector<Case> all = divisible_cases(false);
    Problem p = square_problem(0, 8, 2, 32, 16, 16);
    p.batch = PackedBatch({0, 1}, {0, 3000});
    all.push_back({"longer", p, {.top_k = 16}});
    p.batch = PackedBatch({0, 8}, {0, 2999});
    all.push_back({"longer_of_8", p, {.top_k = 9, .forced_local = 2, .forced_first = 3}});
    for (const Case& c : all) {
        const Operands o = make_operands(c, GetParam().element);
        Runner one(GetParam());
        const Tensor<int32_t, 3> ids = one.index_select(c.problem, c.rule, o);
        const test::Attention want = reference().sparse_attention(c.problem, o, ids);
        for (int ranks : rank_counts(GetParam())) {
            const std::vector<DecodeOutput> got = decode_by(GetParam(), c, o, ranks);
            for (const DecodeOutput& rank : got) {
                EXPECT_TRUE(identical(rank.ids, ids)) << c << ", " << ranks << " ranks";
                EXPECT_TRUE(matches({copy_of(View<const float, 3>(rank.out)),
                                     copy_of(View<const float, 2>(rank.lse))},
                                    want, bounds(c.problem, o)))
                    << c << ", " << ranks << " ranks";
                EXPECT_TRUE(identical(rank.out, got[0].out)) << c << ", " << ranks << " ranks";
                EXPECT_TRUE(identical(rank.lse, got[0].lse)) << c << ", " << ranks << " ranks";
            }
        }
    }
}

/// e4m3 with scales; of 30 ranks the one of 25 blocks leaves some without keys.
TEST(ParallelDecode, HasTheIdsOfOneRankWithScales) {
    for (const char* name : {"reference", "cpu"})
        for (int64_t keys : {400, 2999}) {
            Problem p = square_problem(0, 8, 2, 32, 16, 16);
            p.batch = PackedBatch({0, 3}, {0, keys});
            const ScaledCase x = scaled_case({"scaled", p, {.top_k = 9}}, Element::f32);
            const std::unique_ptr<Backend> alone = make_backend(name);
            const ScaledAnswer one = scaled_answer_of_one<float>(*alone, x);
            const Operands floats = x.s.floats(p);
            const test::Attention want = reference().sparse_attention(p, floats, one.ids);
            const Bounds bounds = e4m3_bounds(p, floats, *alone, Element::f32);
            for (int ranks : {1, 3, 30}) {
                const SplitKeys split(p, ranks);
                parallel::run_group(ranks, [&](const parallel::Group& workers) {
                    const auto backend = backend_of_rank({name});
                    const ScaledPart part(*backend, split.of(workers.rank()), x);
                    const DecodeOutput got =
                        decode(workers, *backend, split, x.c.rule, part.input());
                    EXPECT_TRUE(identical(got.ids, one.ids)) << name << ", " << ranks << " ranks";
                    EXPECT_TRUE(matches({copy_of(View<const float, 3>(got.out)),
                                         copy_of(View<const float, 2>(got.lse))},
                                        want, bounds))
                        << name << ", " << ranks << " ranks";
                });
            }
        }
}

/// Blocks of two tokens, one query at the end of 12 blocks, one group.
SplitKeys small_split(int ranks) {
    Problem p = square_problem(0, 1, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 1}, {0, 96});
    return {p, ranks};
}

std::vector<Candidate> candidates_of_all(const SplitKeys& split, const SelectionRule& rule,
                                         const std::vector<float>& scores) {
    std::vector<Candidate> all;
    for (int rank = 0; rank < split.ranks(); ++rank) {
        const KeyPart& part = split.of(rank);
        Tensor<float, 3> own({1, 1, part.blocks});
        std::copy_n(scores.begin() + part.first_block, part.blocks, own.data());
        const std::vector<Candidate> best = best_candidates(split, rank, rule, own);
        all.insert(all.end(), best.begin(), best.end());
    }
    return all;
}

TEST(Candidates, TiesAndForcedBlocksAndNaN) {
    //                                0  1  2  3  4   5           6  7  8  9  10 11
    const std::vector<float> scores = {9, 5, 5, 7, NAN, -kInfinity, 7, 5, 5, 1, 8, 99};
    for (int ranks : {1, 2, 3, 4, 12}) {
        const SplitKeys split = small_split(ranks);
        const auto ids = [&](const SelectionRule& rule) {
            const Tensor<int32_t, 3> row =
                pick_blocks(split, rule, candidates_of_all(split, rule, scores));
            return std::vector<int32_t>(row.data(), row.data() + row.size());
        };
        EXPECT_EQ(ids({.top_k = 4}), (std::vector<int32_t>{0, 3, 10, 11})) << ranks;
        // The two of score 7 go in together; of those with 5 the lowest.
        EXPECT_EQ(ids({.top_k = 6}), (std::vector<int32_t>{0, 1, 3, 6, 10, 11})) << ranks;
        EXPECT_EQ(ids({.top_k = 5, .forced_local = 2, .forced_first = 2}),
                  (std::vector<int32_t>{0, 1, 3, 10, 11}))
            << ranks;
        // Neither NaN nor -inf is a candidate.
        EXPECT_EQ(ids({.top_k = 12}),
                  (std::vector<int32_t>{0, 1, 2, 3, 6, 7, 8, 9, 10, 11, -1, -1}))
            << ranks;
    }
}

TEST(Candidates, AreTheBestOfThePartWithTheirNumbers) {
    const SplitKeys split = small_split(2);
    const std::vector<Candidate> all =
        candidates_of_all(split, {.top_k = 3}, {1, 2, 3, 4, 4, 0, 7, 7, 6, 7, 5, 99});
    std::vector<int32_t> blocks;
    for (const Candidate& c : all) blocks.push_back(c.block);
    EXPECT_EQ(blocks, (std::vector<int32_t>{3, 4, 2, 6, 7, 9}));
    EXPECT_EQ(all[0].score, 4);
}

TEST(OwnBlocks, AreNumberedFromThePart) {
    const SplitKeys split = small_split(3);
    Tensor<int32_t, 3> ids({1, 1, 5});
    std::copy_n(std::array{0, 4, 7, 8, -1}.data(), 5, ids.data());
    const std::array<std::array<int32_t, 5>, 3> want{
        {{0, -1, -1, -1, -1}, {0, 3, -1, -1, -1}, {0, -1, -1, -1, -1}}};
    for (int rank = 0; rank < 3; ++rank) {
        const Tensor<int32_t, 3> own = own_blocks(split, rank, ids);
        EXPECT_TRUE(std::equal(want[static_cast<size_t>(rank)].begin(),
                               want[static_cast<size_t>(rank)].end(), own.data()))
            << rank;
    }
}

TEST(MergeParts, WeighsByTheirSums) {
    // Four heads of one channel: 3 parts to 1, one part alone, no part, NaN.
    const std::vector<float> outs{1, 5, 0, 1, 9, 0, 0, 2};
    const std::vector<float> lses{std::log(3.0F), 2, -kInfinity, 1, 0, -kInfinity, -kInfinity, NAN};
    Tensor<float, 3> out({1, 4, 1});
    Tensor<float, 2> lse({1, 4});
    merge_parts(2, outs, lses, out, lse);
    EXPECT_FLOAT_EQ(out(0, 0, 0), 3);  // (3 * 1 + 1 * 9) / 4
    EXPECT_FLOAT_EQ(lse(0, 0), std::log(4.0F));
    EXPECT_EQ(out(0, 1, 0), 5);
    EXPECT_EQ(lse(0, 1), 2);
    EXPECT_EQ(out(0, 2, 0), 0);
    EXPECT_EQ(lse(0, 2), -kInfinity);
    EXPECT_TRUE(std::isnan(out(0, 3, 0)));
    EXPECT_TRUE(std::isnan(lse(0, 3)));
}

}  // namespace
}  // namespace msa::parallel
